import json
import time
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import Faults, InvalidRequest, Reason, VolumeError
from sidemount.model.requests import parse_annotations, parse_inject, parse_volume_context
from sidemount.model.volume_request import (
    AccessMode,
    Claim,
    Delivery,
    Existing,
    ResourceRequest,
    SourceUri,
    Unsupplied,
    VolumeRequest,
)

LIST = "sidemount.io/volumes"
SHORT = "volume.sidemount.io/"


def _one(annotations: dict[str, str]) -> VolumeRequest:
    (request,) = parse_annotations(annotations)
    return request


def _entry(**fields: Any) -> dict[str, str]:
    return {LIST: json.dumps([{"name": "train", "source": "s3://b", **fields}])}


def _faults(annotations: Any) -> list[str]:
    with pytest.raises(Faults) as raised:
        parse_annotations(annotations)
    return [str(fault) for fault in raised.value.faults]


def test_a_short_form_with_every_field() -> None:
    query = (
        "class=s3&readOnly=true&subPath=a%2Fb&secret=keys&delivery=csi&optional=false&region=eu&parallel=4"
    )
    assert _one({SHORT + "train": f"s3://datasets/imagenet?{query}"}) == VolumeRequest(
        name="train",
        where="",
        origin=SourceUri("s3://datasets/imagenet"),
        driver_class="s3",
        sub_path="a/b",
        read_only=True,
        options=(("parallel", "4"), ("region", "eu")),
        secret="keys",
        delivery=Delivery.CSI,
    )


LIST_FORM = """
- name: train
  class: s3
  source: s3://datasets/imagenet
  subPath: a/b
  readOnly: true
  options: {region: eu, parallel: 4, verbose: true}
  secret: keys
  mountPath: /data
  containers: [trainer, side]
  delivery: sidecar
  resources:
    requests: {cpu: 1, memory: 64Mi}
    limits: {cpu: "2"}
  optional: true
"""


def test_a_list_entry_with_every_field() -> None:
    assert _one({LIST: LIST_FORM}) == VolumeRequest(
        name="train",
        where="",
        origin=SourceUri("s3://datasets/imagenet"),
        driver_class="s3",
        sub_path="a/b",
        read_only=True,
        options=(("parallel", 4), ("region", "eu"), ("verbose", True)),
        secret="keys",
        mount_path="/data",
        containers=("trainer", "side"),
        delivery=Delivery.SIDECAR,
        resources=ResourceRequest(requests={"cpu": "1", "memory": "64Mi"}, limits={"cpu": "2"}),
    )


def test_yaml_and_json_and_any_order_are_one_thing() -> None:
    """S2-06: compared by value, so that reordering and white space are no change."""
    decoded = yaml.safe_load(LIST_FORM)
    other = {"name": "other", "source": "s3://x"}
    forward = json.dumps([*decoded, other])
    backward = yaml.safe_dump([other, *({k: e[k] for k in reversed(e)} for e in decoded)], sort_keys=False)
    assert parse_annotations({LIST: forward}) == parse_annotations({LIST: backward})


def test_the_three_spellings_agree() -> None:
    fields = {
        "class": "s3",
        "readOnly": "true",
        "subPath": "a/b",
        "secret": "keys",
        "delivery": "csi",
        "region": "eu",
    }
    query = "&".join(f"{key}={value}" for key, value in fields.items())
    short = _one({SHORT + "train": f"s3://b/x?{query}"})
    listed = _one(
        _entry(
            source="s3://b/x",
            subPath="a/b",
            readOnly=True,
            secret="keys",
            delivery="csi",
            options={"region": "eu"},
            **{"class": "s3"},
        )
    )
    assert short == listed == parse_volume_context("train", {"source": "s3://b/x", **fields})


def test_both_spellings_merge_sorted_by_name() -> None:
    requests = parse_annotations(
        {LIST: "[{name: b, source: s3://b}]", SHORT + "c": "s3://c", SHORT + "a": "s3://a", "other/x": "y"}
    )
    assert [r.name for r in requests] == ["a", "b", "c"]


def test_a_name_in_both_spellings_or_twice_in_the_list_is_an_error() -> None:
    assert "is there already" in _faults({SHORT + "a": "s3://a", LIST: "[{name: a, source: s3://a}]"})[0]
    (fault,) = _faults({LIST: "[{name: a, source: s3://a}, {name: a, source: s3://a}]"})
    assert "entry 2" in fault
    assert "entry 1" in fault


