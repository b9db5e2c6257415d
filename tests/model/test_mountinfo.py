from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import BadMessage
from sidemount.model.mountinfo import Mount, layers_at, mount_at, mounts_beneath, parse_mountinfo

LINE = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"


def _table(*lines: str) -> tuple[Mount, ...]:
    return parse_mountinfo("".join(line + "\n" for line in lines))


def test_every_field_of_the_manual_page_example_is_read() -> None:
    """Source: proc_pid_mountinfo(5)."""
    assert _table(LINE) == (
        Mount(
            mount_id=36,
            parent_id=35,
            major=98,
            minor=0,
            root="/mnt1",
            mount_point="/mnt2",
            options=("rw", "noatime"),
            tags=("master:1",),
            fstype="ext3",
            source="/dev/root",
            super_options=("rw", "errors=continue"),
        ),
    )


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        pytest.param("", (), id="none"),
        pytest.param("shared:2 ", ("shared:2",), id="one"),
        pytest.param(
            "shared:2 master:1 propagate_from:7 ", ("shared:2", "master:1", "propagate_from:7"), id="three"
        ),
        pytest.param("unbindable ", ("unbindable",), id="unbindable"),
    ],
)
def test_any_number_of_optional_fields(tags: str, expected: tuple[str, ...]) -> None:
    assert _table(f"1 0 0:2 / / rw {tags}- tmpfs tmpfs rw")[0].tags == expected


@pytest.mark.parametrize(
    ("escaped", "path"),
    [
        pytest.param(r"/a\040b", "/a b", id="space"),
        pytest.param(r"/a\011b", "/a\tb", id="tab"),
        pytest.param(r"/a\012b", "/a\nb", id="newline"),
        pytest.param(r"/a\134b", "/a\\b", id="backslash"),
        pytest.param(r"/a\043b", "/a#b", id="hash"),
        pytest.param(r"/a\134040b", "/a\\040b", id="an escaped backslash before digits"),
        pytest.param(r"/a\303\244", "/aä", id="escaped UTF-8"),
        pytest.param("/a\udce4", "/a\udce4", id="a byte that is no UTF-8"),
        pytest.param("/\u2028\r\x85\x0b", "/\u2028\r\x85\x0b", id="what splitlines would split at"),
        pytest.param(r"/a\9", "/a\\9", id="a backslash that is no escape"),
    ],
)
def test_paths_are_unescaped(escaped: str, path: str) -> None:
    """M14."""
    mount = _table(f"1 0 0:2 {escaped} {escaped} rw - tmpfs {escaped} rw")[0]
    assert (mount.root, mount.mount_point, mount.source) == (path, path, path)


def test_an_empty_source_and_spaces_in_super_options() -> None:
    mount = _table("2 0 0:2 / /mnt rw - tmpfs  rw")[0]
    assert (mount.fstype, mount.source, mount.super_options) == ("tmpfs", "", ("rw",))
    raw = _table("1 0 0:2 / /mnt rw - 9p drvfs rw,path=C:\\Program Files;x")[0]
    assert raw.super_options == ("rw", "path=C:\\Program Files;x")


def test_a_bind_mount_keeps_its_root_and_a_deleted_one_its_mark() -> None:
    bind, gone, ns = _table(
        "1 0 0:2 /data/sub /mnt rw - ext4 /dev/sda1 rw",
        "2 0 0:2 /data//deleted /gone rw - ext4 /dev/sda1 rw",
        "3 0 0:4 net:[4026531840] /run/ns rw - nsfs nsfs rw",
    )
    assert (bind.root, gone.root, ns.root) == ("/data/sub", "/data//deleted", "net:[4026531840]")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param("", "separator|sixth", id="empty line"),
        pytest.param(
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 ext3 /dev/root rw", "sixth field", id="no separator"
        ),
        pytest.param("36 35 98:0 /mnt1 /mnt2 - ext3 /dev/root rw", "sixth field", id="too few fields"),
        pytest.param("36 35 98:0 / / rw - ext3", "filesystem type", id="nothing after the type"),
        pytest.param("36 35 98:0 / / rw -  ext3 rw", "filesystem type", id="empty type"),
        pytest.param("x 35 98:0 / / rw - ext3 a rw", "mount ids", id="id"),
        pytest.param("-1 35 98:0 / / rw - ext3 a rw", "mount ids", id="negative id"),
        pytest.param("١ 35 98:0 / / rw - ext3 a rw", "mount ids", id="digits of another script"),
        pytest.param("1 2 98 / / rw - ext3 a rw", "major:minor", id="device"),
        pytest.param("1 2 98:0 / mnt rw - ext3 a rw", "absolute", id="relative mount point"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, why: str) -> None:
    with pytest.raises(BadMessage, match=why) as raised:
        parse_mountinfo(f"{LINE}\n{line}\n{LINE}\n")
    assert "line 2 " in str(raised.value)


