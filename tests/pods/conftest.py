"""A stage for each test, and proof after each that it left the machine as it was."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.images import busybox_image, sidemount_image
from e2e.podlet import cgroups
from sidemount.host.mount_table import read_mount_table
from tests.pods.stage import Images, Stage

MakeStage = Callable[..., Stage]
_STAGES = pytest.StashKey[list[Stage]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the pod has said."""
    report = yield
    if report.when == "call" and report.failed:
        for stage in item.stash.get(_STAGES, []):
            report.sections.append(("the pod", stage.told()))
    return report


@pytest.fixture(scope="session")
def images() -> Images:
    """Return the images that every stage has."""
    return Images(busybox_image(), sidemount_image())


@pytest.fixture
def make_stage(tmp_path: Path, images: Images, request: pytest.FixtureRequest) -> Iterator[MakeStage]:
    """Return a way to make the test's stage with what it needs besides the usual."""
    stages: list[Stage] = []
    request.node.stash[_STAGES] = stages
    with ExitStack() as stack:

        def make(**options: Any) -> Stage:
            stages.append(stack.enter_context(Stage(tmp_path, images, **options)))
            return stages[-1]

        yield make
    for stage in stages:
        assert not cgroups.left_of(stage.node.node_id)
        assert not stage.node.root.exists()
    here = [mount.mount_point for mount in read_mount_table() if mount.mount_point.startswith(str(tmp_path))]
    assert not here


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """Return a stage with the class `directory`."""
    return make_stage()
