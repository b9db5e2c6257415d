"""Descriptors that must outlive the daemon: files without a name, which nothing else leads to."""

from typing import Protocol


class DescriptorHolder(Protocol):
    """Keeps descriptors where the daemon's death does not reach, by node id."""

    def hold(self, key: int, descriptor: int) -> bool:
        """Keep a descriptor before this returns; False if it cannot be kept. The caller keeps it open until `release`."""
        ...

    def release(self, key: int) -> None:
        """Keep it no longer. An unknown key is no error."""
        ...

    def drop(self, key: int) -> None:
        """Release, but perhaps no sooner than at the next `tidy`."""
        ...

    def tidy(self) -> None:
        """Let go of everything that was dropped."""
        ...


class NoHolder:
    """Holds nothing: files without a name end with the daemon."""

    def hold(self, key: int, descriptor: int) -> bool:
        """Refuse."""
        return False

    def release(self, key: int) -> None:
        """Do nothing."""

    def drop(self, key: int) -> None:
        """Do nothing."""

    def tidy(self) -> None:
        """Do nothing."""
