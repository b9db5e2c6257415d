"""An image: a directory that holds a root, with the little of an image's configuration that a runtime reads."""

import json
from dataclasses import dataclass
from pathlib import Path

from e2e.podlet.errors import PodRefused
from e2e.podlet.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who a container's process is: numbers, and the groups that the image gives the user."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A root directory and its configuration."""

    root: Path
    user: str = ""
    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = "/"

    def account(self, run_as_user: int | None, run_as_group: int | None) -> Account:
        """Resolve the user as containerd does: the image's passwd and group files fill the gaps.

        Raises KeyError if the image names a user that its passwd file does not hold.
        """
        user, _, group = self.user.partition(":")
        name, uid, gid = self._passwd(user or "0") if run_as_user is None else self._passwd(str(run_as_user))
        if run_as_user is None and group:
            gid = int(group) if group.isdecimal() else self._group_id(group)
        members = tuple(
            int(fields[2]) for fields in self._table("etc/group", 4) if name and name in fields[3].split(",")
        )
        return Account(uid=uid, gid=gid if run_as_group is None else run_as_group, groups=members)

    def _passwd(self, user: str) -> tuple[str, int, int]:
        for fields in self._table("etc/passwd", 7):
            if user == fields[2] or (user == fields[0] and not user.isdecimal()):
                return fields[0], int(fields[2]), int(fields[3])
        if user.isdecimal():
            return "", int(user), 0
        raise KeyError(user)

    def _group_id(self, group: str) -> int:
        return next(int(fields[2]) for fields in self._table("etc/group", 4) if fields[0] == group)

    def _table(self, name: str, width: int) -> list[list[str]]:
        try:
            text = (self.root / name).read_text()
        except FileNotFoundError:
            return []
        return [fields for line in text.splitlines() if len(fields := line.split(":")) >= width]


def load_image(directory: Path) -> Image:
    """Read an image: either a bare root, or `rootfs/` beside `config.json` with an OCI image's config keys.

    Source: https://github.com/opencontainers/image-spec/blob/main/config.md
    """
    if not directory.is_dir():
        raise PodRefused(f"image {directory} is not a directory")
    config = directory / "config.json"
    if not config.is_file():
        return Image(root=directory.resolve())
    fields = Fields(json.loads(config.read_text()), str(config))
    image = Image(
        root=(directory / "rootfs").resolve(),
        user=fields.text("User", ""),
        env=fields.texts("Env"),
        entrypoint=fields.texts("Entrypoint"),
        command=fields.texts("Cmd"),
        working_dir=fields.text("WorkingDir", "") or "/",
    )
    fields.close()
    return image
