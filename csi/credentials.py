"""Credentials as files of a daemon: never on a disk, replaced at once and as a whole, whatever a daemon has put in their place."""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping

from csi.faults import WrongState
from csi.hidden_texts import HiddenTexts
from csi.targets import is_within
from sidemount.host.mount_table import read_mount_table
from sidemount.model.errors import HostFailure, InvalidRequest, shown

_MODE = 0o400
_MAX_BYTES = 1 << 20
_ASIDE = ".new-"  # no key of a class begins so
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def check_credentials(volume_id: str, secrets: Mapping[str, str], state_dir: str) -> None:
    """See that credentials stay in memory. Raises WrongState."""
    if secrets and not _is_in_memory(state_dir):
        raise WrongState(
            f"volume {volume_id}: credentials are never written to a disk, and {state_dir} is on one",
            hint="put --state-dir on a tmpfs, such as /run",
        )


def write_credentials(directory: str, secrets: Mapping[str, str], uid: int) -> None:
    """Write credentials, readable for `uid` alone. Raises HostFailure, InvalidRequest."""
    try:
        opened = os.open(directory, _DIRECTORY)
    except OSError as error:
        raise HostFailure(f"credentials: {error.strerror}", errno=error.errno or 0) from error
    try:
        write_credentials_at(opened, secrets, uid)
    finally:
        os.close(opened)


def renew_credentials(directory: str, secrets: Mapping[str, str], uid: int) -> HiddenTexts:
    """Write those anew that are there and have changed; return all that are there now. Raises HostFailure."""
    known = read_credentials(directory)
    changed = {key: secrets[key] for key, value in known.items() if key in secrets and secrets[key] != value}
    if changed:
        write_credentials(directory, changed, uid)
    return HiddenTexts({**known, **changed})


def read_credentials(directory: str) -> HiddenTexts:
    """Return what we have written to a directory. A daemon may own it, so nothing there is followed or waited for."""
    found = HiddenTexts()
    with contextlib.suppress(OSError):
        opened = os.open(directory, _DIRECTORY)
        try:
            for name in os.listdir(opened):
                content = None if name.startswith(_ASIDE) else _read(opened, name)
                if content is not None:
                    found[name] = content.decode("utf-8", "surrogateescape")
        finally:
            os.close(opened)
    return found


def write_credentials_at(directory: int, secrets: Mapping[str, str], uid: int) -> None:
    """Write credentials into an open directory that may be somebody else's as well: nothing there is followed, or waited for.

    One that is there already as it is to be is left.

    Raises HostFailure, InvalidRequest.
    """
    _remove_left(directory)
    for key, value in secrets.items():
        if "/" in key or key in (".", "..") or "\0" in key:
            raise InvalidRequest(f"credentials: {shown(key)} cannot be the name of a file")
        try:
            _write(directory, key, value.encode("utf-8", "surrogateescape"), uid)
        except OSError as error:
            raise HostFailure(f"credentials: {error.strerror}", errno=error.errno or 0) from error


def open_own_directory(parent: int, name: str) -> int:
    """Return a descriptor of a directory of ours in somebody else's, made if need be. Raises OSError if something else is there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    opened = os.open(name, _DIRECTORY, dir_fd=parent)
    status = os.fstat(opened)
    if status.st_uid != os.geteuid():
        os.fchown(opened, os.geteuid(), os.getegid())
    if stat.S_IMODE(status.st_mode) != 0o755:
        os.fchmod(opened, 0o755)
    return opened


def _read(directory: int, name: str) -> bytes | None:
    """Return a file's content, None if it is no file, or has just been replaced."""
    with _opened(directory, name) as descriptor:
        return None if descriptor is None else _content(descriptor)


def _is_there(directory: int, name: str, value: bytes, uid: int) -> bool:
    with _opened(directory, name) as descriptor:
        if descriptor is None:
            return False
        status = os.fstat(descriptor)
        is_private = (status.st_uid, stat.S_IMODE(status.st_mode), status.st_nlink) == (uid, _MODE, 1)
        return is_private and _content(descriptor) == value


@contextlib.contextmanager
def _opened(directory: int, name: str) -> Iterator[int | None]:
    """Give a file's descriptor, None for whatever is no file."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError:
        yield None
        return
    try:
        yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(_MAX_BYTES)


def _remove_left(directory: int) -> None:
    """Take away what a plugin has left that was killed while it wrote: it would be a copy that nobody renews."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.startswith(_ASIDE):
                os.unlink(name, dir_fd=directory)


def _write(directory: int, key: str, value: bytes, uid: int) -> None:
    if _is_there(directory, key, value, uid):
        return
    aside = f"{_ASIDE}{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(aside, flags, _MODE, dir_fd=directory)
    try:
        try:
            left = memoryview(value)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fchown(descriptor, uid, -1)
        finally:
            os.close(descriptor)
        os.rename(aside, key, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=directory)
        raise


def _is_in_memory(directory: str) -> bool:
    holder = max(
        (mount for mount in read_mount_table() if is_within(directory, mount.mount_point)),
        key=lambda mount: len(mount.mount_point),
    )
    return holder.fstype in ("tmpfs", "ramfs")
