"""`sidemount classes --check`: what it refuses before anything is mounted, and clients that do everything wrong."""

import json
import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidemount.cli import main
from sidemount.commands.classes_templates import templates
from sidemount.commands.conformance.check import read_secrets
from sidemount.commands.conformance.plan import (
    NO_SUCH_OPTION,
    WRONG_CREDENTIAL,
    Case,
    Stand,
    missing_source,
    plan_stands,
)
from sidemount.model.errors import InvalidRequest
from tests.clients.checks import left_of, run_check, start_check
from tests.host.mount_node import eventually

BASE = "/run/sidemount-check-test"
RCLONE = templates()["rclone"].driver_class
SECRETS = {"accessKey": "a-key-of-mine", "secretKey": "a-secret-of-mine"}
LIMIT_S = 100.0


def _case(**changes: Any) -> Case:
    given: dict[str, Any] = {
        "driver_class": RCLONE,
        "source": "s3://bucket/some/prefix",
        "secrets": SECRETS,
        "mark": "m1",
    }
    return Case(**{**given, **changes})


# Before anything is mounted -------------------------------------------------------------------------------


def test_stands_differ_from_a_pod_s_volume_in_one_thing_each() -> None:
    stands = plan_stands(_case(), BASE)
    assert stands.keys() == {
        "main",
        "second",
        "hung",
        "contrary",
        "wrong-option",
        "missing-source",
        "wrong-credentials",
    }
    main_spec = stands["main"].spec
    assert main_spec.uid == RCLONE.uid
    assert f"--secrets={BASE}/main/secrets" in main_spec.command
    assert stands["second"].spec.read_only
    assert "--read-only" in stands["second"].spec.command
    assert stands["contrary"].spec.descriptor is False
    assert stands["contrary"].spec.uid == 0
    assert stands["wrong-option"].spec.command[-1] == NO_SUCH_OPTION
    assert stands["missing-source"].spec.source == "s3://bucket/some/sidemount-missing-m1"
    assert set(stands["wrong-credentials"].secrets.values()) == {WRONG_CREDENTIAL}


def test_a_stand_comes_out_of_json_as_it_went_in() -> None:
    for stand in plan_stands(_case(), BASE).values():
        assert Stand.from_json(json.loads(json.dumps(stand.to_json()))) == stand


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("s3://bucket", "s3://sidemount-missing-m1"),
        ("s3://bucket/", "s3://sidemount-missing-m1/"),
        ("s3://bucket/a", "s3://bucket/sidemount-missing-m1"),
        ("s3://bucket/a/", "s3://bucket/sidemount-missing-m1/"),
    ],
)
def test_a_missing_source_is_like_the_one_that_is_there(source: str, missing: str) -> None:
    assert missing_source(_case(source=source)) == missing


def test_secrets_are_shown_nowhere() -> None:
    case = _case()
    assert "a-secret-of-mine" not in repr(case) + repr(plan_stands(case, BASE))


def test_a_directory_of_secrets_has_only_keys_of_the_class(tmp_path: Path) -> None:
    (tmp_path / "accessKey").write_text("x")
    assert read_secrets(str(tmp_path), RCLONE.credentials.secret_keys) == {"accessKey": "x"}
    (tmp_path / "acessKey").write_text("x")
    with pytest.raises(InvalidRequest, match='the class reads no key "acessKey"'):
        read_secrets(str(tmp_path), RCLONE.credentials.secret_keys)
    with pytest.raises(InvalidRequest, match="is no directory"):
        read_secrets(str(tmp_path / "missing"), ())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--check", "rclone"], "give --source URI"),
        (["--check", "rclon", "--source", "s3://b"], "rclone"),
        (["--check", "./no-such.yaml", "--source", "s3://b"], "No such file"),
        (["--check", "rclone", "--source", "gs://b"], "its sources are s3://**"),
        (["--check", "rclone", "--source", "s3://b"], "give --secrets DIR with the files accessKey, secretKey"),
        (["--check", "rclone", "--source", "s3:b"], "is not a URI"),
        (["--check", "weed", "--source", "weed://h:1/x", "--option", "umsk=000"], 'option "umsk" is not allowed'),
        (["--check", "weed", "--source", "weed://h:1/x", "--option", "umask=9"], "does not match the pattern"),
        (["--check", "weed", "--source", "weed://me@h:1/x"], "names a user, which the class's command does not take"),
        (["--check", "sshfs", "--source", "sftp://h/x", "--secrets", "/no/such"], "is no directory"),
        (["--template", "rclon"], "rclone"),
    ],
)  # fmt: skip
@pytest.mark.root
def test_a_wrong_call_is_told_with_the_way_out(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda _path: True)  # /dev/fuse, which nothing here comes to use
    assert main(["classes", *arguments]) in (1, 2)
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_who_is_not_root_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["classes", "--check", "weed", "--source", "weed://h:1/x"]) == 2
    assert "run it as root" in capsys.readouterr().err


