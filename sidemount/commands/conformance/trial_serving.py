"""The first stand: whether it comes up as declared, serves applications, outlives a kill, and ends well."""

import errno as errnos
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from sidecar import daemon_codes
from sidemount.commands.conformance.children import APPLICATION, Holder, Late, Refused, ask
from sidemount.commands.conformance.finding import CannotTry, Finding, NotAsDeclared, Verdict
from sidemount.commands.conformance.running import Running
from sidemount.commands.conformance.scene import Scene, found, untried
from sidemount.model.names import view_name
from sidemount.model.redaction import spellings

CHECKS = ("starts", "descriptor", "user", "secrecy", "list", "write", "read", "non-root", "view", "kill", "signals", "end")  # fmt: skip
_LOST = frozenset(
    {errnos.ENOTCONN, errnos.ECONNABORTED, errnos.EIO, errnos.ESTALE, errnos.EBADF, errnos.ENODEV}
)
_REFUSED = frozenset({errnos.EROFS, errnos.EACCES, errnos.EPERM})
_KILLED = 128
_OWN_CODES = (daemon_codes.NOT_STARTED, daemon_codes.NOT_FLUSHED)
_WORKED_S = 1.2  # a client that lived shorter is not started again in its container
_SIGNALLED_S = 1.0
_ANSWER_S = 10.0
_LISTED_S = 5.0
_SIZE = 1 << 20
CONTENT = hashlib.shake_256(b"sidemount").digest(_SIZE)
LAST = b"written just before the end\n"
INNER = "inner"


def try_serving(scene: Scene, *, is_only: bool) -> Iterator[Finding]:
    """Yield the findings of the first stand; the only one takes away what it has written."""
    with scene.stand("main") as stand:
        why = stand.wait_live(scene.timeout_s)
        if why:
            yield from _not_live(scene, why)
            return
        live_at = time.monotonic()
        yield Finding(check="starts", verdict=Verdict.OK, reason="live by the keeper's probe")
        checks = {
            "descriptor": lambda: _descriptor(scene),
            "user": lambda: _user(scene, stand),
            "secrecy": lambda: _secrecy(scene, stand),
            "list": lambda: _list(stand),
            "write": lambda: _write(scene, stand),
            "read": lambda: _read(scene, stand),
            "non-root": lambda: _non_root(scene, stand),
            "view": lambda: _view(scene, stand),
            "kill": lambda: _kill(scene, stand, live_at),
            "signals": lambda: _signals(scene, stand, is_only=is_only),
            "end": lambda: _end(scene, stand),
        }
        has_written = False
        for name, act in checks.items():
            if name == "signals" and is_only:
                yield found("clean-up", partial(clean_up, scene, stand, has_written=has_written))
            finding = found(name, act)
            has_written = has_written or (name == "write" and finding.verdict is Verdict.OK)
            yield finding


def _not_live(scene: Scene, why: str) -> Iterator[Finding]:
    """Tell what it does instead: a client that takes no descriptor, or one that could, is the most frequent mistake."""
    with scene.stand("contrary") as stand:
        is_contrary = scene.stands["main"].spec.command and not stand.wait_live(scene.timeout_s)
    yield Finding(check="starts", verdict=Verdict.FAILED, reason=why)
    if is_contrary and scene.descriptor:
        reason = "declared true, but the client serves no descriptor, it mounts by itself: set abilities.descriptor to false"
        yield Finding(check="descriptor", verdict=Verdict.FAILED, reason=reason)
    elif is_contrary:
        reason = "declared false, and the client cannot mount by itself, but serves a descriptor: set abilities.descriptor to true"
        yield Finding(check="descriptor", verdict=Verdict.FAILED, reason=reason)
    else:
        yield from untried(("descriptor",), "it comes up neither with a descriptor nor without")
    yield from untried(CHECKS[2:], "not reached: it does not come up")


def _descriptor(scene: Scene) -> str:
    """A class that could do without privilege should: that is seen by trying."""
    if scene.descriptor:
        return "serves the descriptor it is given, without privilege"
    with scene.stand("contrary") as stand:
        if not stand.wait_live(scene.timeout_s / 2):
            raise NotAsDeclared(
                "declared false, but it serves a descriptor, without privilege: set abilities.descriptor to true"
            )
    return "takes none, so it mounts by itself and its container is privileged"


def _user(scene: Scene, stand: Running) -> str:
    pid = stand.serving()
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    uid, rights = int(status["Uid"].split()[1]), int(status["CapEff"], 16)
    wanted = stand.stand.spec.uid
    if uid != wanted:
        raise NotAsDeclared(f"runs as uid {uid}, not {wanted}")
    if not scene.descriptor:
        return "runs as root, privileged"
    if rights and not scene.capabilities:
        raise NotAsDeclared(f"keeps capabilities ({rights:x}) that the class does not name")
    return f"runs as uid {uid}, " + (
        f"with {', '.join(scene.capabilities)}" if scene.capabilities else "without capabilities"
    )


