"""Our containers within LimitRanges: what comes out passes the API server's own judgement, or the pod is refused with the sum."""

import copy
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidemount.host.facts_manifests import Fact, parse_fact
from sidemount.host.facts_snapshot import FactsSnapshot, index_facts
from sidemount.model.facts import Facts
from tests.webhook.admission import Json, Reviewed, mutated, pod_with, validated
from tests.webhook.limit_ranger import complaints, defaulted, limit_range
from tests.webhook.live import golden_manifests
from tests.webhook.test_resources import resources_of

GIB = 2**30


def facts_with(*manifests: Json) -> Facts:
    """Return the golden facts and some more."""
    more = [fact for manifest in manifests if (fact := parse_fact(manifest)) is not None]
    facts: FactsSnapshot = index_facts((*_golden(), *more), (), 1)
    return facts


@cache
def _golden() -> tuple[Fact, ...]:
    return tuple(fact for manifest in golden_manifests() if (fact := parse_fact(manifest)) is not None)


def app(requests: Json | None = None, limits: Json | None = None) -> Json:
    """Return a container with resources that shows the volume."""
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    mounts = [{"name": "train", "mountPath": "/data"}]
    return {"name": "app", "image": "i", "volumeMounts": mounts, "resources": resources}


def injected(limits: list[Json], *containers: Json, **spec: Any) -> Reviewed:
    """Return what becomes of a pod in a namespace with a LimitRange."""
    pod = pod_with(containers=list(containers) or [app()], **spec)
    return mutated(defaulted(pod, limits), facts=facts_with(limit_range("limits", *limits)))


CONTAINER, POD = "Container", "Pod"
SMALL = {"cpu": "1", "memory": "10Mi"}


@pytest.mark.parametrize(
    ("limit", "keeper", "daemon"),
    [
        pytest.param(
            {"max": {"cpu": "1", "memory": "256Mi"}},
            {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "64Mi"}},
            {"limits": {"cpu": "1", "memory": "256Mi"}, "requests": {"cpu": "50m", "memory": "64Mi"}},
            id="limits are lowered to a maximum",
        ),
        pytest.param(
            {"min": {"cpu": "100m", "memory": "128Mi"}},
            {"limits": {"cpu": "500m", "memory": "128Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
            {"limits": {"cpu": "2", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
            id="requests are raised to a minimum, and limits with them",
        ),
        pytest.param(
            {"maxLimitRequestRatio": {"cpu": "10", "memory": "3"}},
            {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "50m", "memory": "64Mi"}},
            {"limits": {"cpu": "2", "memory": "512Mi"}, "requests": {"cpu": "200m", "memory": "171Mi"}},
            id="requests are raised to a ratio",
        ),
        pytest.param(
            {"maxLimitRequestRatio": {"memory": "1"}, "max": {"memory": "200Mi"}},
            {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "64Mi"}},
            {"limits": {"cpu": "2", "memory": "200Mi"}, "requests": {"cpu": "50m", "memory": "200Mi"}},
            id="a ratio counts from the lowered limit",
        ),
        pytest.param(
            {"default": {"cpu": "300m", "memory": "32Mi"}, "defaultRequest": {"cpu": "100m"}},
            {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "64Mi"}},
            {"limits": {"cpu": "2", "memory": "512Mi"}, "requests": {"cpu": "50m", "memory": "64Mi"}},
            id="defaults are for who is silent",
        ),
    ],
)  # fmt: skip
def test_linkerd2750_our_containers_are_fitted(limit: Json, keeper: Json, daemon: Json) -> None:
    found = injected([{"type": CONTAINER, **limit}], app(SMALL, {"cpu": "2", "memory": "20Mi"}))
    assert resources_of(found.after, "sidemount-keeper") == keeper
    assert resources_of(found.after, "sidemount-train") == daemon


def test_a_lowered_limit_is_told() -> None:
    warnings = injected([{"type": CONTAINER, "max": {"cpu": "1", "memory": "80Mi"}}]).response["warnings"]
    assert "sidemount: a LimitRange lowers the limits of sidemount-train: cpu 1, memory 80Mi" in warnings
    assert any("below 88Mi" in warning for warning in warnings)
    assert not any("LimitRange" in told for told in injected([]).response["warnings"])


