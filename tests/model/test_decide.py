import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sidemount.model.decide import (
    Csi,
    Decision,
    DeliveryFacts,
    PodSecurity,
    Refuse,
    Sidecar,
    VolumeTraits,
    decide,
)
from sidemount.model.driver_class import Credentials, DriverClass
from sidemount.model.errors import Reason
from sidemount.model.selector import LabelSelector
from sidemount.model.volume_request import (
    AccessMode,
    Claim,
    Delivery,
    Existing,
    Origin,
    SourceUri,
    Unsupplied,
    VolumeRequest,
)

SIDECAR, CSI = Delivery.SIDECAR, Delivery.CSI
CLEAN = DeliveryFacts(csi_driver_present=True, server_version=(1, 33))
NO_CSI = replace(CLEAN, csi_driver_present=False)


def _class(*deliveries: Delivery) -> DriverClass:
    return DriverClass(
        name="data",
        deliveries=deliveries,
        sources=("s3://**",),
        namespaces=LabelSelector(),
        filesystem="objects",
    )


BUCKET = SourceUri("s3://b")


def _request(origin: Origin = BUCKET, delivery: Delivery | None = None) -> VolumeRequest:
    return VolumeRequest(name="train", origin=origin, where="here", delivery=delivery)


BOTH = _class(SIDECAR, CSI)

# What of the facts stands in whose way (design §5).
OBSTACLES = [
    pytest.param({"pod_security": PodSecurity.BASELINE}, {SIDECAR: Reason.POD_SECURITY}, id="baseline"),
    pytest.param(
        {"pod_security": PodSecurity.RESTRICTED}, {SIDECAR: Reason.POD_SECURITY}, id="restricted (S3-11)"
    ),
    pytest.param(
        {"host_users": False},
        {SIDECAR: Reason.USER_NAMESPACE, CSI: Reason.USER_NAMESPACE},
        id="user namespace",
    ),
    pytest.param(
        {"sandboxed": True, "runtime_class": "gvisor"},
        {SIDECAR: Reason.SANDBOXED_RUNTIME},
        id="sandbox (S0-17)",
    ),
    pytest.param({"server_version": (1, 28)}, {SIDECAR: Reason.OLD_CLUSTER}, id="old cluster (istio#52245)"),
    pytest.param({"windows": True}, {SIDECAR: Reason.WINDOWS, CSI: Reason.WINDOWS}, id="windows (dapr#842)"),
    pytest.param(
        {"virtual_node": True}, {SIDECAR: Reason.VIRTUAL_NODE, CSI: Reason.VIRTUAL_NODE}, id="virtual node"
    ),
    pytest.param({"csi_driver_present": False}, {CSI: Reason.NO_NODE_PLUGIN}, id="no node plugin"),
    pytest.param(
        {"inline_csi_offered": False}, {CSI: Reason.NO_INLINE_VOLUMES}, id="no volumes that a pod declares"
    ),
    pytest.param({"inline_csi_allowed": False}, {CSI: Reason.POD_SECURITY}, id="inline volumes forbidden"),
]


@pytest.mark.parametrize(("changes", "hindered"), OBSTACLES)
def test_each_obstacle_turns_to_the_other_delivery_or_refuses(
    changes: dict[str, object], hindered: dict[Delivery, Reason]
) -> None:
    facts = replace(CLEAN, **changes)  # type: ignore[arg-type]  # names and types are the table's
    for first, second, kind, fallback in (
        (SIDECAR, CSI, Csi, Reason.CSI_FALLBACK),
        (CSI, SIDECAR, Sidecar, Reason.SIDECAR_FALLBACK),
    ):
        decision = decide(_request(), _class(first, second), facts)
        if first in hindered and second in hindered:
            assert isinstance(decision, Refuse)
            assert decision.reason is Reason.NO_DELIVERY
        elif first in hindered:
            assert isinstance(decision, kind)
            assert decision.reason is fallback
        if first in hindered:
            assert hindered[first].value in decision.message
        else:
            assert not isinstance(decision, kind | Refuse)


