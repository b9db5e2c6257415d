"""Becomes a mount pod's container: its volume `comm` of a node, nothing else of that node, and no more rights than it is given.

Arguments: the node's process, comm's path there, the node's directory (hidden), where comm is to be, uid, capabilities, then argv.
"""

import ctypes
import os
import sys

from sidemount.host import mount_api

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def main() -> None:
    """Never return."""
    node, comm, hidden, run_path, uid, capabilities, *argv = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    theirs = os.open(f"/proc/{node}/ns/mnt", os.O_RDONLY)
    assert libc.unshare(_CLONE_NEWNS) == 0
    mount_api.mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    ours = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    assert libc.setns(theirs, _CLONE_NEWNS) == 0
    directory = os.open(comm, os.O_PATH | os.O_DIRECTORY)
    clone = mount_api.open_tree_clone(directory, comm)
    os.close(directory)
    assert libc.setns(ours, _CLONE_NEWNS) == 0
    mount_api.mount("none", hidden, "tmpfs", 0)
    parent = os.path.dirname(run_path)
    mount_api.mount("none", parent, "tmpfs", 0)
    os.makedirs(run_path)
    mount_api.move_mount(clone, run_path)
    os.close(clone)
    os.chdir("/")
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities.split(",") if name)])
    os.execvp(
        "setpriv",
        [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={uid}",
            "--clear-groups",
            f"--bounding-set={kept}",
            f"--inh-caps={kept}",
            f"--ambient-caps={kept}",
            "--no-new-privs",
            *argv,
        ],
    )


if __name__ == "__main__":
    main()
