"""What the observer computes: views of pods and classes, news, Events, whose turn it is."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.host.event_desk import DeskLimits, EventDesk
from sidemount.host.event_record import (
    EventRecord,
    Teller,
    event_name,
    key_of,
    merged,
    read_record,
    render_event,
    render_update,
)
from sidemount.host.live_kinds import FUSE_DRIVER_CLASS, Key
from sidemount.model.errors import InvalidRequest
from sidemount.model.keeper_log import parse_line
from sidemount.model.names import subdomain_fault
from tests.webhook.observer.observed import driver_class, line, pod, samples, status_of, view, watchtower
from webhook.observer.class_view import read_class, render_status, wanted_status
from webhook.observer.log_schedule import LogPace, LogSchedule
from webhook.observer.news import MESSAGE_MAX, Occurrence, Reason, deaths, injected, told_by_keeper
from webhook.observer.pod_view import read_pod
from webhook.observer.settings import ObserverSettings, parse_settings
from webhook.observer.watchtower import FIRST_MS, KEPT_MS, OVERLAP_MS, Since, since

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def occurrence(at_ms: int = 1000, reason: Reason = Reason.TAKEN_OVER, **fields: Any) -> Occurrence:
    given = {"namespace": "ml", "pod": "p", "uid": "u", "message": "m", "volume": "train", **fields}
    return Occurrence(reason=reason, at_ms=at_ms, **given)


# Views -----------------------------------------------------------------------------------------------


def test_a_pod_is_read() -> None:
    found = view(
        "p",
        status_of("sidemount-keeper"),
        status_of("sidemount-train", number=2, killed="2026-01-01T00:00:00Z"),
    )
    assert (found.key, found.has_keeper, found.is_over) == (("ml", "p"), True, False)
    assert found.class_of("train") == "directory"
    assert found.volume_of("sidemount-train") == "train"
    assert found.keeper is not None
    assert found.keeper.container_id == "containerd://sidemount-keeper-0"
    assert [death.container for death in deaths(found)] == ["sidemount-train"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pod: pod["metadata"]["annotations"].clear(), id="label-without-annotation"),
        pytest.param(lambda pod: pod["metadata"].update(name="../x"), id="no-name"),
        pytest.param(lambda pod: pod["metadata"].update(uid=None), id="no-uid"),
        pytest.param(lambda pod: pod.pop("metadata"), id="no-metadata"),
        pytest.param(
            lambda pod: pod["metadata"]["annotations"].update({"sidemount.io/status": "[" * 9999}), id="deep"
        ),
        pytest.param(
            lambda pod: pod["metadata"]["annotations"].update(
                {"sidemount.io/status": '{"volumes":{"../":{}}}'}
            ),
            id="no-volume's-name",
        ),
    ],
)
def test_a_forged_pod_is_passed_over(change: Any) -> None:
    forged = pod()
    change(forged)
    assert read_pod(forged) is None


def test_a_pod_with_the_label_and_a_forged_annotation_has_no_log_to_be_read() -> None:
    """Without a keeper there is no sidecar's volume, so it counts for no class either; one of CSI there may be."""
    forged = pod()
    forged["spec"]["initContainers"] = []
    assert read_pod(forged) is None
    told = {
        "forged": {"class": "directory", "delivery": "sidecar", "reason": "x"},
        "claim": {"class": "directory", "delivery": "csi", "reason": "LeftToCsi"},
    }
    forged = pod(volumes=told)
    forged["spec"]["initContainers"] = []
    found = read_pod(forged)
    assert found is not None
    assert not found.has_keeper
    assert [volume.name for volume in found.volumes] == ["claim"]


@given(_JSON, _JSON, _JSON, _JSON)
def test_no_pod_makes_it_raise(metadata: Any, spec: Any, status: Any, told: Any) -> None:
    for wild in (
        {"metadata": metadata, "spec": spec, "status": status},
        {**pod(), "spec": spec, "status": {"initContainerStatuses": [told]}},
    ):
        read_pod(wild)
    wild = pod()
    wild["metadata"]["annotations"]["sidemount.io/status"] = json.dumps(told)
    read_pod(wild)


@given(_JSON, _JSON, _JSON)
def test_no_class_makes_it_raise_and_its_status_fits(spec: Any, status: Any, generation: Any) -> None:
    wild = {**driver_class(), "spec": spec, "status": status}
    wild["metadata"]["generation"] = generation
    found = read_class(wild)
    assert found is not None
    wanted = wanted_status(found, 3, 0)
    assert wanted is not None
    rendered = render_status(wanted)
    assert len(rendered["faults"]) <= 64
    assert all(len(fault) <= 1024 for fault in rendered["faults"])
    again = read_class({**wild, "status": rendered})
    assert again is not None
    assert wanted_status(again, 3, 10_000) is None


