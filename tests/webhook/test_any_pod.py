"""Any pod at all: the patch applies, touches nothing else and is not made twice; nothing but our errors ever comes out."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.webhook.admission import (
    SETTINGS,
    Json,
    assert_only_ours_changed,
    between_rounds,
    golden_facts,
    mutated,
    pod_with,
    read_answer,
    review,
    validated,
)
from webhook.admit import mutate
from webhook.review import BadReview
from webhook.validate import validate

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_scalar = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text
)
_any_json: st.SearchStrategy[Any] = st.recursive(
    _scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_unknown = st.dictionaries(_text.map(lambda text: f"x-{text}"), _any_json, max_size=2)

VOLUMES = ("train", "out", "hot", "models", "tmp")
SOURCES = {
    "train": [
        "dir:///srv/d",
        "dir:///srv/d?readOnly=true&subPath=a/b",
        "nfs://h/p",
        "pvc://c/x?attributeTimeout=5s",
    ],
    "out": ["s3://b/k", "s3://b?secret=s&cacheBytes=2Gi&delivery=csi", "dir:///srv/o?optional=true"],
    "hot": ["cache://b/k", "cache://b?readOnly=true"],
}


@st.composite
def mounts(draw: st.DrawFn) -> list[Json]:
    """Draw the mounts of one container: distinct paths, any volume of the pod's."""
    paths = draw(
        st.lists(st.sampled_from(["/a", "/b", "/a/c", "/d~e", "/ü", "/data"]), unique=True, max_size=4)
    )
    found = []
    for path in paths:
        mount: Json = {"name": draw(st.sampled_from(VOLUMES)), "mountPath": path}
        if draw(st.booleans()):
            mount["subPath"] = draw(st.sampled_from(["", "a", "a/b", "ü~/x"]))
        if draw(st.booleans()):
            mount["readOnly"] = draw(st.booleans())
        if draw(st.integers(0, 3)) == 0:
            mount["mountPropagation"] = draw(st.sampled_from(["None", "HostToContainer"]))
        found.append({**mount, **draw(_unknown)})
    return found


