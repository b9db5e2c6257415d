"""A secret that is like no other text, and the search for it wherever a secret must not be: S0-22, S4-26.

The plugin logs as much as it can, gRPC is asked to trace everything, and the daemon's program tells what it was given in every way.
"""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.csi.kubelet_secret import write_secret
from tests.csi.plugin import Refused
from tests.csi.secret_world import POD, PROCESS, SecretWorld, Sweeper, files_with, secret_world
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]

CANARY = "cAnArY7f3kqZ"
# No word of it is the canary alone: escaped or encoded it is another text.
SECRET = f'"{CANARY}"\\{CANARY}/+ü\n"{CANARY}==\n'
NOISY = {
    "GRPC_VERBOSITY": "debug",
    "GRPC_TRACE": "all",
    "PYTHONASYNCIODEBUG": "1",
    "SIDEMOUNT_CSI_LOG_LEVEL": "DEBUG",
}
BY_CALL, BY_FILE = "request", "file"


class Search:
    """Everything that was told to anybody, and everything that lies anywhere."""

    def __init__(self, world: SecretWorld, how: str) -> None:
        self.world = world
        self.how = how
        self.told: list[str] = []
        self.sweeper = Sweeper(CANARY)
        world.watched.append(self.sweeper)
        if how == BY_FILE:
            for name in ("secretive", "talkative"):
                write_secret(world.directory / name, {"token": SECRET})

    def publish(self, target: str = "t", flags: tuple[str, ...] = (), **context: Any) -> None:
        """Publish with the secret, by whichever way. Raises Refused."""
        request = self.world.plugin.publish_request(target, **context)
        request.volume_capability.mount.mount_flags.extend(flags)
        if self.how == BY_CALL:
            request.secrets["token"] = SECRET
        self.world.plugin.call("Node", "NodePublishVolume", request)

    def refused(self, target: str = "t", flags: tuple[str, ...] = (), **context: Any) -> str:
        """Publish what must fail, and return what was said."""
        with pytest.raises(Refused) as refused:
            self.publish(target, flags, **context)
        self.told.append(f"{refused.value.code} {refused.value.message}")
        return refused.value.message

    def check(self, *, given: int) -> None:
        """See that as many daemons have it, that these are in memory, and that it is nowhere else."""
        world = self.world
        self.sweeper.look()
        assert self.sweeper.found == set()
        assert not [text for text in self.told if CANARY in text]
        # A pod's volumes are unmounted after it is gone, by kubelet.
        eventually(lambda: world.texts() == [SECRET] * given, what=f"{given} daemons have it", timeout_s=30)
        node = world.plugin.node
        root = Path(f"/proc/{node.pid}/root{node.work}")
        allowed = {*world.given(), *world.kept()}
        if self.how == BY_FILE:
            allowed |= set(world.directory.glob("*/..2*/token"))
        found = set(files_with(CANARY, root))
        assert found == allowed
        assert not found or _filesystems(node, found) == {"tmpfs"}
        for pid in (node.pid, world.plugin.process.pid, *world.plugin.daemons()):
            assert CANARY not in _text(Path(f"/proc/{pid}/mountinfo"))
        assert CANARY not in world.plugin.log.read_text(errors="replace")
        if world.api is not None:
            assert CANARY not in repr((world.api.history, world.api.made, world.api.calls, world.api.events))


def _cases() -> list[Any]:
    """Return both launchers and both ways, of which two have everything that the others have."""
    return [
        pytest.param(launcher, how, marks=marks, id=f"{launcher}-{how}")
        for launcher, how, marks in (
            (PROCESS, BY_CALL, ()),
            (POD, BY_FILE, ()),
            (PROCESS, BY_FILE, pytest.mark.slow),
            (POD, BY_CALL, pytest.mark.slow),
        )
    ]


@pytest.mark.parametrize(("launcher", "how"), _cases())
def test_a_secret_is_with_its_daemon_and_nowhere_else_whatever_goes_wrong(
    node: MountNode, launcher: str, how: str
) -> None:
    with secret_world(node, launcher, "--mount-timeout-seconds", "15") as world:
        world.plugin.environment = dict(NOISY)
        world.plugin.start()
        _search_through_a_life(world, Search(world, how))


