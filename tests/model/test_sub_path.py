import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.mount_path import mount_path_fault
from sidemount.model.sub_path import join_sub_paths, sub_path_fault


@pytest.mark.parametrize(
    ("sub_path", "why"),
    [
        pytest.param("/a", "is absolute", id="absolute"),
        pytest.param("//", "is absolute", id="only slashes"),
        pytest.param("..", 'component ".."', id="parent"),
        pytest.param("a/../b", 'component ".."', id="parent inside"),
        pytest.param(".", 'component "."', id="dot"),
        pytest.param("a/./b", 'component "."', id="dot inside"),
        pytest.param("a//b", "empty component", id="empty component"),
        pytest.param("a/", "empty component", id="trailing slash"),
        pytest.param("a\0b", "NUL", id="NUL"),
        pytest.param("a\nb", "U+000A", id="newline"),
        pytest.param("a\x7f", "U+007F", id="DEL"),
        pytest.param("a\x85", "U+0085", id="C1 control"),
        pytest.param("\ud800", "surrogate", id="lone surrogate"),
        pytest.param("x" * 4097, "4096", id="too long"),
        pytest.param("ä" * 2049, "4096", id="too long in bytes"),
    ],
)
def test_bad_sub_paths_are_refused_before_any_mount(sub_path: str, why: str) -> None:
    """S2-08."""
    assert why in sub_path_fault(sub_path)


@pytest.mark.parametrize(
    "sub_path",
    ["", "a", "a/b", "...", "..a", "a..", ".hidden", "a b", "ünï/cödé", "😀", "-x", "x" * 4096, "a:b"],
)
def test_ordinary_sub_paths_pass(sub_path: str) -> None:
    assert sub_path_fault(sub_path) == ""


@pytest.mark.parametrize(
    ("root", "sub_path", "joined"),
    [("sessions/a", "", "sessions/a"), ("sessions/a", "x", "sessions/a/x"), ("", "x", "x"), ("", "", "")],
)
def test_a_mount_sub_path_is_beneath_the_references_own(root: str, sub_path: str, joined: str) -> None:
    """S2-07."""
    assert join_sub_paths(root, sub_path) == joined


@given(root=st.text("ab./", max_size=8), sub_path=st.text("ab./", max_size=8))
def test_joining_what_passed_never_leaves_the_root(root: str, sub_path: str) -> None:
    if sub_path_fault(root) or sub_path_fault(sub_path):
        return
    joined = join_sub_paths(root, sub_path)
    assert sub_path_fault(joined) == ""
    normal = posixpath.normpath("/" + joined)
    assert normal == posixpath.normpath("/" + root) or normal.startswith(posixpath.join("/", root))


@pytest.mark.parametrize(
    "path",
    [
        "data",
        "",
        "/",
        "//data",
        "/data/",
        "/a/../b",
        "/a/./b",
        "/a:b",
        "/a\nb",
        "/proc",
        "/proc/x",
        "/sys/fs",
        "/dev",
        "/sidemount",
        "/sidemount/x",
        "/run/sidemount",
        "/var",
        "/var/run/secrets",
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "/run/secrets/kubernetes.io/serviceaccount/x",
        "/" + "x" * 5000,
    ],
)
def test_mount_paths_that_are_unsafe_or_not_ours_to_take_are_refused(path: str) -> None:
    assert mount_path_fault(path)


@pytest.mark.parametrize(
    "path", ["/data", "/a/b", "/sidemountx", "/process", "/mnt/ünï", "/var/lib/data", "/runs", "/with space"]
)
def test_ordinary_mount_paths_pass(path: str) -> None:
    assert mount_path_fault(path) == ""
