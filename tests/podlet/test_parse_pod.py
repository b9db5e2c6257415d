"""What an API server adds to a pod, and what it or podlet refuses."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.podlet.errors import PodRefused
from e2e.podlet.parse_pod import parse_pod
from e2e.podlet.pod import Kind, Propagation
from sidemount.model.names import TOKEN_PATH
from tests.podlet.pods import container, exec_probe, mount, pod, sidecar, task

DATA = {"name": "data", "emptyDir": {}}
Json = dict[str, Any]


def test_defaults_are_the_api_servers() -> None:
    manifest = pod(container("app", livenessProbe={"exec": {"command": ["true"]}}))
    del manifest["spec"]["terminationGracePeriodSeconds"]
    parsed = parse_pod(manifest)
    probe = parsed.containers[0].liveness
    assert probe is not None
    assert (parsed.grace_s, parsed.restart_policy) == (30, "Always")
    assert (probe.period_s, probe.timeout_s, probe.failure_threshold, probe.success_threshold) == (
        10,
        1,
        3,
        1,
    )
    assert parsed.containers[0].security.seccomp == "Unconfined"


def test_every_container_gets_the_token_unless_something_is_mounted_there() -> None:
    covered = sidecar("covered", volumeMounts=[mount("data", TOKEN_PATH, readOnly=True)])
    manifest = pod(
        container("app"), inits=[task("init"), covered], volumes=[DATA], automountServiceAccountToken=True
    )
    parsed = parse_pod(manifest)
    at_token = {c.name: [m for m in c.mounts if m.mount_path == TOKEN_PATH] for c in parsed.containers}
    token = parsed.volumes[-1].name
    assert [m.volume for m in at_token["init"]] == [m.volume for m in at_token["app"]] == [token]
    assert [m.volume for m in at_token["covered"]] == ["data"]
    manifest["spec"]["automountServiceAccountToken"] = False
    assert [volume.name for volume in parse_pod(manifest).volumes] == ["data"]


def test_pod_security_context_is_inherited_and_overridden() -> None:
    own = container("own", securityContext={"runAsUser": 7, "runAsNonRoot": False})
    context = {"runAsUser": 1000, "runAsGroup": 2000, "runAsNonRoot": True, "fsGroup": 3000}
    parsed = parse_pod(
        pod(container("app"), own, securityContext={**context, "seccompProfile": {"type": "RuntimeDefault"}})
    )
    app, other = (c.security for c in parsed.containers)
    assert (app.run_as_user, app.run_as_group, app.run_as_non_root, app.seccomp) == (
        1000,
        2000,
        True,
        "RuntimeDefault",
    )
    assert (other.run_as_user, other.run_as_group, other.run_as_non_root) == (7, 2000, False)
    assert parsed.fs_group == 3000


def test_kinds_and_propagation_are_read() -> None:
    privileged = {"privileged": True}
    keeper = sidecar(
        "keeper",
        securityContext=privileged,
        volumeMounts=[mount("data", "/d", mountPropagation="Bidirectional")],
    )
    parsed = parse_pod(pod(container("app"), inits=[keeper, task("init")], volumes=[DATA]))
    assert [c.kind for c in parsed.containers] == [Kind.SIDECAR, Kind.INIT, Kind.APP]
    assert parsed.containers[0].mounts[0].propagation is Propagation.BIDIRECTIONAL


def _app(**fields: Any) -> Json:
    return pod(container("app", **fields), volumes=[DATA])


REFUSED = [
    pytest.param([], "pod: .* is not an object", id="no-object"),
    pytest.param({"kind": "Deployment"}, "pod.kind", id="not-a-pod"),
    pytest.param(pod(), "spec.containers: at least one is required", id="no-containers"),
    pytest.param(pod(container("a"), container("a")), 'the name "a" is used 2 times', id="two-containers-of-a-name"),
    pytest.param(pod(container("a"), inits=[task("a")]), 'the name "a" is used 2 times', id="init-of-the-same-name"),
    pytest.param(pod(container("a"), volumes=[DATA, DATA]), 'the name "data" is used 2 times', id="two-volumes-of-a-name"),
    pytest.param(_app(volumeMounts=[mount("no", "/d")]), 'no volume is named "no"', id="unknown-volume"),
    pytest.param(_app(volumeMounts=[mount("data", "/d"), mount("data", "/d")]), 'mountPath "/d" is used twice', id="same-path"),
    pytest.param(_app(volumeMounts=[mount("data", "/d", subPath="a/../b")]), "subPath: .* hold no '..'", id="sub-path-up"),
    pytest.param(_app(volumeMounts=[mount("data", "/d", subPath="/a")]), "must be relative", id="sub-path-absolute"),
    pytest.param(_app(volumeMounts=[mount("data", "/d", subPath="a", subPathExpr="b")]), "cannot stand beside", id="both-sub-paths"),
    pytest.param(_app(volumeMounts=[mount("data", "/d", mountPropagation="Bidirectional")]), "needs a privileged", id="bidirectional"),
    pytest.param(_app(volumeMounts=[mount("data", "d")]), "must be absolute", id="relative-mount-path"),
    pytest.param(_app(restartPolicy="Always"), "only an init container may have it", id="app-restart-policy"),
    pytest.param(_app(livenessProbe={"httpGet": {"port": 80}}), "podlet runs exec probes only", id="http-probe"),
    pytest.param(_app(livenessProbe=exec_probe("true", successThreshold=2)), "must be 1", id="liveness-successes"),
    pytest.param(_app(securityContext={"privileged": True, "allowPrivilegeEscalation": False}), "cannot be false", id="escalation"),
    pytest.param(_app(securityContext={"runAsUser": -1}), "runAsUser: -1 is not an integer", id="negative-uid"),
    pytest.param(_app(resources={"limits": {"memory": "64MB"}}), "limits.memory: .* is not a quantity", id="bad-quantity"),
    pytest.param(_app(resources={"limits": {"memory": 1}, "requests": {"memory": 2}}), "greater than its limit", id="request"),
    pytest.param(_app(resources={"limits": {"nvidia.com/gpu": 1}}), "does not know .*gpu", id="device"),
    pytest.param(_app(env=[{"name": "A=B"}]), "is not a name", id="env-name"),
    pytest.param(_app(env=[{"name": "A", "value": "x", "valueFrom": {}}]), "cannot stand beside a value", id="env-both"),
    pytest.param(_app(comand=["x"]), 'podlet does not know "comand"', id="misspelt"),
    pytest.param(_app(tty=True), "gives no terminal", id="tty"),
    pytest.param(pod(container("a"), inits=[task("i", livenessProbe=exec_probe("true"))]), "no probes or lifecycle", id="init-probe"),
    pytest.param(pod(container("a"), volumes=[{"name": "n", "nfs": {"server": "s", "path": "/"}}]), 'does not know "nfs"', id="nfs"),
    pytest.param(pod(container("a"), volumes=[{"name": "n"}]), "exactly one source", id="no-source"),
    pytest.param(pod(container("a"), volumes=[{"name": "n", "emptyDir": {}, "secret": {"secretName": "s"}}]), "exactly one", id="two-sources"),
    pytest.param(pod(container("a"), volumes=[{"name": "n", "hostPath": {"path": "/a/../b"}}]), "hold no '..'", id="host-path-up"),
    pytest.param(pod(container("a"), volumes=[{"name": "n", "emptyDir": {"medium": "HugePages"}}]), "medium", id="huge-pages"),
    pytest.param(pod(container("a"), hostPID=True), "hostPID: true: podlet does not do it", id="host-pid"),
    pytest.param(pod(container("a"), hostUsers=False), "hostUsers", id="user-namespace"),
    pytest.param(pod(container("a"), runtimeClassName="gvisor"), "runtimeClassName", id="runtime-class"),
]  # fmt: skip


@pytest.mark.parametrize(("manifest", "message"), REFUSED)
def test_what_must_not_run_is_refused_by_name(manifest: object, message: str) -> None:
    with pytest.raises(PodRefused, match=message):
        parse_pod(manifest)


def test_fields_of_the_scheduler_change_nothing() -> None:
    plain = pod(container("app"))
    plain["metadata"]["uid"] = "u"
    placed = copy.deepcopy(plain)
    placed["spec"] |= {
        "nodeSelector": {"a": "b"},
        "tolerations": [],
        "affinity": {},
        "priorityClassName": "p",
    }
    assert parse_pod(placed) == parse_pod(plain)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = sorted(
    {"name", "image", "command", "env", "envFrom", "volumeMounts", "securityContext", "resources", "startupProbe",
     "lifecycle", "restartPolicy", "containers", "initContainers", "volumes", "terminationGracePeriodSeconds"}
)  # fmt: skip


@given(key=st.sampled_from(_KEYS), value=_JSON, deep=st.booleans())
def test_junk_anywhere_raises_nothing_but_a_refusal(key: str, value: object, deep: bool) -> None:
    manifest = pod(container("app"))
    place = manifest["spec"]["containers"][0] if deep else manifest["spec"]
    place[key] = value
    with contextlib.suppress(PodRefused):
        parse_pod(manifest)