def test_a_request_is_never_lowered() -> None:
    """The keeper with less memory than it needs would take every mount with it."""
    refused = injected([{"type": CONTAINER, "max": {"memory": "48Mi"}}])
    assert refused.reason == "LimitRangeExceeded"
    assert (
        "container sidemount-keeper needs 64Mi of memory, more than the 48Mi that LimitRange"
        in refused.message
    )
    assert "container sidemount-train needs 64Mi" in refused.message


def test_limits_are_lowered_until_the_pod_fits_its_namespace() -> None:
    found = injected([{"type": POD, "max": {"cpu": "2"}}], app(None, {"cpu": "1"}))
    keeper, daemon = (resources_of(found.after, name) for name in ("sidemount-keeper", "sidemount-train"))
    # All of both is lowered by the same part: 1 core is left for limits of 2.5 and requests of 60m.
    assert keeper == {
        "limits": {"cpu": "198m", "memory": "64Mi"},
        "requests": {"cpu": "10m", "memory": "64Mi"},
    }
    assert daemon["limits"]["cpu"] == "801m"
    assert any(
        "lowers the limits of sidemount-train: cpu 801m" in told for told in found.response["warnings"]
    )


def test_a_pod_that_cannot_fit_is_refused_with_the_sum() -> None:
    refused = injected([{"type": POD, "max": {"memory": "1Gi"}}], app(None, {"memory": "1000Mi"}))
    assert refused.reason == "LimitRangeExceeded"
    told = (
        "at least 1128Mi of memory (its own containers 1000Mi, sidemount-keeper 64Mi, sidemount-train 64Mi)"
    )
    assert told in refused.message
    assert 'more than the 1Gi that LimitRange "limits" allows a pod' in refused.message
    assert refused.response["status"]["code"] == 403


def test_a_ratio_of_pods_is_met_by_reserving_more() -> None:
    limits = [{"type": POD, "maxLimitRequestRatio": {"cpu": "2"}}]
    found = injected(limits, app({"cpu": "1"}, {"cpu": "2"}))
    assert not complaints(found.after, limits)


