"""The keeper's entry: what it refuses to start with, and how it says so."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.keeper import main
from sidemount.model.mountspec import KeeperConfig, KeeperMount, encode_keeper_config
from tests.host.conftest import MakePod, make_pod, node
from tests.host.keeper_pod import PYTHON, directory_spec, is_running, view
from tests.host.mount_node import ROOT, eventually

__all__ = ["make_pod", "node"]  # fixtures of the host's tests

CONFIG = encode_keeper_config(
    KeeperConfig(mounts=(KeeperMount(spec=directory_spec(), views=(view("train"),)),))
)


def run(tmp_path: Path, *flags: str, **environment: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run a keeper that cannot start; return its exit code, its log and whatever else it wrote."""
    directories = ["--mounts-dir", str(tmp_path / "mounts"), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(
        [PYTHON, "-m", "sidecar", "keeper", *directories, *flags],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    lines = done.stderr.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return done.returncode, events, done.stdout + "".join(line for line in lines if not line.startswith("{"))


@pytest.fixture
def directories(tmp_path: Path) -> Path:
    """A directory with what a keeper needs."""
    for name in ("mounts", "run"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.root
@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param(None, "SIDEMOUNT_MOUNTS is not set", id="no config"),
        pytest.param("", "SIDEMOUNT_MOUNTS is not set", id="empty"),
        pytest.param("{", "keeper config: not the JSON we write", id="not JSON"),
        pytest.param("[]", "keeper config: must be a mapping", id="not a mapping"),
        pytest.param(
            CONFIG.replace('"version":1', '"version":9'), "version is 9, this program reads 1", id="version"
        ),
        pytest.param(CONFIG.replace('"uid":0', '"uid":-1'), "uid: must be a whole number", id="field"),
        pytest.param(
            CONFIG.replace('"name":"train"', '"name":"x"'), 'view "x" is no view of', id="foreign view"
        ),
    ],
)
def test_a_bad_configuration_is_told_in_one_line(directories: Path, config: str | None, says: str) -> None:
    environment = {} if config is None else {"SIDEMOUNT_MOUNTS": config}
    code, events, noise = run(directories, **environment)
    assert (code, noise) == (1, "")
    assert [event["event"] for event in events] == ["start_failed"]
    assert says in events[0]["fault"]


@pytest.mark.root
def test_directories_that_are_missing_are_told(tmp_path: Path) -> None:
    for made in ((), ("run",)):
        for name in made:
            (tmp_path / name).mkdir()
        code, events, noise = run(tmp_path, SIDEMOUNT_MOUNTS=CONFIG)
        assert (code, noise) == (1, "")
        assert str(tmp_path / ("mounts" if made else "run")) in events[-1]["fault"]
        assert "No such file or directory (ENOENT)" in events[-1]["fault"]


def test_a_configuration_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    code, events, _ = run(tmp_path, "--config", str(tmp_path / "missing.json"))
    assert code == 1
    assert "missing.json" in events[0]["fault"]


def test_a_configuration_from_a_pipe_that_nobody_writes_to_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, events, _ = run(tmp_path, "--config", str(tmp_path / "pipe"))
    assert code == 1
    assert "not read to its end within 5 s" in events[0]["fault"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--flush-seconds", "-1"], "above 0"),
        (["--flush-seconds=soon"], "not 'soon'"),
        (["--flush-seconds", "nan"], "above 0"),
        (["--flush-seconds"], "needs a value"),
        (["--no-such-flag"], "unknown argument '--no-such-flag'"),
        (["config.json"], "unknown argument 'config.json'"),
        (["--log-level", "loud"], "must be one of debug, info"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_flags_are_usage_errors(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    told = capsys.readouterr().err
    assert told.startswith("usage: python -m sidecar keeper ")
    assert says in told


def test_help_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--flush-seconds 20.0" in capsys.readouterr().out


@pytest.mark.fuse
@pytest.mark.root
def test_a_second_keeper_on_the_same_directory_refuses(make_pod: MakePod) -> None:
    pod = make_pod().start()
    first = pod.keeper
    second = pod.start_keeper()
    assert second.wait(10) == 1
    fault = pod.events()[-1]
    assert fault["event"] == "start_failed"
    assert "another keeper runs on" in fault["fault"]
    assert is_running(first)
    pod.keeper = first
    pod.wait_ready()
    assert pod.layers("train") == 1
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_keeper_that_cannot_start_detaches_what_is_dead_and_leaves_what_lives(make_pod: MakePod) -> None:
    mounts = [KeeperMount(spec=directory_spec(name), views=(view(name),)) for name in ("dead", "alive")]
    pod = make_pod(*mounts).start()
    (pod.source("alive") / "file").write_text("content")
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.kill_daemon("dead")
    directories = [pod.run_dir / name for name in ("dead", "alive")]
    for directory in directories:
        directory.rename(directory.with_suffix(".aside"))
        directory.write_text("a file where the volume's directory belongs")
    assert pod.start_keeper().wait(20) == 1
    assert "is not a directory" in pod.events()[-1]["fault"]
    assert (pod.layers("dead"), pod.layers("alive")) == (0, 1)
    assert (pod.seen("alive") / "file").read_text() == "content"
    for directory in directories:
        directory.unlink()
        directory.with_suffix(".aside").rename(directory)
    pod.start_keeper()
    pod.start_daemon("dead")
    pod.wait_ready()
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_keeper_of_no_volumes_waits_for_its_end(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.mounts = []
    pod.start_keeper()
    eventually(lambda: "keeper_started" in pod.names())
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_keeper_is_small_and_stays_small(make_pod: MakePod) -> None:
    """Every pod pays for it: at most 14 MiB of its own, and no more after a hundred probes and five dead daemons."""
    pod = make_pod().start()
    before = pss_kib(pod.keeper.pid)
    for _ in range(5):
        pod.kill_daemon()
        pod.start_daemon()
        pod.wait_ready()
    after = pss_kib(pod.keeper.pid)
    assert before < 14 * 1024
    assert after < before + 1024
    assert pod.end() == 0


def pss_kib(pid: int) -> int:
    """Return the memory a process would free by ending."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


@pytest.mark.fuse
@pytest.mark.root
def test_a_keeper_imports_nothing_but_the_standard_library_and_ours() -> None:
    script = (
        "import sys; import sidecar.keeper, sidemount.host.keeper; "
        "print(*(name for name in sys.modules if '.' not in name))"
    )
    loaded = subprocess.run(
        [PYTHON, "-S", "-E", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(loaded) <= set(sys.stdlib_module_names) | {"__main__", "sidecar", "sidemount"}
    assert not {"asyncio", "hashlib", "ssl", "urllib", "http", "email"} & set(loaded)


@pytest.mark.fuse
@pytest.mark.root
def test_an_idle_keeper_uses_no_processor(make_pod: MakePod) -> None:
    pod = make_pod().start()
    used_s: list[float] = []
    while len(used_s) < 5 and min(used_s, default=1.0) >= 0.04:  # whoever else runs takes the caches away
        before = cpu_s(pod.keeper.pid)
        time.sleep(3)
        used_s.append(cpu_s(pod.keeper.pid) - before)
    assert min(used_s) < 0.04
    assert pod.end() == 0


def cpu_s(pid: int) -> float:
    """Return the processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.fuse
@pytest.mark.root
def test_a_volume_that_cannot_be_kept_is_no_reason_to_keep_none(make_pod: MakePod) -> None:
    """Of an earlier keeper's volumes too: the others are taken over, and it follows once it can."""
    mounts = [KeeperMount(spec=directory_spec(name), views=(view(name),)) for name in ("good", "bad")]
    pod = make_pod(*mounts, flags=("--retry-most-seconds", "0.5")).start()
    pod.keeper.kill()
    pod.keeper.wait(20)
    directory = pod.run_dir / "bad"
    directory.rename(directory.with_name("aside"))
    directory.write_text("a file where the volume's directory belongs")
    pod.start_keeper()
    pod.wait_ready("good")
    (fault,) = [event["fault"] for event in pod.events() if event["event"] == "volume_unusable"]
    assert "bad is not a directory" in fault
    time.sleep(1.5)
    assert pod.names().count("volume_unusable") == 1, "told once, not each time"
    directory.unlink()
    directory.with_name("aside").rename(directory)
    pod.wait_ready("bad")
    assert (pod.layers("good"), pod.layers("bad")) == (1, 1)
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


@pytest.mark.fuse
@pytest.mark.root
def test_a_volume_that_could_not_be_kept_is_taken_down_with_the_others(make_pod: MakePod) -> None:
    mounts = [KeeperMount(spec=directory_spec(name), views=(view(name),)) for name in ("good", "bad")]
    pod = make_pod(*mounts).start()
    pod.keeper.kill()
    pod.keeper.wait(20)
    directory = pod.run_dir / "bad"
    directory.rename(directory.with_name("aside"))
    directory.write_text("")
    pod.start_keeper()
    pod.wait_ready("good")
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []
