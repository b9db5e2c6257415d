"""One file, link or special file of a volume, copied with everything that it has: content and holes, owner, mode, times, attributes.

Shares its blocks where the filesystem can (FICLONE: btrfs, xfs), else copies them in the kernel.
"""

import contextlib
import errno
import fcntl
import os
import stat

from csi.volume_tree import Stop, check_going_on

_FICLONE = 0x40049409
_NO_CLONE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ETXTBSY}
)
_NO_RANGE = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_CHUNK = 16 << 20
_BUFFER = 1 << 20
_NO_ATTRIBUTES = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
_KEPT = ("user.", "trusted.", "security.capability", "system.posix_acl_")
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def copy_entry(source: int, target: int, name: str, status: os.stat_result, stop: Stop) -> bool:
    """Make in the open directory `target` what has that name in `source`; nothing may be there. Return whether it stood still.

    `status` is of before. Raises OSError, NotReady.
    """
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        return _copy_file(source, target, name, status, stop)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    else:
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
    _give_to_path(source, target, name, status)
    return _same(os.stat(name, dir_fd=source, follow_symlinks=False), status)


def give_directory(source: int, target: int, status: os.stat_result) -> None:
    """Give an open directory what another one has. Raises OSError."""
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    _copy_attributes(source, target, is_link=False)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_file(source: int, target: int, name: str, status: os.stat_result, stop: Stop) -> bool:
    with contextlib.ExitStack() as stack:
        reader = os.open(name, _READ, dir_fd=source)
        stack.callback(os.close, reader)
        if not _same(os.fstat(reader), status):
            return False  # nothing is there yet, so that it is looked at again
        writer = os.open(name, _NEW, 0o600, dir_fd=target)
        stack.callback(os.close, writer)
        if not _clone(reader, writer):
            _copy_content(reader, writer, status.st_size, stop)
        os.fchown(writer, status.st_uid, status.st_gid)
        os.fchmod(writer, stat.S_IMODE(status.st_mode))
        _copy_attributes(reader, writer, is_link=False)
        os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        return _same(os.fstat(reader), status)


def _same(now: os.stat_result, then: os.stat_result) -> bool:
    return (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) == (
        then.st_ino,
        then.st_size,
        then.st_mtime_ns,
        then.st_ctime_ns,
    )


def _clone(reader: int, writer: int) -> bool:
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
        return False
    return True


def _copy_content(reader: int, writer: int, size: int, stop: Stop) -> None:
    """Copy what is no hole."""
    os.ftruncate(writer, size)
    at = 0
    while at < size:
        try:
            begin = os.lseek(reader, at, os.SEEK_DATA)
            end = min(size, os.lseek(reader, begin, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            raise
        if begin >= size:
            return
        _copy_range(reader, writer, begin, end, stop)
        at = end


def _copy_range(reader: int, writer: int, begin: int, end: int, stop: Stop) -> None:
    in_kernel = True
    while begin < end:
        check_going_on(stop)
        copied = 0
        if in_kernel:
            try:
                copied = os.copy_file_range(reader, writer, min(_CHUNK, end - begin), begin, begin)
            except OSError as error:
                if error.errno not in _NO_RANGE:
                    raise
                in_kernel = False
        if not copied:
            # Also where the kernel says that nothing is there: some filesystems do so instead of failing.
            content = os.pread(reader, min(_BUFFER, end - begin), begin)
            if not content:
                return  # cut meanwhile: it is looked at again
            copied = os.pwrite(writer, content, begin)
        begin += copied


def _give_to_path(source: int, target: int, name: str, status: os.stat_result) -> None:
    os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
    is_link = stat.S_ISLNK(status.st_mode)
    if not is_link:
        os.chmod(f"/proc/self/fd/{target}/{name}", stat.S_IMODE(status.st_mode))
    _copy_attributes(f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{target}/{name}", is_link=True)
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)


def _copy_attributes(source: int | str, target: int | str, *, is_link: bool) -> None:
    wanted = {name for name in _attributes(source, is_link=is_link) if name.startswith(_KEPT)}
    for name in _attributes(target, is_link=is_link):
        if name.startswith(_KEPT) and name not in wanted:
            os.removexattr(target, name, follow_symlinks=not is_link)
    for name in sorted(wanted):
        try:
            value = os.getxattr(source, name, follow_symlinks=not is_link)
        except OSError as error:
            if error.errno == errno.ENODATA:  # removed meanwhile: it is looked at again
                continue
            raise
        os.setxattr(target, name, value, follow_symlinks=not is_link)


def _attributes(place: int | str, *, is_link: bool) -> list[str]:
    try:
        return os.listxattr(place, follow_symlinks=not is_link)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return []
        raise