@pytest.mark.parametrize(
    ("fields", "origin"),
    [
        pytest.param({"source": "dir:///a"}, SourceUri("dir:///a"), id="source"),
        pytest.param({"claim": "data"}, Claim("data"), id="claim"),
        pytest.param(
            {"existing": {"driver": "csi.sidemount.io", "handle": "vol-1", "accessMode": "READ_WRITE_MANY"}},
            Existing(driver="csi.sidemount.io", handle="vol-1", access_mode=AccessMode.READ_WRITE_MANY),
            id="existing (S2-04)",
        ),
        pytest.param({"optional": True}, Unsupplied(), id="nothing (S2-16)"),
        pytest.param({"optional": True, "source": ""}, Unsupplied(), id="empty source"),
        pytest.param({"optional": True, "source": None, "claim": ""}, Unsupplied(), id="null source"),
        pytest.param({"optional": True, "claim": "data"}, Claim("data"), id="optional and supplied"),
    ],
)
def test_origins(fields: dict[str, Any], origin: Any) -> None:
    assert _one({LIST: json.dumps([{"name": "a", **fields}])}).origin == origin


@pytest.mark.parametrize("value", ["?optional=true", "?optional=true&readOnly=true"])
def test_a_short_form_may_be_left_unsupplied_too(value: str) -> None:
    assert _one({SHORT + "a": value}).origin == Unsupplied()


def test_a_read_only_reference_is_read_only() -> None:
    """S2-18."""
    existing = {"driver": "d", "handle": "h", "accessMode": "READ_ONLY_MANY"}
    assert _one({LIST: json.dumps([{"name": "a", "existing": existing}])}).read_only
    assert (
        "contradicts"
        in _faults({LIST: json.dumps([{"name": "a", "existing": existing, "readOnly": False}])})[0]
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"claas": "x"}, 'field "claas": is unknown; did you mean "class"?', id="unknown field"),
        pytest.param({"image": "evil"}, "only the admin's FuseDriverClass", id="image (S0-25)"),
        pytest.param({"command": ["sh"]}, "only the admin's FuseDriverClass", id="command (S0-25)"),
        pytest.param(
            {"readOnly": "true"}, 'field "readOnly": "true" is not a boolean', id="text for a boolean"
        ),
        pytest.param({"readOnly": 1}, "is not a boolean", id="number for a boolean"),
        pytest.param({"readOnly": []}, "is not a boolean", id="list for a boolean"),
        pytest.param({"optional": "yes"}, "is not a boolean", id="optional as text"),
        pytest.param({"subPath": "../x"}, 'component ".."', id="sub-path that leaves (S2-08)"),
        pytest.param({"subPath": 5}, "5 is not a text", id="sub-path as number"),
        pytest.param({"source": "bucket"}, "not a URI", id="no URI"),
        pytest.param({"source": 5}, "is not a text", id="source as number"),
        pytest.param({"source": "s3://b?region=eu"}, "query", id="query in the list form"),
        pytest.param({"claim": "x"}, "excludes source", id="two origins"),
        pytest.param({"source": None}, "is missing or empty", id="null source"),
        pytest.param({"source": "", "claim": ""}, "is missing or empty", id="nothing and not optional"),
        pytest.param({"class": "S3"}, "lower-case", id="class name"),
        pytest.param(
            {"secret": "AKIA/hunter2"}, "what is given is not", id="secret that may be the credential itself"
        ),
        pytest.param({"mountPath": "data"}, "is not absolute", id="relative mount path"),
        pytest.param({"mountPath": "/proc"}, "not the volume's", id="mount path of the system"),
        pytest.param({"containers": ["a"]}, "needs mountPath", id="containers alone"),
        pytest.param({"containers": [], "mountPath": "/a"}, "names none", id="no container"),
        pytest.param({"containers": ["a", "a"], "mountPath": "/a"}, "twice", id="container twice"),
        pytest.param({"containers": "a", "mountPath": "/a"}, "must be a list", id="containers as text"),
        pytest.param({"containers": [1], "mountPath": "/a"}, "is not a text", id="container as number"),
        pytest.param({"containers": ["A"], "mountPath": "/a"}, "lower-case", id="container that is no label"),
        pytest.param({"delivery": "both"}, "write one of: sidecar, csi", id="delivery"),
        pytest.param({"delivery": ""}, "write one of: sidecar, csi", id="empty delivery"),
        pytest.param({"options": []}, "must be a mapping", id="options as list"),
        pytest.param({"options": {"a": 0.5}}, "put the value in quotes", id="fraction as option"),
        pytest.param({"options": {"a": None}}, "no text, whole number or boolean", id="null option"),
        pytest.param({"options": {f"o{i}": 1 for i in range(129)}}, "more than 128", id="too many options"),
        pytest.param({"resources": []}, "must be a mapping", id="resources as list"),
        pytest.param(
            {"resources": {"claims": []}}, 'field "resources.claims": is unknown', id="resource claims"
        ),
        pytest.param(
            {"resources": {"limits": {"gpu": 1}}},
            'field "resources.limits.gpu": is unknown',
            id="other resource",
        ),
        pytest.param({"resources": {"limits": {"cpu": "lots"}}}, "is not a quantity", id="no quantity"),
        pytest.param({"resources": {"limits": {"cpu": -1}}}, "is negative", id="negative quantity"),
        pytest.param(
            {"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}},
            "is above limits.cpu",
            id="request above limit",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "d"}},
            'field "existing.handle": is missing or empty',
            id="no handle (S2-04)",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "d", "handle": "", "accessMode": "READ_WRITE_MANY"}},
            "existing.handle",
            id="empty handle (S2-04)",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "", "handle": "h", "accessMode": "READ_WRITE_MANY"}},
            "existing.driver",
            id="empty driver (S2-04)",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "d", "handle": "h"}},
            "existing.accessMode",
            id="no access mode",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "d", "handle": "h", "accessMode": "ReadWriteMany"}},
            "READ_WRITE_MANY, READ_ONLY_MANY",
            id="Kubernetes' spelling",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "d", "handle": "h", "accessMode": "READ_WRITE_ONCE"}},
            "READ_WRITE_MANY, READ_ONLY_MANY",
            id="other mode (S2-04)",
        ),
        pytest.param(
            {"source": None, "existing": {"driver": "d", "handle": "h\n", "accessMode": "READ_WRITE_MANY"}},
            "U+000A",
            id="control character in the handle",
        ),
        pytest.param({"source": None, "existing": "vol-1"}, "must be a mapping", id="existing as text"),
    ],
)
def test_each_fault_of_an_entry_names_annotation_entry_field_and_reason(
    fields: dict[str, Any], why: str
) -> None:
    faults = _faults(_entry(**fields))
    assert any(why in fault for fault in faults), faults
    assert all(fault.startswith(f'annotation "{LIST}", entry 1 ("train"), field "') for fault in faults)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("readOnly=True", '"True" is not a boolean; write true or false'),
        ("readOnly=", "is not a boolean"),
        ("readOnly", "has no value"),
        ("readOnly=true&readOnly=true", "twice"),
        ("subPath=%2e%2e", 'component ".."'),
        ("subPath=a%00b", "NUL"),
        ("image=evil", "only the admin's"),
        ("command=sh", "only the admin's"),
        ("mountPath=/x", "use the list form"),
        ("containers=a", "use the list form"),
        ("claim=x", "use the list form"),
        ("existing=x", "use the list form"),
        ("name=x", "use the list form"),
        ("options=x", "use the list form"),
        ("source=s3://c", "before|stands before"),
        ("delivery=x", "write one of"),
        ("", "no proper name"),
    ],
)
def test_each_fault_of_a_short_form_is_told(query: str, why: str) -> None:
    faults = _faults({SHORT + "train": f"s3://b?{query}"})
    assert any(part in faults[0] for part in why.split("|")), faults
    assert faults[0].startswith(f'annotation "{SHORT}train"')


