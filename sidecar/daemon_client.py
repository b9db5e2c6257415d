"""An external FUSE client as a volume's daemon: started with the descriptor, watched, told to end, its output told in the log.

Client programs know `/dev/fd/N` as a mount point: a descriptor somebody else has mounted. One that does not mounts by
itself, at a place that no container sees; the keeper shows a copy of that mount.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

from sidemount.host import process_attributes
from sidemount.host.logs import EventLog
from sidemount.model.errors import HostFailure
from sidemount.model.redaction import HIDDEN, spellings, without

_TAIL_LINES = 20
_LAST_OUTPUT_S = 1.0
_LINE_MAX = 500
_LINE_READ_MAX = 1 << 16
_SECRET_FILES_MAX = 64
_SECRETS_REMEMBERED = 4 * _SECRET_FILES_MAX
_SECRET_BYTES_MAX = 1 << 20
_SECRETS_FRESH_S = 1.0
_SECRET_LOOK = re.compile(
    r"(?i)((?:pass(?:word|wd)?|secret|token|api[-_]?key|access[-_]?key|credential)[\w-]*['\"]?\s*[=:]\s*)\S+"
    r"|(?<=://)[^/\s@]+(?=@)"
)


class Client:
    """A running client program."""

    def __init__(self, argv: tuple[str, ...], device: int, secrets_dir: str, log: EventLog) -> None:
        """Start it. `device` is -1 for one that mounts by itself. Raises HostFailure."""
        process_attributes.adopt_orphans()
        self._log = log
        self._is_told_to_end = False
        self._hide = Redactor(secrets_dir)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=() if device < 0 else (device,),
                preexec_fn=_prepare_child,  # no other thread runs yet
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise HostFailure(
                f"cannot start the client {argv[0]!r}: {error}",
                errno=getattr(error, "errno", None) or 0,
                hint="the class's image must hold the program that its command names",
            ) from error
        self._reader = threading.Thread(
            target=self._read_output, args=(self._process.stdout,), name="client-output", daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; harmless once it has ended."""
        self._process.send_signal(number)

    def end(self, timeout_s: float) -> None:
        """Ask it to end, and kill it if it has not by then. Does not wait."""
        self._is_told_to_end = True
        self.signal(signal.SIGTERM)
        killer = threading.Timer(timeout_s, self._process.kill)
        killer.daemon = True
        killer.start()

    def poll(self) -> int | None:
        """Return its exit code, None while it runs: 128 + N if signal N ended it; 0 if it is the one we sent to end it.

        Some take the signal and then end with the code that a shell has for it.
        """
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(_LAST_OUTPUT_S)
        if self._is_told_to_end and code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            return 0
        return 128 - code if code < 0 else code

    def tail(self) -> list[str]:
        """Return the last lines it wrote, without secrets."""
        return list(self._tail)

    def _read_output(self, output: IO[bytes]) -> None:
        is_rest = False
        while raw := output.readline(_LINE_READ_MAX):
            # Cut only what hides nothing any more: half of a secret is not known as one. The rest of a very long line is not told.
            line = "" if is_rest else self._hide(raw.decode("utf-8", "replace").rstrip())[:_LINE_MAX]
            is_rest = not raw.endswith(b"\n")
            if line:
                self._tail.append(line)
                self._log.info("client_output", line=line)


class Redactor:
    """Takes secrets out of text: whatever the credential files hold, and what looks like one."""

    def __init__(self, secrets_dir: str) -> None:
        self._secrets_dir = secrets_dir
        self._seen: deque[str] = deque(
            maxlen=_SECRETS_REMEMBERED
        )  # those that were renewed may be told of yet
        self._known: tuple[str, ...] = ()
        self._read_at = float("-inf")

    def __call__(self, text: str) -> str:
        """Return the text with `***` for every secret."""
        now = time.monotonic()
        if self._secrets_dir and now - self._read_at > _SECRETS_FRESH_S:  # credentials are renewed in place
            self._read_at = now
            fresh = [found for found in _read_secrets(Path(self._secrets_dir)) if found not in self._seen]
            if fresh:
                self._seen.extend(fresh)
                self._known = spellings(self._seen)
        text = without(text, self._known)
        return _SECRET_LOOK.sub(lambda found: (found[1] or "") + HIDDEN, text)


def _read_secrets(directory: Path) -> list[str]:
    """Return what the files hold."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir())[:_SECRET_FILES_MAX]:
            if path.is_file():
                with path.open("rb") as file:
                    found.append(file.read(_SECRET_BYTES_MAX).decode("utf-8", "replace"))
    return found


def client_argv(command: tuple[str, ...], mountpoint: str, files: str) -> tuple[str, ...]:
    """Return the client's argv: everything but `${mountpoint}` and `${files}` was put in when the volume was resolved."""
    return tuple(part.replace("${mountpoint}", mountpoint).replace("${files}", files) for part in command)


def _prepare_child() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_attributes.die_with_parent()
    os.umask(0o022)
