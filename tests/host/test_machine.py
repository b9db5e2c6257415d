"""What doctor finds, for kernels and users that this machine does not have."""

import os
import struct
from pathlib import Path

import pytest

from sidemount.host import machine
from sidemount.host.fuse_init import can_resend
from sidemount.host.fuse_mount import FuseConnection
from sidemount.host.machine import Finding, Verdict, inspect_machine, kernel_version
from sidemount.model.errors import HostFailure, Reason
from sidemount.model.mountinfo import parse_mountinfo


def init_message(*, flags2: int) -> bytes:
    """Return the kernel's first message with such flags."""
    body = struct.pack("<IIIII", 7, 40, 1 << 17, 0, flags2).ljust(64, b"\0")
    return struct.pack("<IIQQIIIHH", 40 + len(body), 26, 2, 0, 0, 0, 0, 0, 0) + body


def findings() -> dict[str, Finding]:
    return {finding.topic: finding for finding in inspect_machine()}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.18.44-fc-v857", (6, 18)),
        ("5.10.0-28-amd64", (5, 10)),
        ("6.1", (6, 1)),
        ("odd", (0, 0)),
        ("4.19.0+", (4, 19)),
    ],
)
def test_kernel_versions(release: str, expected: tuple[int, int]) -> None:
    assert kernel_version(release) == expected


def test_an_old_kernel_is_missing_what_views_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "5.4.0", "v", "x86_64")))
    monkeypatch.setattr(machine, "open_connection", _no_device)
    found = findings()
    assert found["kernel"].verdict is Verdict.MISSING
    assert found["RESEND"].verdict is Verdict.DEGRADED
    for improvement in ("BENEATH", "passthrough"):
        assert found[improvement].verdict is Verdict.OK
        assert found[improvement].found.startswith("no ")


def test_a_kernel_without_resend_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's own word in INIT, whatever its version says."""

    def connection_without(*_: object, **__: object) -> FuseConnection:
        return FuseConnection(os.open("/dev/null", os.O_RDONLY), -1, init_message(flags2=0))

    monkeypatch.setattr(machine, "open_connection", connection_without)
    found = findings()["RESEND"]
    assert (found.verdict, found.found) == (Verdict.DEGRADED, "no")
    assert found.meaning.startswith(f"{Reason.NO_RESEND.value}: ")
    assert "ENOTCONN" in found.meaning
    assert found.way_out == "Linux 6.9 or newer"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(init_message(flags2=1 << 7), True, id="6.9"),
        pytest.param(init_message(flags2=0x7F), False, id="other-flags"),
        pytest.param(init_message(flags2=0), False, id="6.8"),
        pytest.param(init_message(flags2=1 << 7)[:56], False, id="before-flags2"),
        pytest.param(b"", False, id="left-in-the-queue"),
    ],
)
def test_the_kernel_tells_whether_it_can_resend(message: bytes, expected: bool) -> None:
    assert can_resend(message) is expected


def test_without_the_device_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "open_connection", _no_device)
    found = findings()["FUSE"]
    assert found.verdict is Verdict.MISSING
    assert "modprobe fuse" in found.way_out


@pytest.mark.parametrize(
    ("layers", "verdict", "found"),
    [
        pytest.param([], Verdict.OK, "none here", id="none"),
        pytest.param(
            ["/a", "/b", "/b", "/b"], Verdict.OK, "2 places, at most 3 of 64 mounts at one", id="few"
        ),
        pytest.param(["/b"] * 17, Verdict.DEGRADED, "1 places, at most 17 of 64 mounts at one", id="many"),
    ],
)
def test_stacked_mounts_are_counted(
    monkeypatch: pytest.MonkeyPatch, layers: list[str], verdict: Verdict, found: str
) -> None:
    foreign = "99 1 0:9 / /b rw - fuse.bindfs sidemount:x rw\n1 0 0:1 / / rw shared:1 - ext4 /dev/x rw\n"
    ours = "".join(
        f"{100 + n} 1 0:{50 + n} / {at} rw - fuse.sidemount sidemount:x rw\n" for n, at in enumerate(layers)
    )
    monkeypatch.setattr(machine, "read_mount_table", lambda: parse_mountinfo(foreign + ours))
    finding = findings()["volumes"]
    assert (finding.verdict, finding.found) == (verdict, found)
    if verdict is Verdict.DEGRADED:
        assert "/b was replaced 16 times" in finding.meaning


def test_request_timeouts_are_pointed_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_sysctl", lambda name: "30" if name.startswith("default") else "0")
    found = findings()["request timeout"]
    assert found.verdict is Verdict.DEGRADED
    assert found.way_out == "sysctl -w fs.fuse.default_request_timeout=0"


def _no_device(*_: object, **__: object) -> None:
    raise HostFailure("open /dev/fuse: No such file or directory", errno=2, hint="modprobe fuse")
