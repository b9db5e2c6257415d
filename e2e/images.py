"""Images without a registry: a busybox root, and the project's own image made from the running interpreter.

An image is a directory `rootfs/` beside `config.json`, named by a hash of what went in, under `build/images`.
"""

import compileall
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import e2e

_SOURCE = Path(str(e2e.__file__)).resolve().parent.parent
BUILD = _SOURCE / "build" / "images"
_BUSYBOX = Path("/bin/busybox")
_PACKAGES = ("sidemount", "sidecar")  # what an image of ours carries: the core and one service
_DISTRIBUTIONS = ("pyfuse3", "trio")
_LEFT_OUT = frozenset({
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages",
})  # fmt: skip
_STALE_S = 24 * 3600.0
_ACCOUNTS = (("root", 0, "/"), ("nobody", 65534, "/"), ("nonroot", 65532, "/"))
_RECIPE = 2  # raise it when this file makes something else of the same inputs
_BY_NAME = ("libgcc_s.so.1",)  # glibc opens it when a thread is ended: without it the process dies of that
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")

Config = dict[str, object]


def busybox_image(build: Path = BUILD) -> Path:
    """Return an image with Debian's static busybox and all its applets, building it if needed."""
    if not _BUSYBOX.is_file():
        raise FileNotFoundError(f"{_BUSYBOX} is missing: install busybox-static")
    return _cached(build, "busybox", _digest([_BUSYBOX.read_bytes()]), _build_busybox)


def sidemount_image(build: Path = BUILD) -> Path:
    """Return the project's own image: this interpreter, the sidecar's dependencies, sidemount and sidecar."""
    base = _cached(build, "python", _digest(_python_inputs()), _build_python)
    ours = [path for name in _PACKAGES for path in sorted((_SOURCE / name).rglob("*.py"))]
    contents = [
        base.name.encode(),
        *(f"{path.relative_to(_SOURCE)}\n".encode() + path.read_bytes() for path in ours),
    ]

    def build_sidemount(image: Path) -> None:
        shutil.copytree(base / "rootfs", image / "rootfs", copy_function=os.link, symlinks=True)
        for path in ours:
            target = image / "rootfs" / "app" / path.relative_to(_SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        _compile(image / "rootfs" / "app")
        environment = ["PATH=/usr/bin", "PYTHONPATH=/app", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"]
        entrypoint = ["python3", "-m", "sidecar"]
        _write_config(
            image, {"User": "65532:65532", "Env": environment, "Entrypoint": entrypoint, "WorkingDir": "/"}
        )

    return _cached(build, "sidemount", _digest(contents), build_sidemount)


def image_size_bytes(image: Path) -> int:
    """Return what the files of an image take."""
    return sum(path.lstat().st_size for path in image.rglob("*") if not path.is_dir())


def _cached(build: Path, name: str, digest: str, make: Callable[[Path], None]) -> Path:
    """Return build/<name>-<digest>, made once; whoever finishes first wins."""
    image = build / f"{name}-{digest}"
    if image.is_dir():
        os.utime(image)
        return image
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix=f".{name}-") as scratch:
        made = Path(scratch) / "image"
        (made / "rootfs").mkdir(parents=True) if name != "sidemount" else made.mkdir()
        make(made)
        try:
            made.rename(image)
        except OSError:
            if not image.is_dir():
                raise
    for old in build.glob(f"{name}-*"):
        if old != image and time.time() - old.stat().st_mtime > _STALE_S:
            shutil.rmtree(old, ignore_errors=True)
    return image


def _build_busybox(image: Path) -> None:
    root = image / "rootfs"
    _skeleton(root)
    shutil.copy2(_BUSYBOX, root / "bin" / "busybox")
    listed = subprocess.run([_BUSYBOX, "--list"], capture_output=True, text=True, check=True, timeout=10)
    for applet in listed.stdout.split():
        link = root / "bin" / applet
        if not link.exists():
            link.symlink_to("busybox")
    _write_config(image, {"Env": ["PATH=/bin"], "Cmd": ["sh"]})


def _build_python(image: Path) -> None:
    root = image / "rootfs"
    _skeleton(root)
    executable = _interpreter()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(executable, root / "usr" / "bin" / version)
    for alias in ("python3", "python"):
        (root / "usr" / "bin" / alias).symlink_to(version)
    library = root / "usr" / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_left_out, symlinks=False)
    app = root / "app"
    for distribution in _distributions():
        _copy_distribution(distribution, app)
    _copy_libraries([root / "usr" / "bin" / version, *library.rglob("*.so"), *app.rglob("*.so*")], root)
    # What was compiled at its installation is copied with its time and stays valid; the rest is compiled here.
    _compile(library)
    _compile(app)


