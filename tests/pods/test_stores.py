"""Stores that are full, refuse, hang, vanish and come back: the caller gets an errno or waits, and the volume stays what it is."""

import time
from pathlib import Path

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import Watcher, call, idler, sh, wait_for_log, wait_for_probe, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import mount, pod, shell
from tests.pods.source_tree import INBOX, SHELF_FILE, SHELF_TEXT
from tests.pods.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
RECOVERED_S = 60.0
STANDS_STILL_S = 2.0
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}


def untouched(running: RunningPod) -> None:
    """Check that nothing was mounted anew and no container restarted."""
    assert {c.restart_count for c in running.status().containers.values()} == {0}
    assert sum(m.mount_point.endswith("/sidemount/books") for m in running.mounts()) == 1


def on_node(stage: Stage, script: str) -> str:
    """Run a shell script as the node's administrator."""
    done = stage.node.on_node(["sh", "-c", script])
    assert done.exit_code == 0, done
    return done.stdout


def test_a_full_store_says_so_and_takes_data_again(stage: Stage) -> None:
    source = stage.sources / "tiny"
    source.mkdir(parents=True)
    on_node(stage, f"mount -t tmpfs -o size=256k,mode=1777 tiny {source}")
    app = shell("app", volumeMounts=[mount("books", "/books")])
    running = stage.run(pod({"books": f"dir://{source}"}, app))
    told = sh(running, "app", "dd if=/dev/zero of=/books/big bs=64k count=16; echo x >/books/more")
    assert "No space left on device" in told
    assert sh(running, "app", "rm /books/big && echo enough >/books/more && cat /books/more") == "enough\n"
    untouched(running)
    wait_for_probe(running, "ready")
    running.delete()
    on_node(stage, f"umount {source}")


def test_a_store_that_refuses_an_unprivileged_daemon(make_stage: MakeStage) -> None:
    """EACCES of the daemon's own user, whatever the application may do; the same file is there again when it may."""
    stage = make_stage(class_spec={"uid": 65532, "capabilities": []})
    tree = stage.tree()
    running = stage.run(pod({"books": stage.source(tree)}, idler("app", mount("books", "/books"))))
    read = f"seen = open('/books/{SHELF_FILE}').read()"
    assert call(running, "app", read) == SHELF_TEXT
    shelf = (tree.path / SHELF_FILE).parent
    for _ in range(2):
        shelf.chmod(0)
        time.sleep(1.1)  # as long as attributes are kept
        assert call(running, "app", read) == "EACCES"
        assert call(running, "app", "seen = 'shelf' in os.listdir('/books')") is True
        shelf.chmod(0o755)
        time.sleep(1.1)
        assert call(running, "app", read) == SHELF_TEXT
    untouched(running)


def test_a_store_that_hangs_for_longer_than_a_daemon_may(make_stage: MakeStage) -> None:
    """What serves is killed for it and succeeded: the application waits, and sees no error."""
    stage = make_stage(class_spec={"hungAfter": "2s"})
    source = _fragile_source(stage)
    running = stage.run(pod({"books": f"dir://{source}"}, watcher(securityContext=AS_ROOT)))
    watch = Watcher(running)
    on_node(stage, f"kill -STOP $(cat {pid_file(source)})")
    wait_for_log(running, DAEMON, "process_killed_as_hung", RECOVERED_S)
    on_node(stage, f"kill -CONT $(cat {pid_file(source)})")
    watch.wait_for_rounds(20, RECOVERED_S)
    for op in ("read", "held", "list", "create"):
        assert watch.outcomes(op) == ["ok"]
    untouched(running)
    take_away(stage, source)


@pytest.fixture
def fragile(make_stage: MakeStage) -> tuple[Stage, Path]:
    """Return a stage and a source on it that is a FUSE mount of the node's, which a test may stop and kill."""
    stage = make_stage()
    return stage, _fragile_source(stage)


