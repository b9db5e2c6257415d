"""Resources of our containers: always complete, consistent, within the pod."""

import json
from decimal import Decimal
from typing import Any

import pytest

from sidemount.model.amounts import Amounts, amount, merge
from tests.webhook.admission import Json, mutated, pod_with
from webhook.pod import decode_pod
from webhook.resources import clamped, is_guaranteed, show
from webhook.shape import PodShape, shape_of


def shape(**spec: Any) -> PodShape:
    """Return the shape of a pod."""
    return shape_of(decode_pod(json.dumps(pod_with(**spec)).encode()), "ml", (), frozenset())


def resources_of(pod: Json, name: str) -> Json:
    """Return the resources of one of our containers."""
    found: Json = next(c for c in pod["spec"]["initContainers"] if c["name"] == name)["resources"]
    return found


@pytest.mark.parametrize(
    ("layers", "requests", "limits"),
    [
        pytest.param([({"cpu": "1"}, {"cpu": "2"})], {"cpu": "1"}, {"cpu": "2"}, id="one"),
        pytest.param(
            [({"cpu": "1"}, {"cpu": "2"}), ({}, {"cpu": "500m"})],
            {"cpu": "500m"},
            {"cpu": "500m"},
            id="limit-lowered",
        ),
        pytest.param(
            [({"cpu": "1"}, {"cpu": "2"}), ({"cpu": "3"}, {})],
            {"cpu": "3"},
            {"cpu": "3"},
            id="request-raised",
        ),
        pytest.param(
            [({"cpu": "1"}, {"cpu": "2"}), ({"cpu": "4"}, {"cpu": "5"})],
            {"cpu": "4"},
            {"cpu": "5"},
            id="both",
        ),
        pytest.param(
            [({"memory": "64Mi"}, {"memory": "512Mi"}), ({}, {"memory": "67108864"})],
            {"memory": "64Mi"},
            {"memory": "67108864"},
            id="equal-in-other-units",
        ),
    ],
)
def test_later_layers_win_and_requests_never_exceed_limits(
    layers: list[tuple[Json, Json]], requests: Json, limits: Json
) -> None:
    assert merge(layers) == Amounts(requests, limits)


@pytest.mark.parametrize("case", ["", "dir", "s3", "rclone"])
def test_linkerd2750_every_container_of_ours_has_requests_and_limits(case: str) -> None:
    sources = {
        "": "dir:///srv/d",
        "dir": "nfs://h/p",
        "s3": "s3://b/k",
        "rclone": "rclone://r/p?secret=s",
    }
    after = mutated(pod_with({"volume.sidemount.io/train": sources[case]})).after
    for container in after["spec"]["initContainers"]:
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][kind].keys()
        for name, request in container["resources"]["requests"].items():
            assert amount(request) <= amount(container["resources"]["limits"][name])


def test_a_pod_sets_resources_within_its_class() -> None:
    listed = '[{"name": "train", "source": "dir:///srv/d", "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "2Gi"}}}]'
    after = mutated(pod_with({"sidemount.io/volumes": listed})).after
    assert resources_of(after, "sidemount-train") == {
        "requests": {"cpu": "3", "memory": "64Mi"},
        "limits": {"cpu": "3", "memory": "2Gi"},
    }
    beyond = listed.replace("2Gi", "3Gi")
    refused = mutated(pod_with({"sidemount.io/volumes": beyond}))
    assert refused.reason == "ResourcesExceeded"
    assert "2Gi" in refused.message


def guaranteed(requests: Any, limits: Any) -> Json:
    """Return a container with resources."""
    resources = {k: v for k, v in (("requests", requests), ("limits", limits)) if v is not None}
    return {"name": "app", "image": "i", "resources": resources}


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        pytest.param({"cpu": "1", "memory": "1Gi"}, {"cpu": 1, "memory": "1024Mi"}, True, id="equal"),
        pytest.param(None, {"cpu": "1", "memory": "1Gi"}, True, id="limits-only"),
        pytest.param({"cpu": "500m"}, {"cpu": "1", "memory": "1Gi"}, False, id="less-cpu"),
        pytest.param(None, {"cpu": "1"}, False, id="no-memory"),
        pytest.param(None, None, False, id="none"),
        pytest.param({}, {"cpu": None, "memory": ""}, False, id="null-and-empty"),
        pytest.param({"cpu": 0, "memory": 0}, {"cpu": 0, "memory": 0}, False, id="zero"),
        pytest.param(None, {"cpu": "x", "memory": []}, False, id="nonsense"),
    ],
)
def test_guaranteed_service_is_recognised(requests: Any, limits: Any, expected: bool) -> None:
    assert is_guaranteed(shape(containers=[guaranteed(requests, limits)])) is expected


