"""Credentials of files that come, change, break and go."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sidemount.stores.credentials import Damaged, KeyFiles, parse
from sidemount.stores.signing import Credentials
from sidemount.stores.store import FaultKind, StoreFault


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def write(directory: Path, **files: str) -> None:
    for name, content in files.items():
        path = directory / f"{name}.new"
        path.write_text(content)
        path.rename(directory / name)


def exchange(directory: Path, **files: str) -> None:
    """Replace all files at once, as kubelet does."""
    number = len(list(directory.iterdir()))
    made = directory / f"..{number}"
    made.mkdir()
    for name, content in files.items():
        (made / name).write_text(content)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..new").symlink_to(made.name)
    os.rename(directory / "..new", directory / "..data")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({}, None, id="none: anonymous"),
        pytest.param({"ca.crt": "x"}, None, id="only a certificate"),
        pytest.param(
            {"access_key_id": " AK\n", "secret_access_key": "SK\n"}, Credentials("AK", "SK"), id="two files"
        ),
        pytest.param(
            {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_SESSION_TOKEN": "ST"},
            Credentials("AK", "SK", "ST"),
            id="the names of AWS' variables",
        ),
        pytest.param(
            {
                "credentials": "[other]\naws_access_key_id=x\n[default]\naws_access_key_id = AK\naws_secret_access_key=S%K\n"
            },
            Credentials("AK", "S%K"),
            id="an AWS credentials file",
        ),
    ],
)
def test_every_form_of_files_is_understood(files: dict[str, str], found: Credentials | None) -> None:
    assert parse(files) == found


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"access_key_id": "AK"}, id="half"),
        pytest.param({"access_key_id": "AK", "secret_access_key": ""}, id="empty"),
        pytest.param({"access_key_id": "A\nK", "secret_access_key": "SK"}, id="two lines"),
        pytest.param({"access_key_id": "AK", "secret_access_key": "SÜ"}, id="no ASCII"),
        pytest.param({"credentials": "hello"}, id="no profiles"),
        pytest.param({"credentials": "[default]\naws_access_key_id=AK"}, id="half a profile"),
        pytest.param(
            {"credentials": "[other]\naws_access_key_id=AK\naws_secret_access_key=SK"}, id="no default"
        ),
    ],
)
def test_damaged_files_are_refused_without_telling_what_is_in_them(files: dict[str, str]) -> None:
    with pytest.raises(Damaged) as caught:
        parse(files)
    assert "AK" not in str(caught.value)
    assert "SK" not in str(caught.value)


def test_changes_are_seen_within_a_second_and_at_once_after_a_refusal(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, access_key_id="A1", secret_access_key="S1")
    keys = KeyFiles(str(tmp_path), clock)
    assert keys.current() == Credentials("A1", "S1")
    write(tmp_path, access_key_id="A2", secret_access_key="S2")
    assert keys.current() == Credentials("A1", "S1")  # looked a moment ago
    clock.now_s += 1
    assert keys.current() == Credentials("A2", "S2")
    write(tmp_path, access_key_id="A3", secret_access_key="S3")
    assert keys.renew()
    assert keys.current() == Credentials("A3", "S3")
    assert not keys.renew()


def test_a_secret_exchanged_by_kubelet_is_taken_as_a_whole(tmp_path: Path) -> None:
    exchange(tmp_path, access_key_id="A1", secret_access_key="S1")
    keys = KeyFiles(str(tmp_path))
    assert keys.current() == Credentials("A1", "S1")
    exchange(tmp_path, access_key_id="A2", secret_access_key="S2")
    assert keys.renew()
    assert keys.current() == Credentials("A2", "S2")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: (path / "secret_access_key").unlink(), id="half of it gone"),
        pytest.param(lambda path: [one.unlink() for one in path.iterdir()], id="all of it gone"),
        pytest.param(lambda path: (path / "secret_access_key").write_text(""), id="truncated"),
        pytest.param(lambda path: (path / "access_key_id").write_bytes(b"\xff\xfe\0"), id="no text"),
        pytest.param(lambda path: (path / "access_key_id").write_bytes(b"x" * 100_000), id="too long"),
    ],
)
def test_the_last_good_ones_stay_in_use_while_files_are_damaged(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    write(tmp_path, access_key_id="A1", secret_access_key="S1")
    keys = KeyFiles(str(tmp_path), clock)
    keys.current()
    damage(tmp_path)
    clock.now_s += 5
    assert not keys.renew()
    assert not keys.renew()
    assert keys.current() == Credentials("A1", "S1")
    assert [one.getMessage() for one in caplog.records] == ["credentials_not_usable"]
    write(tmp_path, access_key_id="A2", secret_access_key="S2")
    assert keys.renew()
    assert keys.current() == Credentials("A2", "S2")


def test_files_damaged_from_the_beginning_fail_each_call_until_they_are_whole(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, access_key_id="AKIA")
    keys = KeyFiles(str(tmp_path), clock)
    with pytest.raises(StoreFault) as caught:
        keys.current()
    assert caught.value.kind is FaultKind.CREDENTIALS
    assert "AKIA" not in str(caught.value)
    write(tmp_path, secret_access_key="S")
    clock.now_s += 1
    assert keys.current() == Credentials("AKIA", "S")


def test_no_directory_is_anonymous() -> None:
    keys = KeyFiles("")
    assert keys.current() is None
    assert not keys.renew()
