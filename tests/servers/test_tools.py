"""What the servers are built of, and what a person is told where it cannot be had."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster.errors import MachineLacks
from e2e.cluster.go_tools import GoModule
from e2e.servers import fixtures, tools
from e2e.servers.__main__ import main
from e2e.servers.tools import FAKE_GCS, VERSITYGW, azurite_argv


@pytest.mark.parametrize(
    ("module", "version"),
    [
        (VERSITYGW, "github.com/versity/versitygw v1.8.0"),
        (FAKE_GCS, "github.com/fsouza/fake-gcs-server v1.56.1"),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_module_builds_one_program_of_one_version(module: GoModule, version: str) -> None:
    assert module.programs() == (module.name,)
    assert re.search(
        rf"^\t?(require )?{re.escape(version)}\b", (module.directory / "go.mod").read_text(), re.M
    )


def test_azurite_s_version_is_fixed_with_all_that_it_needs() -> None:
    files = Path(tools.__file__).parent / "azurite"
    wanted = json.loads((files / "package.json").read_text())["dependencies"]
    locked = json.loads((files / "package-lock.json").read_text())["packages"]
    assert wanted == {"azurite": locked["node_modules/azurite"]["version"]}
    assert all(one.get("integrity") for name, one in locked.items() if name)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineLacks, match=r"Node.*apt-get install nodejs"):
        azurite_argv()


def test_a_build_that_a_machine_cannot_do_is_told_by_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def lack(module: GoModule) -> Path:
        raise MachineLacks(f"no {module.name}")

    monkeypatch.setattr("e2e.servers.__main__.go_program", lack)
    monkeypatch.setattr("e2e.servers.__main__.azurite_argv", lambda: made.append("azurite"))
    assert main(["build"]) == 3
    assert made == ["azurite"]
    assert capsys.readouterr().err == "servers: no versitygw\n"


@contextmanager
def _lacking(directory: Path) -> Iterator[str]:
    if directory.exists():
        raise MachineLacks("it needs a compiler", hint="get one")
    yield ""


def test_a_server_that_cannot_run_skips_its_tests_but_never_where_all_must_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.delenv("REQUIRE_FUSE", raising=False)
    with (
        pytest.raises(pytest.skip.Exception, match=r"^thing: it needs a compiler; get one$"),
        fixtures._running(_lacking, tmp_path_factory, "thing"),
    ):
        pass
    monkeypatch.setenv("REQUIRE_FUSE", "1")
    with (
        pytest.raises(pytest.fail.Exception, match="REQUIRE_FUSE=1, but it needs a compiler"),
        fixtures._running(_lacking, tmp_path_factory, "thing"),
    ):
        pass
