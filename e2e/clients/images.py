"""Images of external clients: the project's own image, which holds the sidecar's entry, and the client with its libraries."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.images import BUILD, sidemount_image

_MEMO = Path(__file__).with_name("memo.c")
_LIMIT_S = 60.0
BINDFS_SHOWS = "/srv/shown"  # a directory of the image, which bindfs may serve
BINDFS_FILE = "hello.txt"
BINDFS_TEXT = "shown by bindfs\n"


def bindfs_image(build: Path = BUILD) -> Path:
    """Return an image with Debian's bindfs, a client that mounts by itself. Raises FileNotFoundError."""
    program = shutil.which("bindfs")
    if program is None:
        raise FileNotFoundError("bindfs is missing: apt-get install bindfs")
    image = _image_with(Path(program), build)
    shown = image / "rootfs" / BINDFS_SHOWS.lstrip("/") / "deep"
    shown.mkdir(parents=True, exist_ok=True)
    (shown.parent / BINDFS_FILE).write_text(BINDFS_TEXT)
    return image


def memo_image(build: Path = BUILD) -> Path:
    """Return an image with the client of `memo.c`, which serves a descriptor. Raises CalledProcessError if it does not compile."""
    program = build / f"memo-{hashlib.sha256(_MEMO.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        build.mkdir(parents=True, exist_ok=True)
        flags = _output("pkg-config", "--cflags", "--libs", "fuse3")
        with tempfile.TemporaryDirectory(dir=build) as scratch:
            made = Path(scratch) / "memo"
            _output("gcc", "-O1", "-Wall", "-o", str(made), str(_MEMO), *shlex.split(flags))
            made.rename(program)
    return _image_with(program, build, name="memo")


def _image_with(program: Path, build: Path, name: str = "") -> Path:
    """Return the project's image with a program in /usr/bin, made once for each of both."""
    base = sidemount_image(build)
    digest = hashlib.sha256(base.name.encode() + program.read_bytes()).hexdigest()[:16]
    name = name or program.name
    image = build / f"client-{name}-{digest}"
    if image.is_dir():
        return image
    with tempfile.TemporaryDirectory(dir=build, prefix=".client-") as scratch:
        made = Path(scratch) / "image"
        shutil.copytree(base, made, copy_function=os.link, symlinks=True)
        shutil.copy2(program, made / "rootfs" / "usr" / "bin" / name)
        for line in _output("ldd", str(program)).splitlines():
            words = line.split()
            if len(words) >= 3 and words[1] == "=>":
                target = made / "rootfs" / "usr" / "lib" / words[0]
                if not target.exists():
                    shutil.copy2(words[2], target)
        try:
            made.rename(image)
        except OSError:  # another process was faster
            if not image.is_dir():
                raise
    return image


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=_LIMIT_S).stdout
