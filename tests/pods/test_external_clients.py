"""Clients that are not ours: one that serves the keeper's descriptor without any privilege, one that must mount by itself."""

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.clients.images import BINDFS_FILE, BINDFS_SHOWS, BINDFS_TEXT, bindfs_image, memo_image
from e2e.podlet.client import RunningPod
from sidemount.model.names import FUSE_SUBTYPE, TOKEN_PATH
from tests.pods.application import LOST, Watcher, call, sh, wait_for_remount, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import NAMESPACE, Json, driver_class, mount, pod, shell
from tests.pods.stage import READY_S, Images, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
RECOVERED_S = 60.0
CANARY = "canary-8c1f7e02-do-not-tell"
MEMO = driver_class(
    "memo",
    {
        "deliveries": ["sidecar"],
        "sources": ["memo://**"],
        "namespaces": {},
        "image": "memo",
        "command": ["memo", "${mountpoint}", "${secrets}/token", "${source}", "${options}"],
        "options": {"style": {"type": "string", "pattern": "^[a-z]+$", "argument": "--style=${value}"}},
        "credentials": {"secretKeys": ["token"], "required": True},
        "abilities": {"descriptor": True},
    },
)
BINDFS = driver_class(
    "bindfs",
    {
        "deliveries": ["sidecar"],
        "sources": ["bindfs://**"],
        "namespaces": {},
        "image": "bindfs",
        "command": ["bindfs", "-f", BINDFS_SHOWS, "${mountpoint}"],
        "abilities": {"descriptor": False},
    },
)
SECRET: Json = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "desk", "namespace": NAMESPACE},
    "data": {
        "token": base64.b64encode(CANARY.encode()).decode(),
        "other": base64.b64encode(b"unlisted").decode(),
    },
}


# A client that takes a descriptor -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def memo_stage(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Stage]:
    """Return the stage of the pod whose volume is memo's."""
    directory = tmp_path_factory.mktemp("memo")
    with Stage(directory, images, (MEMO,), (SECRET,), more_images={"memo": memo_image()}) as stage:
        yield stage


@pytest.fixture(scope="module")
def memo(memo_stage: Stage) -> RunningPod:
    """Return the pod."""
    app = shell("app", volumeMounts=[mount("note", "/note")])
    return memo_stage.run(_memo_pod(app))


def _memo_pod(*containers: Json) -> Json:
    return pod({"note": "memo://buy-milk?secret=desk&style=plain"}, *containers)


def test_a_client_with_a_descriptor_serves_the_volume(memo: RunningPod) -> None:
    assert sh(memo, "app", "cat /note/memo.txt /note/length; ls /note") == (
        f"memo://buy-milk\n{len(CANARY)}\nlength\nmemo.txt\n"
    )
    (seen,) = [m for m in memo.mounts() if m.mount_point.endswith("/sidemount/note")]
    assert seen.fstype == f"fuse.{FUSE_SUBTYPE}"


