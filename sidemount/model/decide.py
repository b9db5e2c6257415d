"""decide(): which delivery a request gets. Pure and total; one table."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import Reason, shown
from sidemount.model.volume_request import Claim, Delivery, VolumeRequest


class PodSecurity(Enum):
    """The Pod Security level a namespace enforces."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFacts:
    """Everything of pod, namespace and cluster that a delivery depends on.

    `server_version` is (major, minor) of the oldest node that the pod may land on, (0, 0) when unknown; `old_node` names it where
    it is too old. `runtime_class` is the pod's, `sandboxed` whether the admin lists it.
    `inline_csi_offered`: our CSIDriver lets pods declare its volumes inline. `inline_csi_allowed`: the Pod Security level and the
    CSIDriver's label permit that.
    """

    pod_security: PodSecurity = PodSecurity.PRIVILEGED
    host_users: bool = True
    runtime_class: str = ""
    sandboxed: bool = False
    windows: bool = False
    virtual_node: bool = False
    server_version: tuple[int, int] = (0, 0)
    old_node: str = ""
    csi_driver_present: bool = False
    inline_csi_offered: bool = True
    inline_csi_allowed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeTraits:
    """What a delivery depends on of the volume beside its request.

    `source` is its URI. `exclusive`: its PersistentVolume is ReadWriteOncePod. `has_secret`: its PersistentVolume names credentials
    that the kubelet reads, and the request none. `carried` is how the pod carries it already, None
    for not yet: that stays.
    """

    source: str = ""
    exclusive: bool = False
    has_secret: bool = False
    carried: Delivery | None = None


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

NATIVE_SIDECARS_SINCE = (1, 29)


@dataclass(frozen=True, slots=True)
class _Question:
    request: VolumeRequest
    driver_class: DriverClass
    facts: DeliveryFacts
    traits: VolumeTraits

    @property
    def is_claim(self) -> bool:
        return isinstance(self.request.origin, Claim)


_Predicate = Callable[[_Question], bool]


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """One row: when it holds, the delivery cannot be had. `{…}` in the sentence is filled from the facts."""

    delivery: Delivery
    holds: _Predicate
    reason: Reason
    sentence: str
    way_out: str


def _is_old(question: _Question) -> bool:
    return (0, 0) != question.facts.server_version < NATIVE_SIDECARS_SINCE


