"""Several processes of one application at once."""

import ctypes
import json
import os
import signal
import traceback
from collections.abc import Callable

from e2e.torture.apps.tally import Tally

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def together(work: Callable[[int, Tally], None], count: int, tally: Tally) -> None:
    """Run a function in so many processes, each with its number and a tally of its own, and add up what they found."""
    running = [_start(work, number) for number in range(count)]
    for pid, answer in running:
        with open(answer, "rb") as file:
            said = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0 or not said:
            tally.fail(f"a process of the application has ended with {code}")
        else:
            tally.add(json.loads(said))


def failure(error: OSError) -> str:
    """Return what failed, and where."""
    return f"{error!r} {traceback.format_exc().splitlines()[-3:]}"


def _start(work: Callable[[int, Tally], None], number: int) -> tuple[int, int]:
    answer, ours = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ours)
        return pid, answer
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        tally = Tally()
        try:
            work(number, tally)
        except OSError as error:
            tally.fail(failure(error))
        with open(ours, "wb") as file:
            file.write(json.dumps(tally.report()).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
