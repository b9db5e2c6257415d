"""`python -m csi node`: start the CSI services. `keeper` is what the node service starts by itself."""

import os
import sys
from collections.abc import Mapping, Sequence

EXIT_BAD_INPUT = 2
EXIT_CANNOT_START = 3


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Serve until a signal; return the exit code: 0 ended, 2 the settings are wrong, 3 it could not start."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Only what each of them needs: the keeper is small, and must not have gRPC's threads.
    if arguments[:1] == ["keeper"]:
        from csi.keeper_entry import run

        return run(arguments[1:])
    # gRPC would meddle with every child that is started, and none of ours uses it.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    # A trace may show what calls bring, and that may be a secret.
    os.environ.pop("GRPC_TRACE", None)
    if arguments[:1] == ["probe"]:
        from csi.probe_entry import run as run_probe

        return run_probe(arguments[1:])
    from csi.plugin_entry import run as run_plugin

    return run_plugin(arguments, os.environ if environ is None else environ)


if __name__ == "__main__":
    sys.exit(main())
