"""A node for each test, and proof after each that it left the machine as it was."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.images import busybox_image
from e2e.podlet import cgroups
from e2e.podlet.client import Podlet
from tests.podlet.pods import IMAGE

MakeNode = Callable[..., Podlet]


@pytest.fixture(scope="session")
def busybox() -> Path:
    """Return the busybox image."""
    return busybox_image()


@pytest.fixture
def make_node(busybox: Path) -> Iterator[MakeNode]:
    """Return a way to make nodes; periods and back-off take a tenth unless a test says otherwise."""
    nodes: list[Podlet] = []
    with ExitStack() as stack:

        def make(**options: Any) -> Podlet:
            options = {"images": {IMAGE: busybox}, "time_scale": 0.1, **options}
            nodes.append(stack.enter_context(Podlet(**options)))
            return nodes[-1]

        yield make
    mounted = Path("/proc/self/mountinfo").read_text()
    for made in nodes:
        assert str(made.root) not in mounted
        assert not cgroups.left_of(made.node_id)
        assert not made.root.exists()


@pytest.fixture
def node(make_node: MakeNode) -> Podlet:
    """Return a node with nothing but busybox."""
    return make_node()
