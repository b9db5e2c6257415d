"""What becomes of a volume, made of what keeper and launcher report of it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi.access_modes import AccessMode
from csi.event_news import CRASHES, WITHIN_S, Report, VolumeNews
from csi.event_reasons import MESSAGE_MAX, Occurrence, Reason
from csi.event_subject import PodRef
from csi.keeper_link import VolumeStatus
from csi.last_words import LastWords
from csi.launcher import Ended
from csi.metrics_volumes import OTHER, VolumeTally
from csi.records import Launch, Record, Stage
from sidemount.host.event_record import key_of
from sidemount.host.session import Phase
from sidemount.model.errors import HostFailure, OperationPending
from sidemount.model.mountspec import MountSpec

_POD = PodRef(namespace="ml", name="app", uid="u-1")
_MOUNT_POD = PodRef(namespace="sidemount-mounts", name="csi-x", uid="u-2")
_TARGET = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/train/mount"
_CONTEXT = {f"csi.storage.k8s.io/pod.{part}": getattr(_POD, part) for part in ("namespace", "name", "uid")}
_SERVING = VolumeStatus(phase=Phase.SERVING.value, generation=1)


class Desk:
    """News, with a clock of the test's."""

    def __init__(self) -> None:
        self.told: list[Occurrence] = []
        self.now = 0.0
        self.tally = VolumeTally()
        self.news = VolumeNews(
            self.tally, self.told.append, clock=lambda: self.now, wall_ms=lambda: int(self.now * 1000)
        )

    def reasons(self) -> list[Reason]:
        return [occurrence.reason for occurrence in self.told]

    def counted(self, name: str) -> dict[str, float]:
        samples = [sample for family in self.tally.collect() for sample in family.samples]
        return {sample.labels["class"]: sample.value for sample in samples if sample.name == name}


def record(stage: Stage = Stage.PUBLISHED, **fields: Any) -> Record:
    spec = MountSpec(volume="csi-1", driver_class="directory", source="dir:///srv", filesystem="directory")
    given: dict[str, Any] = {
        "volume_id": "vol",
        "target": _TARGET,
        "path": _TARGET,
        "stage": stage,
        "mode": AccessMode.MULTI_NODE_MULTI_WRITER,
        "arguments": "",
        "spec": spec,
        "launch": Launch(),
        "consumer": _POD,
    }
    return Record(**{**given, **fields})


def test_a_publish_that_fails_is_told_with_its_reason_code_on_the_pod_that_waits() -> None:
    desk = Desk()
    desk.news.publish_failed("vol", _TARGET, _CONTEXT, HostFailure("volume vol: its daemon has ended"))
    (told,) = desk.told
    assert (told.pod, told.namespace, told.uid) == ("app", "ml", "u-1")
    assert told.is_warning
    assert told.message == "volume train: volume vol: its daemon has ended (HostFailure)"


def test_a_publish_that_only_waits_or_is_of_no_pod_is_no_event() -> None:
    """A direct caller names no pod; it has its error."""
    desk = Desk()
    desk.news.publish_failed("vol", _TARGET, _CONTEXT, OperationPending("busy"))
    desk.news.publish_failed("vol", "/targets/t", {}, HostFailure("x"))
    assert desk.told == []
    failures = [family for family in desk.tally.collect() if family.name == "sidemount_csi_publish_failures"]
    assert {sample.labels["reason"]: sample.value for sample in failures[0].samples} == {
        "HostFailure": 1,
        "Pending": 1,
    }


def test_takeovers_and_remounts_are_counted_once_each_whatever_is_reported_besides() -> None:
    desk = Desk()
    for status in (
        _SERVING,
        replace(_SERVING, takeovers=1, pause_ms=40, cause="the process that served has ended"),
        replace(_SERVING, takeovers=1, pause_ms=40, generation=2),
        replace(_SERVING, takeovers=1, remounts=1, pause_ms=2000),
        VolumeStatus(phase=Phase.ADOPTING.value),  # another keeper, which counts anew
        replace(_SERVING, takeovers=1, pause_ms=7),
    ):
        desk.news.changed(record(), Report(status=status))
    assert desk.reasons() == [Reason.TAKEN_OVER, Reason.REMOUNTED, Reason.TAKEN_OVER]
    assert desk.counted("sidemount_csi_takeovers_total") == {"directory": 2, OTHER: 0}
    assert desk.counted("sidemount_csi_remounts_total") == {"directory": 1, OTHER: 0}
    assert "after 40 ms" in desk.told[0].message
    assert not desk.told[0].is_warning
    assert "ENOTCONN" in desk.told[1].message


def test_what_is_abnormal_is_told_and_its_recovery_only_once_it_serves() -> None:
    desk = Desk()
    desk.news.changed(record(), Report(status=replace(_SERVING, abnormal="dies again and again")))
    desk.news.changed(record(), Report(status=VolumeStatus(phase=Phase.ADOPTING.value)))
    assert desk.reasons() == [Reason.VOLUME_ABNORMAL]
    desk.news.changed(record(), Report(status=_SERVING))
    desk.news.changed(record(), Report(status=_SERVING))
    assert desk.reasons() == [Reason.VOLUME_ABNORMAL, Reason.VOLUME_RECOVERED]
    desk.news.changed(record(), Report(status=replace(_SERVING, hung="nothing for 30 s")))
    assert "nothing for 30 s" in desk.told[-1].message


