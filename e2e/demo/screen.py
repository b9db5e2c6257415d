"""What a person watches: steps, checks, tables."""

import sys
import time

GREEN, RED, DIM, BOLD, PLAIN = "\033[32m", "\033[31m", "\033[2m", "\033[1m", "\033[0m"


class CheckFailed(Exception):
    """Something that the demo shows did not hold."""


class Screen:
    """Prints to standard output; colours only on a terminal. Counts what was checked."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty()
        self._started = time.monotonic()
        self._step = 0
        self.checks = 0

    def step(self, title: str) -> None:
        """Begin a part."""
        self._step += 1
        print(
            f"\n{self._paint(f'{self._step}. {title}', BOLD)} {self._paint(f'({self._elapsed():.1f} s)', DIM)}"
        )

    def say(self, text: str) -> None:
        """Print a line or more beneath the step."""
        for line in text.splitlines():
            print(f"   {line}".rstrip())
        sys.stdout.flush()

    def progress(self, text: str) -> None:
        """Print what is going on, less loudly."""
        self.say(self._paint(text, DIM))

    def check(self, holds: bool, what: str, seen: object = "") -> None:
        """Print a check that holds. Raises CheckFailed with what was seen instead."""
        if not holds:
            print(f"   {self._paint('✗', RED)} {what}")
            raise CheckFailed(f"{what}: saw {seen!r}" if seen != "" else what)
        self.checks += 1
        print(f"   {self._paint('✓', GREEN)} {what}")
        sys.stdout.flush()

    def end(self) -> None:
        """Print the verdict."""
        print(f"\n{self.checks} checks in {self._elapsed():.1f} s\ndemo: ok")

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{PLAIN}" if self._colours else text
