"""A small language for system calls, and who makes them: one text, run against any directory.

A script is a line of steps separated by `;`. A step is `[u<uid>:<gid>[,<group>…]] call arguments… [= expected]`, where `expected` is `ok` (the
default), an errno's name, or what the call prints. Numbers are octal for modes, decimal otherwise. Names may hold `*<n>`: the character
before it n times.
"""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

_REPEATED = re.compile(r"(.)\*(\d+)")
_FLAGS = {name: getattr(os, name) for name in dir(os) if name.startswith("O_")}
_PAST_NS = 1_000_000_000_123_456_789


def run_script(script: str, root: Path) -> list[str]:
    """Run a script in a child whose working directory is `root`. Return `step => outcome` lines."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0)
            os.chdir(root)
            lines = [f"{step} => {_run(step)}" for step in steps(script)]
            os.write(write_end, json.dumps(lines).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        content = answer.read()
    os.waitpid(child, 0)
    lines_back: list[str] = json.loads(content)
    return lines_back


def steps(script: str) -> list[str]:
    """Return the steps of a script without what they expect."""
    return [step.partition("=")[0].strip() for step in script.split(";")]


def expected(script: str) -> list[str]:
    """Return the `step => outcome` lines that a script says are right."""
    lines = []
    for step in script.split(";"):
        call, _, wanted = step.partition("=")
        lines.append(f"{call.strip()} => {wanted.strip() or 'ok'}")
    return lines


def _run(step: str) -> str:
    words = [_REPEATED.sub(lambda found: found[1] * int(found[2]), word) for word in step.split()]
    groups: list[int] = []
    uid = gid = 0
    if re.match(r"u\d", words[0]):
        who, *more = words.pop(0)[1:].split(",")
        uid, gid = (int(part) for part in who.split(":"))
        groups = [int(group) for group in more]
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        return _CALLS[words[0]](*words[1:]) or "ok"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups([])


def _create(path: str, mode: str, content: str = "") -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, int(mode, 8))
    os.write(fd, content.encode())
    os.close(fd)


def _open(path: str, flags: str, mode: str = "0") -> None:
    number = 0
    for flag in flags.split("|"):
        number |= _FLAGS[flag]
    os.close(os.open(path, number, int(mode, 8)))


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def _append(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode() or "nothing"


def _stat(path: str, *fields: str) -> str:
    return ",".join(_field(os.lstat(path), field) for field in fields)


def _field(found: os.stat_result, field: str) -> str:
    match field:
        case "mode":
            return f"{stat.S_IMODE(found.st_mode):04o}"
        case "type":
            return f"{stat.S_IFMT(found.st_mode) >> 12:o}"
        case "uid" | "gid" | "size" | "nlink" | "rdev" | "atime_ns" | "mtime_ns":
            return str(getattr(found, f"st_{field}"))
    raise ValueError(field)


def _same(path: str, other: str) -> str:
    return "same" if os.path.samestat(os.lstat(path), os.lstat(other)) else "different"


def _changes_time(which: str, watched: str, *words: str) -> str:
    """Tell whether a call changes a time of a file."""
    before = getattr(os.lstat(watched), f"st_{which}_ns")
    time.sleep(0.02)  # more than a tick of the kernel's clock
    _CALLS[words[0]](*words[1:])
    return "newer" if getattr(os.lstat(watched), f"st_{which}_ns") > before else "same"


def _rename_flag(flag: int) -> Callable[[str, str], None]:
    from sidecar.directory.syscalls import AT_FDCWD, renameat2

    return lambda old, new: renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flag)


def _utimens(path: str, atime_ns: str, mtime_ns: str) -> None:
    os.utime(path, ns=(int(atime_ns), int(mtime_ns)))


def _write_through(path: str, removing: str) -> str:
    """Write and read through a descriptor whose file loses its name in between."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.write(fd, b"before")
        os.unlink(removing)
        os.write(fd, b"after")
        content = os.pread(fd, 100, 0).decode()
        return f"{content},{os.fstat(fd).st_nlink},{os.fstat(fd).st_size}"
    finally:
        os.close(fd)


_CALLS: dict[str, Callable[..., str | None]] = {
    "access": lambda path, mode: "yes" if os.access(path, int(mode), effective_ids=True) else "no",
    "append": _append,
    "changes": _changes_time,
    "chmod": lambda path, mode: os.chmod(path, int(mode, 8)),
    "chown": lambda path, uid, gid: os.chown(path, int(uid), int(gid)),
    "create": _create,
    "exchange": _rename_flag(2),
    "lchown": lambda path, uid, gid: os.lchown(path, int(uid), int(gid)),
    "link": lambda old, new: os.link(old, new, follow_symlinks=False),
    "list": lambda path: ",".join(sorted(os.listdir(path))) or "nothing",
    "mkdir": lambda path, mode: os.mkdir(path, int(mode, 8)),
    "mkfifo": lambda path, mode: os.mkfifo(path, int(mode, 8)),
    "mksock": lambda path, mode: os.mknod(path, stat.S_IFSOCK | int(mode, 8)),
    "noreplace": _rename_flag(1),
    "open": _open,
    "read": _read,
    "readlink": os.readlink,
    "rename": os.rename,
    "rmdir": os.rmdir,
    "same": _same,
    "stat": _stat,
    "symlink": os.symlink,
    "touch": lambda path: os.utime(path),
    "truncate": lambda path, size: os.truncate(path, int(size)),
    "umask": lambda mask: (os.umask(int(mask, 8)), None)[1],
    "unlink": os.unlink,
    "utimens": _utimens,
    "whiteout": _rename_flag(4),
    "write": _write,
    "write_unlinked": _write_through,
}
