"""Quotas: a pod that could never fit is refused with the numbers, one that does not fit now is let through with a warning."""

import pytest

from sidemount.model.facts import Facts
from tests.webhook.admission import Json, mutated, pod_with
from tests.webhook.limit_ranger import limit_range, quota
from tests.webhook.test_fitting import app, facts_with
from webhook.consulted import Consulted, doubts_of, still_holds


def test_a_pod_that_no_empty_quota_would_take_is_refused_with_the_numbers() -> None:
    pod = pod_with(containers=[app({"cpu": "1", "memory": "100Mi"})])
    refused = mutated(pod, facts=facts_with(quota({"requests.memory": "200Mi"})))
    assert refused.reason == "QuotaExceeded"
    told = (
        "has 228Mi of requests.memory (its own containers 100Mi, sidemount-keeper 64Mi, sidemount-train 64Mi)"
    )
    assert told in refused.message
    assert 'the 200Mi that ResourceQuota "compute" allows in the whole namespace' in refused.message
    assert "raise requests.memory there to at least 228Mi" in refused.message


@pytest.mark.parametrize(
    ("hard", "key"),
    [
        pytest.param({"cpu": "50m"}, "requests.cpu", id="the old name of requests"),
        pytest.param({"requests.cpu": "50m"}, "requests.cpu", id="requests"),
        pytest.param({"limits.cpu": "2"}, "limits.cpu", id="limits"),
        pytest.param({"limits.memory": "100Mi"}, "limits.memory", id="memory"),
    ],
)
def test_each_name_of_a_resource_counts(hard: Json, key: str) -> None:
    refused = mutated(pod_with(), facts=facts_with(quota(hard)))
    assert refused.reason == "QuotaExceeded"
    assert key in refused.message


@pytest.mark.parametrize(
    "hard", [{"requests.nvidia.com/gpu": "0"}, {"pods": "0"}, {"requests.ephemeral-storage": "0"}]
)
def test_what_our_containers_add_nothing_to_is_the_api_server_s(hard: Json) -> None:
    assert mutated(pod_with(), facts=facts_with(quota(hard))).patch == mutated(pod_with()).patch