def _skeleton(root: Path) -> None:
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr/bin", "usr/lib", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var" / "run").symlink_to("/run")
    passwd = [f"{name}:x:{uid}:{uid}:{name}:{home}:/bin/sh\n" for name, uid, home in _ACCOUNTS]
    (root / "etc" / "passwd").write_text("".join(passwd))
    (root / "etc" / "group").write_text("".join(f"{name}:x:{gid}:\n" for name, gid, _ in _ACCOUNTS))


def _interpreter() -> Path:
    """Return the real binary behind a virtual environment's link."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def _left_out(directory: str, names: list[str]) -> set[str]:
    """Return what no daemon needs: tests, Tk, the static library's directory, optimised bytecode."""
    return {
        name
        for name in names
        if name in _LEFT_OUT
        or name.startswith(("config-", "_test", "_ctypes_test", "_tkinter"))
        or (name.endswith(".pyc") and ".opt-" in name)
    }


def _distributions() -> list[metadata.Distribution]:
    """Return the needed distributions and what they require, each once."""
    found: dict[str, metadata.Distribution] = {}
    wanted = list(_DISTRIBUTIONS)
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in _DISTRIBUTIONS:
                raise
            continue  # required on other systems or Pythons only
        for line in found[name].requires or []:
            match = _REQUIREMENT.match(line)
            if match and "extra ==" not in line:
                wanted.append(match[0])
    return [found[name] for name in sorted(found)]


def _copy_distribution(distribution: metadata.Distribution, app: Path) -> None:
    for file in distribution.files or []:
        if ".." in file.parts or set(file.parts) & {"tests", "_tests"}:
            continue
        source = Path(str(distribution.locate_file(file)))
        if source.is_file():
            target = app / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_libraries(binaries: Iterable[Path], root: Path) -> None:
    """Copy the shared libraries that the binaries need into /usr/lib, and the loader to the path they name."""
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, timeout=60)
    for line in listed.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and words[2].startswith("/"):
            # A library that came along in a package is found there, relative to who needs it.
            if not words[2].startswith(str(root)):
                _copy_once(Path(words[2]), root / "usr" / "lib" / words[0])
            if words[0] == "libc.so.6":
                for name in _BY_NAME:
                    _copy_once(Path(words[2]).with_name(name), root / "usr" / "lib" / name)
        elif words and words[0].startswith("/lib") and words[0].partition(":")[0] == words[0]:
            _copy_once(Path(words[0]), root / words[0].lstrip("/"))


def _copy_once(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source.resolve(), target)


def _compile(directory: Path) -> None:
    compileall.compile_dir(directory, quiet=2, stripdir=str(directory), maxlevels=20)


def _python_inputs() -> list[bytes]:
    """Return what the interpreter's layer depends on, without reading the whole library."""
    executable, stdlib = _interpreter(), Path(sysconfig.get_path("stdlib"))
    stamps = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in (executable, stdlib)]
    records = [
        distribution.read_text("RECORD") or str(distribution.version) for distribution in _distributions()
    ]
    return [sys.version.encode(), *(text.encode() for text in (*stamps, *records))]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256(str(_RECIPE).encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def _write_config(image: Path, config: Config) -> None:
    (image / "config.json").write_text(json.dumps(config))
