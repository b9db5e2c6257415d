"""What can go wrong with a cluster, in one line for a person: what, and what to do about it."""


class ClusterFault(Exception):
    """The cluster, or something it is made of, does not work. `log` is what to read about it."""

    def __init__(self, message: str, *, hint: str = "", log: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.log = log

    def __str__(self) -> str:
        line = f"{self.message}; {self.hint}" if self.hint else self.message
        return f"{line}\n{self.log.rstrip()}" if self.log else line


class MachineLacks(ClusterFault):
    """This machine does not have what a cluster needs."""
