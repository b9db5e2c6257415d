"""What is built, what is missing, and what a person is told about it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import debian, machine
from e2e.cluster.command import main, split_rest
from e2e.cluster.companion_images import REFERENCES
from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.go_tools import COMPANIONS, CONTROL, MODULES, RUNTIME, GoModule
from e2e.cluster.places import known_clusters, places_of
from e2e.cluster.running import RunningCluster, is_held, take_down
from e2e.cluster.running_node import tail
from e2e.cluster.waiting import wait_for

_SHIM = "containerd-shim-runc-v2"


def test_the_modules_build_every_program() -> None:
    assert set(CONTROL.programs()) == {
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
    }  # fmt: skip
    assert set(RUNTIME.programs()) == {"containerd", _SHIM, "ctr"}


def test_each_companion_s_image_is_named_by_the_version_that_is_built() -> None:
    wanted = (COMPANIONS.directory / "go.mod").read_text()
    assert set(REFERENCES) == set(COMPANIONS.programs())
    for name, reference in REFERENCES.items():
        (path,) = re.findall(rf"^\t(\S+)/cmd/{name}$", wanted, re.MULTILINE)
        assert f"{path} {reference.rpartition(':')[2]} " in wanted


def test_kubernetes_says_the_version_that_its_module_names() -> None:
    found = re.search(r"k8s\.io/kubernetes (v1\.(\d+)\.\d+)", (CONTROL.directory / "go.mod").read_text())
    assert found is not None
    assert f"gitVersion={found[1]} " in CONTROL.ldflags
    assert f"gitMinor={found[2]}" in CONTROL.ldflags


def test_other_flags_give_another_result() -> None:
    assert len({module.digest() for module in MODULES}) == len(MODULES)
    other = GoModule(CONTROL.name, CONTROL.title, CONTROL.ldflags + " -x", CONTROL.about)
    assert other.digest() != CONTROL.digest()


def test_what_is_missing_is_named_by_its_package(tmp_path: Path) -> None:
    (tmp_path / "usr" / "sbin").mkdir(parents=True)
    (tmp_path / "usr" / "sbin" / "runc").touch()
    wanted = {"/usr/sbin/runc": "runc", "/usr/sbin/iptables": "iptables"}
    assert debian.missing_packages(wanted, tmp_path) == ("iptables",)


@pytest.mark.parametrize(("bits", "can"), [("000001fffeffffff", False), ("000001ffffffffff", True)])
def test_a_capability_is_read_from_the_effective_set(bits: str, can: bool) -> None:
    status = f"Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{bits}\nCapBnd:\t000001ffffffffff\n"
    assert machine.has_capability(status, 24) is can


def test_a_kernel_without_a_filesystem_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "filesystems").write_text("nodev\ttmpfs\n\text4\nnodev\tfuse\n")
    with pytest.raises(MachineLacks, match="no overlay filesystem; try: modprobe overlay"):
        machine.inspect_machine(tmp_path)


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MachineLacks, match="needs root"):
        machine.inspect_machine()


@pytest.mark.parametrize("name", ["", "A", "a/b", "../x", "a" * 21, "-a", "a-", "1a", "a\n"])
def test_a_cluster_s_name_is_one_of_a_host(name: str) -> None:
    with pytest.raises(ClusterFault, match="cannot be a cluster's name"):
        places_of(name)


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    places = places_of("none", tmp_path)
    assert known_clusters(tmp_path) == ()
    assert not is_held(places)
    assert not take_down(places)
    with pytest.raises(ClusterFault, match=r"no cluster 'none'; start it"):
        RunningCluster(places)


def test_the_command_says_which_cluster_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubectl", "--name", "never-started", "get", "pods"]) == 1
    assert capsys.readouterr().err == (
        "cluster: there is no cluster 'never-started'; start it: python -m e2e.cluster up\n"
    )


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        (["kubectl", "get", "pods", "--name", "x"], ["get", "pods", "--name", "x"]),
        (["kubectl", "-n", "ml", "get", "pods"], ["-n", "ml", "get", "pods"]),
        (["kubectl", "--name", "two", "--", "-n", "ml"], ["-n", "ml"]),
        (["shell", "--name=two", "ls", "-l"], ["ls", "-l"]),
        (["shell", "--node", "node-1", "--name=two", "ls", "--node"], ["ls", "--node"]),
        (["shell"], []),
        (["logs", "kubelet"], []),
    ],
)
def test_what_follows_is_the_other_command_s(argv: list[str], rest: list[str]) -> None:
    words, found = split_rest(argv)
    assert found == rest
    assert words == argv[: len(words)]


def test_help_needs_nothing_of_the_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("up", "down", "shell", "load-images", "logs", "status"))


def test_the_end_of_a_log_is_shown_however_long_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number} {'x' * 1000}\n" for number in range(5000)))
    shown = tail(log, 3).splitlines()
    assert [line.split()[1] for line in shown] == ["4997", "4998", "4999"]
    assert "No such file" in tail(tmp_path / "none", 3)


def test_a_condition_is_asked_once_more_at_the_deadline() -> None:
    answers = iter(["", "yes"])
    assert wait_for(lambda: next(answers), 0) is None
    assert wait_for(lambda: next(answers), 0) == "yes"
