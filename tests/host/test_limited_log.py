"""A log that others cannot flood."""

import io
import json
import logging
from typing import Any

import pytest

from sidemount.host.limited_log import LimitedLog
from sidemount.host.logs import EventLog, JsonLines


class Written:
    """A limited log, its clock, and what it has written."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        logger = logging.Logger("test")
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(JsonLines("test"))
        logger.addHandler(handler)
        self.log = LimitedLog(EventLog(logger, volume="train"), lambda: self.now)

    def lines(self) -> list[dict[str, Any]]:
        """Return what was written."""
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


@pytest.fixture
def written() -> Written:
    """Return a log that has written nothing."""
    return Written()


def test_a_flood_of_one_event_hides_no_other(written: Written) -> None:
    for _ in range(10_000):
        written.log.warning("bad_frame", fault="junk")
    written.log.error("flush_failed")
    events = [line["event"] for line in written.lines()]
    assert events.count("bad_frame") == 60
    assert events[-1] == "flush_failed"


def test_what_was_left_out_is_told_once_the_minute_is_over(written: Written) -> None:
    for _ in range(100):
        written.log.info("daemon_refused")
    written.now = 61.0
    for _ in range(2):
        written.log.info("daemon_refused")
    *_, first, second = written.lines()
    assert first["left_out"] == 40
    assert "left_out" not in second


def test_a_flood_that_never_ends_is_a_line_a_second(written: Written) -> None:
    for moment in range(600):
        written.now = float(moment)
        for _ in range(100):
            written.log.warning("message_ignored", kind="Serve")
    assert len(written.lines()) == 600


def test_what_comes_rarely_is_written_whole(written: Written) -> None:
    for moment in range(0, 6000, 2):
        written.now = float(moment)
        written.log.info("daemon_connected", pid=moment)
    assert [line["pid"] for line in written.lines()] == list(range(0, 6000, 2))
    assert all(line["volume"] == "train" for line in written.lines())
