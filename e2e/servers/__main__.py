"""`python -m e2e.servers build` makes what the servers need; `run NAME` runs one until it is interrupted, for a look by hand."""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from e2e.clients.servers import GCSFUSE
from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.servers.azurite import azurite
from e2e.servers.fake_gcs import fake_gcs
from e2e.servers.nginx import nginx_s3
from e2e.servers.process import ServerFault
from e2e.servers.seaweedfs import seaweedfs
from e2e.servers.tools import FAKE_GCS, VERSITYGW, azurite_argv, go_program
from e2e.servers.versity import versity

_SERVERS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "seaweedfs": seaweedfs,
    "versity": versity,
    "nginx": nginx_s3,
    "fake-gcs": fake_gcs,
    "azurite": azurite,
}
_NOTHING_HERE = 3  # as `python -m e2e.cluster` says it


def main(argv: Sequence[str] | None = None) -> int:
    """Do it. 3 if this machine lacks what a server needs, 1 if it does not work."""
    parser = argparse.ArgumentParser(prog="python -m e2e.servers", description=__doc__)
    orders = parser.add_subparsers(dest="order", required=True)
    orders.add_parser("build", help="build and install what the servers need, and gcsfuse")
    run = orders.add_parser("run", help="run one in a directory that is gone afterwards")
    run.add_argument("name", choices=sorted(_SERVERS))
    arguments = parser.parse_args(argv)
    try:
        if arguments.order == "build":
            _build()
        else:
            _run(arguments.name)
    except (ClusterFault, ServerFault) as fault:
        print(f"servers: {fault}", file=sys.stderr)
        return _NOTHING_HERE if isinstance(fault, MachineLacks) else 1
    except KeyboardInterrupt:
        pass
    return 0


def _build() -> None:
    """Make everything that this machine can; raise the first fault at the end."""
    faults: list[ClusterFault] = []
    makers: list[Callable[[], object]] = [azurite_argv]
    makers += [partial(go_program, module) for module in (VERSITYGW, FAKE_GCS, GCSFUSE)]
    for make in makers:
        try:
            make()
        except ClusterFault as fault:
            faults.append(fault)
    if faults:
        raise faults[0]


def _run(name: str) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=f"{name}-") as directory,
        _SERVERS[name](Path(directory)) as place,
    ):
        print(place, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