def test_no_text_is_no_mounts() -> None:
    assert parse_mountinfo("") == ()
    assert len(parse_mountinfo(LINE)) == 1


def test_this_process_own_table_parses() -> None:
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    mounts = parse_mountinfo(text)
    assert len(mounts) == text.count("\n")
    assert mount_at(mounts, "/proc") is not None


def test_stacked_layers_come_bottom_first_whatever_their_order_in_the_file() -> None:
    """A mount that move_mount put beneath another has the higher id and comes later in the file."""
    table = _table(
        "10 1 0:1 / / rw - ext4 a rw",
        "21 30 0:3 / /v rw - fuse.sidemount sidemount:u/top rw",
        "30 10 0:4 / /v rw - fuse.sidemount sidemount:u/bottom rw",
    )
    assert [m.source for m in layers_at(table, "/v")] == ["sidemount:u/bottom", "sidemount:u/top"]
    top = mount_at(table, "/v")
    assert top is not None
    assert top.mount_id == 21


def test_layers_hidden_by_a_mount_over_a_parent_come_first() -> None:
    table = _table(
        "10 1 0:1 / / rw - ext4 a rw",
        "11 10 0:2 / /a/b rw - tmpfs hidden rw",
        "12 11 0:2 / /a/b rw - tmpfs hidden-too rw",
        "13 10 0:3 / /a rw - tmpfs over rw",
        "14 13 0:4 / /a/b rw - tmpfs visible rw",
    )
    assert [m.source for m in layers_at(table, "/a/b")] == ["hidden", "hidden-too", "visible"]
    hiding = mount_at(table, "/a/b")
    assert hiding is not None
    assert hiding.source == "visible"


def test_a_place_that_only_a_hidden_mount_has_is_not_mounted() -> None:
    table = _table(
        "10 1 0:1 / / rw - ext4 a rw",
        "11 10 0:2 / /a/b rw - tmpfs hidden rw",
        "13 10 0:3 / /a rw - tmpfs over rw",
    )
    assert mount_at(table, "/a/b") is None
    assert len(layers_at(table, "/a/b")) == 1
    assert layers_at(table, "/elsewhere") == ()


def test_mounts_beneath_a_path_are_told_from_those_beside_it() -> None:
    table = _table(
        *(f"{i} 1 0:1 / {p} rw - tmpfs t rw" for i, p in enumerate(["/", "/a", "/a/b", "/ab", "/a/b/c"], 2))
    )
    assert [m.mount_point for m in mounts_beneath(table, "/a")] == ["/a", "/a/b", "/a/b/c"]
    assert len(mounts_beneath(table, "/")) == 5


@pytest.mark.parametrize(
    ("fstype", "source", "is_ours"),
    [
        ("fuse.sidemount", "sidemount:uid/v", True),
        ("fuse.sidemount", "elsewhere", False),
        ("fuse", "sidemount:uid/v", False),
        ("fuse.sshfs", "sidemount:uid/v", False),
    ],
)
def test_only_our_type_and_source_together_are_ours(fstype: str, source: str, is_ours: bool) -> None:
    assert _table(f"1 0 0:2 / / rw - {fstype} {source} rw")[0].is_ours is is_ours


@pytest.mark.parametrize(
    ("options", "is_read_only"), [("rw - t s rw", False), ("ro - t s rw", True), ("rw - t s ro", True)]
)
def test_read_only_by_mount_or_by_filesystem(options: str, is_read_only: bool) -> None:
    assert _table(f"1 0 0:2 / / {options}")[0].is_read_only is is_read_only


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


def _escaped(text: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)


@given(root=FIELD, mount_point=FIELD, source=FIELD | st.just(""))
def test_any_name_round_trips(root: str, mount_point: str, source: str) -> None:
    line = f"1 0 0:2 /{_escaped(root)} /{_escaped(mount_point)} rw - fuse.sidemount {_escaped(source)} rw\n"
    (mount,) = parse_mountinfo(line)
    assert (mount.root, mount.mount_point, mount.source) == (f"/{root}", f"/{mount_point}", source)


@given(st.text() | st.text(" 0123456789:/-rw\n\\\udc80", max_size=60))
def test_parsing_raises_only_our_error(text: str) -> None:
    with suppress(BadMessage):
        for mount in parse_mountinfo(text):
            assert mount.mount_point.startswith("/")


def test_a_table_whose_parents_form_a_ring_is_walked_to_an_end() -> None:
    ring = _table("1 2 0:1 / / rw - t a rw", "2 1 0:1 / / rw - t b rw", "3 3 0:1 / / rw - t c rw")
    assert len(layers_at(ring, "/")) == 3