@st.composite
def containers(draw: st.DrawFn, prefix: str, least: int) -> list[Json]:
    """Draw containers with distinct names and unknown fields."""
    found = []
    for index in range(draw(st.integers(least, 3))):
        container: Json = {"name": f"{prefix}{index}", "image": "i", **draw(_unknown)}
        if draw(st.integers(0, 4)) > 0:
            container["volumeMounts"] = draw(mounts())
        elif draw(st.booleans()):
            container["volumeMounts"] = draw(st.sampled_from([None, []]))
        if draw(st.booleans()):
            container["resources"] = draw(
                st.sampled_from(
                    [
                        {},
                        None,
                        {"limits": None},
                        {"requests": {"cpu": 0, "memory": ""}, "limits": {"cpu": "1"}},
                    ]
                )
            )
        if draw(st.booleans()):
            container["securityContext"] = {"runAsUser": draw(st.sampled_from([None, 0, 1000]))}
        found.append(container)
    return found


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """Draw a pod that the API server would take, asking for some volumes, with unknown fields at every level."""
    asked = draw(st.lists(st.sampled_from(["train", "out", "hot"]), unique=True, max_size=3))
    annotations: Json = {
        f"volume.sidemount.io/{name}": draw(st.sampled_from(SOURCES[name])) for name in asked
    }
    annotations |= draw(st.dictionaries(_text.map(lambda text: f"k/{text}"), _text, max_size=2))
    if draw(st.booleans()):
        annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"] = draw(
            st.sampled_from(["", "tmp", "tmp,train", "sidemount-run"])
        )
    volumes = [{"name": name, "emptyDir": {}, **draw(_unknown)} for name in ("train", "out", "hot", "tmp")]
    volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models"}, **draw(_unknown)})
    spec: Json = {
        "volumes": draw(st.permutations(volumes)),
        "containers": draw(containers("c", 1)),
        **draw(_unknown),
    }
    if draw(st.booleans()):
        network = [{"name": "istio-proxy", "image": "p", "restartPolicy": "Always"}]
        spec["initContainers"] = (network if draw(st.booleans()) else []) + draw(containers("i", 0))
    if draw(st.booleans()):
        spec["terminationGracePeriodSeconds"] = draw(st.integers(0, 60))
    if draw(st.booleans()):
        spec["imagePullSecrets"] = draw(st.sampled_from([None, [], [{"name": "own"}]]))
    metadata: Json = {"name": "p", **draw(_unknown)}
    has_annotations: bool = draw(st.booleans())
    if annotations or has_annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, **draw(_unknown)}


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(pods())
def test_patch_applies_touches_nothing_else_and_is_not_made_twice(pod: Json) -> None:
    first = mutated(pod)
    assert first.outcome.code < 500, first.response
    assert not first.outcome.proof_failed
    assert first.outcome.allowed, first.message
    assert_only_ours_changed(pod, first.after)
    again = mutated(first.after)
    assert again.outcome.allowed, again.response
    assert again.patch == []
    assert mutated(between_rounds(first.after)).patch == []
    assert validated(first.after).outcome.allowed


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """Draw a pod in which any one value is replaced by any JSON at all."""
    pod = draw(pods())
    if draw(st.booleans()):
        pod = mutated(pod).after
    for _ in range(draw(st.integers(1, 3))):
        node: Any = pod
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or draw(st.integers(0, 3)) == 0:
                node[key] = draw(_any_json)
                break
            node = node[key]
    return pod


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(broken(), st.sampled_from(["CREATE", "UPDATE"]))
@example({"metadata": None, "spec": None}, "CREATE")
@example({"metadata": {"annotations": []}, "spec": {"containers": None}}, "CREATE")
@example({"metadata": {"annotations": {"sidemount.io/volumes": 5}}}, "CREATE")
@example([], "CREATE")
@example("pod", "CREATE")
@example(None, "UPDATE")
def test_a_broken_pod_is_answered_cleanly(pod: Any, operation: str) -> None:
    body = review(pod, operation=operation, old=pod if operation == "UPDATE" else None)
    for judge in (mutate, validate):
        answer = judge(body, facts=golden_facts(), settings=SETTINGS)
        reviewed = read_answer(answer.body, answer.outcome, pod)
        assert answer.http_status == 200
        assert reviewed.outcome.code < 500, reviewed.response
        if reviewed.patch:
            assert mutated(reviewed.after).patch == []


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=40) | _any_json.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_answered_or_is_a_bad_review(body: bytes) -> None:
    for judge in (mutate, validate):
        with pytest.raises(BadReview) as caught:
            judge(body, facts=golden_facts(), settings=SETTINGS)
        assert str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_review_is_answered_or_is_a_bad_review(data: st.DataObject) -> None:
    whole = json.loads(review(pod_with()))
    node = data.draw(
        st.sampled_from([whole, whole["request"], whole["request"]["kind"], whole["request"]["resource"]])
    )
    node[data.draw(st.sampled_from(sorted(node)))] = data.draw(_any_json)
    for judge in (mutate, validate):
        try:
            answer = judge(json.dumps(whole).encode(), facts=golden_facts(), settings=SETTINGS)
        except BadReview:
            continue
        assert json.loads(answer.body)["response"]["uid"] == whole["request"]["uid"]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_in_our_annotations_is_a_clean_answer(short: str, listed: str) -> None:
    # A surrogate can be no part of what an API server sends; everything else can.
    texts = [text.encode("utf-8", "replace").decode() for text in (short, listed)]
    annotations = {"volume.sidemount.io/train": texts[0], "sidemount.io/volumes": texts[1]}
    reviewed = mutated(pod_with(annotations))
    assert reviewed.outcome.code < 500
    if not reviewed.outcome.allowed:
        assert reviewed.message
