"""The servers that clients are tried against, one of each kind for a run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.clients.servers import SshPlace, gcsfuse_program, ssh_server
from e2e.cluster.errors import MachineLacks
from e2e.servers.fixtures import gcs_server, seaweedfs_server

__all__ = ["gcs_server", "gcsfuse", "seaweedfs_server", "ssh"]


@pytest.fixture(scope="session")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshPlace]:
    """An SSH server."""
    with ssh_server(tmp_path_factory.mktemp("ssh")) as place:
        yield place


@pytest.fixture(scope="session")
def gcsfuse() -> Path:
    """The program, which is built with Go the first time."""
    try:
        return gcsfuse_program()
    except MachineLacks as lack:
        if os.environ.get("REQUIRE_FUSE") == "1":
            pytest.fail(f"REQUIRE_FUSE=1, but {lack}", pytrace=False)
        pytest.skip(f"gcsfuse: {lack.message}; {lack.hint}")