def test_a_guaranteed_pod_stays_guaranteed() -> None:
    app = {
        **guaranteed(None, {"cpu": "1", "memory": "1Gi"}),
        "volumeMounts": [{"name": "train", "mountPath": "/data"}],
    }
    after = mutated(pod_with(containers=[app])).after
    for container in after["spec"]["initContainers"]:
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_limits_above_the_pods_own_are_lowered_to_it() -> None:
    found = clamped(
        Amounts({"cpu": "50m", "memory": "64Mi"}, {"cpu": "2", "memory": "512Mi"}),
        shape(resources={"limits": {"cpu": "1", "memory": "32Mi"}}),
    )
    assert found == Amounts({"cpu": "50m", "memory": "32Mi"}, {"cpu": "1", "memory": "32Mi"})


@pytest.mark.parametrize(
    "resources",
    [
        None,
        {},
        {"limits": None},
        {"limits": {"cpu": None, "memory": ""}},
        {"limits": {"cpu": 0}},
        {"requests": []},
    ],
    ids=str,
)
def test_istio_null_resources_of_a_pod_bound_nothing(resources: Any) -> None:
    after = mutated(pod_with(resources=resources)).after
    assert resources_of(after, "sidemount-train")["limits"] == {"cpu": "2", "memory": "512Mi"}


def tight(pod_resources: Json, *containers: Json, inits: list[Json] | None = None) -> Json:
    """Return a pod with pod-level resources."""
    mounting = {"volumeMounts": [{"name": "train", "mountPath": "/data"}]}
    return pod_with(
        resources=pod_resources,
        containers=[{**container, **mounting} for container in containers],
        initContainers=inits or [],
    )


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        pytest.param(
            tight({"requests": {"memory": "640Mi"}}, guaranteed({"memory": "512Mi"}, None)),
            True,
            id="exactly",
        ),
        pytest.param(
            tight({"requests": {"memory": "639Mi"}}, guaranteed({"memory": "512Mi"}, None)),
            False,
            id="one-too-few",
        ),
        pytest.param(tight({"limits": {"memory": "64Mi"}}, guaranteed(None, None)), False, id="limits-only"),
        pytest.param(tight({"limits": {"cpu": "60m"}}, guaranteed(None, None)), True, id="cpu-exactly"),
        pytest.param(
            tight(
                {"requests": {"memory": "1Gi"}},
                guaranteed({"memory": "128Mi"}, None),
                inits=[{**guaranteed({"memory": "1Gi"}, None), "name": "big"}],
            ),
            False,
            id="an-init-container-runs-beside-ours",
        ),
        pytest.param(
            tight(
                {"requests": {"memory": "740Mi"}},
                guaranteed({"memory": "512Mi"}, None),
                inits=[{**guaranteed({"memory": "101Mi"}, None), "name": "side", "restartPolicy": "Always"}],
            ),
            False,
            id="a-sidecar-adds-up",
        ),
        pytest.param(
            tight(
                {"requests": {"memory": "640Mi"}},
                guaranteed({"memory": "512Mi"}, None),
                inits=[{**guaranteed({"memory": "512Mi"}, None), "name": "small"}],
            ),
            True,
            id="an-init-container-does-not-add-up",
        ),
    ],
)
def test_pod_level_requests_hold_or_are_refused_with_the_sum(pod: Json, fits: bool) -> None:
    reviewed = mutated(pod)
    assert reviewed.outcome.allowed is fits, reviewed.response
    if not fits:
        assert reviewed.reason == "ResourcesExceeded"
        assert "sidemount-keeper 64Mi" in reviewed.message or "cpu" in reviewed.message
        assert "at least" in reviewed.message


def test_later_rounds_do_not_judge_what_others_changed() -> None:
    pod = mutated(tight({"requests": {"memory": "640Mi"}}, guaranteed({"memory": "512Mi"}, None))).after
    for container in pod["spec"]["initContainers"]:
        container["resources"]["requests"]["memory"] = "1Gi"
        container["resources"]["limits"]["memory"] = "1Gi"
    assert mutated(pod).reason == "AlreadyInjected"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("memory", Decimal(2**30), "1Gi"),
        ("memory", Decimal(1208 * 2**20), "1208Mi"),
        ("memory", Decimal(1000), "1000"),
        ("memory", Decimal(0), "0"),
        ("cpu", Decimal("0.25"), "250m"),
        ("cpu", Decimal(3), "3"),
        ("cpu", Decimal("1.5"), "1500m"),
    ],
)
def test_amounts_are_shown_as_people_write_them(name: str, value: Decimal, expected: str) -> None:
    assert show(name, value) == expected


@pytest.mark.parametrize("value", [None, "", "x", [], {}, True, "1" * 100])
def test_what_is_no_quantity_counts_as_nothing(value: Any) -> None:
    assert amount(value) == 0
