"""Security contexts of our containers: all explicit, so that nothing of the pod's own securityContext is inherited.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#security-context
"""

import re
from typing import Any

from sidemount.model.daemon_container import daemon_security
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import InvalidRequest, shown
from webhook.pod import SeLinux
from webhook.shape import PodShape

_SELINUX_PART = re.compile(r"[A-Za-z0-9_.:,-]*\Z")


def keeper_context(shape: PodShape) -> dict[str, Any]:
    """Return the keeper's: privileged, uid 0, read-only root."""
    context: dict[str, Any] = {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "runAsUser": 0,
    }
    # A runtime gives a privileged container no confinement, except what the pod names for all of its containers.
    if shape.security.seccomp_profile is not None:
        context["seccompProfile"] = {"type": "Unconfined"}
    return {**context, **_mandatory(shape, selinux_type="spc_t", app_armor="Unconfined")}


def daemon_context(driver_class: DriverClass, shape: PodShape) -> dict[str, Any]:
    """Return a daemon's: no privilege, no capability beyond its class's; privileged if its client must mount by itself."""
    if not driver_class.abilities.descriptor:
        return keeper_context(shape)
    context = daemon_security(driver_class.uid, driver_class.capabilities)
    return {**context, **_mandatory(shape, selinux_type="container_t", app_armor="RuntimeDefault")}


def selinux_context(shape: PodShape, driver_class: DriverClass) -> str:
    """Return the label that a FUSE mount carries so that the pod's confined containers may use it; "" without SELinux.

    Raises InvalidRequest on options that could not stand in a label.
    """
    options = shape.security.se_linux_options
    if options is None:
        return ""
    for name, part in (("user", options.user), ("level", options.level)):
        if not _SELINUX_PART.match(part):
            raise InvalidRequest(
                f"spec.securityContext.seLinuxOptions.{name} {shown(part)} cannot stand in an SELinux label",
                hint='write it as in "s0:c123,c456"',
            )
    return f"{options.user or 'system_u'}:object_r:{driver_class.selinux_type}:{options.level or 's0'}"


def _mandatory(shape: PodShape, *, selinux_type: str, app_armor: str) -> dict[str, Any]:
    """Return the fields that matter only where the pod sets them for all of its containers."""
    context: dict[str, Any] = {}
    if shape.security.app_armor_profile is not None:
        context["appArmorProfile"] = {"type": app_armor}
    if shape.security.se_linux_options is not None:
        context["seLinuxOptions"] = _with_type(shape.security.se_linux_options, selinux_type)
    return context


def _with_type(options: SeLinux, selinux_type: str) -> dict[str, str]:
    own = {"user": options.user, "type": selinux_type, "level": options.level}
    return {key: value for key, value in own.items() if value}
