"""What a keeper's log tells, whatever is in it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.keeper_log import (
    STALLS_MAX,
    TEXT_MAX,
    VOLUMES_MAX,
    HealthState,
    KeeperEvent,
    Kind,
    VolumeHealth,
    by_volume,
    observe,
    parse_line,
    split_stamp,
    told,
)

_AT = "2026-11-30T01:02:03.456Z"
_AT_MS = 1796000523456


def line(event: str, *, level: str = "info", volume: str = "data", **fields: Any) -> str:
    return json.dumps(
        {"time": _AT, "level": level, "process": "keeper", "event": event, "volume": volume, **fields}
    )


def seen(*lines: str) -> VolumeHealth:
    return observe(event for event in map(parse_line, lines) if event is not None)


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        pytest.param(
            line("taken_over", generation=3, stall_ms=12.4, cause="its process ended"),
            Kind.TAKEN_OVER,
            {"generation": 3, "stall_ms": 12, "text": "its process ended"},
            id="takeover",
        ),
        pytest.param(
            line("remounted", generation=2, stall_ms=800, layers=2, cause="gone"),
            Kind.REMOUNTED,
            {"generation": 2, "stall_ms": 800, "layers": 2, "text": "gone"},
            id="remount",
        ),
        pytest.param(
            line("phase_changed", phase="Serving", was="Attaching", cause="attached", generation=1),
            Kind.PHASE,
            {"phase": "Serving", "generation": 1, "text": "attached"},
            id="phase",
        ),
        pytest.param(
            line("lost", level="warning", fault="the connection was aborted"),
            Kind.FAULT,
            {"text": "lost: the connection was aborted"},
            id="any-warning",
        ),
        pytest.param(
            "2026-11-30T01:02:03.456789123Z " + line("served", generation=1, layers=1),
            Kind.SERVED,
            {"generation": 1, "layers": 1},
            id="with-the-runtime's-stamp",
        ),
        pytest.param(
            line("taken_over", generation=True, stall_ms=-1, layers="many", cause=7),
            Kind.TAKEN_OVER,
            {},
            id="odd-fields-count-as-missing",
        ),
    ],
)
def test_a_line_is_read(text: str, kind: Kind, fields: dict[str, Any]) -> None:
    assert parse_line(text) == KeeperEvent(at_ms=_AT_MS, kind=kind, volume="data", **fields)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("Traceback (most recent call last):", id="no-json"),
        pytest.param("[1, 2]", id="no-object"),
        pytest.param(line("taken_over")[:-5], id="cut-off"),
        pytest.param("{" * 40_000, id="deep"),
        pytest.param(line("taken_over", cause="x" * 70_000), id="too-long"),
        pytest.param(line("daemon_connected", pid=3), id="a-detail"),
        pytest.param(line("taken_over", time="yesterday"), id="no-time"),
        pytest.param(line("taken_over", process="daemon"), id="another-process"),
        pytest.param(line("taken_over", volume="sidemount-x"), id="no-volume's-name"),
        pytest.param(line("taken_over", volume="../../etc"), id="a-path-for-a-name"),
        pytest.param('{"time": 1' + "0" * 5000 + "}", id="a-number-beyond-all-bounds"),
    ],
)
def test_what_is_no_line_of_a_keeper_is_passed_over(text: str) -> None:
    assert parse_line(text) is None


def test_a_life_is_folded_into_health() -> None:
    health = seen(
        line("volume_mounted", layers=1),
        line("served", generation=1),
        line("taken_over", generation=2, stall_ms=20),
        line("mount_failed", level="warning", fault="no space"),
        line("phase_changed", phase="Mounting", was="Serving"),
        line("remounted", generation=3, stall_ms=900, layers=2),
        line("taken_over", generation=4, stall_ms=30),
    )
    assert (health.state, health.generation, health.takeovers, health.remounts, health.layers) == (
        HealthState.SERVING,
        4,
        2,
        1,
        2,
    )
    assert (health.stalls_ms, health.last_stall_ms, health.worst_stall_ms) == ((20, 900, 30), 30, 900)
    assert health.fault == "mount_failed: no space"


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        pytest.param((), HealthState.WAITING, id="nothing-said"),
        pytest.param((line("phase_changed", phase="Starting"),), HealthState.WAITING, id="starting"),
        pytest.param((line("phase_changed", phase="Serving"),), HealthState.SERVING, id="an-older-keeper"),
        pytest.param((line("came_back", generation=4),), HealthState.SERVING, id="keeper-restarted"),
        pytest.param(
            (line("served"), line("daemon_abnormal", level="warning", what="dies")),
            HealthState.ABNORMAL,
            id="abnormal",
        ),
        pytest.param(
            (line("served"), line("daemon_abnormal", what="dies"), line("daemon_recovered")),
            HealthState.SERVING,
            id="recovered",
        ),
        pytest.param(
            (
                line("daemon_abnormal", what="dies"),
                line("phase_changed", phase="Mounting"),
                line("remounted"),
            ),
            HealthState.SERVING,
            id="another-daemon-is-not-blamed",
        ),
        pytest.param(
            (line("served"), line("container_called_hung", why="silent")), HealthState.HUNG, id="hung"
        ),
        pytest.param(
            (line("container_called_hung", why="silent"), line("container_works_again"), line("taken_over")),
            HealthState.SERVING,
            id="works-again",
        ),
        pytest.param(
            (line("served"), line("phase_changed", phase="Flushing"), line("flush_failed", level="error")),
            HealthState.DETACHED,
            id="ending",
        ),
        pytest.param((line("volume_detached", layers=3),), HealthState.DETACHED, id="detached"),
    ],
)
def test_the_state_is_what_was_said_last(lines: tuple[str, ...], state: HealthState) -> None:
    assert seen(*lines).state is state


def test_nothing_kept_grows_with_the_log() -> None:
    takeover = parse_line(line("taken_over", stall_ms=5, cause="x" * 5000))
    assert takeover is not None
    assert len(takeover.text) <= TEXT_MAX
    health = observe([takeover] * 1000)
    assert (health.takeovers, len(health.stalls_ms)) == (1000, STALLS_MAX)
    others = [parse_line(line("served", volume=f"v{number}")) for number in range(VOLUMES_MAX * 2)]
    assert len(by_volume(event for event in others if event is not None)) == VOLUMES_MAX


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(
            "cannot reach https://me:s3cr3t@host/x", "cannot reach https://…@host/x", id="user-info"
        ),
        pytest.param("AWS_SECRET_ACCESS_KEY=abc/def next", "AWS_SECRET_ACCESS_KEY=… next", id="key"),
        pytest.param('{"session_token": "abc"}', '{"session_token": …', id="json"),
        pytest.param("Authorization: Bearer abc.def", "Authorization: …", id="header"),
        pytest.param("?X-Amz-Signature=abc&a=b", "?X-Amz-Signature=…&a=b", id="query"),
        pytest.param("a\nb\x1b[31mc\u202ed", "a b [31mc d", id="one-line"),
        pytest.param(
            "its daemon was silent for more than 30 s", "its daemon was silent for more than 30 s", id="plain"
        ),
    ],
)
def test_what_is_told_holds_no_secret(text: str, shown: str) -> None:
    assert told(text) == shown


@pytest.mark.parametrize(
    ("stamp", "expected_ns"),
    [
        pytest.param("2026-11-30T01:02:03.456789123Z", _AT_MS * 1_000_000 + 789123, id="utc"),
        pytest.param("2026-11-30T03:02:03.456+02:00", _AT_MS * 1_000_000, id="zone"),
        pytest.param("1969-12-31T23:59:59.5Z", -500_000_000, id="before-1970"),
        pytest.param("2026-13-30T01:02:03Z", None, id="no-date"),
        pytest.param("2026-11-30", None, id="no-time"),
    ],
)
def test_a_stamp_is_read(stamp: str, expected_ns: int | None) -> None:
    assert split_stamp(f"{stamp} rest")[0] == expected_ns


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.fixed_dictionaries(
    {"time": st.just(_AT), "process": st.just("keeper")},
    optional={
        "event": st.sampled_from([kind.value for kind in Kind]) | _JSON,
        "level": st.sampled_from(["info", "warning", "error"]) | _JSON,
        "volume": st.sampled_from(["data", "logs", ""]) | _JSON,
        **dict.fromkeys(
            ("phase", "generation", "stall_ms", "layers", "fault", "what", "why", "cause"), _JSON
        ),
    },
)


@given(st.lists(st.text() | _FIELDS.map(json.dumps), max_size=12))
def test_no_log_makes_it_raise(lines: list[str]) -> None:
    events = [event for event in map(parse_line, lines) if event is not None]
    for health in by_volume(events).values():
        assert health.state in HealthState
        assert len(health.fault) <= TEXT_MAX
        assert 0 <= health.layers < 1 << 31


@given(st.lists(_FIELDS.map(json.dumps), max_size=12), st.integers(min_value=0, max_value=12))
def test_a_log_read_in_two_parts_tells_the_same(lines: list[str], cut: int) -> None:
    events = [event for event in map(parse_line, lines) if event is not None]
    assert by_volume(events[cut:], by_volume(events[:cut])) == by_volume(events)
