"""Kubernetes and containerd, built from Go modules once for each content of the module's files and flags."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.progress import Progress

_HERE = Path(__file__).resolve().parent
_LEAST_GO = (1, 21)  # from here on, go fetches the newer toolchain that a module asks for
_TOLD_EVERY_S = 30.0
_LONGEST_S = 3600.0
_DOWNLOAD_S = 300.0
_NETWORK_WORDS = (
    "dial tcp",
    "proxyconnect",
    "no such host",
    "i/o timeout",
    "connection refused",
    "TLS handshake",
)
_TOOL = re.compile(r"^\s+(\S+/\S+)$", re.MULTILINE)
_ONLY_TOOL = re.compile(r"^tool (\S+/\S+)$", re.MULTILINE)
_MAJOR = re.compile(r"/v\d+$")


@dataclass(frozen=True, slots=True)
class GoModule:
    """A directory with go.mod and go.sum, whose `tool` lines are the programs to build.

    `carried`: directories of required modules that are kept beside the programs: module, path in it, name.
    `root`: where the directory `name` is.
    """

    name: str
    title: str
    ldflags: str
    about: str
    carried: tuple[tuple[str, str, str], ...] = ()
    root: Path = _HERE

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self.root / self.name

    def programs(self) -> tuple[str, ...]:
        """Return the names of what it builds."""
        text = (self.directory / "go.mod").read_text()
        _, _, tools = text.partition("\ntool (")
        found = (*_TOOL.findall(tools.partition("\n)")[0]), *_ONLY_TOOL.findall(text))
        # The last element of a path that is no major version: what `go build` names the program.
        return tuple(_MAJOR.sub("", path).rpartition("/")[2] for path in found)

    def digest(self) -> str:
        """Return what names the result: the same inputs give the same programs."""
        found = hashlib.sha256(self.ldflags.encode())
        for name in ("go.mod", "go.sum"):
            found.update((self.directory / name).read_bytes())
        for each in self.carried:
            found.update("\0".join(each).encode())
        for source in sorted(self.directory.rglob("*.go")):
            found.update(source.read_bytes())
        return found.hexdigest()[:16]


_VERSION = "k8s.io/component-base/version"
_MINOR = 37
CONTROL = GoModule(
    "control",
    "Kubernetes",
    f"-s -w -X {_VERSION}.gitVersion=v1.{_MINOR}.2 -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={_MINOR}",
    "8 minutes",
)
RUNTIME = GoModule("runtime", "containerd", "-s -w", "2 minutes")
MODULES = (CONTROL, RUNTIME)
COMPANIONS = GoModule(  # of a cluster where volumes are provisioned
    "companions",
    "Kubernetes' CSI companions",
    "-s -w",
    "6 minutes",
    (("github.com/kubernetes-csi/external-snapshotter/client/v8", "config/crd", "snapshot-types"),),
)
STORAGE = GoModule("storage", "Kubernetes' storage tests", "-s -w", "3 minutes")  # for a cluster with both
SANITY = GoModule("sanity", "csi-sanity", "-s -w", "2 minutes")  # of no cluster's, but built in the same way


def module_files(build: Path, progress: Progress, module: GoModule, name: str) -> Path:
    """Return the directory of that name that a module carries along, built with its programs. Raises MachineLacks, ClusterFault."""
    go_programs(build, progress, (module,))
    return build / "tools" / f"{module.name}-{module.digest()}" / name


def go_programs(build: Path, progress: Progress, modules: tuple[GoModule, ...] = MODULES) -> dict[str, Path]:
    """Return every program of the modules by its name, building what is missing. Raises MachineLacks, ClusterFault."""
    found: dict[str, Path] = {}
    for module in modules:
        target = build / "tools" / f"{module.name}-{module.digest()}"
        if not target.is_dir():
            with _alone(build):
                if not target.is_dir():
                    _build(module, target, progress)
        found |= {name: target / name for name in module.programs()}
    return found


@contextmanager
def _alone(build: Path) -> Iterator[None]:
    """Keep others from building the same at the same time."""
    (build / "tools").mkdir(parents=True, exist_ok=True)
    with (build / "tools" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(module: GoModule, target: Path, progress: Progress) -> None:
    go = _go()
    progress(
        f"building {module.title} with Go: about {module.about} on two cores the first time, never again"
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{module.name}-") as scratch:
        made = Path(scratch) / "bin"
        made.mkdir()
        argv = ["nice", "-n", "19", go, "build", "-v", "-o", f"{made}/", "-ldflags", module.ldflags, "tool"]
        _run_build(argv, module, progress)
        absent = [name for name in module.programs() if not (made / name).is_file()]
        if absent:
            raise ClusterFault(f"building {module.title} made no {', '.join(absent)}")
        for path, inside, kept in module.carried:
            shutil.copytree(_module_directory(go, module, path) / inside, made / kept)
        made.rename(target)
    for old in target.parent.glob(f"{module.name}-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def _module_directory(go: str, module: GoModule, path: str) -> Path:
    """Return where Go keeps the files of a module that is required."""
    argv = [go, "mod", "download", "-json", path]
    done = subprocess.run(argv, cwd=module.directory, capture_output=True, text=True, timeout=_DOWNLOAD_S)
    if done.returncode:
        raise _fault(module, (done.stderr or done.stdout).splitlines())
    return Path(json.loads(done.stdout)["Dir"])


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise MachineLacks(
            "a cluster is built with Go, and there is none", hint="install it from https://go.dev/dl"
        )
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, cwd="/")
    version = re.match(r"go(\d+)\.(\d+)", done.stdout.strip())
    if version is None or (int(version[1]), int(version[2])) < _LEAST_GO:
        raise MachineLacks(
            f"Go is {done.stdout.strip() or 'broken'}, and 1.21 or newer is needed",
            hint="see https://go.dev/dl",
        )
    return go


def _run_build(argv: list[str], module: GoModule, progress: Progress) -> None:
    lines: list[str] = []
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    with subprocess.Popen(
        argv, cwd=module.directory, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
        reader.start()
        deadline = time.monotonic() + _LONGEST_S
        while not _has_ended(process):
            progress(f"building {module.title}: {len(lines)} packages")
            if time.monotonic() > deadline:
                process.kill()
                raise ClusterFault(f"building {module.title} took more than {_LONGEST_S:g} s")
        reader.join()
    if process.returncode:
        raise _fault(module, lines)


def _has_ended(process: "subprocess.Popen[str]") -> bool:
    """Wait for the time between two lines of progress; tell whether the process has ended in it."""
    try:
        process.wait(_TOLD_EVERY_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _collect(process: "subprocess.Popen[str]", lines: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.rstrip("\n"))  # noqa: PERF401 - others read how many there are meanwhile


def _fault(module: GoModule, lines: list[str]) -> ClusterFault:
    last = "\n".join(lines[-15:])
    if any(word in last for word in _NETWORK_WORDS):
        return MachineLacks(
            f"the Go modules of {module.title} cannot be fetched",
            hint="set GOPROXY to a module proxy that this machine reaches",
            log=last,
        )
    return ClusterFault(f"building {module.title} failed", log=last)
