"""The programs that run in the pods, and how a test reads what they tell."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.podlet.client import RunningPod
from e2e.podlet.errors import PodletError
from tests.pods.manifests import Json, mount, program
from tests.pods.programs.watch import ALIVE_EVERY
from tests.pods.source_tree import INBOX, POEM, POEM_FILE, SourceTree

PROGRAMS = Path(__file__).parent / "programs"
WATCH = PROGRAMS / "watch.py"
HOLD = PROGRAMS / "hold.py"
POLL_S = 0.05
PROBE = ("python3", "-S", "-m", "sidecar", "probe", "--run-dir", "/run/sidemount")
# What the kernel says of a connection that is gone: before, and to whom was waiting when it went.
LOST = frozenset({"ENOTCONN", "ECONNABORTED"})


def watcher(
    name: str = "app",
    volume: str = "books",
    *,
    file: str = POEM_FILE,
    text: str = POEM,
    inbox: str = f"/books/{INBOX}",
    **fields: Any,
) -> Json:
    """Return a container that watches a volume at /books all the time and creates files in its inbox, "" for none."""
    mounts = [mount(volume, "/books")]
    return program(name, WATCH, "/books", file, text, inbox, volumeMounts=mounts, **fields)


@dataclass(frozen=True, slots=True)
class Change:
    """An operation began to come out differently."""

    op: str
    outcome: str
    at: float
    round: int


class Watcher:
    """What a watching container has told so far. Its log stays readable after the pod."""

    def __init__(self, running: RunningPod, container: str = "app") -> None:
        self._running = running
        self._container = container

    def changes(self) -> list[Change]:
        """Return every change so far."""
        told = [message for message in self._messages() if message["op"] not in ("alive", "sum")]
        return [Change(m["op"], m["outcome"], m["at"], m["round"]) for m in told]

    def outcomes(self, op: str) -> list[str]:
        """Return what an operation came out as, in turn."""
        return [change.outcome for change in self.changes() if change.op == op]

    def wait_until(self, op: str, outcome: str, deadline_s: float, *, times: int = 1) -> None:
        """Wait until the operation came out so, for the n-th time. Raises AssertionError."""
        until = time.monotonic() + deadline_s
        while self.outcomes(op).count(outcome) < times:
            assert time.monotonic() < until, f"{op} is not {outcome} for the {times}. time: {self.changes()}"
            time.sleep(POLL_S)

    def wait_for_rounds(self, more: int, deadline_s: float) -> None:
        """Wait until it has gone round so many times again. Raises AssertionError."""
        until = time.monotonic() + deadline_s
        goal = self._rounds() + more
        while self._rounds() < goal:
            assert time.monotonic() < until, f"it does not go on: {self.changes()[-4:]}"
            time.sleep(POLL_S)

    def wait_until_well(self, deadline_s: float) -> None:
        """Wait until a whole round, begun from now on, was one of success but for what is held. Raises AssertionError."""
        until = time.monotonic() + deadline_s
        while True:
            self.wait_for_rounds(ALIVE_EVERY, deadline_s)
            latest = {change.op: change.outcome for change in self.changes() if change.op != "held"}
            if set(latest.values()) == {"ok"}:
                return
            assert time.monotonic() < until, f"it is not well: {self.changes()[-8:]}"

    def created(self, tree: SourceTree) -> int:
        """Return how many files it has created, all of which are in the source. Raises AssertionError. For when it has ended."""
        total = self._messages()[-1]
        assert total["op"] == "sum", f"the watcher did not end in order: {total}"
        numbers = set(range(total["rounds"]["create"])) - set(total["failed"])
        missing = [n for n in sorted(numbers) if not _holds(tree.inbox / str(n), str(n))]
        assert not missing, f"files whose creation was acknowledged are not in the source: {missing[:20]}"
        return len(numbers)

    def longest_s(self) -> float:
        """Return how long its longest operation took: the pause that it has seen. For when it has ended."""
        total = self._messages()[-1]
        assert total["op"] == "sum", f"the watcher did not end in order: {total}"
        return float(total["longest_s"])

    def _rounds(self) -> int:
        return max((message["round"] for message in self._messages() if message["op"] == "alive"), default=0)

    def _messages(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in self._running.logs(self._container).splitlines()
            if line.endswith("}")
        ]


def wait_for_remount(
    running: RunningPod, watch: Watcher, times: int, deadline_s: float, *, view: str = "books"
) -> None:
    """Wait until a view was mounted anew so often, and the watcher uses it. It need not have looked while the view was dead."""
    until = time.monotonic() + deadline_s
    while layers(running, view) <= times:
        assert time.monotonic() < until, f"{view} is not remounted for the {times}. time"
        time.sleep(POLL_S)
    watch.wait_until_well(deadline_s)


def layers(running: RunningPod, view: str) -> int:
    """Return how many mounts are stacked at a view."""
    return sum(m.mount_point.endswith(f"/sidemount/{view}") for m in running.mounts())


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def idler(name: str, *mounts: Json, **fields: Any) -> Json:
    """Return a container that waits; a test has it do things with `call`."""
    return program(name, PROGRAMS / "idle.py", volumeMounts=list(mounts), **fields)


def call(running: RunningPod, container: str, code: str, *, timeout_s: float = 30.0) -> Any:
    """Run Python in a container that has it and return what it assigns to `seen`; an OSError gives its errno's name."""
    whole = (
        "import errno, json, os\ntry:\n"
        + "".join(f"    {line}\n" for line in code.strip().splitlines())
        + "except OSError as error:\n    seen = errno.errorcode[error.errno]\nprint(json.dumps(seen))\n"
    )
    done = running.exec(container, ["python3", "-S", "-c", whole], timeout_s=timeout_s)
    assert done.exit_code == 0, done
    return json.loads(done.stdout)


