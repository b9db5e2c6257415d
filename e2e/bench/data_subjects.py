"""What serves a directory in the data benchmark: our daemon as in a pod, and its peers. Each freshly mounted, with cold kernel caches.

All of it in a mount namespace of its own (`e2e.bench.data_run`).
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sidecar.probe import ask
from sidemount.model.mountspec import (
    KeeperConfig,
    KeeperMount,
    MountSpec,
    OptionValue,
    View,
    encode_keeper_config,
)

_VOLUME = "bench"
_ROOT = Path(__file__).parents[2]
_START_S = 30.0
_END_S = 10.0
_POLL_S = 0.005
_CAPABILITIES = "-all,+chown,+dac_override,+fowner,+fsetid"  # what injection gives a `directory` daemon


class NotServedError(Exception):
    """A subject did not come to serve; the message says what it said."""


@dataclass(frozen=True, slots=True)
class Served:
    """A mount and the process that serves it."""

    path: Path
    pid: int


Serve = Callable[[Path, Path], AbstractContextManager[Served]]
"""Takes a directory of its own and what is to be served."""


def ours(runtime: str = "poll", filesystem: str = "directory", **options: OptionValue) -> Serve:
    """Return how our own keeper and daemon serve. The source of a `volume` is the volume's directory."""

    def serve(work: Path, source: Path) -> AbstractContextManager[Served]:
        spec = MountSpec(
            volume=_VOLUME,
            driver_class="directory",
            source=f"dir://{source}",
            filesystem=filesystem,
            options=tuple(sorted(options.items())),
            takeover=True,
            uid=0,
        )
        return serve_spec(spec, work, ["--source", str(source), "--runtime", runtime])

    return serve


@contextlib.contextmanager
def serve_spec(spec: MountSpec, work: Path, flags: Sequence[str]) -> Iterator[Served]:
    """Serve a volume with our keeper and a daemon with further flags, beneath a directory of its own."""
    mounts, run = work / "mounts", work / "run"
    for place in (mounts, run):
        place.mkdir()
    _check("mount", "-t", "tmpfs", "bench", mounts)
    _check("mount", "--make-shared", mounts)
    config = encode_keeper_config(
        KeeperConfig(mounts=(KeeperMount(spec=spec, views=(View(name=spec.volume),)),))
    )
    with (
        contextlib.ExitStack() as stack,
        (work / "log").open("wb") as log,
    ):
        stack.callback(_detach, mounts)
        keeper = stack.enter_context(_running(_keeper_argv(mounts, run), log, config))
        daemon = stack.enter_context(_running(_daemon_argv(run / spec.volume, flags), log, ""))
        # A client that waits for the mount before it is served would be what hangs; so both are asked instead.
        _wait(
            lambda: ask(str(run / spec.volume), timeout_s=_START_S).startswith("ready"),
            (keeper, daemon),
            work,
        )
        yield Served(mounts / spec.volume, _serving(daemon.pid))


def foreign(*argv: str) -> Serve:
    """Return how a program serves that stays in the foreground. SOURCE, TARGET and WORK in its arguments are replaced.

    WORK is an empty directory on a disk, for a cache.
    """

    @contextlib.contextmanager
    def serve(work: Path, source: Path) -> Iterator[Served]:
        if shutil.which(argv[0]) is None:
            raise NotServedError(f"{argv[0]} is not installed")
        target, scratch = work / "mount", work / "scratch"
        target.mkdir()
        scratch.mkdir()
        places = {"SOURCE": source, "TARGET": target, "WORK": scratch}
        command = list(argv)
        for name, place in places.items():
            command = [word.replace(name, str(place)) for word in command]
        with (
            contextlib.ExitStack() as stack,
            (work / "log").open("wb") as log,
        ):
            process = stack.enter_context(_running(command, log, ""))
            stack.callback(_detach, target)
            _wait(lambda: _is_mounted(target), (process,), work)
            yield Served(target, _holding(process.pid) or process.pid)

    return serve


def _keeper_argv(mounts: Path, run: Path) -> list[str]:
    places = ["--mounts-dir", str(mounts), "--run-dir", str(run)]
    return [sys.executable, "-S", "-E", "-m", "sidecar", "keeper", *places]


def _daemon_argv(run: Path, flags: Sequence[str]) -> list[str]:
    bounds = ["setpriv", f"--bounding-set={_CAPABILITIES}", "--inh-caps=-all", "--no-new-privs"]
    return [*bounds, sys.executable, "-m", "sidecar", "daemon", "--run-dir", str(run), *flags]


@contextlib.contextmanager
def _running(argv: list[str], log: object, config: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "SIDEMOUNT_MOUNTS": config} if config else dict(os.environ)
    process = subprocess.Popen(
        argv,
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,  # type: ignore[call-overload]  # an open file
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(
    condition: Callable[[], bool], processes: tuple["subprocess.Popen[bytes]", ...], work: Path
) -> None:
    until = time.monotonic() + _START_S
    while not condition():
        ended = [process for process in processes if process.poll() is not None]
        if ended or time.monotonic() > until:
            last = ((work / "log").read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise NotServedError(f"it does not serve: {last}"[:300])
        time.sleep(_POLL_S)


def _is_mounted(target: Path) -> bool:
    fields = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(line[4] == str(target) for line in fields)


def _serving(first: int) -> int:
    """Return the child of a daemon's first process that has the device."""
    for child in _children(first):
        if _has_device(child):
            return child
    raise NotServedError("no process has the device")


def _holding(first: int) -> int | None:
    """Return which of a program's processes has the device: it, or a child that it watches over, even if it has it, too."""
    return next((pid for pid in reversed((first, *_children(first))) if _has_device(pid)), None)


def _children(pid: int) -> list[int]:
    """Return a process's children, and theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return [*found, *(below for child in found for below in _children(child))]


def _has_device(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has just ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink() == Path("/dev/fuse"):
                    return True
    return False


def _detach(target: Path) -> None:
    subprocess.run(["umount", "-l", str(target)], capture_output=True, check=False)


def _check(*argv: str | Path) -> None:
    subprocess.run([str(word) for word in argv], capture_output=True, check=True)