def test_a_broken_class_says_why_and_since_when() -> None:
    found = read_class(driver_class(sources=["no uri"]))
    assert found is not None
    wanted = wanted_status(found, 0, 1_000)
    assert wanted is not None
    assert wanted.is_accepted is False
    assert "no uri" in wanted.faults[0]
    again = replace(found, found=wanted)
    later = wanted_status(again, 1, 9_000)
    assert later is not None
    assert later.since == wanted.since
    mended = wanted_status(replace(again, faults=(), reason="Valid"), 1, 9_000)
    assert mended is not None
    assert (mended.is_accepted, mended.since) == (True, "1970-01-01T00:00:09Z")


# News ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        pytest.param(
            line("taken_over", stall_ms=23, cause="gone"), Reason.TAKEN_OVER, "after 23 ms", id="takeover"
        ),
        pytest.param(line("remounted", stall_ms=61_000), Reason.REMOUNTED, "after 61 s", id="remount"),
        pytest.param(line("came_back"), Reason.KEEPER_RESTARTED, "nothing was interrupted", id="keeper"),
        pytest.param(line("daemon_abnormal", what="dies"), Reason.VOLUME_ABNORMAL, "dies", id="abnormal"),
        pytest.param(
            line("container_called_hung", why="silent"), Reason.VOLUME_ABNORMAL, "silent", id="hung"
        ),
        pytest.param(
            line("daemon_recovered", was="dies"), Reason.VOLUME_RECOVERED, "works again", id="recovered"
        ),
    ],
)
def test_lines_become_news(text: str, reason: Reason, words: str) -> None:
    event = parse_line(text)
    assert event is not None
    found = told_by_keeper(view(), event)
    assert found is not None
    assert found.reason is reason
    assert words in found.message
    assert found.message.startswith("volume train: ")
    assert found.driver_class == "directory"


@pytest.mark.parametrize(
    "text", [line("served"), line("taken_over", volume="other"), line("lost", level="warning")]
)
def test_other_lines_are_no_news(text: str) -> None:
    event = parse_line(text)
    assert event is not None
    assert told_by_keeper(view(), event) is None


def test_a_message_is_bounded() -> None:
    many = {
        f"v{n}": {"class": "c" * 60, "delivery": "sidecar", "reason": "SidecarPreferred"} for n in range(64)
    }
    assert len(injected(view(volumes=many)).message) <= MESSAGE_MAX


# Events ----------------------------------------------------------------------------------------------


def test_an_event_says_what_it_has_told_so_that_nothing_is_told_twice() -> None:
    first = merged(None, [1000, 2000])
    assert first == EventRecord(count=2, first_ms=1000, last_ms=2000)
    document = render_event(occurrence(2000), first, Teller("sidemount-observer", "i"))
    document["metadata"]["resourceVersion"] = "7"
    known = read_record(document)
    assert known == replace(first, version="7")
    assert merged(known, [1000, 2000]) is None
    assert merged(known, [1500, 2500]) == replace(known, count=3, last_ms=2500)
    assert render_update(occurrence(2500), known)[0] == {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": "7",
    }


@pytest.mark.parametrize("name", ["p", "a" * 253, "a" * 219 + ".b", "x.y-z"])
def test_the_name_of_an_event_follows_from_what_it_is_about(name: str) -> None:
    found = event_name(occurrence(pod=name))
    assert subdomain_fault(found) == ""
    assert found == event_name(occurrence(5, pod=name, message="other"))
    others = [
        occurrence(pod=name, uid="v"),
        occurrence(pod=name, volume="v"),
        occurrence(pod=name, reason=Reason.REMOUNTED),
        occurrence(pod=name, volume="", container="train2"),
    ]
    assert found not in {event_name(other) for other in others}


@given(_JSON, _JSON, _JSON)
def test_no_event_of_somebody_else_makes_it_raise(metadata: Any, count: Any, first: Any) -> None:
    record = read_record({"metadata": metadata, "count": count, "firstTimestamp": first})
    assert merged(record, [1 << 54]) is not None


def test_a_thousand_occurrences_are_one_write_and_more_come_later() -> None:
    desk = EventDesk(DeskLimits(pace_s=20), 0.0)
    desk.offer([occurrence(n) for n in range(1000)], 0.0)
    taken = desk.take(0.0)
    assert taken is not None
    key, pending, known = taken
    assert (len(pending.moments_ms), pending.latest.at_ms, known) == (1000, 999, None)
    record = EventRecord(count=1000, first_ms=0, last_ms=999)
    desk.written(key, record, 0.0)
    desk.offer([occurrence(2000)], 1.0)
    assert desk.take(19.0) is None
    again = desk.take(20.0)
    assert again is not None
    assert again[2] == record


