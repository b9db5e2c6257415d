"""Files of credentials: of one moment, from beneath their directory alone, never waited for, never told."""

import asyncio
import os
import reprlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from csi.faults import WrongState
from csi.proto import csi_pb2
from csi.publish_request import parse_publish
from csi.secret_files import SecretFiles
from sidemount.model.errors import HostFailure, InvalidRequest, NotReady, VolumeError
from tests.csi.kubelet_secret import write_secret

CANARY = "c4nary-s3cret-value"
KEYS = ("id", "key")


def _read(directory: Path, keys: tuple[str, ...] = KEYS) -> Mapping[str, str] | None:
    return asyncio.run(SecretFiles(str(directory)).read("volume v", "c", keys))


def test_files_and_a_secret_of_kubelet_s_are_read_byte_for_byte(tmp_path: Path) -> None:
    write_secret(tmp_path / "c", {"id": "1", "key": "multi\nline\n", "more": "x"})
    assert _read(tmp_path) == {"id": "1", "key": "multi\nline\n"}
    write_secret(tmp_path / "c", {"id": "2", "key": ""})
    assert _read(tmp_path) == {"id": "2", "key": ""}
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "id").write_bytes(b"\xff\x00")
    found = asyncio.run(SecretFiles(str(tmp_path)).read("v", "plain", ("id",)))
    assert found is not None
    assert found["id"].encode("utf-8", "surrogateescape") == b"\xff\x00"


def test_all_classes_in_one_projected_volume_are_found(tmp_path: Path) -> None:
    """A projected volume's items may lie in folders: then the folder is the link."""
    moment = tmp_path / "..2026" / "c"
    moment.mkdir(parents=True)
    for key in KEYS:
        (moment / key).write_text(key)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "c").symlink_to("..data/c")
    assert _read(tmp_path) == {"id": "id", "key": "key"}


def test_a_class_without_a_directory_has_none(tmp_path: Path) -> None:
    assert _read(tmp_path) is None
    assert asyncio.run(SecretFiles("").read("v", "c", KEYS)) is None


@pytest.mark.parametrize(
    ("case", "kind", "told"),
    [
        ("no directory", WrongState, "does not exist"),
        ("missing", WrongState, "c/key does not exist"),
        ("class is a file", WrongState, "is no directory"),
        ("pipe", WrongState, "c/key is not a regular file"),
        ("directory", WrongState, "c/key is not a regular file"),
        ("socket", WrongState, "c/key is not a regular file"),
        ("device", WrongState, "c/key is not a regular file"),
        ("out by link", WrongState, "c/key leads out of it"),
        ("absolute link", WrongState, "c/key leads out of it"),
        ("proc", WrongState, "c/key leads out of it"),
        ("class out", WrongState, "/c leads out of it"),
        ("loop", WrongState, "c/key is a link without end"),
        ("too large", WrongState, "c/key is 1048577 bytes"),
        ("together too large", WrongState, "holds more than 1048576 bytes"),
    ],
)
def test_what_is_wrong_is_told_with_flag_path_reason_and_way_out(
    tmp_path: Path, case: str, kind: type[VolumeError], told: str
) -> None:
    directory = _made(tmp_path, case)
    began = time.monotonic()
    with pytest.raises(kind) as raised:
        _read(directory)
    assert time.monotonic() - began < 4
    message = str(raised.value)
    assert message.startswith("volume v: --secrets-dir")
    assert told in message
    assert str(directory) in message
    assert raised.value.hint
    assert CANARY not in message


def _made(tmp_path: Path, case: str) -> Path:
    directory, key = tmp_path / "d", tmp_path / "d" / "c" / "key"
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in KEYS:
        (outside / name).write_text(CANARY)
    if case == "no directory":
        return directory
    directory.mkdir()
    if case == "class is a file":
        (directory / "c").write_text(CANARY)
        return directory
    if case == "class out":
        (directory / "c").symlink_to("../outside")
        return directory
    (directory / "c").mkdir()
    (directory / "c" / "id").write_text(CANARY)
    match case:
        case "pipe":
            os.mkfifo(key)
        case "directory":
            key.mkdir()
        case "socket":
            os.mknod(key, 0o140600)
        case "device":
            key.symlink_to("zero")
            os.mknod(directory / "c" / "zero", 0o020666, os.makedev(1, 5))
        case "out by link":
            key.symlink_to("../../outside/key")
        case "absolute link":
            key.symlink_to(outside / "key")
        case "proc":
            key.symlink_to("/proc/self/environ")
        case "loop":
            key.symlink_to("key")
        case "too large":
            key.write_bytes(b"x" * ((1 << 20) + 1))
        case "together too large":
            key.write_bytes(b"x" * (1 << 20))
        case _:
            assert case == "missing"
    return directory


def test_a_filesystem_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by this call nor by the next, nor by anything else of the loop; and read again as soon as it answers."""
    write_secret(tmp_path / "c", {"id": "1", "key": "2"})
    answers = threading.Event()
    open_file = os.open

    def hang(path: object, *given: object, **named: object) -> int:
        if path == str(tmp_path):
            assert answers.wait(30)
        return open_file(path, *given, **named)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr("csi.secret_files.os.open", hang)

    async def main() -> None:
        files = SecretFiles(str(tmp_path), within_s=0.2)
        for _ in range(2):
            with pytest.raises(NotReady, match="does not answer"):
                await files.read("volume v", "c", KEYS)
        answers.set()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await files.read("volume v", "c", KEYS) == {"id": "1", "key": "2"}
                    return
                except NotReady:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_keys_are_never_of_two_moments(tmp_path: Path) -> None:
    """kubelet swaps all files of a Secret at once; whoever reads meanwhile gets all of before or all of after."""
    directory = tmp_path / "c"
    write_secret(directory, {"id": "0", "key": "0"})
    is_over = threading.Event()

    def rotate() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            write_secret(directory, {"id": str(number), "key": str(number)})

    rotating = threading.Thread(target=rotate)
    rotating.start()
    seen = set()

    async def main() -> None:
        files = SecretFiles(str(tmp_path))
        for _ in range(300):
            try:
                found = await files.read("volume v", "c", KEYS)
            except (NotReady, HostFailure):
                continue  # said so, not mixed
            assert found is not None
            assert found["id"] == found["key"]
            seen.add(found["id"])

    try:
        asyncio.run(main())
    finally:
        is_over.set()
        rotating.join(10)
    assert len(seen) > 3


def test_nothing_that_holds_credentials_shows_them(tmp_path: Path) -> None:
    """Neither what was read, nor a request, nor a plan; nor does a refusal show a key, which may be a credential in the wrong place."""
    write_secret(tmp_path / "c", dict.fromkeys(KEYS, CANARY))
    found = _read(tmp_path)
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id="v",
        target_path="/t",
        volume_capability={"mount": {}, "access_mode": {"mode": 5}},
        secrets={"token": CANARY},
    )
    parsed = parse_publish(request)
    assert parsed.secrets == {"token": CANARY}
    assert found == dict.fromkeys(KEYS, CANARY)
    assert CANARY not in f"{found} {found!r} {parsed!r} {parsed.secrets!r} {reprlib.repr(found)}"
    for key in (f"{CANARY}\0", ""):
        request.secrets[key] = CANARY
        with pytest.raises(InvalidRequest, match="secrets: a key") as raised:
            parse_publish(request)
        assert CANARY not in str(raised.value)
        del request.secrets[key]
