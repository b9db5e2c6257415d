"""What stands before a client that wants its credentials in files or variables of its own making (S4-09)."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv[1:], {n: open(f'{sys.argv[1]}/{n}').read() for n in sorted(os.listdir(sys.argv[1]))} if os.path.isdir(sys.argv[1]) else None]))"
LIMIT_S = 30


def _run(
    tmp_path: Path, *arguments: str, program: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    files = tmp_path / "files"
    argv = [
        sys.executable,
        "-m",
        "sidecar",
        "client",
        f"--secrets={tmp_path}/secrets",
        f"--files={files}",
        *arguments,
    ]
    return subprocess.run(
        [*argv, "--", *(program or (sys.executable, "-c", SHOW, str(files)))],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "id").write_text("AKID\n")
    (directory / "key").write_text("s3cr3t-value")
    return directory


def test_files_and_environment_are_the_clients_alone(tmp_path: Path) -> None:
    done = _run(tmp_path, "--file=passwd=${id}:${key}\n", "--file=whole=${id}", "--environment=KEY=${key}", "--environment=AT=${files}/passwd")  # fmt: skip
    assert done.returncode == 0, done.stderr
    environment, argv, files = json.loads(done.stdout)
    assert files == {"passwd": "AKID:s3cr3t-value\n", "whole": "AKID\n"}
    assert environment["KEY"] == "s3cr3t-value"
    assert environment["AT"] == f"{tmp_path}/files/passwd"
    assert argv == [f"{tmp_path}/files"]
    assert stat.S_IMODE((tmp_path / "files").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "files/passwd").stat().st_mode) == 0o600
    assert "KEY" not in os.environ


def test_files_are_made_anew_for_every_client(tmp_path: Path, secrets: Path) -> None:
    _run(tmp_path, "--file=old=${key}", "--file=kept=${key}")
    (secrets / "key").write_text("renewed")
    _run(tmp_path, "--file=kept=${key}")
    assert {path.name: path.read_text() for path in (tmp_path / "files").iterdir()} == {"kept": "renewed"}


def test_a_missing_key_is_told_with_the_way_out(tmp_path: Path, secrets: Path) -> None:
    (secrets / "key").unlink()
    done = _run(tmp_path, "--optional", "--file=passwd=${id}:${key}")
    assert done.returncode == 78
    assert 'the file "passwd" needs the credential "key", and there is none' in done.stderr
    assert "add the key" in done.stderr


def test_credentials_that_need_not_be_given_are_left_out(tmp_path: Path, secrets: Path) -> None:
    for path in secrets.iterdir():
        path.unlink()
    done = _run(
        tmp_path,
        "--optional",
        "--file=passwd=${id}:${key}",
        "--file=fixed=x",
        "--environment=KEY=${key}",
        f"--environment=LEFT_OUT={tmp_path}/files/passwd",
        f"--environment=AT={tmp_path}/files/fixed",
    )
    environment, _, files = json.loads(done.stdout)
    assert files == {"fixed": "x"}
    assert not {"KEY", "LEFT_OUT"} & environment.keys()
    assert environment["AT"] == f"{tmp_path}/files/fixed"
    assert _run(tmp_path, "--environment=KEY=${key}").returncode == 78


def test_a_value_that_does_not_fit_is_not_shown(tmp_path: Path, secrets: Path) -> None:
    (secrets / "key").write_text("hidden\nendpoint = evil")
    done = _run(tmp_path, "--file=config=key = ${key}")
    assert done.returncode == 78
    assert "line break" in done.stderr
    assert "hidden" not in done.stderr + done.stdout


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = _run(tmp_path, program=("no-such-client",))
    assert done.returncode == 127
    assert "'no-such-client'" in done.stderr


def test_no_program_is_a_wrong_call(tmp_path: Path) -> None:
    assert subprocess.run(
        [sys.executable, "-m", "sidecar", "client", "--secrets=x", "--files=y"], capture_output=True, timeout=LIMIT_S
    ).returncode == 2  # fmt: skip
