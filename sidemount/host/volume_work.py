"""What a volume's disposable children do: everything that looks into the mount, and so may hang."""

import os
from collections.abc import Callable

from sidemount.host import syscalls
from sidemount.host.disposable import Reporter
from sidemount.host.views import clone_view
from sidemount.host.volume_places import Place
from sidemount.model.errors import HostFailure

ChildWork = Callable[[Reporter], None]


def show_work(root: int, missing: tuple[Place, ...], places: tuple[str, ...], volume: str) -> ChildWork:
    """Return the work of showing a volume: check that it answers, clone its views, check each where it is shown.

    Reports {"live"} and waits, then for every view {"view", "fault"} with its mount, {"prepared"} and waits.
    """

    def work(reporter: Reporter) -> None:
        _check_answers(root, volume)
        reporter.send({"live": True})
        reporter.wait_for_go()
        for number, place in enumerate(missing):
            try:
                clone = clone_view(root, place.view, volume)
            except HostFailure as error:
                reporter.send({"view": number, "fault": str(error), "errno": error.errno})
                continue
            reporter.send({"view": number, "fault": ""}, clone)
            os.close(clone)
        reporter.send({"prepared": True})
        reporter.wait_for_go()
        for path in places:
            _check_answers(path, path)

    return work


def check_work(places: tuple[str, ...]) -> ChildWork:
    """Return the work of asking every place for its file system's statistics."""

    def work(reporter: Reporter) -> None:
        for path in places:
            _check_answers(path, path)

    return work


def inspect_work(root: int, volume: str) -> ChildWork:
    """Return the work of asking the open root for its statistics."""
    return lambda reporter: _check_answers(root, volume)


def sync_work(root: int, volume: str) -> ChildWork:
    """Return the work of having the kernel write to the daemon what it still holds for the volume."""

    def work(reporter: Reporter) -> None:
        try:
            directory = os.open(f"/proc/self/fd/{root}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise syscalls.failure("open", volume, error.errno or 0) from error
        os.close(root)
        if syscalls.LIBC.syncfs(directory) != 0:
            raise syscalls.last_failure("syncfs", volume)

    return work


def _check_answers(place: int | str, name: str) -> None:
    try:
        os.statvfs(place)
    except OSError as error:
        raise syscalls.failure("statfs", name, error.errno or 0) from error
