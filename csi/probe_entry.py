"""`python -m csi probe`: asks a running service whether it is well, as kubelet's probes of its container do."""

import argparse
import sys
from collections.abc import Sequence

import grpc

from csi.endpoint import grpc_address, parse_endpoint
from csi.identity import SERVICE
from csi.proto import csi_pb2

EXIT_UNWELL = 1
_WITHIN_S = 8.0


def run(argv: Sequence[str]) -> int:
    """Return 0 if the service answers that it is ready, 1 with a line that says why if not."""
    parser = argparse.ArgumentParser(prog="python -m csi probe", allow_abbrev=False)
    parser.add_argument("--endpoint", type=_endpoint, required=True, help="its socket: unix:///PATH.sock")
    path = parser.parse_args(argv).endpoint
    with grpc.insecure_channel(grpc_address(path)) as channel:
        try:
            raw = channel.unary_unary(f"/{SERVICE}/Probe")(
                csi_pb2.ProbeRequest().SerializeToString(), timeout=_WITHIN_S
            )
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return EXIT_UNWELL
    if csi_pb2.ProbeResponse.FromString(raw).ready.value:
        return 0
    print("it is not ready yet", file=sys.stderr)
    return EXIT_UNWELL


def _endpoint(text: str) -> str:
    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