@pytest.mark.parametrize(
    "value", ["", "s3://u:p@b", "dir:///a/../b", "dir:///a//b", "dir:///a#x", " s3://b", "s3://b\n", "bucket"]
)
def test_bad_sources_of_a_short_form(value: str) -> None:
    assert 'field "source"' in _faults({SHORT + "train": value})[0]


@pytest.mark.parametrize(
    "name", ["keeper", "sidemount", "sidemount-x", "Train", "a.b", "", "x" * 64, "a/b", "ä"]
)
def test_names_must_be_free_dns_labels(name: str) -> None:
    assert 'field "name"' in _faults({SHORT + name: "s3://b"})[0]
    assert 'field "name"' in _faults({LIST: json.dumps([{"name": name, "source": "s3://b"}])})[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("[", "not valid YAML", id="no YAML"),
        pytest.param("name: a", "must be a list", id="mapping"),
        pytest.param("text", "must be a list", id="text"),
        pytest.param("[1]", "entry 1: must be a mapping", id="number as entry"),
        pytest.param("[{source: s3://b}]", 'entry 1, field "name": is missing', id="no name"),
        pytest.param("[{name: 5, source: s3://b}]", "5 is not a text", id="number as name"),
        pytest.param("[{name: a, name: b}]", "twice", id="duplicate key"),
        pytest.param("[&x {name: a}, *x]", "anchor", id="anchor"),
        pytest.param("[" * 100_000, "nest", id="deeply nested"),
        pytest.param("- name: a\n  source: s3://b\n---\n- name: c\n", "2 documents", id="two documents"),
        pytest.param(
            json.dumps([{"name": f"v{i}", "source": "s3://b"} for i in range(65)]),
            "more than 64",
            id="too many",
        ),
    ],
)
def test_bad_lists(text: str, why: str) -> None:
    assert why in _faults({LIST: text})[0]


