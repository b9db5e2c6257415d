"""The compiled programs of the data benchmark: what makes the load, and libfuse's example as a peer. Built anew each time, in a second."""

import gzip
import shutil
import subprocess
from pathlib import Path

EXAMPLE = "passthrough_ll"
_HERE = Path(__file__).parent
_INSTALLED = Path("/usr/share/doc/libfuse3-dev/examples")
_NEEDED = (f"{EXAMPLE}.c", "passthrough_helpers.h")
_BUILD_S = 60.0


class UnavailableError(Exception):
    """A program cannot be had here; the message says why, in one line."""


def build_load(directory: Path) -> Path:
    """Return the program that makes the load."""
    program = directory / "data_load"
    _compile([str(_HERE / "data_load.c")], program, "-std=gnu11")
    return program


def build_example(directory: Path) -> Path:
    """Return `passthrough_ll`, built from the source that Debian's libfuse brings."""
    sources = directory / "libfuse"
    sources.mkdir(exist_ok=True)
    examples = _INSTALLED if _has_all(_INSTALLED) else _download(directory)
    for name in _NEEDED:
        _take(examples, name, sources / name)
    told = _run(["pkg-config", "--cflags", "--libs", "fuse3"], directory)
    program = directory / EXAMPLE
    _compile([str(sources / f"{EXAMPLE}.c")], program, *told.split())
    return program


def _has_all(directory: Path) -> bool:
    return all((directory / name).exists() or (directory / f"{name}.gz").exists() for name in _NEEDED)


def _take(directory: Path, name: str, target: Path) -> None:
    plain, packed = directory / name, directory / f"{name}.gz"
    if plain.exists():
        shutil.copyfile(plain, target)
    elif packed.exists():
        target.write_bytes(gzip.decompress(packed.read_bytes()))
    else:
        raise UnavailableError(f"libfuse3-dev has no {name}")


def _download(directory: Path) -> Path:
    """Return the examples of the Debian package itself: images of containers leave documentation out when they install it."""
    place = directory / "package"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    _run(["apt-get", "download", "-q", "libfuse3-dev"], place)
    for package in place.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), "."], place)
    return place / _INSTALLED.relative_to("/")


def _compile(sources: list[str], program: Path, *options: str) -> None:
    _run(["gcc", "-O2", "-o", str(program), *sources, *options], program.parent)


def _run(argv: list[str], directory: Path) -> str:
    try:
        ended = subprocess.run(
            argv, cwd=directory, capture_output=True, text=True, timeout=_BUILD_S, check=True
        )
    except FileNotFoundError as error:
        raise UnavailableError(f"{argv[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"{argv[0]}: {last}"[:200]) from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{argv[0]} takes more than {_BUILD_S:g} s") from error
    return ended.stdout
