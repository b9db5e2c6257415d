"""Options and rules that tests of several packages share.

A test marked `root` or `fuse` that cannot run here is skipped; with REQUIRE_FUSE=1 in the environment it fails instead.
Generated examples may take as long as a busy machine needs. With `--hypothesis-profile=steady` they are the same in every run.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("patient"), derandomize=True)
settings.load_profile("patient")

os.environ.setdefault(
    "GRPC_ENABLE_FORK_SUPPORT", "0"
)  # or it prints into what a forked child of a test prints


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here, or fail where it must."""
    missing = _missing(item)
    if missing and os.environ.get("REQUIRE_FUSE") == "1":
        pytest.fail(f"REQUIRE_FUSE=1, but {missing}", pytrace=False)
    if missing:
        pytest.skip(missing)


def _missing(item: pytest.Item) -> str:
    needs_fuse = item.get_closest_marker("fuse") is not None
    if (needs_fuse or item.get_closest_marker("root") is not None) and os.geteuid() != 0:
        return "not root"
    if needs_fuse and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no usable /dev/fuse"
    return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-golden."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what the code does now"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--update-golden"))
