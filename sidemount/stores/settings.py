"""What opening a store needs to know beside its source and its credentials."""

from typing import Protocol


class StoreSettings(Protocol):
    """Times in seconds. `region` and `endpoint` "": the cloud's own."""

    @property
    def region(self) -> str:
        """Of a bucket."""
        ...

    @property
    def endpoint(self) -> str:
        """The URL of a server that is not the cloud's own."""
        ...

    @property
    def path_style(self) -> bool:
        """Whether a bucket is in the path, not in the host's name."""
        ...

    @property
    def connections(self) -> int:
        """The most at a time."""
        ...

    @property
    def request_timeout_s(self) -> int:
        """Of one request."""
        ...

    @property
    def retry_timeout_s(self) -> int:
        """How long a request that fails is tried again."""
        ...

    @property
    def long_timeout_s(self) -> float:
        """Of one request that the store works on before it answers."""
        ...
