"""LimitRanges and ResourceQuotas as facts: what is counted of them, and what is wrong with a manifest."""

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import VolumeError
from sidemount.model.limit_manifests import parse_limit_range, parse_quota
from sidemount.model.namespace_limits import Bounds, LimitRangeFacts, QuotaFacts, joined

MIB = 2**20


def limit_range(*limits: Any) -> LimitRangeFacts | None:
    """Return the facts of a LimitRange."""
    return parse_limit_range({"spec": {"limits": list(limits)}}, "ml", "limits")


def quota(spec: Any, status: Any = None) -> QuotaFacts | None:
    """Return the facts of a ResourceQuota."""
    return parse_quota({"spec": spec, "status": status}, "ml", "compute")


def test_defaults_are_those_that_the_api_server_fills_in() -> None:
    """Source: SetDefaults_LimitRangeItem."""
    found = limit_range(
        {"type": "Container", "max": {"cpu": 2, "memory": "1Gi"}, "min": {"cpu": "10m", "ephemeral-storage": "1Mi"}, "defaultRequest": {"memory": "8Mi"}}
    )  # fmt: skip
    assert found is not None
    assert found.container == Bounds(
        minimum={"cpu": Decimal("0.01"), "ephemeral-storage": Decimal(MIB)},
        maximum={"cpu": Decimal(2), "memory": Decimal(1024 * MIB)},
        default_limit={"cpu": Decimal(2), "memory": Decimal(1024 * MIB)},
        default_request={"cpu": Decimal(2), "memory": Decimal(8 * MIB), "ephemeral-storage": Decimal(MIB)},
    )
    assert found.pod == Bounds()


def test_a_pod_has_no_defaults() -> None:
    found = limit_range({"type": "Pod", "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "1500m"}})
    assert found is not None
    assert found.pod == Bounds(maximum={"cpu": Decimal(2)}, ratio={"cpu": Decimal("1.5")})


@pytest.mark.parametrize(
    "limits",
    [
        [],
        [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}],
        [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}],
        [{"type": "Novel", "max": {"cpu": "not read"}}],
    ],
    ids=["empty", "claims", "other-resources", "another-type"],
)
def test_what_no_decision_reads_states_nothing(limits: list[Any]) -> None:
    assert limit_range(*limits) is None


def test_entries_of_one_type_hold_together() -> None:
    both = joined(
        (
            Bounds(
                minimum={"cpu": Decimal(1)}, maximum={"cpu": Decimal(4)}, default_limit={"cpu": Decimal(2)}
            ),
            Bounds(
                minimum={"cpu": Decimal(2)}, maximum={"cpu": Decimal(5)}, default_limit={"cpu": Decimal(3)}
            ),
        )
    )
    assert (both.minimum, both.maximum) == ({"cpu": Decimal(2)}, {"cpu": Decimal(4)})
    assert both.default_limit == {"cpu": Decimal(2)}


def test_a_quota_s_old_and_new_names_are_one_and_the_tighter_counts() -> None:
    found = quota(
        {"hard": {"cpu": "4", "requests.cpu": "2", "memory": "1Mi", "pods": "3"}},
        {"used": {"requests.cpu": "1", "pods": "1"}},
    )
    assert found is not None
    assert found.bounds.hard == {"requests.cpu": Decimal(2), "requests.memory": Decimal(MIB)}
    assert found.used == {"requests.cpu": Decimal(1)}
    assert found.has_room("requests.cpu", Decimal(1))
    assert not found.has_room("requests.cpu", Decimal("1.001"))
    assert found.has_room("limits.cpu", Decimal(99))


def test_a_quota_of_other_things_states_nothing() -> None:
    assert quota({"hard": {"pods": "1", "count/secrets": "2", "requests.nvidia.com/gpu": "1"}}) is None
    assert quota({}) is None
    assert quota(None) is None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"hard": {"cpu": "two"}}, 'field "spec.hard.cpu": "two" is not a quantity', id="quantity"),
        pytest.param({"hard": ["cpu"]}, 'field "spec.hard": must be a mapping', id="list"),
        pytest.param({"hard": {"cpu": True}}, "true is not a quantity", id="boolean"),
        pytest.param({"scopes": "all"}, 'field "spec.scopes": must be a list', id="scopes"),
        pytest.param({"scopeSelector": {"matchExpressions": [7]}}, "must be a list of mappings", id="expressions"),
        pytest.param({"scopeSelector": {"matchExpressions": [{"operator": "Near"}]}}, '"Near" is not a choice', id="operator"),
    ],
)  # fmt: skip
def test_a_broken_quota_is_told_by_its_path(spec: Any, why: str) -> None:
    with pytest.raises(VolumeError) as caught:
        quota(spec)
    assert why in str(caught.value)
    assert 'ResourceQuota "ml/compute"' in str(caught.value)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["1", "1Gi", "-2", "x", "Container", "In"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["limits", "type", "max", "cpu", "hard", "scopes", "operator"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(spec=ODD, status=ODD)
def test_any_manifest_is_read_or_refused(spec: Any, status: Any) -> None:
    manifest = {"spec": spec, "status": status}
    for parse in (parse_limit_range, parse_quota):
        with suppress(VolumeError):
            parse(manifest, "ml", "x")


def test_a_broken_limit_range_is_told_with_every_fault() -> None:
    with pytest.raises(VolumeError) as caught:
        limit_range(
            {"type": "Container", "max": {"cpu": "x"}, "min": 7}, {"type": "Pod", "max": {"cpu": "y"}}
        )
    told = str(caught.value)
    for part in ("spec.limits[0].max.cpu", "spec.limits[0].min", "spec.limits[1].max.cpu"):
        assert part in told