@pytest.mark.parametrize("text", ["", "[]", "~", "# nothing\n"])
def test_an_empty_list_asks_for_nothing(text: str) -> None:
    assert parse_annotations({LIST: text}) == ()


def test_every_fault_of_a_pod_is_told_at_once() -> None:
    faults = _faults(
        {
            LIST: json.dumps(
                [
                    {"name": "a", "source": "nope", "readOnly": "x", "foo": 1},
                    5,
                    {"source": "s3://b", "delivery": "x"},
                ]
            ),
            SHORT + "b": "s3://u:p@b?readOnly=yes&image=x",
            "sidemount.io/volume": "typo",
        }
    )
    assert len(faults) == 10, faults


def test_annotations_of_ours_that_nobody_knows_are_refused_with_the_nearest() -> None:
    """G#153: an annotation in the wrong spelling must not be passed over in silence."""
    (fault,) = _faults({"sidemount.io/volume": "[]"})
    assert 'did you mean "sidemount.io/volumes"' in fault
    assert "is unknown" in _faults({"volumes.sidemount.io/train": "s3://b"})[0]


def test_annotations_of_others_are_not_looked_at() -> None:
    assert (
        parse_annotations(
            {
                "example.com/volumes": "[",
                "sidemount.io.example/x": "y",
                "sidemount.io/status": "{",
                "sidemount.io/inject": "?",
            }
        )
        == ()
    )


def test_the_annotations_together_are_bounded() -> None:
    assert "more than 262144" in _faults({SHORT + f"v{i}": "s3://" + "x" * 2000 for i in range(140)})[0]


def test_no_credential_is_repeated_in_a_message() -> None:
    """S0-22."""
    faults = _faults(
        {
            SHORT + "a": "s3://user:hunter2@b?secret=hunter2/&x%=hunter2",
            LIST: json.dumps([{"name": "b", "source": "s3://k:hunter2@b", "secret": "hunter2 "}]),
        }
    )
    assert len(faults) == 5
    assert not any("hunter2" in fault for fault in faults)


@pytest.mark.parametrize(("value", "is_wanted"), [("true", True), ("false", False)])
def test_the_opt_out_is_a_strict_boolean(value: str, is_wanted: bool) -> None:
    assert parse_inject({"sidemount.io/inject": value}) is is_wanted
    assert parse_inject({}) is None


@pytest.mark.parametrize("value", ["", "True", "no", "0", "false ", "disabled", False, 0])
def test_any_other_opt_out_is_refused_naming_the_accepted_ones(value: Any) -> None:
    with pytest.raises(InvalidRequest, match='write "true" or "false"'):
        parse_inject({"sidemount.io/inject": value})


CO_KEYS = {
    "csi.storage.k8s.io/ephemeral": "true",
    "csi.storage.k8s.io/pod.name": "x",
    "csi.storage.k8s.io/serviceAccount.tokens": "{}",
    "storage.kubernetes.io/csiProvisionerIdentity": "1-2-csi",
}


def test_the_cos_own_keys_of_a_context_are_passed_over() -> None:
    """S4-10, requirements trap 16."""
    context = {"source": "s3://b", "region": "eu"}
    assert parse_volume_context("v", {**context, **CO_KEYS}) == parse_volume_context("v", context)


@pytest.mark.parametrize(
    ("context", "why"),
    [
        ({}, "is missing or empty"),
        ({"source": ""}, "is missing or empty"),
        ({"source": "s3://b", "readOnly": "yes"}, "is not a boolean"),
        ({"source": "s3://b", "image": "x"}, "only the admin's"),
        ({"source": "s3://b", "mountPath": "/x"}, "use the list form"),
        ({"source": "s3://b?x=y"}, "query"),
        ({"source": 5}, "is not a text"),
    ],
)
def test_bad_contexts(context: dict[str, Any], why: str) -> None:
    with pytest.raises(Faults, match=why) as raised:
        parse_volume_context("v", context)
    assert str(raised.value).startswith('volume context of "v"')


def test_a_collision_has_its_own_reason() -> None:
    with pytest.raises(Faults) as raised:
        parse_annotations({SHORT + "a": "s3://a", LIST: "[{name: a, source: s3://a}]"})
    assert raised.value.reason is Reason.NAME_COLLISION


