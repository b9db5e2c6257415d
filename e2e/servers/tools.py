"""The programs of servers that come from Go's and npm's registries: made once for each content of the files that name their versions."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.go_tools import GoModule, go_programs
from e2e.cluster.places import SOURCE
from e2e.cluster.progress import Progress

BUILD = SOURCE / "build" / "servers"
_HERE = Path(__file__).resolve().parent
_INSTALL_S = 900.0
VERSITYGW = GoModule("versitygw", "the Versity S3 gateway", "-s -w", "2 minutes", root=_HERE)
FAKE_GCS = GoModule("fake-gcs-server", "fake-gcs-server", "-s -w", "1 minute", root=_HERE)
_AZURITE_FILES = ("package.json", "package-lock.json")


def go_program(module: GoModule) -> Path:
    """Return the one program of a module, built if needed. Raises MachineLacks without Go, ClusterFault."""
    (program,) = go_programs(BUILD, Progress("servers"), (module,)).values()
    return program


def azurite_argv() -> tuple[str, ...]:
    """Return how Azurite's Blob service is called, installed if needed. Raises MachineLacks without Node, ClusterFault."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MachineLacks("Azurite needs Node and npm", hint="apt-get install nodejs npm")
    files = _HERE / "azurite"
    digest = hashlib.sha256(b"".join((files / name).read_bytes() for name in _AZURITE_FILES)).hexdigest()[:16]
    target = BUILD / "tools" / f"azurite-{digest}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".azurite.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                _install(npm, files, target)
    return node, str(target / "node_modules" / ".bin" / "azurite-blob")


def _install(npm: str, files: Path, target: Path) -> None:
    progress = Progress("servers")
    progress("installing Azurite with npm: about half a minute the first time, never again")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".azurite-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        for name in _AZURITE_FILES:
            shutil.copy(files / name, made)
        # No script of a package runs: those of Azurite's would fetch what only its own development needs.
        argv = [npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(
            argv, cwd=made, capture_output=True, text=True, timeout=_INSTALL_S, env=dict(os.environ)
        )
        if done.returncode:
            raise ClusterFault("npm could not install Azurite", log=(done.stderr or done.stdout)[-2000:])
        made.rename(target)
    for old in target.parent.glob("azurite-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