# Everything that can stand in a delivery's way, most telling first. A claim is left as the pod's own PersistentVolumeClaim,
# so Pod Security's rule about inline CSI volumes does not concern it.
_OBSTACLES: tuple[_Obstacle, ...] = (
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: Delivery.SIDECAR not in q.driver_class.deliveries,
        Reason.NOT_IN_CLASS,
        "the class does not offer it",
        "",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.request.delivery is Delivery.CSI,
        Reason.CSI_REQUESTED,
        "the request asks for csi",
        "drop the delivery field",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.facts.windows,
        Reason.WINDOWS,
        "FUSE needs Linux and the pod is for Windows",
        "",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.facts.virtual_node,
        Reason.VIRTUAL_NODE,
        "the pod is for a virtual node, which allows no privileged container",
        "let the pod run on an ordinary node",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.facts.pod_security is not PodSecurity.PRIVILEGED,
        Reason.POD_SECURITY,
        "the namespace enforces Pod Security {level}, which forbids the keeper's privilege",
        "use a namespace that enforces privileged",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: not q.facts.host_users,
        Reason.USER_NAMESPACE,
        "the pod has its own user namespace (hostUsers: false), in which a mount cannot be shared with it",
        "drop hostUsers: false",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.facts.sandboxed,
        Reason.SANDBOXED_RUNTIME,
        "its runtime class {runtime_class} is a sandbox, whose containers share no kernel mount",
        "use an ordinary runtime class",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        _is_old,
        Reason.OLD_CLUSTER,
        "{old_node} is {version}, native sidecars need 1.29",
        "upgrade or cordon the node, or keep the pod off it with a nodeSelector",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.traits.exclusive,
        Reason.EXCLUSIVE_CLAIM,
        "its PersistentVolume is ReadWriteOncePod, and only the kubelet sees to it that no second pod has it",
        "use a claim that is ReadWriteMany",
    ),
    _Obstacle(
        Delivery.SIDECAR,
        lambda q: q.traits.has_secret and bool(q.driver_class.credentials.secret_keys),
        Reason.VOLUME_CREDENTIALS,
        "its PersistentVolume names its credentials (nodePublishSecretRef), which only the kubelet reads",
        "name a Secret of the namespace in the field secret",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: Delivery.CSI not in q.driver_class.deliveries,
        Reason.NOT_IN_CLASS,
        "the class does not offer it",
        "",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: q.request.delivery is Delivery.SIDECAR,
        Reason.SIDECAR_REQUESTED,
        "the request asks for sidecar",
        "drop the delivery field",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: q.facts.windows,
        Reason.WINDOWS,
        "FUSE needs Linux and the pod is for Windows",
        "",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: q.facts.virtual_node,
        Reason.VIRTUAL_NODE,
        "the pod is for a virtual node, where no node plugin runs",
        "let the pod run on an ordinary node",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: not q.facts.host_users and not q.is_claim,
        Reason.USER_NAMESPACE,
        "the pod has its own user namespace (hostUsers: false), for which its runtime maps the ids of every mount, "
        "and the kernel refuses that of a FUSE mount",
        "drop hostUsers: false",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: not q.facts.csi_driver_present,
        Reason.NO_NODE_PLUGIN,
        "the cluster has no CSIDriver csi.sidemount.io",
        "have the admin install the node plugin",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: q.facts.csi_driver_present and not q.facts.inline_csi_offered and not q.is_claim,
        Reason.NO_INLINE_VOLUMES,
        "CSIDriver csi.sidemount.io has no volumeLifecycleModes Ephemeral, so no pod may declare its volumes",
        "have the admin install Sidemount's own CSIDriver",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: bool(q.request.provisioned) and not q.is_claim,
        Reason.PROVISIONED_ONLY,
        "the volume is a provisioned one, which CSI delivers to its claim alone",
        "use a PersistentVolumeClaim",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: q.traits.has_secret and bool(q.driver_class.credentials.secret_keys) and not q.is_claim,
        Reason.VOLUME_CREDENTIALS,
        "its PersistentVolume names its credentials (nodePublishSecretRef), which the kubelet reads for its claim alone",
        "name a Secret of the namespace in the field secret",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: q.traits.source.startswith("pvc://"),
        Reason.SOURCE_NEEDS_SIDECAR,
        "its source is a claim of this namespace, which only a sidecar can mount",
        "name the directory or server behind the claim",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: bool(q.driver_class.command and q.request.sub_path),
        Reason.CLIENT_SUB_PATH,
        "a client of its own serves no sub-path there",
        "name the sub-path in the source",
    ),
    _Obstacle(
        Delivery.CSI,
        lambda q: not q.facts.inline_csi_allowed and not q.is_claim,
        Reason.POD_SECURITY,
        "Pod Security {level} forbids inline volumes of our CSIDriver in this namespace",
        "use a PersistentVolumeClaim",
    ),
)

_REQUESTED = {Delivery.SIDECAR: Reason.SIDECAR_REQUESTED, Delivery.CSI: Reason.CSI_REQUESTED}
_PREFERRED = {Delivery.SIDECAR: Reason.SIDECAR_PREFERRED, Delivery.CSI: Reason.CSI_PREFERRED}
_FALLBACK = {Delivery.SIDECAR: Reason.SIDECAR_FALLBACK, Delivery.CSI: Reason.CSI_FALLBACK}


