"""Runs a program in a session of its own until standard input ends, and then ends everything in it: `leash.py PROGRAM …`.

The one that starts it holds the other end of standard input, so that the program ends with it, whatever it dies of.
Leaves with the program's status. Imports only what a bare interpreter starts quickly with.
"""

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 1.0


def main() -> int:
    """Start the program, and wait for the first of: its end, the end of standard input, SIGTERM."""
    woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    pid = os.fork()
    if pid == 0:
        _become(sys.argv[1:])
    select.select([0, woken], [], [])
    return _end(pid)


def _become(argv: list[str]) -> None:
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execv(argv[0], argv)
    except OSError as error:
        print(f"leash: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _end(pid: int) -> int:
    """Ask the program to end, then make it; take whatever else is in its session with it."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)  # not reaped yet, so the group is still this one
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
