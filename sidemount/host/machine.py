"""What this machine can do for FUSE volumes, found by trying where trying is safe. Touches no existing mount."""

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sidemount.host.fuse_mount import MountPlan, open_connection
from sidemount.host.mount_table import is_shared, read_mount_table
from sidemount.host.volume_places import LAYERS_MAX
from sidemount.model.errors import HostFailure, Reason
from sidemount.model.mountinfo import Mount

_CAP_SYS_ADMIN = 21
_INIT_FLAGS = struct.Struct("<40xIIIII")  # after the header: major, minor, max_readahead, flags, flags2
_HAS_RESEND = 1 << 7  # of flags2
_PASSTHROUGH = 1 << 5  # of flags2
_RUN_TIMEOUT_S = 10
_LAYERS_MANY = LAYERS_MAX // 4


class Verdict(Enum):
    """What one finding means."""

    OK = "ok"
    DEGRADED = "degraded"  # works, with less
    MISSING = "missing"  # does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. `way_out` is empty when nothing need be done."""

    topic: str
    verdict: Verdict
    found: str
    meaning: str = ""
    way_out: str = ""


def inspect_machine() -> Iterator[Finding]:
    """Yield one finding after the other."""
    release = os.uname().release
    version = kernel_version(release)
    yield _kernel(release, version)
    yield _right_to_mount()
    connection, flags2 = _try_fuse()
    yield connection
    yield from _kernel_gifts(version, flags2)
    yield _propagation()
    yield _request_timeouts()
    yield _stacked(read_mount_table())
    yield _pyfuse3()
    yield _crun()


def kernel_version(release: str) -> tuple[int, int]:
    """Return (major, minor) of a release text such as 6.1.0-18-amd64, (0, 0) if it has none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _kernel(release: str, version: tuple[int, int]) -> Finding:
    if version >= (5, 12):
        return Finding(topic="kernel", verdict=Verdict.OK, found=release)
    return Finding(
        topic="kernel",
        verdict=Verdict.MISSING,
        found=release,
        meaning="read-only and sub-path views need mount_setattr, which came with 5.12",
        way_out="use a node with Linux 5.12 or newer; 6.9 for takeover",
    )


def _right_to_mount() -> Finding:
    status = Path("/proc/self/status").read_text()
    effective = int(re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]  # the kernel always writes it
    if effective >> _CAP_SYS_ADMIN & 1:
        return Finding(topic="right to mount", verdict=Verdict.OK, found="CAP_SYS_ADMIN")
    return Finding(
        topic="right to mount",
        verdict=Verdict.MISSING,
        found=f"uid {os.getuid()} without CAP_SYS_ADMIN",
        meaning="only the keeper needs it; the daemons and your containers do not",
        way_out="run as root: sudo sidemount doctor",
    )


def _try_fuse() -> tuple[Finding, int | None]:
    """Open /dev/fuse and make a mount that is attached nowhere. Returns the finding and INIT's flags2 where it came so far."""
    try:
        with tempfile.TemporaryDirectory() as staging:
            connection = open_connection(
                MountPlan(source="sidemount:doctor"), read_init=True, staging=staging
            )
            try:
                _, minor, _, _, flags2 = _INIT_FLAGS.unpack_from(connection.init)
            finally:
                connection.close()
    except HostFailure as error:
        return Finding(
            topic="FUSE",
            verdict=Verdict.MISSING,
            found=error.message,
            way_out=error.hint or "load the module: modprobe fuse",
        ), None
    return Finding(topic="FUSE", verdict=Verdict.OK, found=f"/dev/fuse, protocol 7.{minor}"), flags2


def _kernel_gifts(version: tuple[int, int], flags2: int | None) -> Iterator[Finding]:
    """Yield what newer kernels give. Takeover needs RESEND; the other two are told for whoever plans nodes."""
    without_resend = (
        f"{Reason.NO_RESEND.value}: when a daemon's process dies, its connection is aborted and the volume mounted anew; "
        "files that were open fail with ENOTCONN, nothing hangs"
    )
    yield _gift("RESEND", version, (6, 9), flags2, _HAS_RESEND, without=without_resend)
    yield _gift("BENEATH", version, (6, 5), None, 0)
    through_daemon = "large files of read-only `directory` volumes are read through the daemon, too"
    yield _gift("passthrough", version, (6, 9), flags2, _PASSTHROUGH, otherwise=through_daemon)