def decide(
    request: VolumeRequest,
    driver_class: DriverClass,
    facts: DeliveryFacts,
    traits: VolumeTraits = VolumeTraits(),
) -> Decision:
    """Take the first of the class's deliveries that the pod can have; refuse with every delivery's reason if none.

    What the pod carries already stays, or is refused: a pod is never carried over from one delivery to the other.
    """
    if not driver_class.deliveries:
        return Refuse(
            reason=Reason.CLASS_OFF,
            message=f"volume {shown(request.name)}: driver class {shown(driver_class.name)} is off",
            hint="ask the admin to give it deliveries, or name another class",
        )
    question = _Question(request, driver_class, facts, traits)
    hindrances = {
        delivery: [o for o in _OBSTACLES if o.delivery is delivery and o.holds(question)]
        for delivery in Delivery
    }
    carried = traits.carried
    if carried is not None and hindrances[carried]:
        return _refusal_of_carried(request, carried, facts, hindrances[carried])
    for delivery in driver_class.deliveries if carried is None else (carried,):
        if not hindrances[delivery]:
            return _choice(delivery, question, hindrances)
    return _refusal(request, facts, hindrances)


def _choice(
    delivery: Delivery, question: _Question, hindrances: dict[Delivery, list[_Obstacle]]
) -> Sidecar | Csi:
    request, driver_class, facts = question.request, question.driver_class, question.facts
    first = driver_class.deliveries[0]
    if delivery is Delivery.CSI and isinstance(request.origin, Claim) and request.origin.implicit:
        found = hindrances[Delivery.SIDECAR]
        told = f" (no sidecar: {_sentences(found, facts)})" if found else ""
        reason, why = Reason.LEFT_TO_CSI, f"the pod's own claim is left as it is{told}"
    elif request.delivery is delivery:
        reason, why = _REQUESTED[delivery], "as the request asks"
    elif delivery is first:
        reason, why = _PREFERRED[delivery], f"class {driver_class.name} prefers it"
    elif not hindrances[first]:
        reason, why = _FALLBACK[delivery], "the pod carries it so already"
    else:
        reason, why = _FALLBACK[delivery], f"no {first.value}: {_sentences(hindrances[first], facts)}"
    message = f"volume {shown(request.name)} is delivered by {delivery.value}: {why}"
    if delivery is Delivery.SIDECAR:
        return Sidecar(reason=reason, message=message)
    return Csi(reason=reason, message=message)


def _refusal_of_carried(
    request: VolumeRequest, carried: Delivery, facts: DeliveryFacts, found: list[_Obstacle]
) -> Refuse:
    ways = dict.fromkeys(o.way_out for o in found if o.way_out)
    return Refuse(
        reason=Reason.NO_DELIVERY,
        message=f"volume {shown(request.name)} is carried by {carried.value} already, which cannot be had: "
        f"{_sentences(found, facts)}",
        hint=" or ".join(ways) or "create the pod again, without what was injected",
    )


def _refusal(
    request: VolumeRequest, facts: DeliveryFacts, hindrances: dict[Delivery, list[_Obstacle]]
) -> Refuse:
    told = "; ".join(
        f"{delivery.value}: {_sentences(found, facts)}" for delivery, found in hindrances.items()
    )
    ways = dict.fromkeys(o.way_out for found in hindrances.values() for o in found if o.way_out)
    return Refuse(
        reason=Reason.NO_DELIVERY,
        message=f"volume {shown(request.name)} cannot be delivered. {told}",
        hint=" or ".join(ways),
    )


def _sentences(obstacles: list[_Obstacle], facts: DeliveryFacts) -> str:
    version = ".".join(str(part) for part in facts.server_version)
    old_node = f"node {shown(facts.old_node)}" if facts.old_node else "the cluster"
    filled = (
        o.sentence.format(
            level=facts.pod_security.value,
            runtime_class=shown(facts.runtime_class),
            version=version,
            old_node=old_node,
        )
        + f" ({o.reason.value})"
        for o in obstacles
    )
    return ", ".join(filled)
