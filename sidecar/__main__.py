"""What a container of the pod runs: `python -m sidecar keeper | daemon | probe`; on a node without pods, `nursery`.

A daemon runs `client` for an external client that wants its credentials otherwise than as the Secret's files.
"""

import signal
import sys

_COMMANDS = ("keeper", "daemon", "probe", "client", "nursery")


def main() -> int:
    """Run the command named by the first argument and return its exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in ("keeper", "daemon"):
        # Before anything slow: the kernel drops a signal for a container's first process that has no handler yet, and a
        # keeper that misses the end of its pod leaves mounts behind. Both unblock them when they can take them.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    # Only the command's own modules: a probe runs every second and the keeper's memory is counted in every pod.
    if command == "keeper":
        from sidecar.keeper import main as keeper

        return keeper(sys.argv[2:])
    if command == "daemon":
        from sidecar.daemon import main as daemon

        return daemon(sys.argv[2:])
    if command == "probe":
        from sidecar.probe import main as probe

        return probe(sys.argv[2:])
    if command == "client":
        from sidecar.client import main as client

        return client(sys.argv[2:])
    if command == "nursery":
        from sidecar.nursery import main as nursery

        return nursery(sys.argv[2:])
    sys.stderr.write(f"usage: python -m sidecar {{{','.join(_COMMANDS)}}} ...\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
