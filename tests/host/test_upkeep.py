"""What is told of a volume that cannot be written back before it is taken away."""

import errno
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from sidemount.host import syscalls
from sidemount.host.volume_upkeep import Upkeep


@pytest.mark.parametrize(
    ("number", "told"),
    [
        pytest.param(errno.ENOENT, [], id="nothing is mounted"),
        pytest.param(errno.EMFILE, ["pin_failed"], id="short of descriptors"),
        pytest.param(errno.EIO, ["pin_failed"], id="something else"),
    ],
)
def test_a_root_that_cannot_be_held_at_the_end_is_told_of(number: int, told: list[str]) -> None:
    """Without it nothing waits for what the kernel still holds: whoever misses data must find that in the log."""

    def refuse() -> NoReturn:
        raise syscalls.failure("open", "/sidemount/train", number)

    events: list[str] = []
    state: Any = SimpleNamespace(
        places=SimpleNamespace(open_root=refuse, open_shown=refuse),
        log=SimpleNamespace(error=lambda event, **fields: events.append(event)),
    )
    Upkeep(state).pin()
    assert events == told