def _gift(
    topic: str,
    version: tuple[int, int],
    since: tuple[int, int],
    flags2: int | None,
    flag: int,
    *,
    without: str = "",
    otherwise: str = "nothing here depends on it",
) -> Finding:
    """Return whether the kernel has something, by its own word where there is one.

    `without`: what is lost if it has not; `otherwise`: what is so then, if nothing is.
    """
    newer = f"Linux {since[0]}.{since[1]} or newer"
    if version >= since if flags2 is None else flags2 & flag:
        how = newer if flags2 is None else "told by the kernel"
        return Finding(topic=topic, verdict=Verdict.OK, found=f"yes ({how})")
    if without:
        return Finding(topic=topic, verdict=Verdict.DEGRADED, found="no", meaning=without, way_out=newer)
    return Finding(topic=topic, verdict=Verdict.OK, found=f"no ({newer}); {otherwise}")


def _propagation() -> Finding:
    directory = "/var/lib/kubelet" if os.path.isdir("/var/lib/kubelet") else "/"
    if is_shared(read_mount_table(), directory):
        return Finding(topic="propagation", verdict=Verdict.OK, found=f"{directory} is on a shared mount")
    return Finding(
        topic="propagation",
        verdict=Verdict.DEGRADED,
        found=f"{directory} is on a private mount",
        meaning="a kubelet here could not show a container's mounts to another; the demo makes a namespace of its own",
        way_out="on a node: mount --make-rshared /",
    )


def _request_timeouts() -> Finding:
    """Any such timeout ends a connection while its daemon is away, and with it every open file."""
    found = {name: _sysctl(name) for name in ("default_request_timeout", "max_request_timeout")}
    is_set = {name: value for name, value in found.items() if value not in ("0", "")}
    if not is_set:
        return Finding(topic="request timeout", verdict=Verdict.OK, found="none")
    return Finding(
        topic="request timeout",
        verdict=Verdict.DEGRADED,
        found=", ".join(f"fs.fuse.{name}={value}" for name, value in is_set.items()),
        meaning="the kernel ends a connection whose daemon is away for that long",
        way_out="sysctl -w " + " ".join(f"fs.fuse.{name}=0" for name in is_set),
    )


def _stacked(table: tuple[Mount, ...]) -> Finding:
    """Return where volumes of ours are shown here, and how often a connection was replaced: each time a mount is stacked on the last."""
    counts = Counter(mount.mount_point for mount in table if mount.is_ours)
    if not counts:
        return Finding(topic="volumes", verdict=Verdict.OK, found="none here")
    place, most = max(counts.items(), key=lambda item: item[1])
    found = f"{len(counts)} places, at most {most} of {LAYERS_MAX} mounts at one"
    if most <= _LAYERS_MANY:
        return Finding(topic="volumes", verdict=Verdict.OK, found=found)
    return Finding(
        topic="volumes",
        verdict=Verdict.DEGRADED,
        found=found,
        meaning=f"the connection of {place} was replaced {most - 1} times; its mounts go with the pod",
        way_out="the logs of that pod's containers sidemount-… tell what its daemon dies of",
    )


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys/fs/fuse", name).read_text().strip()
    except OSError:
        return ""


def _pyfuse3() -> Finding:
    if importlib.util.find_spec("pyfuse3") is None:
        return Finding(
            topic="libfuse", verdict=Verdict.MISSING, found="pyfuse3 is not installed", way_out="make setup"
        )
    return _by_running(
        "libfuse",
        [sys.executable, "-c", "import pyfuse3; print('pyfuse3', pyfuse3.__version__)"],
        "reinstall pyfuse3",
        is_needed=True,
    )


def _crun() -> Finding:
    if shutil.which("crun") is None:
        return Finding(
            topic="crun",
            verdict=Verdict.DEGRADED,
            found="not installed",
            meaning="only the demo and the tests use it",
            way_out="apt-get install crun",
        )
    return _by_running("crun", ["crun", "--version"], "apt-get install --reinstall crun", is_needed=False)


def _by_running(topic: str, command: list[str], way_out: str, *, is_needed: bool) -> Finding:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        verdict = Verdict.MISSING if is_needed else Verdict.DEGRADED
        return Finding(topic=topic, verdict=verdict, found=detail.strip().splitlines()[-1], way_out=way_out)
    return Finding(topic=topic, verdict=Verdict.OK, found=done.stdout.splitlines()[0])