def sh(running: RunningPod, container: str, script: str, *, timeout_s: float = 30.0) -> str:
    """Run a shell script in a container that has a shell and return its output, errors too."""
    done = running.exec(container, ["sh", "-c", f"exec 2>&1; {script}"], timeout_s=timeout_s)
    assert done.exit_code is not None, done
    return done.stdout


def wait_for_probe(
    running: RunningPod, said: str, *, container: str = "sidemount-books", deadline_s: float = 30.0
) -> str:
    """Probe a volume as kubelet does until the probe says such words, and return all that it said. Raises AssertionError.

    The probe succeeds if, and only if, it says "ready".
    """
    until = time.monotonic() + deadline_s
    while True:
        answer = ""
        with suppress(PodletError):  # the container is not running yet
            done = running.exec(container, PROBE)
            answer = done.stdout.strip()
            assert (done.exit_code == 0) == (answer == "ready"), done
            if said in answer and (said != "ready" or answer == said):
                return answer
        assert time.monotonic() < until, f"{container}: {answer}"
        time.sleep(POLL_S)


def wait_for_log(running: RunningPod, container: str, word: str, deadline_s: float) -> None:
    """Wait until a container has logged something, which no status announces. Raises AssertionError."""
    until = time.monotonic() + deadline_s
    while word not in (said := running.logs(container)):
        assert time.monotonic() < until, said
        time.sleep(POLL_S)


def kill_serving_process(running: RunningPod, container: str, number: int) -> None:
    """Send a signal to the process in a daemon's container that serves at present: its log tells which."""
    told = [
        json.loads(line)
        for line in running.logs(container).splitlines()
        if '"serving"' in line and line.endswith("}")
    ]
    pid = next(message["pid"] for message in reversed(told) if message["event"] == "serving")
    code = f"import os; os.kill({pid}, {int(number)})"
    done = running.exec(container, ["python3", "-S", "-c", code])
    assert done.exit_code == 0, done
