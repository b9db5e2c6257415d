"""decide(): which delivery a request gets. Pure and total; one table."""

from dataclasses import dataclass
from enum import Enum

from sidemount.model.errors import Reason


class PodSecurity(Enum):
    """The Pod Security level a namespace enforces."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFacts:
    """Everything of pod, namespace and cluster that a delivery depends on.

    `server_version` is (major, minor), (0, 0) when unknown. `runtime_class` is the pod's, `sandboxed` whether the admin lists it.
    `inline_csi_allowed`: the Pod Security level and CSIDriver label permit an inline CSI volume.
    """

    pod_security: PodSecurity = PodSecurity.PRIVILEGED
    host_users: bool = True
    runtime_class: str = ""
    sandboxed: bool = False
    windows: bool = False
    virtual_node: bool = False
    server_version: tuple[int, int] = (0, 0)
    csi_driver_present: bool = False
    inline_csi_allowed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """Delivered by an injected keeper and daemon."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Csi:
    """Delivered by the CSI node service."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Not delivered. `message` gives every delivery's own reason."""

    reason: Reason
    message: str
    hint: str = ""


Decision = Sidecar | Csi | Refuse
