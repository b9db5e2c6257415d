"""Where a volume of the class `directory` comes from, and how a pod may ask for it."""

import json
from collections.abc import Iterator

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import call, idler, sh
from tests.pods.manifests import mount, pod, shell
from tests.pods.source_tree import INBOX, POEM, SHELF_TEXT
from tests.pods.stage import Images, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[RunningPod]:
    """Return a pod that asks in every way."""
    directory = tmp_path_factory.mktemp("sources")
    claimed = directory / "sources" / "claimed"
    every = {"sources": [f"dir://{directory}/sources/**", "pvc://**"]}
    with Stage(directory, images, class_spec=every, claims={"data": claimed}) as stage:
        tree, claim = stage.tree("whole"), stage.tree("claimed")
        tree.expect_written(INBOX)
        claim.expect_written(INBOX)
        listed = [
            {"name": "listed", "source": stage.source(tree), "subPath": INBOX, "mountPath": "/listed", "containers": ["app"]},
            {"name": "everywhere", "source": "pvc://data", "readOnly": True, "mountPath": "/everywhere"},
        ]  # fmt: skip
        volumes = {
            "part": stage.source(tree, "subPath=shelf"),
            "claim": "pvc://data",
            "corner": "pvc://data/shelf?readOnly=true",
        }
        app = idler("app", *(mount(name, f"/{name}") for name in volumes))
        yield stage.run(
            pod(volumes, app, shell("other"), annotations={"sidemount.io/volumes": json.dumps(listed)})
        )


def test_a_sub_path_of_the_request_is_the_root_of_the_volume(running: RunningPod) -> None:
    """S2-07: the daemon serves only beneath it."""
    code = "seen = [sorted(os.listdir('/part')), open('/part/pi.txt').read()]"
    assert call(running, "app", code) == [["noise.bin", "pi.txt", "private.txt"], SHELF_TEXT]
    assert call(running, "app", "seen = open('/part/../poem.txt').read()") == "ENOENT"


def test_a_claim_is_a_source(running: RunningPod) -> None:
    code = "open('/claim/inbox/x', 'w').write('y')\nseen = open('/claim/poem.txt').read()"
    assert call(running, "app", code) == POEM


def test_a_directory_of_a_claim_is_a_source(running: RunningPod) -> None:
    assert call(running, "app", "seen = open('/corner/pi.txt').read()") == SHELF_TEXT
    assert call(running, "app", "seen = os.mkdir('/corner/x')") == "EROFS"


def test_a_listed_volume_is_mounted_in_the_containers_that_it_names(running: RunningPod) -> None:
    assert call(
        running, "app", "open('/listed/from-list', 'w').write('x')\nseen = os.listdir('/listed')"
    ) == ["from-list"]
    assert sh(running, "other", "ls /listed") == "ls: /listed: No such file or directory\n"


def test_a_listed_volume_that_names_none_is_mounted_in_all(running: RunningPod) -> None:
    assert sh(running, "other", "cat /everywhere/poem.txt") == POEM
    assert call(running, "app", "seen = os.mkdir('/everywhere/x')") == "EROFS"
