"""The bound of what all files of a volume that are written at random may take."""

import threading


class Staging:
    """A budget of bytes. Half of it is for what is only kept because it may be asked for again."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._lock = threading.Lock()
        self._used = 0

    @property
    def is_on(self) -> bool:
        """Whether files may be written at random at all."""
        return self.bound > 0

    @property
    def used(self) -> int:
        """How many bytes are taken."""
        return self._used

    def take(self, size: int, *, to_keep: bool = False) -> bool:
        """Take room, if there is."""
        with self._lock:
            if self._used + size > (self.bound // 2 if to_keep else self.bound):
                return False
            self._used += size
            return True

    def take_anyway(self, size: int) -> None:
        """Take room for what a predecessor had taken it for."""
        with self._lock:
            self._used += size

    def give(self, size: int) -> None:
        """Give room back."""
        with self._lock:
            self._used -= size
