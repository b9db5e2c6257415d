"""What a container that ended leaves to be told, as kubelet reads it."""

import pytest

from e2e.podlet.client import Podlet
from tests.podlet.pods import pod, task

pytestmark = pytest.mark.root
ENDED_S = 20.0
FROM_LOG = {"terminationMessagePolicy": "FallbackToLogsOnError"}


@pytest.mark.parametrize(
    ("script", "fields", "message"),
    [
        pytest.param("echo why >&2; exit 3", FROM_LOG, "why\n", id="log"),
        pytest.param("echo why; echo because > /dev/termination-log; exit 3", FROM_LOG, "because\n", id="file-first"),
        pytest.param("echo why; exit 0", FROM_LOG, "", id="success"),
        pytest.param("echo why; exit 3", {}, "", id="file-only"),
    ],
)  # fmt: skip
def test_the_end_of_its_log_is_taken_if_it_failed_and_asks_for_it(
    node: Podlet, script: str, fields: dict[str, str], message: str
) -> None:
    running = node.run(pod(task("app", script, **fields), restartPolicy="Never"))
    status = running.wait_done(ENDED_S)
    assert status.containers["app"].message == message
