"""Log lines."""

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sidemount.host import logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged, with the logging of this process put back afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()
    logs.configure("keeper", level="info", stream=stream)
    yield stream
    root.handlers[:], root.level, logging.raiseExceptions = before


def parsed(lines: io.StringIO) -> list[dict[str, Any]]:
    """Return what the lines say."""
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_fields(lines: io.StringIO) -> None:
    logs.log("keeper", volume="train").bind(layer=2).warning("volume_mounted", place="/a\nb", elapsed_s=0.5)
    (line,) = parsed(lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "process": "keeper",
        "event": "volume_mounted",
        "volume": "train",
        "layer": 2,
        "place": "/a\nb",
        "elapsed_s": 0.5,
    }


def test_what_is_below_the_level_is_not_written(lines: io.StringIO) -> None:
    logs.log("keeper").debug("detail")
    assert parsed(lines) == []


def test_libraries_write_in_the_same_form(lines: io.StringIO) -> None:
    logging.getLogger("library").error("it %s", "broke", extra={"operation": "read"})
    (line,) = parsed(lines)
    assert (line["event"], line["operation"], line["level"]) == ("it broke", "read", "error")


def test_a_trace_is_a_field_of_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        logs.log("keeper").error("failed", exc_info=True)
    (line,) = parsed(lines)
    assert line["trace"].endswith("ValueError: wrong")


def test_a_value_that_json_does_not_know_is_written_as_text(lines: io.StringIO) -> None:
    logs.log("keeper").info("odd", value={1}, name="\udc80")
    (line,) = parsed(lines)
    assert (line["value"], line["name"]) == ("{1}", "\udc80")


def test_a_percent_sign_is_no_format(lines: io.StringIO) -> None:
    logs.log("keeper").info("100%s")
    assert parsed(lines)[0]["event"] == "100%s"
