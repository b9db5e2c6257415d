"""Fresh namespaces for a node, how to enter them, and what lives in them."""

import os
import subprocess
import sys
from pathlib import Path

from e2e.cluster.places import SOURCE, ClusterPlaces

_LAUNCH_S = 60.0
_KINDS = {"-m": "mnt", "-n": "net", "-p": "pid", "-i": "ipc", "-u": "uts"}


def launch(spec: Path, log: Path, lock: int) -> None:
    """Start the first process of a node in namespaces of its own. It is no child of this process, and lives on when this one ends.

    `lock` is a descriptor that everything of the node's own holds.
    """
    argv = [
        "setsid", "--fork", "unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc",
        "--propagation", "private", "--",
        sys.executable, "-m", "e2e.cluster.node_init", str(spec), str(lock),
    ]  # fmt: skip
    with log.open("ab") as output:
        subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(lock,),
            cwd=SOURCE,
            check=True,
            timeout=_LAUNCH_S,
        )


def entering(pid: int) -> tuple[str, ...]:
    """Return what to put before a command so that it runs in the node. `--chdir`: nsenter lands in the root otherwise."""
    return ("nsenter", "-t", str(pid), *_KINDS, "--")


def entering_network(pid: int) -> tuple[str, ...]:
    """Return what to put before a command that only has to reach the node's addresses."""
    return ("nsenter", "-t", str(pid), "-n", "--")


def pid_namespace(pid: int | str) -> int:
    """Return what tells the PID namespace of a process from all others. Raises OSError when it is gone."""
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def processes_of(namespace: int) -> tuple[int, ...]:
    """Return the processes of a PID namespace that have not ended, by their numbers here."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                # The namespaces of one that has ended and waits to be reaped can no longer be read.
                if pid_namespace(name) == namespace:
                    found.append(int(name))
            except OSError:
                continue
    return tuple(sorted(found))


def first_processes_of(places: ClusterPlaces) -> tuple[int, ...]:
    """Return what was started as first processes of the cluster's nodes, and their parents, by their command lines."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = (
                Path(f"/proc/{name}/cmdline").read_text(errors="replace").split("\0")
                if name.isdecimal()
                else []
            )
        except OSError:
            continue
        if "e2e.cluster.node_init" in words and any(
            Path(word).is_relative_to(places.config) for word in words if word
        ):
            found.append(int(name))
    return tuple(found)
