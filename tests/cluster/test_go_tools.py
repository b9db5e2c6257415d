"""Building the Go programs: once, and what a person is told when it cannot be done. With a stand-in for Go."""

import shutil
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.go_tools import CONTROL, MODULES, go_programs
from e2e.cluster.progress import Progress

_GO = """#!/bin/sh
echo "$PWD $*" >>{calls}
case "$1" in
env) echo {version} ;;
build)
  {building}
  while [ "$1" != -o ]; do shift; done
  for tool in $(sed -n '/^tool (/,/^)/s,.*/cmd/,,p' go.mod); do echo made >"$2$tool"; done ;;
esac
"""


class _Go:
    """A program `go` first in PATH."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "go"
        self.calls = directory / "calls"

    def write(self, version: str = "go1.26.1", building: str = ":") -> None:
        text = _GO.format(calls=self.calls, version=version, building=building)
        self.program.write_text(text)
        self.program.chmod(0o755)

    def builds(self) -> int:
        return self.calls.read_text().count(" build ") if self.calls.exists() else 0


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Go:
    """A stand-in that makes every program."""
    made = _Go(tmp_path)
    made.write()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return made


def test_programs_are_built_once(go: _Go, tmp_path: Path) -> None:
    build = tmp_path / "build"
    programs = go_programs(build, Progress())
    assert set(programs) == {name for module in MODULES for name in module.programs()}
    assert all(path.is_file() for path in programs.values())
    assert programs["kubelet"].parent == build / "tools" / f"control-{CONTROL.digest()}"
    assert go.builds() == len(MODULES)
    assert go_programs(build, Progress()) == programs
    assert go.builds() == len(MODULES)


def test_what_was_built_of_other_sources_is_removed(go: _Go, tmp_path: Path) -> None:
    """A version is half a gigabyte."""
    old = tmp_path / "build" / "tools" / "control-0123456789abcdef"
    old.mkdir(parents=True)
    go_programs(tmp_path / "build", Progress())
    assert not old.exists()


def test_a_build_that_fails_leaves_nothing_and_shows_why(go: _Go, tmp_path: Path) -> None:
    go.write(building="echo 'x.go:1: undefined: y' >&2; exit 1")
    with pytest.raises(ClusterFault, match=r"building Kubernetes failed\nx\.go:1: undefined: y"):
        go_programs(tmp_path / "build", Progress())
    assert [path.name for path in (tmp_path / "build" / "tools").iterdir()] == [".lock"]


def test_a_build_that_makes_too_little_is_none(go: _Go, tmp_path: Path) -> None:
    go.write(building="exit 0")
    with pytest.raises(ClusterFault, match="made no kube-apiserver"):
        go_programs(tmp_path / "build", Progress())


def test_a_module_proxy_that_cannot_be_reached_is_told(go: _Go, tmp_path: Path) -> None:
    go.write(
        building="echo 'Get \"https://proxy.golang.org/x\": dial tcp: lookup proxy.golang.org' >&2; exit 1"
    )
    with pytest.raises(MachineLacks, match=r"cannot be fetched; set GOPROXY"):
        go_programs(tmp_path / "build", Progress())


@pytest.mark.parametrize("version", ["go1.19.8", "", "devel"])
def test_a_go_that_is_too_old_is_told(go: _Go, tmp_path: Path, version: str) -> None:
    go.write(version=version)
    with pytest.raises(MachineLacks, match=r"1\.21 or newer is needed"):
        go_programs(tmp_path / "build", Progress())


def test_a_machine_without_go_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str, path: str | None = None) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nowhere)
    with pytest.raises(MachineLacks, match=r"there is none; install it from https://go\.dev/dl"):
        go_programs(tmp_path / "build", Progress())
