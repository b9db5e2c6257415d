"""LimitRanges, quotas and old nodes of a real API server: what we add passes its own judgement, or we say why it cannot."""

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.admission.admitting import WAIT_S, Admitting, ours, pod, refusal, until_refused
from tests.webhook.limit_ranger import limit_range, quota

_ASKS = {"volume.sidemount.io/train": "dir:///srv/books"}


def _has_told(admitting: Admitting, kind: str, objects: int) -> bool:
    counted = f'sidemount_webhook_facts_kind_objects{{kind="{kind}"}} {objects}.0'
    return counted in admitting.webhook.call("/metrics")[1]


def _known(admitting: Admitting, kind: str, manifest: Json) -> None:
    """Create a limit and wait until the webhook's watch has told of it."""
    admitting.api.create(manifest)
    plural = {"LimitRange": "limitranges", "ResourceQuota": "resourcequotas"}[kind]
    number = len(admitting.api.items(plural))
    assert wait_for(lambda: _has_told(admitting, kind, number), WAIT_S), admitting.webhook.told()


def _resources(found: Json, name: str) -> Json:
    resources: Json = next(c for c in found["spec"]["initContainers"] if c["name"] == name)["resources"]
    return resources


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param([{"type": "Container", "max": {"cpu": "1", "memory": "256Mi"}}], id="max"),
        pytest.param([{"type": "Container", "min": {"cpu": "100m", "memory": "128Mi"}}], id="min"),
        pytest.param([{"type": "Container", "maxLimitRequestRatio": {"cpu": "3", "memory": "1500m"}}], id="ratio"),
        pytest.param([{"type": "Pod", "max": {"cpu": "1", "memory": "300Mi"}}], id="pod max"),
        pytest.param([{"type": "Pod", "maxLimitRequestRatio": {"cpu": "2", "memory": "2"}}], id="pod ratio"),
        pytest.param([{"type": "Container", "default": {"ephemeral-storage": "1Gi"}}, {"type": "Pod", "max": {"ephemeral-storage": "3Gi"}}], id="storage"),
    ],
)  # fmt: skip
def test_what_is_fitted_is_let_in_by_the_limit_ranger_itself(
    admitting: Admitting, ml: str, limits: list[Json]
) -> None:
    """It judges after us. A pod whose containers are the class's own, with opting out, shows that it would not be."""
    mounts = [{"name": "train", "mountPath": "/data"}]
    sizes = {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"cpu": "200m", "memory": "150Mi"},
    }
    app = {"name": "app", "image": "i", "volumeMounts": mounts, "resources": sizes}
    as_class_has_it = ours_of(admitting, ml, app)
    _known(admitting, "LimitRange", limit_range("limits", *limits, namespace=ml))
    found, _ = admitting.create(pod("reader", _ASKS, ml, containers=[app]))
    assert ours(found) == ["sidemount-keeper", "sidemount-train"]
    if "ephemeral-storage" not in json.dumps(limits):
        assert "forbidden" in refusal(admitting.api, as_class_has_it, "--dry-run=server")


def ours_of(admitting: Admitting, namespace: str, app: Json) -> Json:
    """Return a pod with containers of the very sizes that ours have, under other names and for nobody."""
    found, _ = admitting.create(pod("before", _ASKS, namespace, containers=[app]))
    alike = [
        {"name": f"as-{each['name']}", "image": "i", "resources": each["resources"]}
        for each in found["spec"]["initContainers"]
    ]
    return pod("alike", {}, namespace, containers=[*alike, app])


def test_what_cannot_be_fitted_is_refused_with_the_sum(admitting: Admitting, ml: str) -> None:
    limits = limit_range("limits", {"type": "Container", "max": {"memory": "48Mi"}}, namespace=ml)
    _known(admitting, "LimitRange", limits)
    told = admitting.refused(pod("reader", _ASKS, ml))
    assert (
        'container sidemount-keeper needs 64Mi of memory, more than the 48Mi that LimitRange "limits" allows'
        in told
    )
    # Who raises it is believed at once, whatever the watch has told.
    limits["spec"]["limits"][0]["max"]["memory"] = "1Gi"
    admitting.api.apply(limits)
    until_refused(admitting.api, pod("reader", _ASKS, ml), lambda told: told == "")


def test_a_quota_that_could_never_hold_the_pod_refuses_it_with_the_numbers(
    admitting: Admitting, ml: str
) -> None:
    _known(admitting, "ResourceQuota", quota({"limits.memory": "100Mi"}, namespace=ml))
    app = {"name": "app", "image": "i", "resources": {"limits": {"memory": "10Mi"}}}
    told = admitting.refused(pod("reader", _ASKS, ml, containers=[app]))
    assert "QuotaExceeded" in told
    assert (
        "the pod has 586Mi of limits.memory (its own containers 10Mi, sidemount-keeper 64Mi, sidemount-train 512Mi)"
        in told
    )


def test_a_quota_that_is_used_up_is_told_and_the_api_server_decides(admitting: Admitting, ml: str) -> None:
    """An API server alone has nobody who counts: the test does."""
    full = quota({"limits.memory": "1Gi"}, {"limits.memory": "900Mi"}, namespace=ml)
    _known(admitting, "ResourceQuota", full)
    admitting.api.run(
        "patch", "resourcequota", "compute", f"--namespace={ml}", "--subresource=status", "--type=merge",
        f"--patch={json.dumps({'status': full['status']})}",
    )  # fmt: skip
    app = {"name": "app", "image": "i", "resources": {"limits": {"memory": "10Mi"}}}
    asking = pod("reader", _ASKS, ml, containers=[app])
    until_refused(admitting.api, asking, lambda told: "exceeded quota: compute" in told)
    assert "used: limits.memory=900Mi" in refusal(admitting.api, asking, "--dry-run=server")


@pytest.fixture
def old_node(admitting: Admitting, unique: str) -> Iterator[str]:
    """A node of an older release among newer ones."""
    for name, version in ((f"{unique}-new", "v1.37.2"), (unique, "v1.28.9")):
        metadata = {"name": name, "labels": {"pool": name, "kubernetes.io/os": "linux"}}
        admitting.api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        status = {"status": {"nodeInfo": {"kubeletVersion": version}}}
        admitting.api.run(
            "patch", "node", name, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}"
        )
    yield unique
    for name in (f"{unique}-new", unique):
        admitting.api.delete("node", name)
    assert wait_for(lambda: _has_told(admitting, "Node", 0), WAIT_S), admitting.webhook.told()


def test_a_pod_that_may_land_on_an_old_node_gets_no_sidecar(
    admitting: Admitting, ml: str, old_node: str
) -> None:
    """And every other one does: a cluster may be long in an upgrade."""
    asking = pod("reader", _ASKS, ml)
    until_refused(
        admitting.api, asking, lambda told: f'node "{old_node}" is 1.28, native sidecars need 1.29' in told
    )
    found, _ = admitting.create(pod("elsewhere", _ASKS, ml, nodeSelector={"pool": f"{old_node}-new"}))
    assert ours(found) == ["sidemount-keeper", "sidemount-train"]
    admitting.api.run("cordon", old_node)
    until_refused(admitting.api, asking, lambda told: told == "")
