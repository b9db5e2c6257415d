"""What reading from a store costs, as it has been measured: a small part against a whole block."""

import threading

_SMALL_BYTES = 128 << 10  # what takes hardly longer than nothing at all
_SHARE = 1 / 16  # of a new figure in what is believed
_FIRST_FEW = 8  # of both kinds; before that it is as on a line where both are quick
_UNMEASURED = 6.0
_LEAST, _MOST = 2.0, 16.0


class BlockCosts:
    """Takes note of how long reads last. For any thread; `ratio` is read without waiting for anybody."""

    def __init__(self, block_bytes: int) -> None:
        self.ratio = _UNMEASURED  # how many small reads one of a block is worth
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._small_s = self._block_s = 0.0
        self._small = self._whole = 0

    def note(self, size: int, elapsed_s: float) -> None:
        """Take note of one."""
        is_whole = size == self._block_bytes
        if not is_whole and size > _SMALL_BYTES:
            return
        with self._lock:
            if is_whole:
                self._whole += 1
                self._block_s += (elapsed_s - self._block_s) * max(_SHARE, 1 / self._whole)
            else:
                self._small += 1
                self._small_s += (elapsed_s - self._small_s) * max(_SHARE, 1 / self._small)
            if min(self._small, self._whole) >= _FIRST_FEW and self._small_s > 0:
                self.ratio = min(_MOST, max(_LEAST, self._block_s / self._small_s))

    def of(self, size: int) -> float:
        """Return what a read of a size costs, in small ones."""
        return 1 + (self.ratio - 1) * size / self._block_bytes