@pytest.mark.parametrize(
    ("scoped", "spec", "is_refused"),
    [
        pytest.param({"scopes": ["NotTerminating"]}, {}, True, id="runs on"),
        pytest.param({"scopes": ["Terminating"]}, {}, False, id="is not bounded"),
        pytest.param({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 5}, True, id="bounded"),
        pytest.param({"scopes": ["NotTerminating"]}, {"activeDeadlineSeconds": 5}, False, id="is bounded"),
        pytest.param({"scopes": ["BestEffort"]}, {}, False, id="with us no pod is best effort"),
        pytest.param({"scopes": ["NotBestEffort"]}, {}, True, id="not best effort"),
        pytest.param({"scopes": ["NotBestEffort", "Terminating"]}, {}, False, id="all scopes must hold"),
        pytest.param({"scopes": ["CrossNamespacePodAffinity"]}, {}, False, id="a scope that is not known"),
        pytest.param({"scopes": ["PriorityClass"]}, {"priorityClassName": "high"}, True, id="any class"),
        pytest.param({"scopes": ["PriorityClass"]}, {}, False, id="no class"),
        pytest.param(("In", ["high"]), {"priorityClassName": "high"}, True, id="in"),
        pytest.param(("In", ["high"]), {"priorityClassName": "low"}, False, id="in others"),
        pytest.param(("NotIn", ["high"]), {"priorityClassName": "low"}, True, id="not in"),
        pytest.param(("NotIn", ["high"]), {"priorityClassName": "high"}, False, id="not in, but there"),
        pytest.param(("Exists", []), {"priorityClassName": "low"}, True, id="exists"),
        pytest.param(("DoesNotExist", []), {}, True, id="does not exist"),
        pytest.param(("DoesNotExist", []), {"priorityClassName": "low"}, False, id="but exists"),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes(
    scoped: Json | tuple[str, list[str]], spec: Json, is_refused: bool
) -> None:
    if isinstance(scoped, tuple):
        operator, values = scoped
        expression: Json = {"scopeName": "PriorityClass", "operator": operator}
        if values:
            expression["values"] = values
        scoped = {"scopeSelector": {"matchExpressions": [expression]}}
    found = mutated(pod_with(**spec), facts=facts_with(quota({"cpu": "1m"}, **scoped)))
    assert (found.reason == "QuotaExceeded") is is_refused
    assert found.outcome.allowed is not is_refused


def test_what_scopes_depend_on_is_part_of_what_is_kept() -> None:
    """Decisions are kept by shape: a pod with another priority must not get the answer of one without."""
    facts = facts_with(
        quota({"cpu": "1m"}, scopes=["PriorityClass"]),
        quota({"cpu": "1m"}, name="jobs", scopes=["Terminating"]),
    )
    pods = (
        pod_with(),
        pod_with(priorityClassName="high"),
        pod_with(activeDeadlineSeconds=5),
        pod_with(overhead={"cpu": "1"}),
    )
    for _ in range(2):
        assert [mutated(each, facts=facts).outcome.allowed for each in pods] == [True, False, False, True]


def test_a_quota_that_is_used_up_is_told_and_left_to_the_api_server() -> None:
    facts = facts_with(
        quota({"limits.cpu": "10", "limits.memory": "10Gi"}, {"limits.cpu": "8", "limits.memory": "0"})
    )
    found = mutated(pod_with(), facts=facts)
    assert found.outcome.allowed
    told = "sidemount: too little is left of ResourceQuota compute for the pod's 2500m of limits.cpu"
    assert [warning for warning in found.response["warnings"] if "ResourceQuota" in warning] == [told]
    assert found.patch == mutated(pod_with()).patch


def test_a_runtime_s_overhead_counts() -> None:
    overhead = {"cpu": "1", "memory": "1Gi"}
    refused = mutated(pod_with(overhead=overhead), facts=facts_with(quota({"cpu": "1"})))
    assert "1060m of requests.cpu (its own containers 1," in refused.message


def test_what_a_pod_states_as_a_whole_is_not_ours_to_count() -> None:
    stated = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    assert mutated(pod_with(resources=stated), facts=facts_with(quota({"cpu": "1"}))).outcome.allowed


def test_defaults_of_a_limit_range_are_part_of_the_sum() -> None:
    """Seen offline, a pod has none of them yet."""
    limits = limit_range(
        "limits", {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "200m"}}
    )
    refused = mutated(pod_with(), facts=facts_with(limits, quota({"cpu": "250m"})))
    assert "260m of requests.cpu (its own containers 200m," in refused.message


def _used(amount: str) -> Facts:
    return facts_with(quota({"cpu": "10"}, {"cpu": amount}))


def test_the_use_of_a_quota_ends_no_decision_until_it_is_used_up() -> None:
    """It changes with every pod; to decide all pods of the namespace anew each time would cost too much."""
    consulted = Consulted(_used("1"))
    mutated(pod_with(), facts=consulted)
    outcome = mutated(pod_with(), facts=_used("1")).outcome
    judged = Consulted(_used("1"))
    assert [quota.name for quota in judged.quotas("ml")] == ["compute"]
    assert judged.has_room("ml", "compute", "requests.cpu", "0.06")
    assert still_holds(judged.reads, _used("5"))
    assert not still_holds(judged.reads, _used("9.95"))
    assert doubts_of(judged.reads, outcome) == ()


def test_a_limit_that_refuses_is_looked_at_again() -> None:
    """It may have been raised, or be gone, a moment ago."""
    facts = Consulted(
        facts_with(
            limit_range("limits", {"type": "Container", "max": {"memory": "1Mi"}}), quota({"cpu": "1m"})
        )
    )
    facts.limit_ranges("ml")
    facts.quotas("ml")
    refused = mutated(pod_with(), facts=facts_with(quota({"cpu": "1m"}))).outcome
    assert {(doubt.kind, doubt.name) for doubt in doubts_of(facts.reads, refused)} == {
        ("LimitRange", "limits"),
        ("ResourceQuota", "compute"),
    }
