"""A keeper or a daemon of a release that knows no numbers and passes nothing through: `earlier_release keeper|daemon`, then its arguments."""

import sys
from importlib import import_module

from sidemount.host import wire
from sidemount.host.wire import Kind
from sidemount.model.errors import BadMessage

_parse = wire.parse


def _parse_as_then(data: bytes, *, truncated: bool = False) -> tuple[Kind, bytes]:
    kind, body = _parse(data, truncated=truncated)
    if kind > Kind.SOURCE:
        raise BadMessage(f"a frame of unknown kind {kind}")
    return kind, body


if __name__ == "__main__":
    which, *arguments = sys.argv[1:]
    vars(wire)["parse"] = _parse_as_then
    module = import_module(f"sidecar.{which}")
    if which == "daemon":  # a keeper's interpreter has no more than the standard library
        import_module("sidecar.daemon_runtime").load_pyfuse3("poll")
        import_module("sidecar.spare_line").SpareLine.tell_numbers = lambda _: None  # nobody counted then
        import_module("sidecar.spare")._Service._passes_through = lambda _: (
            False
        )  # nor passed anything through
    sys.exit(module.main(arguments))