def test_all_events_share_a_budget() -> None:
    desk = EventDesk(DeskLimits(a_second=5, burst=10), 0.0)
    desk.offer([occurrence(uid=f"u{n}") for n in range(100)], 0.0)
    assert sum(desk.take(0.0) is not None for _ in range(100)) == 10
    assert sum(desk.take(2.0) is not None for _ in range(100)) == 10


def test_a_thousand_pods_that_start_do_not_hide_one_that_suffers() -> None:
    desk = EventDesk(DeskLimits(waiting=8, burst=2), 0.0)
    started = [occurrence(uid=f"u{n}", reason=Reason.INJECTED) for n in range(1000)]
    assert desk.offer(started, 0.0) == 994
    suffers = occurrence(uid="x", reason=Reason.VOLUME_ABNORMAL)
    assert desk.offer([suffers], 1.0) == 0
    taken = [desk.take(1.0) for _ in range(3)]
    assert [found[0][2] for found in taken if found is not None] == ["VolumeAbnormal", "Injected"]


def test_what_waits_is_bounded_and_what_fails_is_given_up() -> None:
    desk = EventDesk(DeskLimits(waiting=3, tries=2), 0.0)
    assert desk.offer([occurrence(uid=f"u{n}") for n in range(5)], 0.0) == 2
    taken = desk.take(0.0)
    assert taken is not None
    key, pending, _ = taken
    desk.offer([occurrence(9000, uid=key[1])], 0.0)
    assert desk.failed(key, pending, 0.0)
    assert (pending.moments_ms, pending.latest.at_ms) == ([1000, 9000], 9000)
    assert not desk.failed(key, pending, 5.0)


def test_an_event_is_about_one_reason_at_one_volume_of_one_pod() -> None:
    assert key_of(occurrence()) == ("ml", "u", "TakenOver", "train")
    assert key_of(occurrence(volume="", container="sidemount-keeper"))[3] == "sidemount-keeper"


@pytest.mark.parametrize(
    ("predecessor_ms", "expected"),
    [
        pytest.param(None, Since(-FIRST_MS, -FIRST_MS), id="nobody"),
        pytest.param(-1000, Since(-1000 - OVERLAP_MS, -1000), id="a-moment-ago"),
        pytest.param(-KEPT_MS - 5, Since(-KEPT_MS - 5, -KEPT_MS - 5), id="its-events-may-be-gone"),
        pytest.param(-KEPT_MS + 5, Since(-KEPT_MS, -KEPT_MS + 5), id="in-between"),
        pytest.param(5000, Since(-OVERLAP_MS, 0), id="a-clock-that-is-ahead"),
    ],
)
def test_what_is_news_depends_on_who_led_before(predecessor_ms: int | None, expected: Since) -> None:
    assert since(predecessor_ms, 0) == expected


@pytest.mark.asyncio
async def test_a_term_that_begins_again_counts_no_death_twice() -> None:
    """The API server was away for a while, and nobody else has led meanwhile."""
    killed = status_of("sidemount-train", number=1, killed="1970-01-01T00:00:01Z")
    tower = watchtower(pod("p", status_of("sidemount-keeper"), killed))
    for _ in range(2):
        term = asyncio.create_task(tower.term())
        await asyncio.sleep(0)
        term.cancel()
        await asyncio.gather(term, return_exceptions=True)
    counted = {
        sample.name: sample.value
        for family in tower.collect()
        for sample in family.samples
        if family.name == "sidemount_oom_kills"
    }
    assert counted == {"sidemount_oom_kills_total": 1}


def test_a_counter_is_there_before_anything_is_counted() -> None:
    """Of a series that begins with 1 Prometheus sees no increase: the first death of a class would alert nobody."""
    tower = watchtower()
    changes: dict[Key, Any] = {}
    tower.store.read(FUSE_DRIVER_CLASS, driver_class(), changes)
    tower.store.apply(FUSE_DRIVER_CLASS, changes)
    of_class = frozenset({("class", "directory")})
    assert samples(tower, "sidemount_oom_kills_total")[of_class] == 0
    assert samples(tower, "sidemount_stall_seconds_count")[of_class] == 0
    dropped = frozenset({("reason", "VolumeAbnormal"), ("result", "dropped")})
    assert samples(tower, "sidemount_observer_events_total")[dropped] == 0


# Turns -----------------------------------------------------------------------------------------------


def schedule() -> LogSchedule:
    return LogSchedule(LogPace(period_s=30, gap_s=2, longest_s=600), lambda: 0.5)


