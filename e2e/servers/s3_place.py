"""Where an S3 server is, and who may ask it."""

from dataclasses import dataclass

REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket of a server. Without an access key anybody may ask. `filer` is what SeaweedFS' own client asks instead."""

    endpoint: str
    bucket: str
    access_key: str = ""
    secret_key: str = ""
    region: str = REGION
    filer: str = ""

    @property
    def port(self) -> int:
        """The endpoint's."""
        return int(self.endpoint.rpartition(":")[2])