def test_a_daemon_that_ends_again_and_again_within_a_while_is_a_crash_loop() -> None:
    desk = Desk()
    ended = Ended(1, LastWords("no route to the store"))
    desk.news.changed(record(), Report(status=_SERVING))
    for deaths in range(1, CRASHES + 1):
        desk.now += 1
        desk.news.changed(record(), Report(status=_SERVING, ended=ended, deaths=deaths))
    assert desk.reasons() == [Reason.DAEMON_CRASH_LOOPING]
    assert "no route to the store" in desk.told[0].message
    desk.now += WITHIN_S * 2
    desk.news.changed(record(), Report(status=_SERVING, ended=ended, deaths=CRASHES + 1))
    assert len(desk.told) == 1
    assert desk.counted("sidemount_csi_daemon_ends_total")["directory"] == CRASHES + 1


def test_restarts_before_the_plugin_began_are_no_news() -> None:
    desk = Desk()
    desk.news.changed(record(), Report(status=_SERVING, deaths=7))
    assert desk.counted("sidemount_csi_daemon_ends_total") == {OTHER: 0}


def test_a_mount_pod_that_does_not_run_is_named_while_its_publish_still_waits() -> None:
    """S4: misleading errors of other drivers when the node is full (M#534)."""
    desk = Desk()
    trouble = Ended(
        -1,
        LastWords("FailedScheduling: 0/1 nodes are available: 1 Too many pods."),
        "its mount pod sidemount-mounts/csi-x",
        is_final=False,
        is_room_missing=True,
    )
    report = Report(status=VolumeStatus(), ended=trouble, mount_pod=_MOUNT_POD)
    for _ in range(3):
        desk.news.changed(record(Stage.PUBLISHING), report)
    (told,) = desk.told
    assert told.reason is Reason.MOUNT_POD_NOT_RUNNING
    assert "sidemount-mounts/csi-x: FailedScheduling" in told.message
    assert told.pod == "app"


def test_a_source_that_lacks_is_no_fault_of_the_mount_pod_s() -> None:
    """The publish fails with it, which is told."""
    desk = Desk()
    lacks = Ended(-1, LastWords("source /srv/x does not exist", is_own=True), "source /srv/x does not exist")
    report = Report(status=VolumeStatus(), ended=lacks, mount_pod=_MOUNT_POD)
    desk.news.changed(record(Stage.PUBLISHING), report)
    assert desk.told == []


def test_without_a_pod_of_the_caller_s_the_mount_pod_has_the_event() -> None:
    desk = Desk()
    killed = Ended(
        137, LastWords(""), "its mount pod sidemount-mounts/csi-x has ended with code 137 (OOMKilled)"
    )
    desk.news.changed(record(consumer=None), Report(status=_SERVING, ended=killed, mount_pod=_MOUNT_POD))
    assert [(told.reason, told.pod) for told in desk.told] == [(Reason.OOM_KILLED, "csi-x")]
    desk.news.changed(record(consumer=None), Report(status=replace(_SERVING, remounts=1)))
    assert len(desk.told) == 1  # nothing to hang it on


def test_a_target_that_is_published_again_begins_anew() -> None:
    desk = Desk()
    desk.news.changed(record(), Report(status=replace(_SERVING, abnormal="x"), deaths=2))
    desk.news.changed(record(Stage.REMOVING), Report(status=_SERVING, deaths=3))
    desk.news.changed(record(Stage.PUBLISHING), Report(status=_SERVING))
    desk.news.changed(record(), Report(status=_SERVING))
    assert desk.reasons() == [Reason.VOLUME_ABNORMAL]
    assert desk.counted("sidemount_csi_daemon_ends_total") == {"directory": 0, OTHER: 0}


@pytest.mark.parametrize("target", ["/t", "/pods/x/volumes/kubernetes.io~csi/a\x1bb/mount", "/\udcff"])
@given(text=st.text(max_size=3000))
def test_a_message_is_one_line_bounded_and_without_what_looks_like_a_secret(target: str, text: str) -> None:
    desk = Desk()
    fault = HostFailure(f"s3://user:hunter2@host token=abcd1234 {text}")
    desk.news.publish_failed("vol\udcff", target, _CONTEXT, fault)
    (told,) = desk.told
    assert len(told.message) <= MESSAGE_MAX
    assert told.message.isprintable()
    assert "hunter2" not in told.message
    assert "abcd1234" not in told.message
    assert key_of(told)[2] == "MountFailed"


def test_no_number_of_classes_makes_more_than_so_many_labels() -> None:
    tally = VolumeTally()
    labels = {tally.label(f"class-{n}") for n in range(2000)}
    assert len(labels) == 501
    assert OTHER in labels


def test_what_is_known_of_volumes_that_are_gone_is_forgotten() -> None:
    desk = Desk()
    for n in range(2000):
        for stage in (Stage.PUBLISHED, Stage.REMOVING):
            desk.news.changed(record(stage, path=f"/t{n}"), Report(status=_SERVING))
    assert len(desk.news) < 300