@pytest.mark.parametrize(
    ("request_", "driver_class", "facts", "kind", "reason"),
    [
        pytest.param(_request(), BOTH, CLEAN, Sidecar, Reason.SIDECAR_PREFERRED, id="first of the class"),
        pytest.param(
            _request(), _class(CSI, SIDECAR), CLEAN, Csi, Reason.CSI_PREFERRED, id="first of the class is csi"
        ),
        pytest.param(_request(delivery=CSI), BOTH, CLEAN, Csi, Reason.CSI_REQUESTED, id="csi asked for"),
        pytest.param(
            _request(delivery=SIDECAR),
            _class(CSI, SIDECAR),
            CLEAN,
            Sidecar,
            Reason.SIDECAR_REQUESTED,
            id="sidecar asked for (G#351)",
        ),
        pytest.param(
            _request(delivery=CSI), BOTH, NO_CSI, Refuse, Reason.NO_DELIVERY, id="csi asked for and absent"
        ),
        pytest.param(
            _request(delivery=CSI),
            _class(SIDECAR),
            CLEAN,
            Refuse,
            Reason.NO_DELIVERY,
            id="csi asked for, not of the class",
        ),
        pytest.param(_request(), _class(), CLEAN, Refuse, Reason.CLASS_OFF, id="class off (S0-02)"),
        pytest.param(
            _request(delivery=CSI),
            _class(),
            CLEAN,
            Refuse,
            Reason.CLASS_OFF,
            id="class off, whatever is asked",
        ),
        pytest.param(
            _request(Claim("c", implicit=True)),
            _class(CSI),
            CLEAN,
            Csi,
            Reason.LEFT_TO_CSI,
            id="the pod's own claim",
        ),
        pytest.param(
            _request(Claim("c")), _class(CSI), CLEAN, Csi, Reason.CSI_PREFERRED, id="a claim asked for"
        ),
        pytest.param(
            _request(Claim("c")),
            _class(CSI),
            replace(CLEAN, inline_csi_allowed=False),
            Csi,
            Reason.CSI_PREFERRED,
            id="a claim is no inline volume",
        ),
        pytest.param(
            _request(Claim("c")),
            _class(CSI),
            replace(CLEAN, host_users=False),
            Csi,
            Reason.CSI_PREFERRED,
            id="a claim is the kubelet's",
        ),
        pytest.param(
            _request(),
            BOTH,
            replace(CLEAN, server_version=(0, 0)),
            Sidecar,
            Reason.SIDECAR_PREFERRED,
            id="unknown version",
        ),
        pytest.param(
            _request(),
            BOTH,
            replace(CLEAN, server_version=(1, 29)),
            Sidecar,
            Reason.SIDECAR_PREFERRED,
            id="first version with native sidecars",
        ),
        pytest.param(
            _request(),
            BOTH,
            replace(CLEAN, server_version=(2, 0)),
            Sidecar,
            Reason.SIDECAR_PREFERRED,
            id="next major version",
        ),
    ],
)
def test_choices_and_refusals_have_a_stable_reason(
    request_: VolumeRequest,
    driver_class: DriverClass,
    facts: DeliveryFacts,
    kind: type[Decision],
    reason: Reason,
) -> None:
    decision = decide(request_, driver_class, facts)
    assert isinstance(decision, kind)
    assert decision.reason is reason
    assert '"train"' in decision.message


def test_a_refusal_gives_every_deliverys_own_reasons_and_a_way_out() -> None:
    facts = replace(NO_CSI, pod_security=PodSecurity.RESTRICTED, host_users=False, server_version=(1, 27))
    decision = decide(_request(), BOTH, facts)
    assert isinstance(decision, Refuse)
    assert decision.message == (
        'volume "train" cannot be delivered. '
        "sidecar: the namespace enforces Pod Security restricted, which forbids the keeper's privilege (PodSecurity), "
        "the pod has its own user namespace (hostUsers: false), in which a mount cannot be shared with it (UserNamespace), "
        "the cluster is 1.27, native sidecars need 1.29 (OldCluster); "
        "csi: the pod has its own user namespace (hostUsers: false), for which its runtime maps the ids of every mount, "
        "and the kernel refuses that of a FUSE mount (UserNamespace), the cluster has no CSIDriver csi.sidemount.io (NoNodePlugin)"
    )
    assert "install the node plugin" in decision.hint


CREDENTIALS = replace(BOTH, credentials=Credentials(secret_keys=("key",)))
CLIENT = replace(BOTH, filesystem="", image="i", command=("c", "${mountpoint}"))
EXISTING = Existing(driver="d", handle="h", access_mode=AccessMode.READ_WRITE_MANY)


@pytest.mark.parametrize(
    ("request_", "driver_class", "traits", "hindered"),
    [
        pytest.param(_request(Claim("c")), BOTH, VolumeTraits(exclusive=True), {SIDECAR: Reason.EXCLUSIVE_CLAIM}, id="RWOP"),
        pytest.param(_request(SourceUri("pvc://c")), BOTH, VolumeTraits(source="pvc://c"), {CSI: Reason.SOURCE_NEEDS_SIDECAR}, id="pvc source"),
        pytest.param(_request(Claim("c")), CREDENTIALS, VolumeTraits(has_secret=True), {SIDECAR: Reason.VOLUME_CREDENTIALS}, id="credentials of the volume"),
        pytest.param(_request(EXISTING), CREDENTIALS, VolumeTraits(has_secret=True), {SIDECAR: Reason.VOLUME_CREDENTIALS, CSI: Reason.VOLUME_CREDENTIALS}, id="credentials of an existing volume"),
        pytest.param(_request(Claim("c")), BOTH, VolumeTraits(has_secret=True), {}, id="credentials that no client reads"),
        pytest.param(replace(_request(EXISTING), provisioned="v"), BOTH, VolumeTraits(), {CSI: Reason.PROVISIONED_ONLY}, id="a provisioned one by its handle"),
        pytest.param(replace(_request(Claim("c")), provisioned="v"), BOTH, VolumeTraits(), {}, id="a provisioned one by its claim"),
        pytest.param(replace(_request(), sub_path="a"), CLIENT, VolumeTraits(), {CSI: Reason.CLIENT_SUB_PATH}, id="sub-path of a client"),
        pytest.param(replace(_request(), sub_path="a"), BOTH, VolumeTraits(), {}, id="sub-path of our own"),
    ],
)  # fmt: skip
def test_what_the_volume_is_stands_in_the_way_too(
    request_: VolumeRequest,
    driver_class: DriverClass,
    traits: VolumeTraits,
    hindered: dict[Delivery, Reason],
) -> None:
    for delivery in (SIDECAR, CSI):
        decision = decide(request_, replace(driver_class, deliveries=(delivery,)), CLEAN, traits)
        if delivery in hindered:
            assert isinstance(decision, Refuse)
            assert f"({hindered[delivery].value})" in decision.message
        else:
            assert isinstance(decision, Sidecar if delivery is SIDECAR else Csi)