HOSTILE = {
    "unknown keys": [{f"k{i}": 1 for i in range(15_000)}],
    "unknown keys in each": [{"name": f"v{j}", **{f"naem{i}": 1 for i in range(150)}} for j in range(64)],
    "one container many times": [
        {"name": "a", "source": "s3://b", "mountPath": "/a", "containers": ["k"] * 40_000}
    ],
    "options": [{"name": "a", "source": "s3://b", "options": {f"k{i}": 1 for i in range(15_000)}}],
    "entries": [1] * 80_000,
    "long names": [{"name": "a" * 200_000, "source": "s3://b" + "/a" * 10_000}],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_list_costs_no_more_than_its_size(entries: Any) -> None:
    started = time.thread_time()
    with pytest.raises(Faults):
        parse_annotations({LIST: json.dumps(entries)})
    assert time.thread_time() - started < 2


# Properties ----------------------------------------------------------------------------------------------

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True).filter(
    lambda n: n != "keeper" and not n.startswith("sidemount")
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=6), v, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "name",
    "class",
    "source",
    "claim",
    "existing",
    "subPath",
    "readOnly",
    "options",
    "secret",
    "mountPath",
    "containers",
    "delivery",
    "resources",
    "optional",
    "image",
]
ENTRIES = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), JSON_VALUES, max_size=6)


@given(st.lists(ENTRIES | JSON_VALUES, max_size=3) | JSON_VALUES)
def test_any_json_list_raises_only_our_error(value: Any) -> None:
    with suppress(Faults):
        parse_annotations({LIST: json.dumps(value)})


@given(
    st.dictionaries(
        st.sampled_from([LIST, SHORT + "a", SHORT, "sidemount.io/inject"])
        | st.text(max_size=10).map(lambda t: SHORT + t),
        st.text() | st.text("s3dir:/?&=%.#-a \n", max_size=40),
    )
)
def test_any_annotation_text_raises_only_our_error(annotations: dict[str, str]) -> None:
    with suppress(Faults):
        parse_annotations(annotations)
    with suppress(VolumeError):
        parse_inject(annotations)


@given(st.text(), st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), st.text(max_size=20)))
def test_any_volume_context_raises_only_our_error(name: str, context: dict[str, str]) -> None:
    with suppress(Faults):
        parse_volume_context(name, context)


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": draw(LABELS)}
    entry |= draw(
        st.sampled_from(
            [
                {"source": "dir:///a/b c"},
                {"claim": "c"},
                {"optional": True},
                {"existing": {"driver": "d", "handle": "h", "accessMode": "READ_ONLY_MANY"}},
            ]
        )
    )
    optional = {
        "class": st.just("s3"),
        "subPath": st.sampled_from(["a", "a/ü", "😀"]),
        "options": st.dictionaries(
            st.text(max_size=6),
            st.text(max_size=6) | st.integers(-(2**63), 2**63) | st.booleans(),
            max_size=3,
        ),
        "secret": st.just("keys"),
        "mountPath": st.just("/data"),
        "delivery": st.sampled_from(["sidecar", "csi"]),
        "resources": st.just({"limits": {"cpu": 1}}),
    }
    for key, values in optional.items():
        if draw(st.booleans()):
            entry[key] = draw(values)
    return entry


def _rendered(request: VolumeRequest) -> dict[str, Any]:
    """Write a request back in the list form."""
    entry: dict[str, Any] = {
        "name": request.name,
        "class": request.driver_class,
        "subPath": request.sub_path,
        "readOnly": request.read_only,
        "options": dict(request.options),
        "secret": request.secret,
        "mountPath": request.mount_path,
        "delivery": request.delivery.value if request.delivery else None,
        "resources": {"requests": request.resources.requests, "limits": request.resources.limits},
        "optional": True,
    }
    match request.origin:
        case SourceUri(uri):
            entry["source"] = uri
        case Claim(name):
            entry["claim"] = name
        case Existing() as existing:
            entry["existing"] = {
                "driver": existing.driver,
                "handle": existing.handle,
                "accessMode": existing.access_mode.value,
            }
    return entry


@given(st.lists(entries(), max_size=4, unique_by=lambda e: e["name"]))
def test_rendering_and_parsing_round_trip(raw: list[dict[str, Any]]) -> None:
    requests = parse_annotations({LIST: json.dumps(raw)})
    assert [r.name for r in requests] == sorted(e["name"] for e in raw)
    assert parse_annotations({LIST: json.dumps([_rendered(r) for r in requests])}) == requests
