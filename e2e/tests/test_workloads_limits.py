"""Namespaces that do not take every pod: Pod Security, quotas and LimitRanges; who fits runs, who does not is told why."""

from collections.abc import Mapping
from typing import Any

import pytest

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.tests.deployment import Installation
from e2e.tests.pods import Namespace, controller, has_ended, mounted, pod, shell, task, with_volumes
from e2e.tests.sources import Source
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL

_ENFORCE = "pod-security.kubernetes.io/enforce"
_HARMLESS = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
_WITHOUT_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
_DATA = [mounted("books", "/data")]


def _asking(name: str, source: Source | None, script: str, **fields: Any) -> Json:
    app = task("app", script, volumeMounts=_DATA, **fields)
    made = pod(name, app, restartPolicy="Never")
    if source is None:
        return {**made, "spec": {**made["spec"], "volumes": [{"name": "books", "emptyDir": {}}]}}
    return with_volumes(made, {"books": source.uri})


def _object(kind: str, spec: Mapping[str, Any]) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "bounds"}, "spec": dict(spec)}


@pytest.mark.parametrize(
    "namespace",
    [{INJECTION_LABEL: INJECTION_ENABLED, _ENFORCE: level} for level in ("restricted", "baseline")],
    indirect=True,
    ids=["restricted", "baseline"],
)
def test_a_namespace_that_takes_no_privileged_pod(
    installed: Installation, namespace: Namespace, source: Source
) -> None:
    """The pod is not to blame and is told what its namespace enforces; one that does not ask runs there."""
    asking = _asking("asking", source, "true", securityContext=_WITHOUT_RIGHTS)
    asking["spec"]["securityContext"] = _HARMLESS
    with pytest.raises(
        KubectlFailed, match=r"(?s)PodSecurity.*NoNodePlugin|NoNodePlugin.*PodSecurity"
    ) as refused:
        namespace.create(asking)
    labels = (namespace.api.get("namespace", namespace.name) or {})["metadata"]["labels"]
    assert labels[_ENFORCE] in refused.value.reason
    silent = _asking("silent", None, "true", securityContext=_WITHOUT_RIGHTS)
    silent["spec"]["securityContext"] = _HARMLESS
    namespace.create(silent)
    assert namespace.until("silent", has_ended, "ended")["status"]["phase"] == "Succeeded"


def test_a_quota_counts_our_containers_too(ml: Namespace, source: Source) -> None:
    """One pod fits, the next waits for its end as every pod does, and one that could never fit is told the sum."""
    source.write({"book": b"fish\n"})
    hard = {"requests.memory": "256Mi", "limits.memory": "1Gi", "pods": "5"}
    ml.create(_object("ResourceQuota", {"hard": hard}))
    ml.until_object("resourcequota", "bounds", lambda found: "used" in found.get("status", {}), "counted")
    ml.run(
        with_volumes(
            pod("fits", shell("app", "cat /data/book", volumeMounts=_DATA, resources=_SMALL)),
            {"books": source.uri},
        )
    )
    ml.printed("fits", "app", "fish\n")
    second = _asking("second", source, "cat /data/book", resources=_SMALL)
    with pytest.raises(KubectlFailed, match=r"exceeded quota: bounds.*requests\.memory"):
        ml.create(second)
    large = {
        "requests": {**_SMALL["requests"], "memory": "200Mi"},
        "limits": {**_SMALL["limits"], "memory": "200Mi"},
    }
    with pytest.raises(KubectlFailed, match=r"(?s)QuotaExceeded.*328Mi.*256Mi"):
        ml.create(_asking("never", source, "true", resources=large))
    # A Job is retried by its controller, and runs when there is room.
    template = _asking("waits", source, "cat /data/book", resources=_SMALL)
    ml.create(controller("batch/v1", "Job", "waits", template, backoffLimit=0))
    ml.delete("fits")
    ml.until_object(
        "job", "waits", lambda found: found.get("status", {}).get("succeeded") == 1, "done", 240.0
    )


def test_a_limit_range_is_kept_to_or_the_pod_is_told(ml: Namespace, source: Source) -> None:
    """Limits of ours are lowered as far as they may be; what is asked for is not."""
    source.write({"book": b"fish\n"})
    most = {"type": "Container", "max": {"cpu": "1", "memory": "256Mi"}, "default": _SMALL["limits"]}
    most["defaultRequest"] = _SMALL["requests"]
    ml.create(_object("LimitRange", {"limits": [most]}))
    created = ml.create(_asking("fits", source, "cat /data/book"))
    limits = {each["name"]: each["resources"]["limits"] for each in created["spec"]["initContainers"]}
    assert limits["sidemount-books"] == {"cpu": "1", "memory": "256Mi"}
    assert ml.until("fits", has_ended, "ended")["status"]["phase"] == "Succeeded", ml.described("fits")
    ml.printed("fits", "app", "fish\n")
    ml.api.apply(
        {
            **_object(
                "LimitRange", {"limits": [{**most, "max": {"memory": "48Mi"}, "default": _SMALL["requests"]}]}
            ),
            "metadata": {"name": "bounds", "namespace": ml.name},
        }
    )
    with pytest.raises(KubectlFailed, match=r"LimitRangeExceeded.*48Mi"):
        ml.create(_asking("never", source, "true"))
    ml.create(_asking("silent", None, "true"))
    assert ml.until("silent", has_ended, "ended")["status"]["phase"] == "Succeeded"
