"""The outside of a check: plans it, runs it in namespaces of its own, and ends it by a deadline, whatever a mount does."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sidemount.commands.conformance.finding import Finding, Verdict
from sidemount.commands.conformance.plan import Case, plan_stands
from sidemount.host import process_attributes
from sidemount.host.readiness import wait_readable
from sidemount.model.errors import HostFailure, InvalidRequest, Unsupported, shown

_STANDS = 12  # no check waits for its time more often than that
_SECRET_MAX = 1 << 20
_SECRETS_MAX = 64
_KILLED_S = 20.0
_PLACE = "/run"  # not below /tmp, which the client may need for itself
_INSIDE = "sidemount.commands.conformance.inside"


def check_class(case: Case, tell: Callable[[Finding], None]) -> list[Finding]:
    """Check a class, telling each finding as it is found; return them all. Raises VolumeError if it cannot be checked here."""
    _require_machine()
    case = replace(case, mark=secrets.token_hex(4))
    base = os.path.realpath(tempfile.mkdtemp(prefix=f"sidemount-check-{os.getpid()}-", dir=_PLACE))
    try:
        order = _order(case, base)
        return _run(order, tell, within_s=_STANDS * case.timeout_s)
    finally:
        shutil.rmtree(base, ignore_errors=True)  # bare: what was mounted on it went with its namespace


def read_secrets(directory: str, known: tuple[str, ...]) -> Mapping[str, str]:
    """Return the files of a directory by their names, as a Secret has them. Raises InvalidRequest."""
    path = Path(directory)
    if not path.is_dir():
        raise InvalidRequest(
            f"--secrets {shown(directory)} is no directory", hint="name one with a file for each key"
        )
    found = {}
    names = sorted(each.name for each in path.iterdir() if each.is_file())
    for name in names[:_SECRETS_MAX]:
        if name not in known:
            keys = ", ".join(known) or "none"
            raise InvalidRequest(
                f"--secrets {shown(directory)}: the class reads no key {shown(name)}",
                hint=f"its keys: {keys}",
            )
        content = (path / name).read_bytes()
        if len(content) > _SECRET_MAX:
            raise InvalidRequest(
                f"--secrets {shown(directory)}: {shown(name)} is larger than a Secret may be"
            )
        found[name] = content.decode("utf-8", "surrogateescape")
    return found


def _require_machine() -> None:
    if os.geteuid() != 0:
        raise Unsupported(
            "a check mounts for real, which needs root", hint="run it as root, or in a privileged container"
        )
    if not os.path.exists("/dev/fuse"):
        raise Unsupported("this machine has no /dev/fuse", hint="modprobe fuse")
    for program in ("unshare", "setpriv"):
        if shutil.which(program) is None:
            raise Unsupported(f"this machine has no {program}", hint="apt-get install util-linux")


def _order(case: Case, base: str) -> str:
    known = case.driver_class
    stands = plan_stands(case, base)
    return json.dumps(
        {
            "base": base,
            "writable": list(case.writable),
            "own_tmp": case.own_tmp,
            "is_quick": case.is_quick,
            "stands": [stand.to_json() for stand in stands.values()],
            "capabilities": list(known.capabilities),
            "descriptor": known.abilities.descriptor,
            "takeover": known.abilities.takeover,
            "read_only": known.abilities.read_only,
            "is_source_read_only": case.is_source_read_only,
            "timeout_s": case.timeout_s,
            "mark": case.mark,
        }
    )


def _run(order: str, tell: Callable[[Finding], None], *, within_s: float) -> list[Finding]:
    argv = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child=SIGKILL",
        "--propagation",
        "private",
        "--mount-proc",
    ]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*argv, sys.executable, "-m", _INSIDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
            preexec_fn=process_attributes.die_with_parent,  # no other thread runs
        )
        try:
            findings = _follow(process, order, tell, within_s)
        finally:
            _kill(process)
        if process.returncode:
            said.seek(0)
            why = said.read().strip().splitlines()[-1:] or [f"code {process.returncode}"]
            raise HostFailure(f"the check has ended before its end: {why[0]}")
    return findings


def _follow(
    process: "subprocess.Popen[bytes]", order: str, tell: Callable[[Finding], None], within_s: float
) -> list[Finding]:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has ended; its words say why
        process.stdin.write(order.encode())
        process.stdin.close()
    findings: list[Finding] = []
    until, text = time.monotonic() + within_s, b""
    while True:
        ready = wait_readable(process.stdout.fileno(), max(0.0, until - time.monotonic()))
        if not ready:
            _kill(process)
            process.returncode = 0  # ended by us
            findings.append(
                Finding(
                    check="deadline", verdict=Verdict.FAILED, reason=f"not finished within {within_s:g} s"
                )
            )
            tell(findings[-1])
            return findings
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
            return findings
        *lines, text = (text + piece).split(b"\n")
        for line in lines:
            findings.append(Finding.from_json(json.loads(line)))
            tell(findings[-1])


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the namespaces: `unshare` takes its child with it, and with PID 1 goes everybody."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
