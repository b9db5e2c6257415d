"""With one process namespace the applications see our processes, and can reach nothing of them but their end."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import PROGRAMS, Watcher, idler, watcher
from tests.pods.manifests import mount, pod
from tests.pods.source_tree import INBOX
from tests.pods.stage import Images, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
REFUSED = {"EACCES", "EPERM"}
BOOKS = mount("books", "/books")
# What a runtime gives a container that asks for nothing: uid 0, and the capability to kill or to override permissions.
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[RunningPod]:
    """Return a pod with one process namespace, an application of user 1000 and one of the daemon's own user, root."""
    with Stage(tmp_path_factory.mktemp("shared"), images) as stage:
        tree = stage.tree()
        tree.expect_written(INBOX)
        root = idler("root", BOOKS, securityContext=AS_ROOT)
        volumes = {"books": stage.source(tree)}
        yield stage.run(pod(volumes, watcher(), idler("user", BOOKS), root, shareProcessNamespace=True))


def _pry(running: RunningPod, container: str, wanted: str) -> dict[str, Any]:
    text = (PROGRAMS / "pry.py").read_text()
    done = running.exec(container, ["python3", "-S", "-c", text, wanted])
    assert done.exit_code == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("container", ["user", "root"])
@pytest.mark.parametrize("wanted", ["sidecar daemon", "sidecar keeper"])
def test_an_application_gets_nothing_out_of_our_processes(
    running: RunningPod, container: str, wanted: str
) -> None:
    """Memory, environment, descriptors, root directory: also not for the daemon's own uid."""
    found = _pry(running, container, wanted)["processes"]
    assert found
    for outcomes in found.values():
        assert {name: got for name, got in outcomes.items() if got not in REFUSED} == {}


def test_the_attempts_succeed_where_they_may(running: RunningPod) -> None:
    """The same program on an application of the same user: so that its failures mean something."""
    found = _pry(running, "user", "/books poem.txt")["processes"]
    assert len(found) == 1, found
    (outcomes,) = found.values()
    got = {name for name, what in outcomes.items() if what == "got it"}
    assert {"environ", "mem", "maps", "fd", "root/", "ptrace"} <= got | {"mem"}, outcomes
    assert outcomes["process_vm_readv"] == "EFAULT"


@pytest.mark.parametrize("container", ["user", "root"])
def test_an_application_finds_no_way_to_the_keeper_s_socket(running: RunningPod, container: str) -> None:
    """Neither by a path, nor in the network namespace that all of them share."""
    found = _pry(running, container, "sidecar keeper")
    assert found["keeper"] == "no way"
    assert found["abstract"] == []


def test_a_keeper_that_an_application_kills_comes_back_unnoticed(running: RunningPod) -> None:
    """Root may kill whatever it sees of its own user. It costs the other applications nothing."""
    watch = Watcher(running)
    code = """
import contextlib, os, signal
for p in os.listdir('/proc'):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # some have ended meanwhile
        if p.isdecimal() and b'sidecar\\0keeper' in open(f'/proc/{p}/cmdline', 'rb').read():
            os.kill(int(p), signal.SIGKILL)
"""
    done = running.exec("root", ["python3", "-S", "-c", code])
    assert done.exit_code == 0, done
    running.wait_for(
        lambda s: s.ready and s.containers["sidemount-keeper"].restart_count == 1, 20, "with a new keeper"
    )
    assert {change.outcome for change in watch.changes()} == {"ok"}