def test_a_pod_to_which_something_happened_comes_first_but_not_too_often() -> None:
    turns = schedule()
    for name in ("a", "b"):
        turns.ask(("ml", name), 0.0)
    first, second = turns.take(0.0), turns.take(0.0)
    assert {first, second} == {("ml", "a"), ("ml", "b")}
    assert turns.take(0.0) is None
    for name in ("a", "b"):
        turns.done(("ml", name), 0.0, is_read=True)
    assert turns.take(29.0) is None
    turns.ask(("ml", "b"), 1.0)
    assert turns.take(1.0) is None
    assert turns.take(2.0) == ("ml", "b")
    assert turns.take(30.0) == ("ml", "a")


def test_what_happens_during_a_turn_is_looked_at_afterwards() -> None:
    turns = schedule()
    turns.ask(("ml", "a"), 0.0)
    assert turns.take(0.0) == ("ml", "a")
    turns.ask(("ml", "a"), 0.5)
    assert turns.take(10.0) is None
    turns.done(("ml", "a"), 10.0, is_read=True)
    assert turns.take(12.0) == ("ml", "a")


def test_a_log_that_cannot_be_read_is_asked_for_less_and_less() -> None:
    turns, now, waits = schedule(), 0.0, []
    turns.ask(("ml", "a"), 0.0)
    for _ in range(8):
        began = now
        while turns.take(now) is None:
            now += 1
            assert now < 10_000
        waits.append(now - began)
        turns.done(("ml", "a"), now, is_read=False)
    assert waits[1:6] == [60, 120, 240, 480, 600]


def test_the_last_turn_is_the_last() -> None:
    turns = schedule()
    turns.ask(("ml", "a"), 0.0, is_last=True)
    assert turns.take(0.0) == ("ml", "a")
    turns.done(("ml", "a"), 0.0, is_read=True)
    assert len(turns) == 0
    turns.forget(("ml", "a"))
    assert turns.take(1e9) is None


def test_the_log_of_a_pod_that_is_over_is_not_asked_for_for_ever() -> None:
    turns = schedule()
    turns.ask(("ml", "a"), 0.0, is_last=True)
    tries = 0
    while turns.take(tries * 1e4) is not None:
        turns.done(("ml", "a"), tries * 1e4, is_read=False)
        tries += 1
        assert tries < 20
    assert (tries, len(turns)) == (5, 0)


def test_pods_that_were_over_long_ago_wait_until_nobody_else_does() -> None:
    """A cluster keeps thousands of finished pods; each new leader reads their logs, but those of pods that run first."""
    turns = schedule()
    for n in range(100):
        turns.ask(("ml", f"over{n}"), 0.0, is_last=True, can_wait=True)
    turns.ask(("ml", "runs"), 5.0)
    turns.ask(("ml", "over7"), 6.0, is_last=True)
    assert [turns.take(10.0), turns.take(10.0)] == [("ml", "over7"), ("ml", "runs")]
    assert turns.oldest_s(10.0) == 0
    rest = {turns.take(10.0) for _ in range(99)}
    assert len(rest - {None}) == 99
    assert turns.take(10.0) is None


def test_turns_that_were_taken_when_a_term_ended_are_given_again() -> None:
    turns = schedule()
    turns.ask(("ml", "a"), 0.0)
    turns.take(0.0)
    turns.begin(5.0)
    assert turns.take(5.0) == ("ml", "a")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "wait", "done", "take", "forget"])),
        max_size=60,
    )
)
def test_no_pod_is_forgotten_and_none_is_read_twice_at_once(steps: list[tuple[str, str]]) -> None:
    turns, now, taken, known = schedule(), 0.0, set(), set()
    for name, act in steps:
        now += 1.0
        pod_ = ("ml", name)
        if act in ("ask", "wait"):
            turns.ask(pod_, now, can_wait=act == "wait")
            known.add(pod_)
        elif act == "done" and pod_ in taken:
            turns.done(pod_, now, is_read=True)
            taken.discard(pod_)
        elif act == "forget":
            turns.forget(pod_)
            known.discard(pod_)
            taken.discard(pod_)
        elif act == "take":
            got = turns.take(now)
            if got is not None:
                assert got not in taken
                taken.add(got)
    for pod_ in taken:
        turns.done(pod_, now, is_read=True)
    assert {turns.take(now + 1000) for _ in known} == known


# Settings --------------------------------------------------------------------------------------------


def test_without_flags_the_defaults_hold() -> None:
    assert parse_settings([]) == ObserverSettings()


@pytest.mark.parametrize(
    "flags",
    [
        ["--listen", "8080"],
        ["--listen", "h:99999"],
        ["--log-period-seconds", "0"],
        ["--log-period-seconds", "nan"],
        ["--logs-per-second", "x"],
        ["--namespace", "A"],
        ["--lease", "a/b"],
    ],
)
def test_a_wrong_setting_is_named(flags: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=flags[0]):
        parse_settings(flags)
