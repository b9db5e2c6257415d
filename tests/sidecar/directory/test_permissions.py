"""Other users, groups, ACLs and extended attributes, on the mount against the bare directory (S4-37, S4-39)."""

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.directory.conftest import Twins, open_up
from tests.sidecar.directory.harness import Mounted, mounted, outcome, run_as

pytestmark = [pytest.mark.fuse, pytest.mark.root]

ACCESS = "system.posix_acl_access"
DEFAULT = "system.posix_acl_default"
_UNDEFINED = 0xFFFFFFFF
_TAGS = {"user": 0x01, "named_user": 0x02, "group": 0x04, "named_group": 0x08, "mask": 0x10, "other": 0x20}


def acl(**entries: int | tuple[int, int]) -> bytes:
    """Return an ACL as its extended attribute holds it; `name=(id, permissions)` for named ones."""
    content = struct.pack("<I", 2)
    for tag, entry in entries.items():
        who, permissions = entry if isinstance(entry, tuple) else (_UNDEFINED, entry)
        content += struct.pack("<HHI", _TAGS[tag], permissions, who)
    return content


def _same(twins: Twins, scenario: Callable[[Path], Any]) -> Any:
    bare = scenario(twins.bare)
    assert scenario(twins.mount) == bare
    return bare


def test_two_users_share_a_volume(twins: Twins) -> None:
    """S4-37: two pods of different ids on one volume at once."""
    twins.mount.chmod(0o1777)

    def write() -> Any:
        Path("from-1001").write_text("mine")
        return outcome(os.listdir, ".")

    assert run_as(1001, 1001, twins.mount, write) == ["from-1001"]

    def read() -> list[Any]:
        return [
            outcome(Path("from-1001").read_text),
            outcome(os.open, "from-1001", os.O_WRONLY),
            outcome(os.unlink, "from-1001"),
        ]

    assert run_as(1002, 1002, twins.mount, read) == ["mine", "EACCES", "EPERM"]
    assert (twins.behind / "from-1001").stat().st_uid == 1001


def test_group_ownership_is_applied_as_a_kubelet_does_it(twins: Twins) -> None:
    """S4-39: fsGroup, a recursive chown and chmod by root."""

    def scenario(root: Path) -> list[Any]:
        os.makedirs(root / "a/b")
        (root / "a/b/f").write_text("x")
        for place in ("a", "a/b", "a/b/f"):
            os.lchown(root / place, -1, 2000)
            found = os.lstat(root / place)
            extra = 0o2070 if os.path.isdir(root / place) else 0o060
            os.chmod(root / place, found.st_mode | extra)

        def work() -> Any:
            Path("a/b/g").write_text("by the group")
            return outcome(os.stat, "a/b/g") and os.stat("a/b/g").st_gid

        return [run_as(1234, 1234, root, work, groups=[2000]), oct(os.stat(root / "a/b").st_mode)]

    assert _same(twins, scenario) == [2000, "0o42775"]


