"""What a person sees while a cluster is built and started: lines on standard error with the seconds since the start."""

import sys
import time


class Progress:
    """Prints lines. `what` is what is being made."""

    def __init__(self, what: str = "cluster") -> None:
        self._what = what
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{self._what}: {self.elapsed_s:6.1f} s  {text}", file=sys.stderr, flush=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began