def _secrecy(scene: Scene, stand: Running) -> str:
    hidden = spellings(stand.stand.secrets.values())
    if not hidden:
        raise CannotTry("no credentials were given")
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            argv = Path(f"/proc/{entry}/cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if any(each in argv for each in hidden):
            raise NotAsDeclared(
                f"a credential is in the arguments of {argv.split(chr(0))[0]}, where everybody reads it"
            )
    for process in (stand.keeper, stand.daemon):
        environment = Path(f"/proc/{process.pid}/environ").read_bytes().decode("utf-8", "replace")
        if any(each in environment for each in hidden):
            raise NotAsDeclared("a credential is in the pod's environment")
    return "no credential in any argument, nor in the pod's environment"


def _list(stand: Running) -> str:
    names = ask(lambda: len(os.listdir(stand.root)), within_s=_ANSWER_S)
    return f"{names} names at the top"


def _write(scene: Scene, stand: Running) -> str:
    if scene.is_source_read_only:
        raise CannotTry("the source is said to be read-only")
    here = f"{stand.root}/{scene.directory}"

    def write() -> int:
        os.umask(0)
        os.mkdir(here)
        os.mkdir(f"{here}/{INNER}")
        for path in (f"{here}/whole", f"{here}/{INNER}/whole"):
            with open(path, "xb") as file:
                file.write(CONTENT)
                file.flush()
                os.fsync(file.fileno())
        return 1

    try:
        ask(write, within_s=scene.timeout_s)
    except Refused as error:
        hint = "if the source is read-only, say --read-only"
        raise NotAsDeclared(f"a directory and a file of 1 MiB cannot be made: {error}; {hint}") from error
    with suppress(Refused):  # for an application of any user; many have modes of their own, and refuse
        ask(lambda: os.chmod(here, 0o777), within_s=scene.timeout_s)  # noqa: S103
    return "made two directories, wrote 1 MiB twice, fsync"


def _read(scene: Scene, stand: Running) -> str:
    if scene.is_source_read_only:
        size = ask(lambda: _some_file(stand.root), within_s=scene.timeout_s)
        return f"read {size} bytes of a file" if size >= 0 else _no_file()
    here = f"{stand.root}/{scene.directory}"
    is_same = ask(lambda: Path(f"{here}/whole").read_bytes() == CONTENT, within_s=scene.timeout_s)
    names = ask(lambda: sorted(os.listdir(here)), within_s=_ANSWER_S)
    if not is_same:
        raise NotAsDeclared("what was written is not what is read")
    if names != [INNER, "whole"]:
        raise NotAsDeclared(f"a directory with two names lists {names}")
    return "byte by byte what was written"


def _no_file() -> str:
    raise CannotTry("the source has no file near its top")


def _some_file(root: str) -> int:
    """Return the size of what was read of the first file near the top, -1 if there is none."""
    for at, names, files in os.walk(root):
        names[:] = sorted(names)[:8] if at.count("/") - root.count("/") < 2 else []
        for name in sorted(files):
            with open(f"{at}/{name}", "rb") as file:
                return len(file.read(_SIZE))
    return -1


def _non_root(scene: Scene, stand: Running) -> str:
    if scene.is_source_read_only:
        ask(lambda: os.listdir(stand.root), within_s=_ANSWER_S, uid=APPLICATION)
        return f"uid {APPLICATION} lists it"
    here = f"{stand.root}/{scene.directory}"
    size = ask(lambda: len(Path(f"{here}/whole").read_bytes()), within_s=scene.timeout_s, uid=APPLICATION)

    def write() -> int:
        return Path(f"{here}/{INNER}/by-another").write_bytes(b"x" * 100)

    try:
        ask(write, within_s=scene.timeout_s, uid=APPLICATION)
    except Refused as error:
        if error.errno not in _REFUSED:
            raise
        return f"uid {APPLICATION} reads {size} bytes; by the modes shown it may not write"
    return f"uid {APPLICATION} reads {size} bytes, and writes"


def _view(scene: Scene, stand: Running) -> str:
    """The read-only view of a volume that is writable."""
    place = stand.place(view_name(stand.stand.spec.volume, "", True))
    ask(lambda: os.listdir(place), within_s=_ANSWER_S)
    expect_refusal(f"{place}/{scene.directory}-refused", scene)
    return "the read-only view of the writable volume refuses a write"


def expect_refusal(path: str, scene: Scene) -> None:
    """See that a directory cannot be made there. Raises NotAsDeclared, Late, Refused for another reason than a refusal of writes."""
    try:
        ask(lambda: os.mkdir(path), within_s=scene.timeout_s)
    except Refused as error:
        if error.errno in _REFUSED:
            return
        raise
    raise NotAsDeclared("a write to a read-only place succeeds")


def _kill(scene: Scene, stand: Running, live_at: float) -> str:
    time.sleep(max(0.0, live_at + _WORKED_S - time.monotonic()))
    path = f"{stand.root}/{scene.directory}/whole"
    what = path if not scene.is_source_read_only else stand.root
    holder = Holder(lambda: os.open(what, os.O_RDONLY), within_s=_ANSWER_S)
    try:
        before, pid = stand.connection(), stand.serving()
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        lost = _after_death(scene, stand, holder, pid, is_file=not scene.is_source_read_only)
        took_s = time.monotonic() - killed
    finally:
        holder.end()
    if scene.takeover:
        if lost or stand.connection() != before:
            raise NotAsDeclared(
                f"declares takeover, but a file that was open is lost ({lost or 'another connection'}): set abilities.takeover to false"
            )
        return f"a successor continues the same connection; open files stay ({took_s:.1f} s)"
    if stand.connection() == before and not lost:
        raise NotAsDeclared("the connection outlived the client that served it")
    return f"started again and mounted anew in {took_s:.1f} s; what was open fails with {lost or 'nothing'}"


def _after_death(scene: Scene, stand: Running, holder: Holder, pid: int, *, is_file: bool) -> str:
    """Return what became of the open file, "" if it can still be read, once the volume answers again."""
    scene.until(lambda: is_replaced(stand, pid), "another process serves")
    if is_file:
        path = f"{stand.root}/{scene.directory}/whole"
        scene.until(
            lambda: ask(lambda: Path(path).read_bytes() == CONTENT, within_s=_ANSWER_S),
            "the file can be read again",
        )
    else:
        scene.until(
            lambda: ask(lambda: [os.listdir(stand.root)], within_s=_ANSWER_S), "it can be listed again"
        )
        return "ENOTCONN" if not scene.takeover else ""
    try:
        holder.read()
    except Refused as error:
        if error.errno not in _LOST:
            raise
        return errnos.errorcode[error.errno]
    except Late as error:
        raise NotAsDeclared("a file that was open hangs after the client's death") from error
    return ""


def is_replaced(stand: Running, pid: int) -> bool:
    """Tell whether another process serves. A container that has ended is kubelet's to start again: on a busy machine one may."""
    stand.restart_ended()
    return stand.serving() not in (0, pid)


def clean_up(scene: Scene, stand: Running, *, has_written: bool) -> str:
    """Take away what the check has made in the source."""
    if not has_written:
        raise CannotTry("nothing was written")
    here = f"{stand.root}/{scene.directory}"

    def remove() -> bool:
        shutil.rmtree(here)
        return not os.path.lexists(here)

    if not ask(remove, within_s=scene.timeout_s):
        raise NotAsDeclared(f"{scene.directory} cannot be removed from the source")
    return "files and directories are removed"


def _signals(scene: Scene, stand: Running, *, is_only: bool) -> str:
    """SIGTERM comes while something is open. A client that is asked nothing more is let go; whatever it does, nobody hangs."""
    holder = Holder(lambda: os.open(stand.root, os.O_RDONLY | os.O_DIRECTORY), within_s=_ANSWER_S)
    try:
        last = f"{stand.root}/{scene.directory}/last"
        if not scene.is_source_read_only and not is_only:
            ask(lambda: Path(last).write_bytes(LAST), within_s=scene.timeout_s)
        stand.daemon.send_signal(signal.SIGTERM)
        time.sleep(_SIGNALLED_S)
        served = _served(scene, stand)
    finally:
        holder.end()
    _check_code(stand.daemon.poll(), "SIGTERM ends it")
    return served


def _served(scene: Scene, stand: Running) -> str:
    """Return what an application sees after SIGTERM. Raises NotAsDeclared where it hangs."""
    try:
        ask(lambda: os.listdir(stand.root), within_s=_LISTED_S)
    except Refused as error:
        if error.errno not in _LOST:
            raise
        return f"SIGTERM while a directory is open: ends, and applications see {errnos.errorcode[error.errno]}, nobody hangs"
    except Late as error:
        if not scene.takeover or stand.daemon.poll() != 0:
            raise NotAsDeclared("an application hangs after SIGTERM") from error
        stand.restart_ended()
        scene.until(
            lambda: ask(lambda: [os.listdir(stand.root)], within_s=_ANSWER_S), "the next daemon answers"
        )
        return "SIGTERM while a directory is open: ends; what is asked waits for the next daemon, which answers it"
    return "SIGTERM while a directory is open: serves on until it is let go"


def _end(scene: Scene, stand: Running) -> str:
    ending = stand.end()
    if ending.left:
        raise NotAsDeclared(f"leaves {', '.join(ending.left)}")
    if ending.keeper is None or ending.daemon is None:
        raise NotAsDeclared("does not end within the time of a pod's end, and had to be killed")
    if ending.keeper != 0:
        raise NotAsDeclared(f"the keeper ends with code {ending.keeper}")
    _check_code(ending.daemon, "the client ends, told to,")
    unclean = f"; with code {ending.daemon}, which our log takes for an unclean end" if ending.daemon else ""
    return f"in {ending.took_s:.1f} s, nothing left mounted or running{unclean}"


def _check_code(code: int | None, what: str) -> None:
    """Some programs end with a code of failure whenever a signal ends them. Killed or crashed is another matter."""
    if code is not None and (code >= _KILLED or code in _OWN_CODES):
        raise NotAsDeclared(f"{what} with code {code}: it had to be killed, or crashed")
