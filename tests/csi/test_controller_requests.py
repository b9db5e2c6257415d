"""What the controller decides: ids, sizes, parameters, what is the same volume. No effects."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi.controller_listing import after_token, page_length, token_of
from csi.faults import BeyondRange
from csi.proto import csi_pb2
from csi.provision_plan import check_content_fits, check_same, plan_volume
from csi.provision_request import CapacityRange, parse_create, parse_snapshot
from csi.volume_ids import id_of_name, is_id
from csi.volume_intents import decode_plan, encode_plan, unfinished_kind, unfinished_name
from csi.volume_state import (
    Content,
    Kind,
    SnapshotState,
    VolumeState,
    decode_snapshot,
    decode_volume,
    encode_snapshot,
    encode_volume,
)
from sidemount.host.facts_manifests import parse_fact
from sidemount.host.facts_snapshot import FactsSnapshot, index_facts
from sidemount.host.facts_text import parse_manifests
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import (
    BadMessage,
    InvalidRequest,
    OperationPending,
    PolicyDenied,
    PublishConflict,
    UnknownDriverClass,
    VolumeError,
)
from tests.csi.controlled import POOL_CLASS, capability
from tests.csi.plugin import CLASSES

MIB = 1 << 20
FAST: dict[str, Any] = {"class": "fast"}
POOL, OTHER = "/srv/pool", "/srv/other"


def _facts(*classes: str) -> FactsSnapshot:
    facts = []
    for manifest in parse_manifests("---".join(classes), is_json=False):
        fact = parse_fact(manifest)
        assert isinstance(fact, DriverClass)
        facts.append(fact)
    return index_facts(facts, (), 1)


FACTS = _facts(CLASSES, POOL_CLASS.format(name="pooled", pool=POOL))


def _create(name: str = "pvc-1", size: int = MIB, **changes: Any) -> csi_pb2.CreateVolumeRequest:
    given: dict[str, Any] = {
        "name": name,
        "capacity_range": csi_pb2.CapacityRange(required_bytes=size),
        "volume_capabilities": [capability()],
        **changes,
    }
    return csi_pb2.CreateVolumeRequest(**given)


# Ids (S4-22) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("pvc-0b9ab6e2-24c4-4f0b-9d1e-0e6ad6d05e0f", True),
        ("snapshot-0b9ab6e2-24c4-4f0b-9d1e-0e6ad6d05e0f", True),
        ("v" * 48, True),
        ("v" * 49, False),
        ("substrate-0b9ab6e2-24c4-4f0b-9d1e-0e6ad6d05e0f-data", False),
        ("csi-" + "0" * 40, False),
        ("csi-" + "0" * 39, True),
        ("..", False),
        (".hidden", False),
        ("a/b", False),
        ("-flag", False),
        ("wörld", False),
        ("a b", False),
        ("a\n", False),
    ],
)
def test_a_name_is_its_own_id_if_it_can_be(name: str, is_kept: bool) -> None:
    assert (id_of_name(name) == name) is is_kept


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_every_id_is_a_component_of_a_path_and_of_one_name(first: str, second: str) -> None:
    for name in (first, second):
        id_ = id_of_name(name)
        assert is_id(id_)
        assert id_ not in (".", "..")
        assert "/" not in id_
    assert (id_of_name(first) == id_of_name(second)) is (first == second)
    assert id_of_name(first) != id_of_name(id_of_name(first)) or id_of_name(first) == first


# Requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "kind", "told"),
    [
        pytest.param(_create(""), InvalidRequest, "name is missing", id="no name"),
        pytest.param(_create("n" * 129), InvalidRequest, "128 bytes", id="long name"),
        pytest.param(_create("ü" * 65), InvalidRequest, "128 bytes", id="long unicode name"),
        pytest.param(_create("a\x07"), InvalidRequest, "U+0007", id="control character"),
        pytest.param(_create("a\x85"), InvalidRequest, "U+0085", id="later control character"),
        pytest.param(_create(volume_capabilities=[]), InvalidRequest, "missing", id="no capability"),
        pytest.param(
            _create(volume_capabilities=[csi_pb2.VolumeCapability()]),
            InvalidRequest,
            "access_type",
            id="no access type",
        ),
        pytest.param(
            _create(volume_capabilities=[capability(0)]), InvalidRequest, "access_mode", id="no mode"
        ),
        pytest.param(_create(size=-1), InvalidRequest, "negative", id="negative"),
        pytest.param(
            _create(capacity_range=csi_pb2.CapacityRange(limit_bytes=-5)),
            InvalidRequest,
            "negative",
            id="negative limit",
        ),
        pytest.param(
            _create(capacity_range=csi_pb2.CapacityRange(required_bytes=2, limit_bytes=1)),
            BeyondRange,
            "more than limit_bytes",
            id="contradiction",
        ),
        pytest.param(_create(size=(1 << 63) - 1), BeyondRange, "any volume", id="too large"),
        pytest.param(
            _create(mutable_parameters={"iops": "1"}), InvalidRequest, "mutable_parameters", id="mutable"
        ),
        pytest.param(
            _create(volume_content_source=csi_pb2.VolumeContentSource()),
            InvalidRequest,
            "volume_content_source",
            id="source of no kind",
        ),
    ],
)
def test_a_create_that_is_refused(
    request_: csi_pb2.CreateVolumeRequest, kind: type[VolumeError], told: str
) -> None:
    with pytest.raises(kind, match=told.replace("+", r"\+")):
        parse_create(request_)


def test_block_is_refused() -> None:
    """S4-04."""
    request = _create()
    request.volume_capabilities[0].block.SetInParent()
    with pytest.raises(InvalidRequest, match="block is not supported"):
        parse_create(request)


def test_names_may_hold_what_csi_allows() -> None:
    for name in ("a\tb", "a\nb", "名前", "x" * 128, "💾"):
        assert parse_create(_create(name)).name == name


def test_a_snapshot_has_no_parameters_but_the_co_s() -> None:
    request = csi_pb2.CreateSnapshotRequest(name="s", source_volume_id="v")
    request.parameters["csi.storage.k8s.io/volumesnapshot/name"] = "mine"
    assert parse_snapshot(request).source_volume_id == "v"
    request.parameters["compress"] = "true"
    with pytest.raises(InvalidRequest, match='"compress" is not known'):
        parse_snapshot(request)


# Plans -----------------------------------------------------------------------------------------------


def _plan(facts: Any = FACTS, pools: tuple[str, ...] = (POOL,), **parameters: Any) -> Any:
    return plan_volume(parse_create(_create(parameters=parameters)), facts, pools)


def test_without_parameters_the_only_class_and_pool_are_taken() -> None:
    plan = _plan()
    assert (plan.pool, plan.limit_bytes, plan.capacity_bytes, plan.mode) == (POOL, MIB, MIB, 0o777)
    assert plan.context == {"class": "pooled", "source": f"dir://{POOL}", "volume": "pvc-1"}


def test_with_several_the_error_names_the_choices() -> None:
    facts = _facts(
        POOL_CLASS.format(name="pooled", pool=POOL),
        POOL_CLASS.format(name="fast", pool=OTHER),
    )
    with pytest.raises(InvalidRequest) as refused:
        _plan(facts, (POOL, OTHER))
    for told in ("pooled", "fast", POOL, OTHER):
        assert told in str(refused.value)
    assert _plan(facts, (POOL, OTHER), **FAST).pool == OTHER
    assert _plan(facts, (POOL, OTHER), source=f"dir://{POOL}").context["class"] == "pooled"


@pytest.mark.parametrize(
    ("parameters", "kind", "told"),
    [
        pytest.param({"klass": "pooled"}, InvalidRequest, '"klass" is not known', id="unknown key"),
        pytest.param({"endpoint": "http://evil"}, InvalidRequest, '"endpoint"', id="an endpoint"),
        pytest.param({"volume": "other"}, InvalidRequest, '"volume"', id="another volume"),
        pytest.param({"readOnly": "true"}, InvalidRequest, '"readOnly"', id="read-only"),
        pytest.param({"secret": "s"}, InvalidRequest, '"secret"', id="a secret"),
        pytest.param({"class": "none"}, UnknownDriverClass, '"none"', id="unknown class"),
        pytest.param({"class": "directory"}, PolicyDenied, "provisions no volumes", id="another class"),
        pytest.param({"source": "dir:///etc"}, InvalidRequest, "no pool", id="no pool of ours"),
        pytest.param({"source": f"dir://{POOL}/../x"}, InvalidRequest, "no pool", id="dots"),
        pytest.param({"subPath": "../x"}, InvalidRequest, "subPath", id="sub-path"),
        pytest.param({"subPath": "/x"}, InvalidRequest, "subPath", id="absolute sub-path"),
        pytest.param({"subPath": "x" * 256}, InvalidRequest, "subPath", id="long component"),
        pytest.param({"enforceCapacity": "True"}, InvalidRequest, "enforceCapacity", id="boolean"),
        pytest.param({"enforceCapacity": ""}, InvalidRequest, "enforceCapacity", id="empty boolean"),
        pytest.param({"directoryMode": "rwx"}, InvalidRequest, "directoryMode", id="mode"),
        pytest.param({"directoryMode": "0o777"}, InvalidRequest, "directoryMode", id="python's mode"),
        pytest.param({"attributeTimeout": "soon"}, InvalidRequest, "attributeTimeout", id="option"),
        pytest.param({"attributeTimeout": "2h"}, InvalidRequest, "attributeTimeout", id="beyond the class"),
    ],
)
def test_parameters_that_are_refused(parameters: dict[str, Any], kind: type[VolumeError], told: str) -> None:
    """S4-10."""
    with pytest.raises(kind) as refused:
        _plan(**parameters)
    assert told in str(refused.value)


def test_the_co_s_own_parameters_are_tolerated_and_kept_out() -> None:
    """S4-10."""
    keys: dict[str, Any] = {"csi.storage.k8s.io/pvc/name": "mine", "storage.kubernetes.io/x": "y"}
    plan = _plan(**keys)
    assert plan.parameters == {}
    assert set(plan.context) == {"class", "source", "volume"}


def test_options_and_sub_path_reach_the_context() -> None:
    plan = _plan(subPath="a/b", attributeTimeout="5s", enforceCapacity="false")
    assert plan.context["subPath"] == "a/b"
    assert plan.context["attributeTimeout"] == "5s"
    assert "enforceCapacity" not in plan.context
    assert (plan.limit_bytes, plan.capacity_bytes) == (0, MIB)


@pytest.mark.parametrize(
    ("flag", "is_fine"),
    [
        ("ro", True),
        ("attributeTimeout=5s", True),
        ("attributeTimeout", False),
        ("ro=1", False),
        ("ro,allow_other", False),
        ("--allow-root", False),
        ("attributeTimeout=5s=6s", False),
        (" ro", False),
        ("RO", False),
        ("endpoint=http://evil", False),
    ],
)
def test_mount_options_are_the_class_s(flag: str, is_fine: bool) -> None:
    """S4-12, at create too."""
    request = _create()
    request.volume_capabilities[0].mount.mount_flags.append(flag)
    if is_fine:
        plan_volume(parse_create(request), FACTS, (POOL,))
    else:
        with pytest.raises(VolumeError, match="mount"):
            plan_volume(parse_create(request), FACTS, (POOL,))


def test_without_pools_or_classes_the_reason_is_told() -> None:
    with pytest.raises(PolicyDenied, match="provisions: true"):
        _plan(_facts(CLASSES))
    with pytest.raises(PolicyDenied, match="no pool"):
        _plan(FACTS, ())
    with pytest.raises(PolicyDenied, match="serves dir:///srv/other"):
        _plan(FACTS, (OTHER,))


# Sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("required", "limit", "wanted"), [(5, 0, 5), (0, 7, 7), (5, 7, 5), (0, 0, 0)])
def test_the_quota_is_what_is_required_or_else_the_limit(required: int, limit: int, wanted: int) -> None:
    """S4-13."""
    assert CapacityRange(required, limit).wanted_bytes == wanted


def test_a_copy_needs_room_for_what_it_is_a_copy_of() -> None:
    """S4-16."""
    content = Content(kind=Kind.SNAPSHOT, id="s")
    check_content_fits(content, 5, 5)
    check_content_fits(content, 5, 0)
    with pytest.raises(BeyondRange):
        check_content_fits(content, 6, 5)


# The same volume -------------------------------------------------------------------------------------


def test_the_same_request_finds_its_volume_and_another_does_not() -> None:
    """S4-21."""
    request = parse_create(_create(parameters={"subPath": "a"}))
    found = plan_volume(request, FACTS, (POOL,)).state(1)
    check_same(request, found)
    check_same(request, replace(found, capacity_bytes=4 * MIB))  # expanded since
    content = Content(kind=Kind.VOLUME, id="x")
    for other in (
        replace(request, capacity=CapacityRange(2 * MIB, 0)),
        replace(request, capacity=CapacityRange(1, 2)),
        replace(request, parameters={}),
        replace(request, parameters={"subPath": "b"}),
        replace(request, content=content),
        replace(request, name="another with the same id"),
    ):
        with pytest.raises(PublishConflict, match="is there already"):
            check_same(other, found)
    with pytest.raises(PublishConflict, match="made from volume x"):
        check_same(request, replace(found, content=content))


# What is written down --------------------------------------------------------------------------------

_TEXTS = st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4)
_SIZES = st.integers(0, 1 << 60)


@given(
    name=st.text(max_size=40),
    sizes=st.tuples(_SIZES, _SIZES, _SIZES),
    parameters=_TEXTS,
    context=_TEXTS,
    content=st.none() | st.builds(Content, kind=st.sampled_from(Kind), id=st.text(max_size=20)),
)
def test_volumes_survive_being_written(
    name: str, sizes: tuple[int, int, int], parameters: Any, context: Any, content: Content | None
) -> None:
    state = VolumeState(
        id="v",
        name=name,
        pool=POOL,
        capacity_bytes=sizes[0],
        limit_bytes=sizes[1],
        parameters=parameters,
        context=context,
        content=content,
        created_ns=sizes[2],
    )
    assert decode_volume(encode_volume(state), POOL) == state


@given(st.text(max_size=40), st.text(max_size=40), _SIZES, _SIZES)
def test_snapshots_survive_being_written(name: str, source: str, size: int, created: int) -> None:
    state = SnapshotState(
        id="s", name=name, pool=POOL, source_volume_id=source, size_bytes=size, created_ns=created
    )
    assert decode_snapshot(encode_snapshot(state), POOL) == state


@given(st.text(max_size=60))
def test_what_is_no_record_is_told_so(text: str) -> None:
    for decode in (decode_volume, decode_snapshot):
        with pytest.raises(BadMessage):
            decode(text, POOL)


def test_a_plan_survives_being_written() -> None:
    plan = replace(
        _plan(subPath="a", attributeTimeout="5s"),
        content=Content(kind=Kind.SNAPSHOT, id="s"),
        source_pool=OTHER,
    )
    assert decode_plan(encode_plan(plan), POOL) == plan
    assert decode_plan("{}", POOL) is None
    assert decode_plan("", POOL) is None


def test_what_is_unfinished_is_known_by_its_name() -> None:
    for kind in Kind:
        assert unfinished_kind(unfinished_name(kind, "a-b.c")) == (kind, "a-b.c")
    for name in ("locks", "gone-volume-x-00", "volume-", "volume-../x", "lost+found"):
        assert unfinished_kind(name) is None


# Pages -----------------------------------------------------------------------------------------------


def test_a_page_goes_on_after_what_was_told_though_that_is_gone() -> None:
    places = [("a", POOL), ("c", POOL), ("d", POOL)]
    assert after_token(places, "") == places
    assert after_token(places, token_of("b")) == places[1:]
    assert after_token(places, token_of("d")) == []


@pytest.mark.parametrize("token", ["x", "after-", "after-../..", "5", "\0", "after"])
def test_a_token_of_nobody_s_is_refused(token: str) -> None:
    with pytest.raises(OperationPending, match="starting_token"):
        after_token([], token)


@given(st.lists(st.integers(1, 4 << 20), max_size=30), st.integers(0, 40))
def test_a_page_is_as_long_as_asked_and_fits_an_answer(sizes: list[int], most: int) -> None:
    count = page_length(sizes, most)
    assert (count == 0) is (not sizes)
    assert not most or count <= most
    assert count <= 1 or sum(sizes[:count]) <= 3 << 20
    if count < len(sizes) and count != most:
        assert sum(sizes[: count + 1]) > 3 << 20
