"""Under which spec a connection goes on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.filesystems import INIT_OPTIONS
from sidecar.zygote_spec import continued_spec, remember_spec, remembered_spec, settle_spec
from sidemount.host import logs
from sidemount.host.handover import Serve
from sidemount.model.errors import BadMessage
from tests.host.keeper_pod import directory_spec

SPEC = directory_spec(takeover=True, options=(("attributeTimeout", 1), ("writeback", True)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("volume", "other"),
        ("source", "dir:///elsewhere"),
        ("filesystem", "objects"),
        ("sub_path", "deeper"),
        ("read_only", True),
        ("uid", 7),
    ],
)
def test_another_volume_is_not_continued(field: str, value: Any) -> None:
    with pytest.raises(BadMessage, match=f"{field} was .* when the connection began, and is"):
        continued_spec(SPEC, replace(SPEC, **{field: value}))


def test_options_that_init_knows_nothing_of_may_change() -> None:
    wanted = replace(SPEC, options=(("attributeTimeout", 60), ("writeback", True)), hung_after_s=5)
    assert continued_spec(SPEC, wanted) == (wanted, ())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((("attributeTimeout", 1), ("writeback", False)), id="another value"),
        pytest.param((("attributeTimeout", 1),), id="left out, and another default"),
    ],
)
def test_options_that_init_has_settled_keep_their_value_and_are_named(
    options: tuple[tuple[str, int | bool], ...],
) -> None:
    spec, refused = continued_spec(SPEC, replace(SPEC, options=options))
    assert refused == ("writeback",)
    assert dict(spec.options)["writeback"] is True
    assert dict(spec.options)["attributeTimeout"] == 1


def test_an_option_that_says_what_the_default_says_is_no_change() -> None:
    begun = replace(SPEC, options=())
    wanted = replace(SPEC, options=tuple(sorted(INIT_OPTIONS["directory"].items())))
    assert continued_spec(begun, wanted) == (wanted, ())


def test_what_was_begun_with_is_remembered(tmp_path: Path) -> None:
    order = Serve(spec=SPEC, generation=1, continued=False, init=b"", heartbeat_ms=1)
    assert settle_spec(order, str(tmp_path), logs.log("test")) == order
    assert remembered_spec(str(tmp_path)) == SPEC
    later = replace(order, spec=replace(SPEC, options=()), continued=True)
    assert settle_spec(later, str(tmp_path), logs.log("test")).spec.options == (("writeback", True),)


def test_a_new_connection_begins_anew(tmp_path: Path) -> None:
    remember_spec(str(tmp_path), SPEC)
    other = replace(SPEC, options=())
    order = Serve(spec=other, generation=1, continued=False, init=b"", heartbeat_ms=1)
    settle_spec(order, str(tmp_path), logs.log("test"))
    assert remembered_spec(str(tmp_path)) == other


@pytest.mark.parametrize("content", [None, b"", b"junk", b"\xff\xfe", b"{}"])
def test_what_cannot_be_read_is_not_continued(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "spec").write_bytes(content)
    order = Serve(spec=SPEC, generation=1, continued=True, init=b"", heartbeat_ms=1)
    with pytest.raises(BadMessage):
        settle_spec(order, str(tmp_path), logs.log("test"))
