"""Real object stores, one of each kind for the whole run."""

from e2e.servers.fixtures import (
    azure_server,
    gcs_server,
    nginx_server,
    seaweedfs_server,
    versity_server,
)

__all__ = ["azure_server", "gcs_server", "nginx_server", "seaweedfs_server", "versity_server"]