def test_what_a_pod_states_as_a_whole_is_no_sum() -> None:
    """Pod-level resources count instead of the containers'."""
    limits = [{"type": POD, "max": {"cpu": "2", "memory": "1Gi"}}]
    stated = {"requests": {"cpu": "1", "memory": "900Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    assert injected(limits, resources=stated).outcome.allowed
    # Limits that it does not state are those of the containers, ours too.
    found = injected([{"type": POD, "max": {"cpu": "2"}}], resources={"requests": {"cpu": "2"}})
    assert found.outcome.allowed
    assert not complaints(found.after, [{"type": POD, "max": {"cpu": "2"}}])


def test_another_namespace_s_limits_do_not_count() -> None:
    far = limit_range("limits", {"type": CONTAINER, "max": {"memory": "1Mi"}}, namespace="other")
    assert mutated(pod_with(), facts=facts_with(far)).patch == mutated(pod_with()).patch


def test_several_limit_ranges_all_hold_and_the_tightest_is_named() -> None:
    ranges = [
        limit_range("loose", {"type": CONTAINER, "max": {"memory": "300Mi"}}),
        limit_range("tight", {"type": CONTAINER, "max": {"memory": "200Mi"}}),
    ]
    found = mutated(pod_with(), facts=facts_with(*ranges))
    assert resources_of(found.after, "sidemount-train")["limits"]["memory"] == "200Mi"
    ranges[1]["spec"]["limits"][0]["max"]["memory"] = "10Mi"
    assert 'LimitRange "tight"' in mutated(pod_with(), facts=facts_with(*ranges)).message


def test_storage_that_a_class_asks_for_stays_within_the_default_limit() -> None:
    """A LimitRange would put a limit below the request, and the API server would refuse that."""
    listed = (
        '[{"name": "train", "source": "s3://b/k", "resources": {"requests": {"ephemeral-storage": "2Gi"}}}]'
    )
    limits = [{"type": CONTAINER, "default": {"ephemeral-storage": "1Gi"}}]
    pod = pod_with({"sidemount.io/volumes": listed})
    found = mutated(pod, facts=facts_with(limit_range("limits", *limits)))
    if found.outcome.allowed:  # the class leaves storage to its pods
        assert not complaints(defaulted(found.after, limits), limits)
    else:
        assert "ephemeral-storage" in found.message


def test_the_second_round_and_the_validation_keep_what_was_fitted() -> None:
    limits = [{"type": CONTAINER, "max": {"cpu": "1", "memory": "256Mi"}}, {"type": POD, "max": {"cpu": "3"}}]
    facts = facts_with(limit_range("limits", *limits))
    first = mutated(pod_with(), facts=facts)
    again = mutated(defaulted(copy.deepcopy(first.after), limits), facts=facts)
    assert again.outcome.allowed
    assert again.patch == []
    assert validated(defaulted(first.after, limits), facts=facts).outcome.allowed


def test_a_limit_that_came_between_the_rounds_undoes_nothing() -> None:
    first = mutated(pod_with())
    facts = facts_with(limit_range("limits", {"type": CONTAINER, "max": {"memory": "1Mi"}}))
    assert validated(first.after, facts=facts).outcome.allowed


def test_a_claim_that_does_not_fit_is_left_to_csi() -> None:
    facts = facts_with(limit_range("limits", {"type": CONTAINER, "max": {"memory": "1Mi"}}))
    volumes = [{"name": "train", "persistentVolumeClaim": {"claimName": "models"}}]
    found = mutated(pod_with({}, volumes=volumes), facts=facts)
    assert found.outcome.allowed
    assert found.outcome.volumes[0].reason.value == "LeftToCsi"
    assert "LimitRange" in found.outcome.volumes[0].message


CPU = st.integers(1, 4000).map(lambda n: f"{n}m")
MEMORY = st.integers(1, 2048).map(lambda n: f"{n}Mi")
RATIO = st.sampled_from(["1", "1500m", "2", "3", "7", "100"])


@st.composite
def ranges(draw: st.DrawFn) -> list[Json]:
    """Return what one or two LimitRanges may say, contradictions too."""
    found = []
    for kind in draw(st.lists(st.sampled_from([CONTAINER, POD]), min_size=1, max_size=3)):
        item: Json = {"type": kind}
        for key in draw(st.sets(st.sampled_from(["min", "max", "maxLimitRequestRatio"]))):
            values = (
                {"cpu": RATIO, "memory": RATIO} if key.startswith("maxL") else {"cpu": CPU, "memory": MEMORY}
            )
            names = draw(st.sets(st.sampled_from(["cpu", "memory"]), min_size=1))
            item[key] = {name: draw(values[name]) for name in sorted(names)}
        found.append(item)
    return found


@st.composite
def containers(draw: st.DrawFn, name: str) -> Json:
    """Return a container of a user: with or without resources."""
    limits = {key: draw(value) for key, value in (("cpu", CPU), ("memory", MEMORY)) if draw(st.booleans())}
    return {"name": name, "image": "i", "resources": {"limits": limits}}


@settings(max_examples=100, deadline=None)
@given(limits=ranges(), users=containers(name="app"), init=containers(name="init"), is_sidecar=st.booleans())
def test_what_is_injected_adds_no_complaint(
    limits: list[Json], users: Json, init: Json, is_sidecar: bool
) -> None:
    """Whatever LimitRanges say: what passes without us passes with us, or is refused by us with the reason."""
    if is_sidecar:
        init["restartPolicy"] = "Always"
    users["volumeMounts"] = [{"name": "train", "mountPath": "/data"}]
    pod = defaulted(pod_with(containers=[users], initContainers=[init]), limits)
    before = complaints(pod, limits)
    found = mutated(copy.deepcopy(pod), facts=facts_with(limit_range("limits", *limits)))
    if not found.outcome.allowed:
        assert found.reason == "LimitRangeExceeded"
        return
    after = complaints(defaulted(copy.deepcopy(found.after), limits), limits)
    assert set(after) <= set(before), (before, after)
