"""The end of an installation, exactly as docs/install.md says: nothing of ours is left, and nobody waits for it."""

import pytest

from e2e.cluster.kubectl import Json, Kubectl
from e2e.cluster.waiting import wait_for
from e2e.tests.deployment import CONFIGURATIONS, Installation, remove_commands
from e2e.tests.pods import Namespace, has_ended, pod, shell, task
from e2e.tests.sources import Source

_DONE_S = 180.0
_OF_THE_CLUSTER = (
    *CONFIGURATIONS,
    "validatingadmissionpolicy",
    "validatingadmissionpolicybinding",
    "clusterrole",
    "clusterrolebinding",
    "priorityclass",
    "crd",
    "namespace",
)
_MOUNTED = [{"name": "books", "mountPath": "/data"}]


@pytest.fixture
def books(source: Source) -> Source:
    """A source with a file."""
    source.write({"book": b"fish\n"}, mode=0o777)
    return source


def _asking(name: str, app: Json, books: Source) -> Json:
    return pod(
        name,
        app,
        annotations={"volume.sidemount.io/books": books.uri},
        volumes=[{"name": "books", "emptyDir": {}}],
        restartPolicy="Never",
    )


def _of_ours(api: Kubectl) -> list[str]:
    """Return what is named after us; a namespace of these tests is not."""
    return [
        f"{kind}/{each['metadata']['name']}"
        for kind in _OF_THE_CLUSTER
        for each in api.items(kind)
        if "sidemount" in each["metadata"]["name"]
    ]


def test_when_it_is_taken_away_every_pod_starts_and_those_with_volumes_keep_them(
    installed: Installation, ml: Namespace, books: Source
) -> None:
    """KAI#751: no configuration is left that anybody waits for; after each step of the page a pod can be created."""
    ml.run(_asking("before", shell("app", "cat /data/book", volumeMounts=_MOUNTED), books))
    for number, command in enumerate(remove_commands()):
        installed.api.run(*command, "--ignore-not-found", timeout_s=_DONE_S)
        ml.create(pod(f"plain-{number}", task("app", "true"), restartPolicy="Never"))
    assert wait_for(lambda: not installed.is_there(), _DONE_S)
    assert _of_ours(installed.api) == []
    # Whoever asks now gets what the manifest says, an empty directory.
    empty = task("app", 'test -z "$(ls -A /data)"', volumeMounts=_MOUNTED)
    created = ml.create(_asking("after", empty, books))
    assert "initContainers" not in created["spec"]
    for name in ("plain-0", "plain-1", "plain-2", "after"):
        assert ml.until(name, has_ended, "ended")["status"]["phase"] == "Succeeded", ml.described(name)
    assert ml.exec("before", "app", "sh", "-c", "echo more >>/data/book; cat /data/book") == "fish\nmore\n"
    ml.delete("before")
    assert books.read("book") == "fish\nmore\n"