def _fragile_source(stage: Stage) -> Path:
    tree = stage.tree("behind")
    tree.expect_written(INBOX)
    source = stage.sources / "fragile"
    source.mkdir()
    mount_again(stage, source)
    return source


def take_away(stage: Stage, source: Path) -> None:
    """End what serves the source, and unmount it."""
    on_node(stage, f"kill -9 $(cat {pid_file(source)}); umount -l {source}")


def pid_file(source: Path) -> Path:
    """Return where the id of the process behind the source is."""
    return source.with_name("fragile.pid")


def mount_again(stage: Stage, source: Path) -> None:
    """Mount the source with bindfs."""
    behind = source.with_name("behind")
    on_node(
        stage,
        f"bindfs -f {behind} {source} >/dev/null 2>&1 & echo $! >{pid_file(source)}; "
        f"for i in $(seq 100); do test -e {source}/{INBOX} && exit 0; sleep 0.1; done; exit 1",
    )


def test_a_store_that_hangs_dies_and_returns(fragile: tuple[Stage, Path]) -> None:
    """Who waits for it waits, others do not; then ENOTCONN, which is the store's and not the volume's; then all is well again."""
    stage, source = fragile
    safe = stage.tree("safe")
    safe.expect_written(INBOX)
    apps = (
        watcher(securityContext=AS_ROOT),
        watcher("other", "safe", securityContext=AS_ROOT),
        idler("third", mount("books", "/books")),
    )
    asked = pod({"books": f"dir://{source}", "safe": stage.source(safe)}, *apps)
    running = stage.run(asked)
    here, there = Watcher(running), Watcher(running, "other")
    on_node(stage, f"kill -STOP $(cat {pid_file(source)})")
    until = time.monotonic() + STANDS_STILL_S
    while time.monotonic() < until:
        there.wait_for_rounds(5, RECOVERED_S)
    on_node(stage, f"kill -CONT $(cat {pid_file(source)})")
    here.wait_for_rounds(20, RECOVERED_S)
    for op in ("read", "held", "list", "create"):
        assert here.outcomes(op) == ["ok"]
    on_node(stage, f"kill -9 $(cat {pid_file(source)})")
    here.wait_until("create", "ENOTCONN", RECOVERED_S)
    running.kill("sidemount-keeper")
    running.wait_for(
        lambda s: s.containers["sidemount-keeper"].restart_count == 1, RECOVERED_S, "a new keeper"
    )
    wait_for_probe(running, "ready", container="sidemount-safe")
    wait_for_log(running, DAEMON, "keeper_took_descriptor_back", RECOVERED_S)
    there.wait_for_rounds(20, RECOVERED_S)
    assert sum(m.mount_point.endswith("/sidemount/books") for m in running.mounts()) == 1
    on_node(stage, f"umount -l {source}")
    mount_again(stage, source)
    # Kubelet binds the source anew; nothing else could bring another filesystem into a container.
    running.kill(DAEMON)
    here.wait_until("create", "ok", RECOVERED_S, times=2)
    here.wait_until("list", "ok", RECOVERED_S, times=2)
    assert call(running, "third", f"seen = open('/books/{SHELF_FILE}').read()") == SHELF_TEXT
    for op in ("list", "create"):
        outcomes = here.outcomes(op)
        assert (outcomes[0], outcomes[-1]) == ("ok", "ok"), op
        # ECONNABORTED: was waiting for the store when it died.
        assert set(outcomes) <= {"ok", "ENOTCONN", "ECONNABORTED", "ESTALE"}, op
    assert here.outcomes("held")[0] == "ok"
    assert "ENOTCONN" in here.outcomes("held"), "what was open was open in the store that died"
    for op in ("read", "held", "list", "create"):
        assert there.outcomes(op) == ["ok"]
    assert sum(m.mount_point.endswith("/sidemount/books") for m in running.mounts()) == 1
    take_away(stage, source)
    running.delete(deadline_s=30)  # a dead store keeps no pod Terminating
