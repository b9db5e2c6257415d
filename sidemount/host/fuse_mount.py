"""A FUSE connection of our own: the descriptor a daemon serves, and the mount, made before anyone can see it.

The mount is attached only once a daemon answers, so a process that looks at the place never hangs on a connection
that nobody serves yet. Source: https://www.kernel.org/doc/html/latest/filesystems/fuse/fuse.html
"""

import contextlib
import errno as errnos
import os
import select
from dataclasses import dataclass

from sidemount.host import mount_api, syscalls
from sidemount.host.fuse_init import is_init
from sidemount.host.mount_table import connection_of, mount_id_of
from sidemount.model.errors import HostFailure
from sidemount.model.names import FUSE_SUBTYPE

_DEVICE = "/dev/fuse"
_READ_BYTES = 1 << 17  # the kernel refuses a buffer below 8 KiB
_INIT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """What the kernel is told about one mount. `source` is what mountinfo shows: who it belongs to."""

    source: str
    read_only: bool = False
    selinux_context: str = ""


@dataclass(slots=True)
class FuseConnection:
    """An open connection. Owns both descriptors; `mount` is -1 once given up, `device` stays for its whole life.

    `init` is the kernel's first message, which the keeper takes and every daemon is given; b"" if it was left in the
    queue. `staged_at` is where a kernel before 5.2 had to put the mount meanwhile.
    """

    device: int
    mount: int
    init: bytes
    staged_at: str = ""

    def attach(self, target: str) -> int:
        """Show the mount at `target`, on top of whatever is mounted there, and return its mount id."""
        mount_id = mount_id_of(self.mount)
        if self.staged_at:
            mount_api.mount(self.staged_at, target, "", mount_api.MS_MOVE)
            os.rmdir(self.staged_at)
            self.staged_at = ""
        else:
            mount_api.move_mount(self.mount, target)
        return mount_id

    def release_mount(self) -> None:
        """Close the mount's descriptor: it pins the mount. Attached it lives on; not attached it ends here."""
        if self.staged_at:
            mount_api.detach(self.staged_at)
            os.rmdir(self.staged_at)
            self.staged_at = ""
        if self.mount >= 0:
            os.close(self.mount)
            self.mount = -1

    def close(self) -> None:
        """Give up both descriptors. A connection that no daemon holds either is then aborted by the kernel."""
        self.release_mount()
        os.close(self.device)

    @property
    def is_gone(self) -> bool:
        """Tell whether the kernel has ended the connection (aborted, or its last mount is gone)."""
        return is_connection_gone(self.device)

    @property
    def number(self) -> int | None:
        """Return the connection's number where the kernel tells it by the descriptor."""
        return connection_of(self.device)


def open_connection(plan: MountPlan, *, read_init: bool, staging: str) -> FuseConnection:
    """Return a new connection whose mount is attached nowhere.

    `read_init`: take the kernel's first message; False leaves it for a client that wants to read it itself. `staging`
    is a directory for kernels before 5.2. Raises HostFailure.
    """
    device = open_device()
    try:
        try:
            mount, staged_at = _new_mount(plan, device), ""
        except HostFailure as error:
            if error.errno != errnos.ENOSYS:
                raise
            mount, staged_at = _staged_mount(plan, device, staging)
        connection = FuseConnection(device, mount, b"", staged_at)
        try:
            if read_init:
                connection.init = _read_init(device)
        except BaseException:
            connection.release_mount()
            raise
    except BaseException:
        os.close(device)
        raise
    return connection


def open_device() -> int:
    """Open /dev/fuse. Raises HostFailure that says what to do."""
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise HostFailure(
            f"open {_DEVICE}: {error.strerror}",
            errno=error.errno or 0,
            hint="the node needs the fuse module (modprobe fuse), and the keeper must be privileged",
        ) from error


