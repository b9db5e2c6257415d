"""The caller's umask, which the kernel leaves to us (`sidecar.init_answer.InitFlag.DONT_MASK`)."""

from sidecar.protocol_filesystem import OperationAbsent, VirtualFilesystem

_DEFAULT_ACL = b"system.posix_acl_default"


async def without_umask(
    filesystem: VirtualFilesystem, parent: int, mode: int, umask: int, *, acl: bool
) -> int:
    """Return the mode of a new file: without the bits of the umask, unless a default ACL of `parent` takes its place.

    A kernel that has applied the umask already has left nothing to be taken away.
    """
    if not mode & umask or (acl and await _has_default_acl(filesystem, parent)):
        return mode
    return mode & ~umask


async def _has_default_acl(filesystem: VirtualFilesystem, directory: int) -> bool:
    try:
        return bool(await filesystem.getxattr(directory, _DEFAULT_ACL))
    except (OSError, OperationAbsent):  # there is none, or it cannot be told: then the umask is safer
        return False
