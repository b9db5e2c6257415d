"""What comes from Debian: programs that are installed, and etcd, of which only the program is taken."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import MachineLacks
from e2e.cluster.progress import Progress

NODE_PROGRAMS: Mapping[str, str] = {
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/ip": "iproute2",
    "/usr/bin/unshare": "util-linux",
    "/usr/bin/hostname": "hostname",
    "/bin/busybox": "busybox-static",
    "/usr/bin/gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
}
"""What a node cannot do without, and the package that has it."""
IMAGE_PROGRAMS: Mapping[str, str] = {"/usr/bin/buildah": "buildah", "/usr/bin/mmdebstrap": "mmdebstrap"}
"""What building images takes besides."""
_ETCD_PACKAGE = "etcd-server"
_INSTALL_S, _UNPACK_S = 900.0, 120.0


def missing_packages(wanted: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the packages of which something is not there."""
    return tuple(
        sorted({package for path, package in wanted.items() if not (root / path.lstrip("/")).exists()})
    )


def install_missing(wanted: Mapping[str, str], progress: Progress) -> None:
    """Install what is not there. Raises MachineLacks when this machine has no apt, or apt no package."""
    missing = missing_packages(wanted)
    if not missing:
        return
    progress(f"installing {' '.join(missing)}")
    _apt("update", "-q")
    _apt("install", "-y", "-q", "--no-install-recommends", *missing)
    still = missing_packages(wanted)
    if still:
        raise MachineLacks(
            f"{', '.join(still)} did not bring what is needed", hint="reinstall, then try again"
        )


def etcd_program(build: Path, progress: Progress) -> Path:
    """Return etcd, fetched once. The package is unpacked, not installed: it would start a service of the machine."""
    program = build / "tools" / "etcd" / "etcd"
    if program.exists():
        return program
    progress(f"fetching {_ETCD_PACKAGE} from Debian")
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        # apt gives its downloads to a user of its own, who cannot enter a directory of root's.
        Path(scratch).chmod(0o755)
        try:
            _apt("download", "-q", _ETCD_PACKAGE, directory=scratch)
        except MachineLacks:
            _apt("update", "-q")
            _apt("download", "-q", _ETCD_PACKAGE, directory=scratch)
        package = next(Path(scratch).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), f"{scratch}/root"], check=True, timeout=_UNPACK_S)
        (Path(scratch) / "root" / "usr" / "bin" / "etcd").rename(program)
    return program


def _apt(*arguments: str, directory: str = "/") -> None:
    apt = shutil.which("apt-get")
    wanted = " ".join(argument for argument in arguments if not argument.startswith("-"))
    if apt is None:
        raise MachineLacks(
            f"this machine has no apt-get to {wanted}", hint="use Debian 12, or install it otherwise"
        )
    log = _run([apt, "-o", "DPkg::Lock::Timeout=300", *arguments], directory)
    if log:
        raise MachineLacks(f"apt-get {wanted} failed: {log}", hint="is a Debian mirror reachable?")


def _run(argv: Sequence[str], directory: str) -> str:
    """Return nothing, or the last line of what went wrong."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=env, cwd=directory, timeout=_INSTALL_S
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_INSTALL_S:g} s"
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return (lines[-1] if lines else f"exit status {done.returncode}") if done.returncode else ""
