"""The decision log: one line each, cheap, complete, and never anybody's secret or terminal code."""

import asyncio
import json
import timeit

import pytest

from sidemount.model.errors import Reason
from webhook.decision_log import DecisionLog
from webhook.metrics import Path
from webhook.outcome import Answer, Outcome, Verdict, VolumeOutcome
from webhook.review import render_answer, render_tail

OUTCOME = Outcome(
    verdict=Verdict.INJECTED,
    reason=Reason.SIDECAR_PREFERRED,
    message='volume "train"\nis delivered \x1b[31m',
    volumes=(
        VolumeOutcome(
            volume="train",
            driver_class="directory",
            source="dir:///srv",
            delivery="sidecar",
            reason=Reason.SIDECAR_PREFERRED,
            message="",
        ),
    ),
)


def _answer(uid: str, outcome: Outcome = OUTCOME) -> Answer:
    return Answer(body=render_answer(uid, render_tail(outcome, {})), outcome=outcome)


class Written:
    """What a log wrote."""

    def __init__(self) -> None:
        self.content = b""

    def __call__(self, lines: bytes) -> None:
        self.content += lines

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.content.splitlines()]


@pytest.mark.asyncio
async def test_a_line_says_what_was_decided_and_for_whom() -> None:
    written = Written()
    log = DecisionLog(asyncio.get_running_loop(), written)
    log.decided(Path.MUTATE, _answer("5f3c-1"), 0.0000123, 6138)
    assert written.content == b"", "it waits for its neighbours"
    log.flush()
    (line,) = written.lines()
    assert line["uid"] == "5f3c-1"
    assert (line["path"], line["verdict"], line["reason"], line["code"]) == (
        "mutate",
        "injected",
        "SidecarPreferred",
        200,
    )
    assert (line["elapsed_us"], line["size_bytes"]) == (12, 6138)
    assert line["volumes"] == [
        {"volume": "train", "driver_class": "directory", "delivery": "sidecar", "reason": "SidecarPreferred"}
    ]
    assert line["message"] == OUTCOME.message
    assert b"\x1b" not in written.content
    assert written.content.count(b"\n") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("uid", ['a"b', "a\\b", "é", "x" * 65, "a\nb", "\x00"])
async def test_a_strange_uid_is_not_repeated(uid: str) -> None:
    written = Written()
    log = DecisionLog(asyncio.get_running_loop(), written)
    log.decided(Path.VALIDATE, _answer(uid), 0.1, 1)
    log.flush()
    assert written.lines()[0]["uid"] == ""


@pytest.mark.asyncio
async def test_lines_are_written_soon_and_not_held_without_bound() -> None:
    written = Written()
    done = asyncio.Event()

    def write(lines: bytes) -> None:
        written(lines)
        done.set()

    log = DecisionLog(asyncio.get_running_loop(), write)
    log.decided(Path.MUTATE, _answer("u"), 0.1, 1)
    async with asyncio.timeout(5):
        await done.wait()
    assert len(written.lines()) == 1
    for _ in range(1000):
        log.decided(Path.MUTATE, _answer("u"), 0.1, 1)
    assert len(written.lines()) == 1001


@pytest.mark.asyncio
async def test_outcomes_that_come_and_go_are_never_mistaken_for_each_other() -> None:
    """Lines are kept by an outcome's identity, which Python gives to another once the first is gone."""
    written = Written()
    log = DecisionLog(asyncio.get_running_loop(), written)
    for number in range(2000):
        outcome = Outcome(verdict=Verdict.DENIED, reason=Reason.INVALID_REQUEST, message=f"no {number}")
        log.decided(Path.MUTATE, _answer("u", outcome), 0.1, 1)
    log.flush()
    assert [line["message"] for line in written.lines()] == [f"no {number}" for number in range(2000)]


@pytest.mark.asyncio
async def test_a_line_costs_no_more_than_ten_microseconds() -> None:
    log = DecisionLog(asyncio.get_running_loop(), lambda lines: None)
    answer = _answer("5f3c-1")
    best = min(timeit.repeat(lambda: log.decided(Path.MUTATE, answer, 0.1, 1), number=500, repeat=9)) / 500
    assert best < 10e-6
