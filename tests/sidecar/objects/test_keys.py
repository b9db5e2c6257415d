"""Which keys are shown as what, and which are hidden: one rule each."""

import errno
import os

import pytest

from sidecar.objects.keys import Hidden, above_of, ino_of, is_beneath, key_of, name_in, path_of

ODD = [
    pytest.param("d/a//b", "d/a/", Hidden.EMPTY, id="empty-component"),
    pytest.param("/a", "", Hidden.EMPTY, id="leading-slash"),
    pytest.param("d/./x", "d/", Hidden.DOT, id="dot"),
    pytest.param("d/../x", "d/", Hidden.DOT, id="dots"),
    pytest.param("d/" + "n" * 256 + "/x", "d/", Hidden.LONG, id="long"),
    pytest.param("d/" + "ü" * 128, "d/", Hidden.LONG, id="long-in-bytes"),
    pytest.param("d/a\0b", "d/", Hidden.NUL, id="nul"),
    pytest.param("d/\ud800", "d/", Hidden.ENCODING, id="no-utf8"),
    pytest.param("d/" + "n" * 255, "d/", b"n" * 255, id="longest"),
    pytest.param("d/ .\n", "d/", b" .\n", id="odd-but-a-name"),
    pytest.param("d/\N{PILE OF POO}", "d/", "\N{PILE OF POO}".encode(), id="beyond-the-plane"),
    pytest.param("d/...", "d/", b"...", id="three-dots"),
]


@pytest.mark.parametrize(("key", "prefix", "expected"), ODD)
def test_key_is_a_name_or_is_hidden(key: str, prefix: str, expected: bytes | Hidden) -> None:
    shown = prefix + key[len(prefix) :].split("/")[0]  # as a store's listing with a delimiter has it
    rest = key[len(shown) :]
    assert name_in(shown + rest[:1], prefix) == expected


def test_name_that_no_key_can_have_is_refused() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EILSEQ)):
        path_of("d", b"\xff\xfe")
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
        path_of("d", b"n" * 256)
    assert path_of("d", b"n" * 255) == "d/" + "n" * 255


def test_key_is_at_most_1024_bytes_long() -> None:
    path = "/".join(["n" * 255] * 4)
    assert key_of(path) == path
    for too_long in (path + "/a", path[:-3] + "\N{EURO SIGN}bb"):
        with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
            key_of(too_long)
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
        key_of(path + "n", is_directory=True)


def test_paths() -> None:
    assert (above_of("a/b/c"), above_of("a"), above_of("")) == ("a/b", "", "")
    assert is_beneath("a/b", "a")
    assert is_beneath("a", "a")
    assert is_beneath("a", "")
    assert not is_beneath("ab", "a")


def test_inode_numbers_are_the_same_everywhere_and_no_signed_number() -> None:
    assert ino_of("data/a.txt") == 4021541396863532666
    assert ino_of("data/b.txt") != ino_of("data/a.txt")
    assert all(1 < ino_of(f"{n}") < 1 << 63 for n in range(1000))
    assert ino_of("") == 1