def _search_through_a_life(world: SecretWorld, search: Search) -> None:
    plugin = world.plugin
    # What is wrong with the call, also where the secret itself has gone astray.
    secretive: dict[str, Any] = {"class": "secretive"}
    talkative: dict[str, Any] = {"class": "talkative", "source": "talk://x"}
    search.refused(**secretive, bogus="1")
    search.refused(**secretive, source=f"dir://{plugin.node.work}/store/missing")
    search.refused(**secretive, source=f"s3://user:{CANARY}@host/bucket")
    search.refused(**secretive, token=CANARY)
    search.refused(**secretive, attributeTimeout=CANARY)
    search.refused(**secretive, secret=f"Not/{CANARY}")
    search.refused(flags=(f"token={CANARY}",), **secretive)
    search.check(given=0)
    # What the daemon's program tells of it when it cannot begin.
    assert "***" in search.refused(**talkative)
    search.check(given=0)

    search.publish(**secretive)
    search.check(given=1)
    search.refused(**{**secretive, "class": "optional"})  # in the way: other arguments
    search.publish("u", **secretive)
    search.check(given=2)
    _no_core_files([plugin.process.pid, plugin.keeper(), world.daemon()])
    # Whoever serves dies, and whoever keeps, and whoever decides.
    daemon = world.daemon()
    plugin.node.run("kill", "-ABRT", str(daemon))
    eventually(lambda: not Path(f"/proc/{daemon}").exists(), what="dead", timeout_s=30)
    plugin.kill()
    plugin.start()
    for target in ("t", "u"):
        search.publish(target, **secretive)
        eventually(partial(_is_healthy, world, target), what="served again", timeout_s=60)
    search.check(given=2)
    plugin.unpublish("u")
    search.check(given=1)
    plugin.unpublish("t")
    search.check(given=0)
    world.nothing_is_left()
    assert plugin.stop() == 0
    search.check(given=0)
    assert search.sweeper.looks > 20


_TOLD = frozenset({"after launch", "before undoing launch"})
_ALL = _TOLD | {"after remember", "before launch", "after undoing launch", "before undoing remember"}


@pytest.mark.parametrize("steps", [_TOLD, pytest.param(_ALL, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_plugin_killed_at_any_step_leaves_no_copy_of_a_secret(
    node: MountNode, tmp_path: Path, steps: frozenset[str]
) -> None:
    """Of a publish and of an unpublish, around those that write credentials and take them away, with what the next plugin finds."""
    with secret_world(node, PROCESS) as world:
        plugin = world.plugin
        points = tmp_path / "points"
        plugin.environment = {"DIES_AT": "0", "POINTS_TO": str(points)}
        plugin.start("tests.csi.dying_plugin")
        search = Search(world, BY_CALL)
        secretive: dict[str, Any] = {"class": "secretive"}
        search.publish(**secretive)
        plugin.unpublish()
        names = points.read_text().splitlines()
        assert plugin.stop() == 0
        assert set(names) >= steps
        for at, name in enumerate(names, 1):
            if name not in steps:
                continue  # credentials are not touched there: other tests kill there
            plugin.environment["DIES_AT"] = str(at)
            plugin.start("tests.csi.dying_plugin")
            try:
                search.publish(**secretive)
                plugin.unpublish()
            except Refused as refused:
                search.told.append(refused.message)
            plugin.process.wait(30)
            assert plugin.process.returncode == -signal.SIGKILL, name
            search.check(given=len(world.given()))
            plugin.environment["DIES_AT"] = "0"
            plugin.start("tests.csi.dying_plugin")
            plugin.unpublish()
            eventually(lambda: plugin.leftovers() == [], what=f"nothing is left after {name}", timeout_s=30)
            search.check(given=0)
            assert plugin.stop() == 0


def _no_core_files(pids: list[int]) -> None:
    """See that these leave none: a limit below a page, which also holds back cores that go to a program."""
    for pid in pids:
        lines = [line for line in _text(Path(f"/proc/{pid}/limits")).splitlines() if "core file" in line]
        assert [line.split()[4:6] for line in lines] in ([["1", "1"]], [["0", "0"]])


def _is_healthy(world: SecretWorld, target: str) -> bool:
    try:
        return not world.plugin.stats(target).volume_condition.abnormal
    except Refused:
        return False


def _filesystems(node: MountNode, paths: set[Path]) -> set[str]:
    seen = [str(path).removeprefix(f"/proc/{node.pid}/root") for path in paths]
    return set(node.run("stat", "-f", "-c", "%T", *seen).stdout.split())


def _text(path: Path) -> Any:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
