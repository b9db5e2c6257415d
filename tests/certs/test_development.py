"""`python -m certs`: files, their modes, what is reused and what is made anew."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.__main__ import main
from certs.authority import create_authority, issue_serving
from certs.development import DevelopmentFiles, ensure_development
from certs.hosts import parse_hosts
from certs.pem import parse_certificates, render_certificate, write_atomically
from sidemount.model.errors import HostFailure, InvalidRequest, OperationPending

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> DevelopmentFiles:
    return DevelopmentFiles(tmp_path / "deep" / "tls")


def _ensure(
    files: DevelopmentFiles, *hosts: str, now: datetime = NOW, force: bool = False
) -> tuple[str, str]:
    authority, serving = ensure_development(files, parse_hosts(hosts or ("a.svc",)), now=now, force=force)
    return authority.made_because, serving.made_because


def _contents(files: DevelopmentFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.directory.iterdir()}


def test_a_second_run_changes_nothing(files: DevelopmentFiles) -> None:
    assert _ensure(files) == ("there was none", "there was none")
    before = _contents(files)
    stamps = {path.name: path.stat().st_mtime_ns for path in files.directory.iterdir()}
    assert sorted(before) == ["ca-bundle.crt", "ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert _ensure(files) == ("", "")
    assert _contents(files) == before
    assert {path.name: path.stat().st_mtime_ns for path in files.directory.iterdir()} == stamps


def test_private_keys_are_private_whatever_the_umask(files: DevelopmentFiles) -> None:
    before = os.umask(0)
    try:
        _ensure(files)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.directory.iterdir()}
    assert modes == {
        "ca.key": 0o600,
        "tls.key": 0o600,
        "ca.crt": 0o644,
        "ca-bundle.crt": 0o644,
        "tls.crt": 0o644,
    }


def test_a_key_that_was_opened_up_is_taken_back(files: DevelopmentFiles) -> None:
    _ensure(files)
    files.serving_key.chmod(0o644)
    assert _ensure(files) == ("", "")
    assert stat.S_IMODE(files.serving_key.stat().st_mode) == 0o600


def test_a_new_name_makes_a_new_serving_certificate_under_the_same_authority(files: DevelopmentFiles) -> None:
    _ensure(files, "a.svc")
    before = _contents(files)
    assert _ensure(files, "a.svc", "10.0.0.1") == ("", "it is not for 10.0.0.1")
    after = _contents(files)
    assert after["ca.crt"] == before["ca.crt"]
    assert after["tls.crt"] != before["tls.crt"]
    assert after["tls.key"] != before["tls.key"]
    assert _ensure(files, "a.svc") == ("", ""), "more names than asked for are as good"


def test_force_makes_both_anew(files: DevelopmentFiles) -> None:
    _ensure(files)
    before = _contents(files)
    assert _ensure(files, force=True) == ("it was asked for", "it was asked for")
    assert all(content != before[name] for name, content in _contents(files).items())


def test_what_ends_soon_is_renewed_and_no_sooner(files: DevelopmentFiles) -> None:
    _ensure(files)
    assert _ensure(files, now=NOW + timedelta(days=330)) == ("", "")
    authority, serving = _ensure(files, now=NOW + timedelta(days=340))
    assert authority == ""
    assert serving.startswith("it ends 2027-03-01")
    authority, serving = _ensure(files, now=NOW + timedelta(days=3640))
    assert authority.startswith("it ends")
    assert serving


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_missing_or_broken_file_is_made_good(
    files: DevelopmentFiles, name: str, content: bytes | None
) -> None:
    _ensure(files)
    path = files.directory / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert any(_ensure(files))
    assert _ensure(files) == ("", "")


def test_a_key_of_another_run_is_noticed(files: DevelopmentFiles, tmp_path: Path) -> None:
    _ensure(files)
    other = DevelopmentFiles(tmp_path / "other")
    _ensure(other)
    files.serving_key.write_bytes(other.serving_key.read_bytes())
    assert _ensure(files) == ("", "certificate and key do not belong together")


def test_a_broken_bundle_is_made_good(files: DevelopmentFiles) -> None:
    _ensure(files)
    files.bundle.write_text("")
    assert _ensure(files) == ("", "")
    assert files.bundle.read_bytes() == files.authority.read_bytes()


def test_two_runs_do_not_mix(files: DevelopmentFiles) -> None:
    _ensure(files)
    descriptor = os.open(files.directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(OperationPending, match="another run"):
            _ensure(files)
    finally:
        os.close(descriptor)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old", 0o600)

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(HostFailure, match="No space left"):
        write_atomically(path, b"new", 0o600)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_write_does_not_follow_a_symlink_in_its_place(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "a").symlink_to(elsewhere)
    write_atomically(tmp_path / "a", b"key", 0o600)
    assert elsewhere.read_text() == "mine"
    assert not (tmp_path / "a").is_symlink()


def test_the_command_makes_and_shows_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "--dir", str(tmp_path), "--name", "a.svc", "--name", "127.0.0.1", "localhost"]) == 0
    assert "made, because there was none" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "tls.crt")]) == 0
    shown = capsys.readouterr().out
    assert "a.svc, 127.0.0.1, localhost" in shown
    assert "server authentication" in shown
    assert main(["inspect", "-o", "json", str(tmp_path / "ca-bundle.crt")]) == 0
    (authority,) = json.loads(capsys.readouterr().out)
    assert authority["is_authority"] is True
    assert authority["state"] == "valid"


def test_an_expired_certificate_shows_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = NOW - timedelta(days=10_000)
    authority = create_authority("old", now=old, lifetime=timedelta(days=1))
    leaf = issue_serving(authority, parse_hosts(["a"]), now=old)
    path = tmp_path / "old.crt"
    path.write_bytes(render_certificate(leaf.certificate) + render_certificate(authority.certificate))
    assert len(parse_certificates(path.read_bytes(), "old")) == 2
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().out.count("expired") == 2


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        pytest.param(["inspect", "{dir}/none"], 1, "No such file", id="missing"),
        pytest.param(["inspect", "{dir}/junk"], 2, "no certificate in PEM", id="junk"),
        pytest.param(["inspect", "{dir}/key"], 2, "it holds a private key", id="key"),
        pytest.param(["inspect", "{dir}"], 2, "is a directory", id="directory"),
        pytest.param(["dev", "--dir", "{dir}/junk", "--name", "a"], 1, "File exists", id="dir-is-file"),
        pytest.param(
            ["dev", "--dir", "{dir}/junk/x", "--name", "a"], 1, "Not a directory", id="dir-beneath-file"
        ),
        pytest.param(["dev", "--dir", "{dir}/x", "--name", "http://a"], 2, "without scheme", id="bad-host"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, said: str
) -> None:
    (tmp_path / "junk").write_bytes(b"\x00junk")
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert main([part.format(dir=tmp_path) for part in argv]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "certs", "dev", "--dir", str(tmp_path), "--name", "localhost"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "tls.crt").exists()


def _run(command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("certs", f"{sys.executable} -m certs", 1)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        pytest.param("certs inspect {dir}/ca.crt >/dev/full", 1, "No space left on device", id="disk-full"),
        pytest.param("certs inspect {dir}/ca.crt | true", 0, "", id="reader-gone"),
        pytest.param("certs inspect '/x\x1b[31m'", 1, "/x\\x1b[31m cannot be read", id="terminal-escape"),
        pytest.param(
            "chmod 0 {dir}/..; setpriv --reuid 65534 --regid 65534 --clear-groups certs dev --dir {dir} --name x",
            1,
            "Permission denied",
            id="no-permission",
        ),
    ],
)
def test_whatever_fails_is_one_line_and_no_traceback(
    files: DevelopmentFiles, command: str, code: int, said: str
) -> None:
    _ensure(files)
    try:
        done = _run(command.format(dir=files.directory))
    finally:
        files.directory.parent.chmod(0o755)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == (1 if said else 0)


def test_an_empty_directory_name_does_not_mean_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["dev", "--dir", "", "--name", "x"])
    assert ended.value.code == 2
    assert not list(tmp_path.iterdir())


def test_an_address_with_a_zone_is_refused_as_no_certificate_holds_one() -> None:
    with pytest.raises(InvalidRequest, match="zone"):
        parse_hosts(["fe80::1%eth0"])