def test_a_client_with_a_descriptor_has_no_privilege(memo: RunningPod) -> None:
    clients = _memos(memo)
    assert len(clients) == 1
    for pid in (memo.pid("sidemount-note"), *clients):
        lines = [line.partition(":\t") for line in _read(pid, "status").splitlines()]
        status = {name: value for name, _, value in lines}
        assert status["Uid"].split() == ["65532"] * 4
        assert [int(status[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [
            0
        ] * 5
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert call(memo, "sidemount-note", "seen = os.open('/dev/fuse', os.O_RDWR)") == "ENOENT"
    assert call(memo, "sidemount-note", f"seen = os.listdir({TOKEN_PATH!r})") == []


def test_a_credential_is_in_the_client_s_files_and_nowhere_else(memo: RunningPod, memo_stage: Stage) -> None:
    """Neither argv, environment, log, manifest, mount table nor status: not even when the client itself tells it."""
    assert call(memo, "sidemount-note", "seen = open('/secrets/token').read()") == CANARY
    assert call(
        memo, "sidemount-note", "seen = sorted(n for n in os.listdir('/secrets') if n[0] != '.')"
    ) == ["token"]
    for pid in _processes(memo):
        for name in ("cmdline", "environ"):
            assert CANARY not in _read(pid, name), (pid, name)
    logs = {name: memo.logs(name) for name in memo.status().containers}
    assert "signed in with ***" in logs["sidemount-note"], logs
    told = [*logs.values(), json.dumps(memo.status().raw), *memo_stage.node.events, str(memo.node.mounts())]
    told.append(json.dumps(memo_stage.admit(_memo_pod(shell("app", volumeMounts=[mount("note", "/note")])))))
    assert not [text for text in told if CANARY in text or base64.b64encode(CANARY.encode()).decode() in text]
    assert call(memo, "sidemount-keeper", "seen = os.path.exists('/secrets')") is False
    state = "seen = [open(f'{at}/{n}', 'rb').read().decode(errors='replace') for at, _, names in os.walk('/run/sidemount') for n in names if n[-5:] != '.sock']"
    assert CANARY not in "".join(call(memo, "sidemount-note", state))


def test_a_client_that_dies_is_replaced(memo: RunningPod) -> None:
    """By its container's first process: kubelet is not needed for that, and the pod stays ready."""
    (client,) = _memos(memo)
    time.sleep(1.1)  # one that lives shorter ends its container instead
    os.kill(client, 9)
    until = time.monotonic() + RECOVERED_S
    while _memos(memo) in ([], [client]) or sh(memo, "app", "cat /note/memo.txt") != "memo://buy-milk\n":
        assert time.monotonic() < until, memo.logs("sidemount-note")
        time.sleep(0.05)
    assert {c.restart_count for c in memo.status().containers.values()} == {0}


def test_a_keeper_that_dies_takes_the_client_s_mount_back(memo: RunningPod) -> None:
    client = _memos(memo)
    memo.kill("sidemount-keeper")
    memo.wait_for(
        lambda s: s.ready and s.containers["sidemount-keeper"].restart_count == 1,
        RECOVERED_S,
        "with a new keeper",
    )
    assert sh(memo, "app", "cat /note/memo.txt") == "memo://buy-milk\n"
    assert _memos(memo) == client


# A client that mounts by itself ----------------------------------------------------------------------------


@pytest.fixture
def bindfs_stage(make_stage: MakeStage) -> Stage:
    """Return a stage whose pods may have a volume of bindfs."""
    return make_stage(classes=(BINDFS,), more_images={"bindfs": bindfs_image()})


def test_a_client_without_the_ability_mounts_by_itself(bindfs_stage: Stage) -> None:
    whole, deep = mount("shown", "/shown"), mount("shown", "/deep", subPath="deep", readOnly=True)
    app = shell("app", volumeMounts=[whole, deep])
    running = bindfs_stage.run(pod({"shown": "bindfs://any"}, app))
    assert sh(running, "app", f"cat /shown/{BINDFS_FILE}; ls /deep; touch /deep/x") == (
        f"{BINDFS_TEXT}touch: /deep/x: Read-only file system\n"
    )
    running.delete(deadline_s=20)


def test_a_self_mounting_client_that_dies_is_replaced_and_so_is_its_keeper(bindfs_stage: Stage) -> None:
    """It mounts at a place of its own, where no dead mount is: most clients refuse one."""
    running = _watched(bindfs_stage)
    watch = Watcher(running)
    running.kill("sidemount-shown")
    wait_for_remount(running, watch, 1, RECOVERED_S, view="shown")
    running.kill("sidemount-keeper")
    running.wait_for(
        lambda s: (
            s.ready and all(s.containers[f"sidemount-{n}"].restart_count == 1 for n in ("keeper", "shown"))
        ),
        READY_S,
        "with a new keeper",
    )
    running.kill("sidemount-shown")
    wait_for_remount(running, watch, 2, RECOVERED_S, view="shown")
    for op in ("read", "list"):
        assert set(watch.outcomes(op)) <= {"ok", *LOST}
    running.delete(0, deadline_s=20)


def test_a_self_mounting_client_s_volume_is_never_seen_empty(bindfs_stage: Stage) -> None:
    """JuiceFS#343: whether it would be seen is a matter of luck, so what was laid over what is judged."""
    running = _watched(bindfs_stage)
    running.kill("sidemount-shown")
    wait_for_remount(running, Watcher(running), 1, RECOVERED_S, view="shown")
    layers = [mount.fstype for mount in running.mounts() if mount.mount_point.endswith("/sidemount/shown")]
    assert layers == ["fuse", "fuse"]


def _watched(bindfs_stage: Stage) -> RunningPod:
    app = watcher("app", "shown", file=BINDFS_FILE, text=BINDFS_TEXT, inbox="")
    return bindfs_stage.run(pod({"shown": "bindfs://any"}, app))


def _memos(running: RunningPod) -> list[int]:
    return [pid for pid in _processes(running) if _read(pid, "comm") == "memo\n"]


def _processes(running: RunningPod) -> list[int]:
    """Return the processes of all the pod's containers."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [pid for pid in pids if f"/pod{running.uid}/" in _read(pid, "cgroup")]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""
