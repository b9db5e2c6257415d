"""How a volume is, from the states of its containers and its keeper's log."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidemount.commands.health.csi import CsiView, mount_pods_of
from sidemount.commands.health.judgement import Health, KeeperLog, PodReport, judge
from sidemount.commands.health.pod import PodView, read_pod
from sidemount.commands.health.report import as_document, render_table
from sidemount.model.keeper_log import by_volume, parse_line
from tests.cli.cluster_pods import STARTED_MS, golden, log_line, running

POD = running(golden())
SERVING = log_line("phase_changed", "train", phase="Serving", was="Attaching", generation=1)
TAKEN_OVER = log_line("taken_over", "train", stall_ms=31, generation=2)


def seen(manifest: dict[str, Any]) -> PodView:
    found = read_pod(manifest)
    assert found is not None
    return found


def judged(manifest: dict[str, Any], *lines: str) -> PodReport:
    events = [event for line in lines if (event := parse_line(line)) is not None]
    return judge(seen(manifest), KeeperLog(volumes=by_volume(events)) if lines else None)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"started": False, "restartCount": 3, "state": {"waiting": {"reason": reason, "message": message}}}


ENDED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("manifest", "lines", "health", "why"),
    [
        pytest.param(POD, (), Health.SERVING, "", id="started, no log"),
        pytest.param(POD, (SERVING, TAKEN_OVER), Health.SERVING, "", id="taken over"),
        pytest.param(golden(), (), Health.STARTING, "keeper is not started", id="just created"),
        pytest.param(
            running(golden(), sidemount_keeper=waiting("ImagePullBackOff", "no such image")),
            (),
            Health.FAILING,
            "keeper: ImagePullBackOff; no such image",
            id="no image",
        ),
        pytest.param(
            running(golden(), sidemount_train=waiting("CrashLoopBackOff") | {"lastState": ENDED}),
            (SERVING,),
            Health.FAILING,
            "daemon: CrashLoopBackOff; OOMKilled, exit code 137",
            id="a daemon that crashes, whatever the log said before",
        ),
        pytest.param(
            running(golden(), sidemount_train={"started": False, "state": ENDED}),
            (),
            Health.WAITING,
            "its daemon has ended (OOMKilled, exit code 137)",
            id="a daemon that has just ended",
        ),
        pytest.param(
            POD,
            (SERVING, log_line("daemon_abnormal", "train", level="warning", what="the source is gone")),
            Health.ABNORMAL,
            "the source is gone",
            id="abnormal",
        ),
        pytest.param(
            POD,
            (SERVING, log_line("container_called_hung", "train", level="warning", why="stopped for 30 s")),
            Health.HUNG,
            "stopped for 30 s",
            id="hung",
        ),
        pytest.param(
            POD,
            (SERVING, log_line("phase_changed", "train", phase="WaitingForDaemon", cause="gone")),
            Health.WAITING,
            "its daemon has not connected yet",
            id="waits for its daemon",
        ),
        pytest.param(
            POD,
            (SERVING, log_line("volume_detached", "train", layers=1)),
            Health.FAILING,
            "told to end and the pod was not",
            id="its keeper was ended",
        ),
        pytest.param(
            POD | {"metadata": POD["metadata"] | {"deletionTimestamp": "2026-01-02T03:10:00Z"}},
            (),
            Health.ENDING,
            "",
            id="being deleted",
        ),
        pytest.param(
            POD | {"status": POD["status"] | {"phase": "Succeeded"}},
            (),
            Health.ENDED,
            "",
            id="a job that is done",
        ),
    ],
)
def test_health_is_what_containers_and_log_say(
    manifest: dict[str, Any], lines: tuple[str, ...], health: Health, why: str
) -> None:
    (report,) = judged(manifest, *lines).volumes
    assert report.health is health
    assert why in report.why
    assert bool(report.why) == bool(why)


def without(pod: dict[str, Any], container: str) -> dict[str, Any]:
    kept = [each for each in pod["spec"]["initContainers"] if each["name"] != container]
    return pod | {"spec": pod["spec"] | {"initContainers": kept}}


@pytest.mark.parametrize(
    ("manifest", "health"),
    [
        pytest.param(without(POD, "sidemount-keeper"), Health.MISSING, id="no keeper"),
        pytest.param(without(POD, "sidemount-train"), Health.FAILING, id="no daemon"),
        pytest.param(POD | {"spec": {"containers": []}}, Health.MISSING, id="nothing of ours left"),
    ],
)
def test_a_half_injected_pod_is_not_healthy(manifest: dict[str, Any], health: Health) -> None:
    report = judged(manifest)
    assert report.is_unhealthy
    assert {each.health for each in report.volumes} == {health}
    assert all(each.volume.name == "train" and each.why for each in report.volumes)


def test_a_pod_that_opted_out_or_supplied_nothing_misses_nothing() -> None:
    for annotations in (
        {"volume.sidemount.io/train": "dir:///srv/data", "sidemount.io/inject": "false"},
        {"volume.sidemount.io/train": "?optional=true"},
    ):
        pod = {"metadata": {"name": "p", "namespace": "ml", "annotations": annotations}, "spec": {}}
        assert not judged(pod).is_unhealthy


def test_a_volume_by_csi_is_told_and_not_judged() -> None:
    report = judged(running(golden("csi-and-sidecar")))
    hot = next(each for each in report.volumes if each.volume.name == "hot")
    assert (hot.health, hot.volume.delivery, hot.volume.driver_class) == (Health.UNKNOWN, "csi", "node-cache")
    assert hot.volume.source == "cache://bucket/hot"


NOW_MS = STARTED_MS + 3_600_000
TARGET = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/{}/mount"


def mount_pod(volume: str = "hot", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "sidemount-mounts",
            "name": "csi-0",
            "annotations": {"sidemount.io/target": TARGET.format(volume)},
            "creationTimestamp": "2026-01-02T03:00:00Z",
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "daemon", "state": {"running": {"startedAt": "2026-01-02T03:00:00Z"}}}
            ],
            **status,
        },
    }


def state(kind: str, reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "daemon", "state": {kind: {"reason": reason, "message": message}}}]


UNSCHEDULABLE = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes: 1 Too many pods.",
    }
]


@pytest.mark.parametrize(
    ("found", "health", "why"),
    [
        pytest.param(mount_pod(), Health.SERVING, "", id="it runs"),
        pytest.param(mount_pod("pvc-1"), Health.UNKNOWN, "no mount pod", id="of a claim"),
        pytest.param(None, Health.UNKNOWN, "no mount pod", id="none can be seen"),
        pytest.param(mount_pod("train"), Health.UNKNOWN, "no mount pod", id="of another volume"),
        pytest.param(
            mount_pod(containerStatuses=state("waiting", "CrashLoopBackOff", "back-off 40s")),
            Health.FAILING,
            "sidemount-mounts/csi-0: CrashLoopBackOff; back-off 40s",
            id="it crashes",
        ),
        pytest.param(
            mount_pod(phase="Pending", containerStatuses=[], conditions=UNSCHEDULABLE),
            Health.FAILING,
            "Unschedulable: 0/1 nodes: 1 Too many pods.",
            id="no room",
        ),
        pytest.param(
            mount_pod(phase="Pending", containerStatuses=state("waiting", "ContainerCreating")),
            Health.FAILING,
            "it has not started (ContainerCreating)",
            id="it does not begin",
        ),
    ],
)
def test_a_volume_by_csi_is_as_its_mount_pod(found: dict[str, Any] | None, health: Health, why: str) -> None:
    pod = running(golden("csi-and-sidecar"))
    pod["metadata"]["uid"] = "u-1"
    view = CsiView(mount_pods=() if found is None else mount_pods_of([found]), now_ms=NOW_MS)
    hot = next(each for each in judge(seen(pod), None, view).volumes if each.volume.name == "hot")
    assert hot.health is health
    assert why in hot.why
    assert health is not Health.FAILING or "kubectl -n sidemount-mounts describe pod csi-0" in hot.way_out


def test_a_claim_by_csi_is_as_what_serves_claims_of_the_pod() -> None:
    """Its mount pod names the PersistentVolume, which the pod does not."""
    pod = running(golden("csi-and-sidecar"))
    pod["metadata"]["uid"] = "u-1"
    pod["spec"]["volumes"] = [each for each in pod["spec"]["volumes"] if "csi" not in each]
    crashed = mount_pod("pvc-1", containerStatuses=state("waiting", "CrashLoopBackOff"))
    for found, health in ((mount_pod("pvc-1"), Health.SERVING), (crashed, Health.FAILING)):
        view = CsiView(mount_pods=mount_pods_of([found]), now_ms=NOW_MS)
        hot = next(each for each in judge(seen(pod), None, view).volumes if each.volume.name == "hot")
        assert hot.health is health


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (CsiView(registered=frozenset({"node-2"})), "kubelet of node-1 does not know the driver"),
        (
            CsiView(registered=frozenset({"node-1"}), served=frozenset()),
            "node service of node-1 is not ready",
        ),
        (CsiView(registered=frozenset({"node-1"}), served=frozenset({"node-1"})), ""),
        (CsiView(), ""),
    ],
)
def test_a_pod_that_waits_for_the_csi_path_is_told_what_lacks_on_its_node(view: CsiView, why: str) -> None:
    pod = golden("csi-and-sidecar")
    pod["spec"]["nodeName"] = "node-1"
    hot = next(each for each in judge(seen(pod), None, view).volumes if each.volume.name == "hot")
    assert hot.health is (Health.FAILING if why else Health.STARTING)
    assert why in hot.why


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
)
def test_no_mount_pod_makes_it_raise(wild: Any) -> None:
    for manifest in ({"metadata": wild, "spec": wild, "status": wild}, mount_pod(containerStatuses=[wild])):
        (found,) = mount_pods_of([manifest])
        assert isinstance(found.trouble(NOW_MS), str)


def test_parts_of_an_inline_volume_are_views_of_it() -> None:
    found = seen(golden("csi-and-sidecar"))
    hot = next(each for each in found.volumes if each.name == "hot")
    assert (hot.delivery, hot.views) == ("csi", (("", True),))
    assert [each.name for each in found.volumes] == ["train", "hot"]
    alone = golden("csi-and-sidecar")
    alone["spec"]["volumes"] = [v for v in alone["spec"]["volumes"] if v["name"] != "hot"]
    assert any(each.name.startswith("sidemount-view-hot") for each in seen(alone).volumes)


def test_pods_that_are_not_ours_are_no_matter_of_ours() -> None:
    assert read_pod({"metadata": {"name": "p", "annotations": {"sidemount.io/inject": "false"}}}) is None
    assert (
        read_pod({"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "istio-proxy"}]}}) is None
    )


def test_counts_and_times_come_from_the_log() -> None:
    (report,) = judged(
        POD, SERVING, TAKEN_OVER, log_line("remounted", "train", stall_ms=1500, layers=2)
    ).volumes
    assert report.log is not None
    assert (report.log.takeovers, report.log.remounts, report.log.layers) == (1, 1, 2)
    text = render_table([judge(seen(POD), None)], now_ms=STARTED_MS + 7_200_000, wide=False, namespaces=False)
    assert "2h" in text


def test_what_needs_a_look_is_told_first_and_not_everything_is_told() -> None:
    starting = [judge(seen(golden(name=f"s{number}")), None) for number in range(30)]
    ill = judged(running(golden(name="ill"), sidemount_train=waiting("CrashLoopBackOff")))
    text = render_table([*starting, ill], now_ms=STARTED_MS, wide=False, namespaces=False)
    beneath = text.split("\n\n")[1].splitlines()
    assert len(beneath) == 21
    assert "ill" in beneath[0]
    assert beneath[-1] == "and 11 more: -o json has all"


def test_no_credential_of_a_source_is_shown() -> None:
    pod = golden()
    keeper = next(each for each in pod["spec"]["initContainers"] if each["name"] == "sidemount-keeper")
    mounts = json.loads(keeper["env"][0]["value"])
    mounts["mounts"][0]["spec"]["source"] = "https://user:s3cr3t@host/path?sig=s3cr3t"
    keeper["env"][0]["value"] = json.dumps(mounts)
    report = judged(pod)
    for shown in (
        json.dumps(as_document([report], [])),
        render_table([report], now_ms=STARTED_MS, wide=True, namespaces=True),
    ):
        assert "s3cr3t" not in shown
        assert "host/path" in shown


def test_what_cannot_be_read_is_said_and_not_called_healthy() -> None:
    pod = running(golden())
    keeper = next(each for each in pod["spec"]["initContainers"] if each["name"] == "sidemount-keeper")
    keeper["env"][0]["value"] = '{"version":99}'
    pod["metadata"]["annotations"] = {}
    (report,) = judged(pod).volumes
    assert report.health is Health.UNKNOWN
    assert "version is 99" in report.why


WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_content_of_a_pod_makes_it_fail(data: st.DataObject) -> None:
    pod = running(golden("three-volumes"))
    for _ in range(data.draw(st.integers(1, 4))):
        parent: Any = pod
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(parent[key], dict | list) or not parent[key] or data.draw(st.booleans()):
                parent[key] = data.draw(WILD)
                break
            parent = parent[key]
        if not pod:
            break
    found = read_pod(pod)
    if found is not None:
        report = judge(found, None)
        assert report.volumes
        json.dumps(as_document([report], []))
        assert "\x1b" not in render_table([report], now_ms=STARTED_MS, wide=True, namespaces=True)
