"""A program in a node that opens, reads, maps and closes files as it is told: one line each, answered by one."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sidemount.host.readiness import wait_readable
from tests.host.mount_node import MountNode

_PROGRAM = """
import mmap, os, sys
held = {}
for line in sys.stdin:
    do, name, *rest = line.split()
    try:
        if do == "open":
            held[name] = os.open(rest[0], os.O_RDONLY | int(rest[1]))
            said = "ok"
        elif do == "map":
            held[name] = mmap.mmap(held[rest[0]], 0, prot=mmap.PROT_READ)
            said = "ok"
        elif do == "read":
            what, at = held[name], int(rest[0])
            said = (what[at:at + 4096] if isinstance(what, mmap.mmap) else os.pread(what, 4096, at)).hex()
        elif do == "close":
            what = held.pop(name)
            what.close() if isinstance(what, mmap.mmap) else os.close(what)
            said = "ok"
    except OSError as error:
        said = f"errno {error.errno}"
    print(said, flush=True)
"""


class Holder:
    """One such program. Every answer has a deadline: a read of what nobody serves hangs for ever."""

    def __init__(self, node: MountNode) -> None:
        self._process = subprocess.Popen(
            ["nsenter", "-t", str(node.pid), "-m", sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def ask(self, *words: object, within_s: float = 20.0) -> str:
        """Return its answer. TimeoutError if there is none in time."""
        self.tell(*words)
        return self.answer(within_s)

    def tell(self, *words: object) -> None:
        """Have it do something, whose answer is still to be taken."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def answer(self, within_s: float = 20.0) -> str:
        """Return its next answer."""
        assert self._process.stdout is not None
        if not wait_readable(self._process.stdout.fileno(), within_s):
            raise TimeoutError(f"no answer within {within_s:g} s")
        return self._process.stdout.readline().decode().strip()

    def has_answered(self) -> bool:
        """Tell whether its next answer is there."""
        assert self._process.stdout is not None
        return wait_readable(self._process.stdout.fileno(), 0)

    def waits_for_a_daemon(self) -> bool:
        """Tell whether its read of a file sleeps until a daemon answers, and not for the file that is behind."""
        place = Path(f"/proc/{self._process.pid}")
        state = (place / "stat").read_text().rsplit(")", 1)[1].split()[0]
        stack = (place / "stack").read_text()
        is_behind = "backing_file" in stack or "passthrough" in stack
        return state in "SD" and "sys_pread64" in stack and not is_behind

    def open(self, name: str, path: Path, flags: int = 0) -> None:
        """Open a file under a name."""
        assert self.ask("open", name, path, flags) == "ok"

    def read(self, name: str, offset: int, within_s: float = 20.0) -> bytes:
        """Return a page."""
        said = self.ask("read", name, offset, within_s=within_s)
        assert not said.startswith("errno"), said
        return bytes.fromhex(said)

    def close(self, name: str) -> None:
        """Close a file, or take a mapping away."""
        assert self.ask("close", name) == "ok"

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def holding(node: MountNode) -> Iterator[Holder]:
    """Return a holder, and end it."""
    holder = Holder(node)
    try:
        yield holder
    finally:
        holder.end()
