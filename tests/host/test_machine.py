"""What doctor finds, for kernels and users that this machine does not have."""

import os
from pathlib import Path

import pytest

from sidemount.host import machine
from sidemount.host.machine import Finding, Verdict, inspect_machine, kernel_version
from sidemount.model.errors import HostFailure


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


def test_without_the_device_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "open_connection", _no_device)
    found = findings()["FUSE"]
    assert found.verdict is Verdict.MISSING
    assert "modprobe fuse" in found.way_out


def test_request_timeouts_are_pointed_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_sysctl", lambda name: "30" if name.startswith("default") else "0")
    found = findings()["request timeout"]
    assert found.verdict is Verdict.DEGRADED
    assert found.way_out == "sysctl -w fs.fuse.default_request_timeout=0"


def _no_device(*_: object, **__: object) -> None:
    raise HostFailure("open /dev/fuse: No such file or directory", errno=2, hint="modprobe fuse")