def is_connection_gone(device: int) -> bool:
    """Tell whether the kernel has ended the connection of an open /dev/fuse."""
    poller = select.poll()
    poller.register(device, 0)
    return bool(poller.poll(0))


def _new_mount(plan: MountPlan, device: int) -> int:
    context = mount_api.fsopen("fuse")
    try:
        for key, value in _parameters(plan, device):
            mount_api.fsconfig_string(context, key, value)
        for flag in ("allow_other", "default_permissions", *(("ro",) if plan.read_only else ())):
            mount_api.fsconfig_flag(context, flag)
        mount_api.fsconfig_create(context)
        attributes = mount_api.MOUNT_ATTR_NOSUID | mount_api.MOUNT_ATTR_NODEV
        if plan.read_only:
            attributes |= mount_api.MOUNT_ATTR_RDONLY
        return mount_api.fsmount(context, attributes)
    finally:
        os.close(context)


def _parameters(plan: MountPlan, device: int) -> tuple[tuple[str, str], ...]:
    # "fd" as a string: kernel 6.18 refuses FSCONFIG_SET_FD for it. "subtype" after "source", as mount(8) does.
    parameters = (
        ("source", plan.source),
        ("subtype", FUSE_SUBTYPE),
        ("fd", str(device)),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
    )
    return (*parameters, ("context", plan.selinux_context)) if _has_context(plan) else parameters


def _has_context(plan: MountPlan) -> bool:
    # A node without SELinux refuses the parameter; a pod with seLinuxOptions must run there all the same.
    return bool(plan.selinux_context) and os.path.isdir("/sys/fs/selinux/class")


def _staged_mount(plan: MountPlan, device: int, staging: str) -> tuple[int, str]:
    """Mount with mount(2) in a private directory, from where it can be moved once it answers."""
    place = _staging_place(staging)
    flags = mount_api.MS_NOSUID | mount_api.MS_NODEV | (mount_api.MS_RDONLY if plan.read_only else 0)
    options = [
        f"fd={device}",
        "rootmode=40000",
        "user_id=0",
        "group_id=0",
        "allow_other",
        "default_permissions",
    ]
    if _has_context(plan):
        options.append(f'context="{plan.selinux_context}"')
    try:
        mount_api.mount(plan.source, place, f"fuse.{FUSE_SUBTYPE}", flags, ",".join(options))
    except HostFailure:
        os.rmdir(place)
        raise
    return os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), place


def _staging_place(staging: str) -> str:
    # MS_MOVE refuses a mount whose parent is shared: the directory gets a private mount of its own.
    if not os.path.ismount(staging):
        with contextlib.suppress(FileExistsError):
            os.mkdir(staging, 0o700)
        mount_api.mount(
            "sidemount-staging",
            staging,
            "tmpfs",
            mount_api.MS_NOSUID | mount_api.MS_NODEV,
            "size=64k,mode=700",
        )
        mount_api.mount("", staging, "", mount_api.MS_PRIVATE)
    for number in range(1 << 16):
        place = f"{staging}/{number}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700)
            return place
    raise syscalls.failure("mkdir", staging, errnos.ENOSPC)


def _read_init(device: int) -> bytes:
    """Return the kernel's FUSE_INIT. Raises HostFailure if none comes in time or it is something else."""
    poller = select.poll()
    poller.register(device, select.POLLIN)
    events = poller.poll(_INIT_WAIT_S * 1000)
    if not events or not events[0][1] & select.POLLIN:
        raise HostFailure(f"{_DEVICE}: no FUSE_INIT within {_INIT_WAIT_S:g} s", errno=errnos.ETIMEDOUT)
    try:
        message = os.read(device, _READ_BYTES)
    except OSError as error:
        raise syscalls.failure("read", _DEVICE, error.errno or 0) from error
    if not is_init(message):
        raise HostFailure(f"{_DEVICE}: the first message is not FUSE_INIT", errno=errnos.EPROTO)
    return message
