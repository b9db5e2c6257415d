"""One server of each kind for a whole run of pytest. A conftest that imports these offers them to its tests.

Where a machine lacks Go or Node the tests of that server are skipped; with REQUIRE_FUSE=1 in the environment they fail instead.
A test that uses one is marked `timeout(…, func_only=True)`: the first use may have to build the server.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from e2e.cluster.errors import MachineLacks
from e2e.servers.azurite import AzurePlace, azurite
from e2e.servers.fake_gcs import GcsPlace, fake_gcs
from e2e.servers.nginx import NginxPlace, nginx_s3
from e2e.servers.s3_place import S3Place
from e2e.servers.seaweedfs import seaweedfs
from e2e.servers.versity import Versity, versity

T = TypeVar("T")


@contextmanager
def _running(
    run: Callable[[Path], AbstractContextManager[T]], temporary: pytest.TempPathFactory, name: str
) -> Iterator[T]:
    """Run a server in a directory whose logs are kept as long as pytest keeps directories, and its data no longer than it runs."""
    directory = temporary.mktemp(name)
    try:
        with run(directory) as place:
            yield place
    except MachineLacks as lack:
        if os.environ.get("REQUIRE_FUSE") == "1":
            pytest.fail(f"REQUIRE_FUSE=1, but {lack}", pytrace=False)
        pytest.skip(f"{name}: {lack.message}; {lack.hint}")
    finally:
        shutil.rmtree(directory / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    """S3 by SeaweedFS."""
    with _running(seaweedfs, tmp_path_factory, "seaweedfs") as place:
        yield place


@pytest.fixture(scope="session")
def versity_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versity]:
    """S3 by the Versity gateway, whose users a test can change."""
    with _running(versity, tmp_path_factory, "versity") as server:
        yield server


@pytest.fixture(scope="session")
def nginx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxPlace]:
    """S3, and plain HTTP, by nginx and rclone."""
    with _running(nginx_s3, tmp_path_factory, "nginx") as place:
        yield place


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsPlace]:
    """Google Cloud Storage by fake-gcs-server."""
    with _running(fake_gcs, tmp_path_factory, "gcs") as place:
        yield place


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzurePlace]:
    """Azure Blob by Azurite."""
    with _running(azurite, tmp_path_factory, "azure") as place:
        yield place
