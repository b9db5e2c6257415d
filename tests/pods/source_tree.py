"""A volume's source on the node: what is in it, and proof that nothing of it was touched but what a test wrote."""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

POEM = "The keeper holds the door,\nthe daemon reads aloud;\n"
POEM_FILE = "poem.txt"
SHELF_FILE = "shelf/pi.txt"
SHELF_TEXT = "3.14159265358979\n"
NOISE_FILE = "shelf/noise.bin"
INBOX = "inbox"


@dataclass(frozen=True, slots=True)
class EntryState:
    """What must stay of an entry. `content` is a file's digest, a link's target, "" for anything else."""

    inode: int
    mode: int
    owner: tuple[int, int]
    links: int
    modified_ns: int
    content: str


class SourceTree:
    """A directory with a few files and an inbox that everyone may write to."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._written: list[str] = []
        for name in ("shelf", INBOX, "empty"):
            (directory / name).mkdir(parents=True)
        self.inbox.chmod(0o1777)
        (directory / POEM_FILE).write_text(POEM)
        (directory / SHELF_FILE).write_text(SHELF_TEXT)
        (directory / NOISE_FILE).write_bytes(os.urandom(1 << 18))
        (directory / "outside").symlink_to("/etc")
        (directory / "shelf" / "private.txt").write_text("mine\n")
        (directory / "shelf" / "private.txt").chmod(0o600)
        os.chown(directory / "shelf" / "private.txt", 1000, 1000)
        self._before = read_states(directory)

    @property
    def inbox(self) -> Path:
        """Where applications of any user may write."""
        return self.path / INBOX

    def remember(self) -> None:
        """Take what is there now as what must stay."""
        self._before = read_states(self.path)

    def expect_written(self, *names: str) -> None:
        """Allow entries, and whatever is beneath them, to come, go and change; their directories' times and links with them."""
        self._written.extend(names)

    def changes(self) -> list[str]:
        """Return what is not as it was and was not expected to change."""
        after = read_states(self.path)
        told = []
        for name in sorted(self._before.keys() | after.keys()):
            if self._is_expected(name):
                continue
            before, now = self._before.get(name), after.get(name)
            if self._holds_expected(name):
                before, now = _without_times(before), _without_times(now)
            if before != now:
                told.append(f"{self.path}/{name}: was {before}, is {now}")
        return told

    def _is_expected(self, name: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for path in self._written)

    def _holds_expected(self, name: str) -> bool:
        return any(os.path.dirname(path) == name for path in self._written)


def read_states(directory: Path) -> dict[str, EntryState]:
    """Return the state of the directory ("") and of everything beneath it, by relative path."""
    entries = [directory, *directory.rglob("*")]
    return {("" if e == directory else str(e.relative_to(directory))): _state(e) for e in entries}


def _state(path: Path) -> EntryState:
    status = path.lstat()
    content = ""
    if stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    return EntryState(
        inode=status.st_ino,
        mode=status.st_mode,
        owner=(status.st_uid, status.st_gid),
        links=status.st_nlink,
        modified_ns=status.st_mtime_ns,
        content=content,
    )


def _without_times(state: EntryState | None) -> EntryState | None:
    if state is None:
        return None
    return EntryState(state.inode, state.mode, state.owner, 0, 0, state.content)