def test_templates_are_listed_and_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classes", "--templates", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["templates"]
    assert {row["client"] for row in rows} == templates().keys()
    assert {row["client"] for row in rows if row["evidence"] == "proven"} == {
        "bindfs", "gcsfuse", "juicefs", "rclone", "s3fs", "sshfs", "weed",
    }  # fmt: skip
    assert main(["classes", "--template", "rclone"]) == 0
    assert capsys.readouterr().out == templates()["rclone"].text


# Clients that do everything wrong -------------------------------------------------------------------------


def _class_file(directory: Path, *command: str, **spec: Any) -> str:
    manifest = {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": "wild"},
        "spec": {
            "deliveries": ["sidecar"],
            "sources": ["wild://**"],
            "namespaces": {},
            "image": "registry.example/wild:1",
            "command": list(command),
            **spec,
        },
    }
    path = directory / "wild.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return str(path)


def _arguments(path: str, *more: str) -> tuple[str, ...]:
    return ("--check", path, "--source=wild://x/y", "-o", "json", *more)


def _findings(path: str, *more: str) -> dict[str, dict[str, str]]:
    done = run_check(_arguments(path, *more))
    assert done.code == 1, done.said
    assert done.left() == []
    (result,) = json.loads(done.told)["checks"]
    return {each["check"]: each for each in result["findings"]}


def _wild(directory: Path) -> tuple[str, str]:
    """Return a class whose client hears no SIGTERM and mounts nothing, and the mark that its process bears."""
    mark = f"wild-{uuid.uuid4().hex}"
    script = f"trap '' TERM; : {mark}; while :; do sleep 1; done"
    return _class_file(directory, "sh", "-c", script, "${mountpoint}", "${source}"), mark


def _processes(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.root
@pytest.mark.fuse
def test_a_client_that_never_answers_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    path, mark = _wild(tmp_path)
    found = _findings(path, "--timeout=2", "--quick")
    assert "not live after 2 s" in found["starts"]["reason"]
    assert found["kill"]["verdict"] == "untried"
    assert _processes(mark) == []


@pytest.mark.root
@pytest.mark.fuse
def test_a_check_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    path, mark = _wild(tmp_path)
    with start_check(_arguments(path, "--timeout=60")) as check:
        eventually(lambda: _processes(mark), what="the client runs", timeout_s=30)
        check.send_signal(signal.SIGKILL)
    eventually(lambda: not _processes(mark), what="the client ends", timeout_s=30)
    for place in left_of(check.pid):
        assert list(Path(place).iterdir()) == [], (
            "only an empty directory may stay of a check that was killed"
        )
        Path(place).rmdir()


@pytest.mark.root
@pytest.mark.fuse
def test_a_check_that_is_interrupted_cleans_up(tmp_path: Path) -> None:
    path, mark = _wild(tmp_path)
    with start_check(_arguments(path, "--timeout=60")) as check:
        eventually(lambda: _processes(mark), what="the client runs", timeout_s=30)
        check.send_signal(signal.SIGINT)
        check.communicate(timeout=LIMIT_S)
    assert check.returncode == 130
    assert _processes(mark) == []
    assert left_of(check.pid) == []


@pytest.mark.root
@pytest.mark.fuse
def test_a_client_that_says_nothing_and_calls_it_success_is_told(tmp_path: Path) -> None:
    path = _class_file(tmp_path, "sh", "-c", "exit 0", "${mountpoint}", "${source}")
    found = _findings(path, "--timeout=10")
    assert "ended with code 3" in found["starts"]["reason"]
    assert "says nothing" in found["wrong-option"]["reason"]
    assert found["output"]["verdict"] == "failed"