@pytest.mark.parametrize("carried", [SIDECAR, CSI])
@pytest.mark.parametrize("deliveries", list(itertools.permutations(Delivery)))
def test_what_a_pod_carries_stays_or_is_refused(carried: Delivery, deliveries: tuple[Delivery, ...]) -> None:
    traits = VolumeTraits(carried=carried)
    kind = Sidecar if carried is SIDECAR else Csi
    assert isinstance(decide(_request(), _class(*deliveries), CLEAN, traits), kind)
    gone = replace(NO_CSI, pod_security=PodSecurity.BASELINE)
    refused = decide(_request(), _class(*deliveries), gone, traits)
    assert isinstance(refused, Refuse)
    assert refused.message.startswith(f'volume "train" is carried by {carried.value} already')
    other = next(delivery for delivery in Delivery if delivery is not carried)
    assert isinstance(decide(_request(), _class(other), CLEAN, traits), Refuse)


def test_a_runtime_class_of_any_text_does_not_break_the_message() -> None:
    decision = decide(_request(), _class(SIDECAR), replace(CLEAN, sandboxed=True, runtime_class="{level}\n{"))
    assert isinstance(decision, Refuse)
    assert decision.message.isprintable()


ORIGINS: tuple[Origin, ...] = (
    SourceUri("s3://b"),
    Claim("c"),
    Claim("c", implicit=True),
    Existing(driver="d", handle="h", access_mode=AccessMode.READ_ONLY_MANY),
    Unsupplied(),
)
REQUESTS = tuple(_request(origin, delivery) for origin in ORIGINS for delivery in (None, SIDECAR, CSI))
CLASSES = tuple(_class(*deliveries) for n in range(3) for deliveries in itertools.permutations(Delivery, n))
# Every fact from no obstacle to an obstacle.
CHANGES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("pod_security", (PodSecurity.PRIVILEGED, PodSecurity.BASELINE, PodSecurity.RESTRICTED)),
    ("host_users", (True, False)),
    ("sandboxed", (False, True)),
    ("windows", (False, True)),
    ("virtual_node", (False, True)),
    ("server_version", ((1, 29), (1, 28))),
    ("csi_driver_present", (True, False)),
    ("inline_csi_offered", (True, False)),
    ("inline_csi_allowed", (True, False)),
)


def _all_facts() -> Iterator[tuple[tuple[int, ...], DeliveryFacts]]:
    for steps in itertools.product(*(range(len(values)) for _, values in CHANGES)):
        chosen = {name: values[step] for (name, values), step in zip(CHANGES, steps, strict=True)}
        yield steps, DeliveryFacts(**chosen)  # type: ignore[arg-type]  # names and types are the table's


def test_it_is_total_deterministic_and_an_obstacle_never_helps() -> None:
    """Over the full product of facts, classes and requests."""
    everything = list(_all_facts())
    assert len(everything) == 768
    for request, driver_class in itertools.product(REQUESTS, CLASSES):
        decided: dict[tuple[int, ...], Decision] = {}
        for steps, facts in everything:
            decision = decide(request, driver_class, facts)
            assert decision.message.isprintable()
            decided[steps] = decision
            match decision:
                case Sidecar():
                    assert SIDECAR in driver_class.deliveries
                    assert request.delivery is not CSI
                    assert steps[:6] == (0,) * 6
                case Csi():
                    assert CSI in driver_class.deliveries
                    assert request.delivery is not SIDECAR
                    assert facts.csi_driver_present
                    assert not facts.windows
                case Refuse():
                    assert decision.reason in (Reason.NO_DELIVERY, Reason.CLASS_OFF)
        for steps, decision in decided.items():
            if not isinstance(decision, Refuse):
                continue
            for i, (_, values) in enumerate(CHANGES):
                if steps[i] + 1 < len(values):
                    worse = (*steps[:i], steps[i] + 1, *steps[i + 1 :])
                    assert isinstance(decided[worse], Refuse)


def test_the_same_question_has_the_same_answer() -> None:
    """S0-02."""
    for _, facts in _all_facts():
        assert decide(_request(), BOTH, facts) == decide(_request(), BOTH, facts)
