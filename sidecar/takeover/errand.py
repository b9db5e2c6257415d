"""Errands: what a serving thread has to do before it reads the next request, when all that it has worked on is answered."""

from collections import deque
from collections.abc import Callable

Errand = Callable[[bool], bool]
"""Takes whether no request is waiting to be read; returns whether the errand is to be run again."""

Errands = deque[Errand]
"""The errands of one serving thread. Other threads may add some."""
