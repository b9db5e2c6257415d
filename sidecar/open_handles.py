"""Which files and directories of a volume are open."""

from collections.abc import Iterable


class OpenHandles:
    """Handles that the kernel has and has not given back. Numbers of files and of directories may be the same.

    `inherited` are a predecessor's, of which only the number is known.
    """

    __slots__ = ("_directories", "_files", "_inherited")

    def __init__(self, inherited: Iterable[int] = ()) -> None:
        self._inherited = set(inherited)
        self._files: set[int] = set()
        self._directories: set[int] = set()

    def __len__(self) -> int:
        return len(self._inherited) + len(self._files) + len(self._directories)

    def file_opened(self, handle: int) -> None:
        """Note a file; one that a predecessor has opened already is the same."""
        self._inherited.discard(handle)
        self._files.add(handle)

    def directory_opened(self, handle: int) -> None:
        """Note a directory."""
        self._inherited.discard(handle)
        self._directories.add(handle)

    def file_closed(self, handle: int) -> None:
        """Forget a file."""
        self._inherited.discard(handle)
        self._files.discard(handle)

    def directory_closed(self, handle: int) -> None:
        """Forget a directory."""
        self._inherited.discard(handle)
        self._directories.discard(handle)
