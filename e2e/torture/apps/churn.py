"""An application that makes, renames and removes names of all kinds, and knows what each call must answer."""

import errno
import os
import random
import stat
from pathlib import Path

from e2e.torture.apps.tally import GoesOn, Tally
from sidecar.directory import syscalls

_NAMES = tuple("abcdefgh")
_KEYS = ("user.x", "user.y")
_PLACES = ("one", "two")


class Thing:
    """A file of the model."""

    def __init__(self, kind: int, content: bytes = b"") -> None:
        self.kind = kind
        self.content = content  # a symbolic link's target
        self.links = 1
        self.attributes: dict[str, bytes] = {}


class Model:
    """Two directories of names, in the filesystem and in mind."""

    def __init__(self, place: Path, dice: random.Random, tally: Tally) -> None:
        self._place = place
        self._dice = dice
        self._tally = tally
        self.names: dict[tuple[str, str], Thing] = {}
        self.serial = 0
        for directory in _PLACES:
            (place / directory).mkdir()

    def path(self, key: tuple[str, str]) -> Path:
        """Return where a name is."""
        return self._place.joinpath(*key)

    def step(self) -> None:
        """Do one thing, and compare its outcome."""
        self.serial += 1
        key, other = self._key(), self._key()
        what = self._dice.choice(_OPERATIONS)
        wanted = what[0](self, key, other)
        found: object = None
        try:
            found = what[1](self, key, other)
        except OSError as error:
            found = errno.errorcode[error.errno or 0]
        self._tally.expect(f"{what[1].__name__} {key} {other}", found, wanted)

    def check(self) -> None:
        """Compare all names, and what they are, with the model."""
        for directory in _PLACES:
            wanted = sorted(name for place, name in self.names if place == directory)
            self._tally.expect(f"names in {directory}", sorted(os.listdir(self._place / directory)), wanted)
        for key, thing in self.names.items():
            status = os.lstat(self.path(key))
            self._tally.expect(f"kind of {key}", stat.S_IFMT(status.st_mode), thing.kind)
            if self._tally.wrong:
                return  # what is opened might be a pipe
            if thing.kind != stat.S_IFDIR:
                self._tally.expect(f"links of {key}", status.st_nlink, thing.links)
            if thing.kind == stat.S_IFREG:
                self._tally.expect(f"content of {key}", self.path(key).read_bytes(), thing.content)
            if thing.kind == stat.S_IFLNK:
                self._tally.expect(f"target of {key}", os.readlink(self.path(key)).encode(), thing.content)

    def _key(self) -> tuple[str, str]:
        return self._dice.choice(_PLACES), self._dice.choice(_NAMES)

    # What must come of it, with the model changed.

    def make(self, key: tuple[str, str], thing: Thing) -> str | None:
        if key in self.names:
            return "EEXIST"
        self.names[key] = thing
        return None

    def will_mkdir(self, key: tuple[str, str], _: tuple[str, str]) -> str | None:
        return self.make(key, Thing(stat.S_IFDIR))

    def will_create(self, key: tuple[str, str], _: tuple[str, str]) -> str | None:
        return self.make(key, Thing(stat.S_IFREG, b"%d" % self.serial))

    def will_mknod(self, key: tuple[str, str], _: tuple[str, str]) -> str | None:
        return self.make(key, Thing(stat.S_IFIFO))

    def will_symlink(self, key: tuple[str, str], _: tuple[str, str]) -> str | None:
        return self.make(key, Thing(stat.S_IFLNK, b"target%d" % self.serial))

    def will_link(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        thing = self.names.get(key)
        if thing is None:
            return "ENOENT"
        if other in self.names:
            return "EEXIST"
        if thing.kind == stat.S_IFDIR:
            return "EPERM"
        thing.links += 1
        self.names[other] = thing
        return None

    def will_unlink(self, key: tuple[str, str], _: tuple[str, str]) -> str | None:
        thing = self.names.get(key)
        if thing is None:
            return "ENOENT"
        if thing.kind == stat.S_IFDIR:
            return "EISDIR"
        self._drop(key)
        return None

    def will_rmdir(self, key: tuple[str, str], _: tuple[str, str]) -> str | None:
        thing = self.names.get(key)
        if thing is None:
            return "ENOENT"
        if thing.kind != stat.S_IFDIR:
            return "ENOTDIR"
        self._drop(key)
        return None

    def will_rename(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        thing, victim = self.names.get(key), self.names.get(other)
        if thing is None:
            return "ENOENT"
        if victim is thing:
            return None
        if victim is not None and (thing.kind == stat.S_IFDIR) != (victim.kind == stat.S_IFDIR):
            return "ENOTDIR" if thing.kind == stat.S_IFDIR else "EISDIR"
        if victim is not None:
            self._drop(other)
        del self.names[key]
        self.names[other] = thing
        return None

    def will_rename_noreplace(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        if key not in self.names:
            return "ENOENT"
        if other in self.names:
            return "EEXIST"
        self.names[other] = self.names.pop(key)
        return None

    def will_exchange(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        if key not in self.names or other not in self.names:
            return "ENOENT"
        self.names[key], self.names[other] = self.names[other], self.names[key]
        return None

    def will_set_new(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        return self._set(key, other, lambda has: "EEXIST" if has else None)

    def will_set_old(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        return self._set(key, other, lambda has: None if has else "ENODATA")

    def will_set(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        return self._set(key, other, lambda has: None)

    def will_remove_attribute(self, key: tuple[str, str], other: tuple[str, str]) -> str | None:
        thing = self.names.get(key)
        if thing is None:
            return "ENOENT"
        if thing.kind not in (stat.S_IFREG, stat.S_IFDIR):
            return "EPERM"
        return None if thing.attributes.pop(self._attribute(other), None) is not None else "ENODATA"

    def will_attributes(self, key: tuple[str, str], _: tuple[str, str]) -> object:
        thing = self.names.get(key)
        return "ENOENT" if thing is None else dict(sorted(thing.attributes.items()))

    def will_stat(self, key: tuple[str, str], _: tuple[str, str]) -> object:
        thing = self.names.get(key)
        return "ENOENT" if thing is None else thing.kind

    def _set(self, key: tuple[str, str], other: tuple[str, str], rule: "object") -> str | None:
        thing = self.names.get(key)
        if thing is None:
            return "ENOENT"
        if thing.kind not in (stat.S_IFREG, stat.S_IFDIR):
            return "EPERM"
        name = self._attribute(other)
        refused = rule(name in thing.attributes)  # type: ignore[operator]  # one of three lambdas
        if refused is None:
            thing.attributes[name] = b"%d" % self.serial
        return refused  # type: ignore[no-any-return]

    def _attribute(self, other: tuple[str, str]) -> str:
        return _KEYS[other[0] == "one"]

    def _drop(self, key: tuple[str, str]) -> None:
        self.names.pop(key).links -= 1

    # Doing it.

    def mkdir(self, key: tuple[str, str], _: tuple[str, str]) -> None:
        os.mkdir(self.path(key))

    def create(self, key: tuple[str, str], _: tuple[str, str]) -> None:
        file = os.open(self.path(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, b"%d" % self.serial)
        os.close(file)

    def mknod(self, key: tuple[str, str], _: tuple[str, str]) -> None:
        os.mkfifo(self.path(key))

    def symlink(self, key: tuple[str, str], _: tuple[str, str]) -> None:
        os.symlink(f"target{self.serial}", self.path(key))

    def link(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        os.link(self.path(key), self.path(other), follow_symlinks=False)

    def unlink(self, key: tuple[str, str], _: tuple[str, str]) -> None:
        os.unlink(self.path(key))

    def rmdir(self, key: tuple[str, str], _: tuple[str, str]) -> None:
        os.rmdir(self.path(key))

    def rename(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        os.rename(self.path(key), self.path(other))

    def rename_noreplace(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        self._renameat2(key, other, syscalls.RENAME_NOREPLACE)

    def exchange(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        self._renameat2(key, other, syscalls.RENAME_EXCHANGE)

    def set_new(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        self._setxattr(key, other, os.XATTR_CREATE)

    def set_old(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        self._setxattr(key, other, os.XATTR_REPLACE)

    def set(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        self._setxattr(key, other, 0)

    def remove_attribute(self, key: tuple[str, str], other: tuple[str, str]) -> None:
        os.removexattr(self.path(key), self._attribute(other), follow_symlinks=False)

    def attributes(self, key: tuple[str, str], _: tuple[str, str]) -> object:
        path = self.path(key)
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}

    def stat(self, key: tuple[str, str], _: tuple[str, str]) -> object:
        return stat.S_IFMT(os.lstat(self.path(key)).st_mode)

    def _setxattr(self, key: tuple[str, str], other: tuple[str, str], flags: int) -> None:
        os.setxattr(self.path(key), self._attribute(other), b"%d" % self.serial, flags, follow_symlinks=False)

    def _renameat2(self, key: tuple[str, str], other: tuple[str, str], flags: int) -> None:
        here = syscalls.AT_FDCWD
        syscalls.renameat2(here, os.fsencode(self.path(key)), here, os.fsencode(self.path(other)), flags)


_OPERATIONS = [
    (getattr(Model, f"will_{name}"), getattr(Model, name))
    for name in (
        "mkdir",
        "create",
        "mknod",
        "symlink",
        "link",
        "unlink",
        "rmdir",
        "rename",
        "rename_noreplace",
        "exchange",
        "set_new",
        "set_old",
        "set",
        "remove_attribute",
        "attributes",
        "stat",
    )
]


def churn(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Do anything with a few names of two directories. Once one thing is wrong, nothing that follows means anything."""
    model = Model(place, dice, tally)
    while goes_on() and not tally.wrong:
        model.step()
        tally.operations += 1
        if not model.serial % 40:
            model.check()
    if not tally.wrong:
        model.check()
