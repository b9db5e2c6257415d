"""One API server for all tests of this directory, with our manifests and a webhook process; nobody else's cluster is touched."""

import re
import secrets
from collections.abc import Iterator

import pytest

from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import MachineLacks
from e2e.cluster.places import places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.tests import foreign
from e2e.tests.admission.admitting import Admitting


@pytest.fixture(scope="session")
def api_server() -> Iterator[RunningCluster]:
    """An API server without a node."""
    if foreign.is_named():
        pytest.skip(foreign.LEFT_OUT)
    places = places_of("e2e-admit")
    try:
        take_down(places)  # what an interrupted run has left
        cluster = bring_up(places, Progress(), api_only=True)
    except MachineLacks as fault:
        pytest.exit(f"e2e: {fault}", returncode=3)
    try:
        yield cluster
    finally:
        take_down(places)


@pytest.fixture(scope="session")
def all_admitting(
    api_server: RunningCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Admitting]:
    """Our manifests on it, and the webhook."""
    admitting = Admitting(api_server, tmp_path_factory.mktemp("webhook"))
    try:
        yield admitting
    finally:
        admitting.webhook.end()


@pytest.fixture
def cluster(api_server: RunningCluster) -> RunningCluster:
    """The cluster whose logs a failure is told with."""
    return api_server


@pytest.fixture
def admitting(all_admitting: Admitting, cluster: RunningCluster) -> Admitting:
    """The server, its webhook, and what a test does there."""
    return all_admitting


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that nobody has used: of a namespace, or of what belongs to none."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    return f"{plain}-{secrets.token_hex(3)}"


@pytest.fixture
def ml(admitting: Admitting, unique: str) -> str:
    """A namespace that is open to injection, a moment old."""
    return admitting.namespace(unique)


@pytest.fixture
def without_webhook(admitting: Admitting) -> Iterator[Admitting]:
    """The same while no webhook runs."""
    admitting.webhook.end()
    yield admitting
    admitting.webhook.start()
