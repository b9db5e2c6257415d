"""Who owns a new file, and which set-id bits a file keeps: what the kernel would do for the caller in the bare directory.

The daemon makes files as itself and gives them away. It keeps CAP_FSETID, without which it could not set the set-group-id bit for a caller
who may; so the store's kernel does not drop set-id bits for it, and that is done here.
"""

import stat

from sidecar.directory.status import Found, kind_of
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import Caller

_SET_IDS = stat.S_ISUID | stat.S_ISGID
_ACCESS_ACL = b"system.posix_acl_access"


def give(store: Store, fd: int, found: Found, directory: int, mode: int, caller: Caller) -> Found:
    """Give a new file, which is `found`, to its caller and set what bits of `mode` its making left out. Return what it is then.

    Its group stays if the store took it from the directory (set-group-id, or a filesystem that always does).
    """
    uid, gid = found.attributes.uid, found.attributes.gid
    if store.powers.chown:
        wanted_gid = gid if _inherits_group(store, directory, gid) else caller.gid
        if (uid, gid) != (caller.uid, wanted_gid):
            store.chown(fd, caller.uid if uid != caller.uid else -1, wanted_gid if gid != wanted_gid else -1)
            found = store.status(fd, b"")
    missing = mode & (_SET_IDS | stat.S_ISVTX) & ~found.attributes.mode
    if missing and kind_of(found.identity) != stat.S_IFLNK >> 12:
        store.chmod(fd, found.attributes.mode | missing)
        found = store.status(fd, b"")
    return found


def drop_privileges(store: Store, fd: int) -> None:
    """Take the set-id bits away that a write, by somebody without CAP_FSETID, takes away."""
    if not store.powers.fsetid:
        return  # the kernel has done it
    mode = store.status(fd, b"").attributes.mode
    kept = without_privileges(mode)
    if kept != mode:
        store.chmod(fd, kept)


def drop_capabilities(store: Store, fd: int) -> None:
    """Take the capabilities of a program away. A change of owner does, even where removing them takes CAP_SETFCAP."""
    mode = stat.S_IMODE(store.status(fd, b"").attributes.mode)
    store.chown(fd, -1, -1)
    if mode & _SET_IDS:
        store.chmod(fd, mode)


def without_privileges(mode: int) -> int:
    """Return a mode without set-user-id, and without set-group-id where it means anything."""
    kept = mode & ~stat.S_ISUID
    return kept & ~stat.S_ISGID if mode & stat.S_IXGRP else kept


def drop_group_id_after_acl(store: Store, fd: int, name: bytes, caller: Caller) -> None:
    """Take the set-group-id bit away after an access ACL was set by somebody of another group.

    Other groups of the caller are not known here, so it may be taken once too often, never once too seldom.
    """
    if name != _ACCESS_ACL or caller.uid == 0 or not store.powers.fsetid:
        return
    attributes = store.status(fd, b"").attributes
    if attributes.mode & stat.S_ISGID and attributes.gid != caller.gid and not stat.S_ISDIR(attributes.mode):
        store.chmod(fd, attributes.mode & ~stat.S_ISGID)


def _inherits_group(store: Store, directory: int, gid: int) -> bool:
    if gid != store.powers.gid:
        return True
    above = store.status(directory, b"").attributes
    return above.gid == gid and bool(above.mode & stat.S_ISGID)