def test_acl_is_enforced(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        root.chmod(0o755)
        (root / "f").write_text("secret")
        os.chmod(root / "f", 0o600)
        os.setxattr(root / "f", ACCESS, acl(user=6, named_user=(1001, 4), group=0, mask=4, other=0))
        results: list[Any] = [oct(os.stat(root / "f").st_mode)]
        for uid in (1001, 1002):
            results.append(run_as(uid, uid, root, lambda: outcome(Path("f").read_text)))
            results.append(run_as(uid, uid, root, lambda: outcome(os.open, "f", os.O_WRONLY)))
        os.chmod(root / "f", 0o600)  # takes the mask, and with it the named user's right
        results.append(run_as(1001, 1001, root, lambda: outcome(Path("f").read_text)))
        os.removexattr(root / "f", ACCESS)
        results.append(outcome(os.getxattr, root / "f", ACCESS))
        return results

    expected = ["0o100640", "secret", "EACCES", "EACCES", "EACCES", "EACCES", "ENODATA"]
    assert _same(twins, scenario) == expected


def test_owning_group_gets_no_more_than_its_acl_entry_although_the_mask_says_more(twins: Twins) -> None:
    def scenario(root: Path) -> Any:
        (root / "f").write_text("secret")
        os.chown(root / "f", 0, 2000)
        os.setxattr(root / "f", ACCESS, acl(user=6, named_user=(1001, 6), group=0, mask=6, other=0))
        return run_as(1002, 2000, root, lambda: outcome(Path("f").read_text))

    assert _same(twins, scenario) == "EACCES"


def test_default_acl_is_inherited(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        os.mkdir(root / "d")
        os.chmod(root / "d", 0o777)
        os.setxattr(root / "d", DEFAULT, acl(user=7, named_user=(1001, 7), group=5, mask=7, other=0))

        def make() -> None:
            os.umask(0)
            os.close(os.open("d/f", os.O_CREAT | os.O_WRONLY, 0o666))
            os.mkdir("d/e", 0o777)

        run_as(1000, 1000, root, make)
        results: list[Any] = []
        for name in ("d/f", "d/e"):
            found = os.stat(root / name)
            results += [oct(found.st_mode), found.st_uid, outcome(os.getxattr, root / name, ACCESS)]
        results.append(outcome(os.getxattr, root / "d/e", DEFAULT))
        return results

    _same(twins, scenario)


def test_default_acl_takes_the_place_of_the_umask(twins: Twins) -> None:
    def scenario(root: Path) -> list[str]:
        for name in ("with", "without"):
            os.mkdir(root / name)
            os.chmod(root / name, 0o777)
        os.setxattr(root / "with", DEFAULT, acl(user=7, group=7, other=5))

        def make() -> None:
            os.umask(0o027)
            for name in ("with", "without"):
                os.close(os.open(f"{name}/f", os.O_CREAT | os.O_WRONLY, 0o666))
                os.mkdir(f"{name}/d", 0o1777)
                os.mkfifo(f"{name}/p", 0o666)
                os.symlink("f", f"{name}/l")

        run_as(1000, 1000, root, make)
        return [f"{path.name} {path.lstat().st_mode:o}" for path in sorted(root.glob("*/*"))]

    assert _same(twins, scenario) == [
        *("d 41775", "f 100664", "l 120777", "p 10664"),
        *("d 41750", "f 100640", "l 120777", "p 10640"),
    ]


def test_default_acl_counts_for_nothing_where_extended_attributes_are_off(tmp_path: Path) -> None:
    open_up(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    with mounted(tmp_path, source, options={"extendedAttributes": False}) as volume:

        def make() -> None:
            os.umask(0o077)
            os.mkdir("d")

        run_as(0, 0, volume.path, make)
        assert stat.S_IMODE((source / "d").stat().st_mode) == 0o700


def test_setting_an_acl_takes_the_set_group_id_bit_from_a_stranger_to_the_group(twins: Twins) -> None:
    def scenario(root: Path) -> str:
        (root / "f").write_text("")
        os.chown(root / "f", 1000, 2000)
        os.chmod(root / "f", 0o2755)
        entries = acl(user=7, group=5, other=5)
        run_as(1000, 1000, root, lambda: os.setxattr("f", ACCESS, entries))
        return oct(os.stat(root / "f").st_mode)

    assert _same(twins, scenario) == "0o100755"


def test_extended_attributes(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        (root / "f").write_text("")
        path = root / "f"
        results: list[Any] = [
            outcome(os.getxattr, path, "user.a"),
            outcome(os.setxattr, path, "user.a", b"one", os.XATTR_REPLACE),
            outcome(os.setxattr, path, "user.a", b"one", os.XATTR_CREATE),
            outcome(os.setxattr, path, "user.a", b"two", os.XATTR_CREATE),
            outcome(os.setxattr, path, "user.a", b"two\0three", os.XATTR_REPLACE),
            outcome(os.getxattr, path, "user.a"),
            outcome(os.setxattr, path, "user.empty", b""),
            outcome(os.getxattr, path, "user.empty"),
            sorted(os.listxattr(path)),
            outcome(os.removexattr, path, "user.a"),
            outcome(os.removexattr, path, "user.a"),
            outcome(os.setxattr, path, "user." + "n" * 300, b""),
            outcome(os.setxattr, path, "nonsense.a", b""),
            outcome(os.setxattr, path, "user.big", b"x" * 70000),
            outcome(os.setxattr, path, "user.ünïcode", b"1"),
            outcome(os.getxattr, path, "user.ünïcode"),
        ]
        os.symlink("f", root / "l")
        results.append(outcome(os.setxattr, root / "l", "user.a", b"", follow_symlinks=False))
        results.append(outcome(os.listxattr, root / "l", follow_symlinks=False))
        os.mkdir(root / "d")
        results.append(outcome(os.setxattr, root / "d", "user.a", b"on a directory"))
        results.append(outcome(os.getxattr, root / "d", "user.a"))
        os.rename(root / "f", root / "g")
        results.append(outcome(os.getxattr, root / "g", "user.empty"))
        return results

    _same(twins, scenario)


def test_probing_the_size_of_an_extended_attribute(twins: Twins) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def scenario(root: Path) -> list[Any]:
        (root / "f").write_text("")
        os.setxattr(root / "f", "user.a", b"12345")
        path = os.fsencode(root / "f")
        results: list[Any] = []
        for size in (0, 4, 5, 100):
            buffer = ctypes.create_string_buffer(max(size, 1))
            got = libc.getxattr(path, b"user.a", buffer if size else None, size)
            results.append(got if got >= 0 else os.strerror(ctypes.get_errno()))
            got = libc.listxattr(path, buffer if size else None, size)
            results.append(got if got >= 0 else os.strerror(ctypes.get_errno()))
        return results

    assert _same(twins, scenario)[0] == 5


def test_extended_attributes_of_other_users(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        (root / "f").write_text("")
        os.chmod(root / "f", 0o644)
        os.setxattr(root / "f", "user.a", b"1")
        return [
            run_as(1000, 1000, root, lambda: outcome(os.setxattr, "f", "user.a", b"2")),
            run_as(1000, 1000, root, lambda: outcome(os.getxattr, "f", "user.a") == b"1"),
            run_as(
                1000, 1000, root, lambda: outcome(os.setxattr, "f", ACCESS, acl(user=7, group=7, other=7))
            ),
            run_as(1000, 1000, root, lambda: outcome(os.setxattr, "f", "trusted.a", b"")),
        ]

    assert _same(twins, scenario) == ["EACCES", True, "EPERM", "EPERM"]


def test_file_capabilities_cannot_be_planted(twins: Twins) -> None:
    (twins.mount / "f").write_text("")
    capability = struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0)
    assert outcome(os.setxattr, twins.mount / "f", "security.capability", capability) == "EPERM"


@pytest.fixture(scope="module")
def without_attributes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A volume with the option `extendedAttributes` off."""
    scratch = tmp_path_factory.mktemp("without")
    (scratch / "source").mkdir()
    open_up(scratch)
    with mounted(scratch, scratch / "source", options={"extendedAttributes": False}) as volume:
        yield volume


def test_extended_attributes_switched_off(without_attributes: Mounted) -> None:
    path = without_attributes.path / "f"
    path.write_text("x")
    assert outcome(os.getxattr, path, "user.a") == "ENOTSUP"
    assert outcome(os.setxattr, path, "user.a", b"") == "ENOTSUP"
    assert outcome(os.listxattr, path) == "ENOTSUP"
    assert path.read_text() == "x"


def test_access_is_the_kernels_decision(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        (root / "f").write_text("")
        os.chmod(root / "f", 0o640)
        os.chown(root / "f", 1000, 2000)

        def ask() -> list[bool]:
            return [os.access("f", mode) for mode in (os.R_OK, os.W_OK, os.X_OK, os.F_OK)]

        return [
            run_as(uid, uid, root, ask, groups=groups)
            for uid, groups in ((1000, []), (1001, [2000]), (1002, []))
        ]

    expected = [[True, True, False, True], [True, False, False, True], [False, False, False, True]]
    assert _same(twins, scenario) == expected
