"""`python -m e2e.podlet run -f pod.yaml`: run one pod on this machine and tell what happens.

Exit status: 0 the pod became ready or succeeded and left nothing behind; 1 it did not; 2 it was refused.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import yaml

from e2e import images
from e2e.podlet.client import Podlet, RunningPod
from e2e.podlet.errors import PodletError, PodRefused
from e2e.podlet.running import PodStatus, render_table

_BUILT_IN = {"@busybox": images.busybox_image, "@sidemount": images.sidemount_image}
_OBJECT_KINDS = ("Secret", "ConfigMap")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = _parser().parse_args(argv)
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # the latter too: whoever is started in the background ignores it
        signal.signal(number, _interrupt)
    try:
        pod, objects = _read_manifests(arguments.file)
        node = Podlet(
            arguments.root,
            images=_named(arguments.image, "--image"),
            secrets=_named(arguments.secret, "--secret"),
            config_maps=_named(arguments.config_map, "--config-map"),
            claims=_named(arguments.claim, "--claim"),
            objects=objects,
            time_scale=arguments.time_scale,
            on_event=_Progress(),
        )
        with node:
            return _run(node, pod, arguments)
    except (PodRefused, yaml.YAMLError, OSError) as error:
        print(f"podlet: {error}", file=sys.stderr)
        return 2
    except PodletError as error:
        print(f"podlet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("podlet: interrupted", file=sys.stderr)
        return 1


def _run(node: Podlet, manifest: object, arguments: argparse.Namespace) -> int:
    pod = node.run(manifest)
    try:
        is_good = _follow(pod, arguments)
    except KeyboardInterrupt:
        print("podlet: deleting the pod", file=sys.stderr)
        is_good = True
    pod.delete(arguments.grace)
    return 0 if is_good else 1


def _follow(pod: RunningPod, arguments: argparse.Namespace) -> bool:
    """Wait until ready, then until done unless asked not to; return whether it went well."""
    ready = pod.wait_for(
        lambda status: status.ready or status.phase in ("Succeeded", "Failed"), arguments.timeout, "ready"
    )
    if ready.ready:
        _show(ready, arguments.output)
    if arguments.until_ready or not ready.ready:
        return ready.ready or _finished(ready, arguments.output)
    return _finished(pod.wait_done(float("inf")), arguments.output)


def _finished(status: PodStatus, output: str) -> bool:
    _show(status, output)
    return status.phase == "Succeeded"


def _show(status: PodStatus, output: str) -> None:
    if output == "json":
        print(json.dumps(status.raw), flush=True)
    else:
        print(render_table(status), flush=True)


class _Progress:
    """Prints each event with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:8.2f}  {text}", file=sys.stderr, flush=True)


def _read_manifests(name: str) -> tuple[object, list[object]]:
    """Return the one pod and the Secrets and ConfigMaps of a file."""
    text = sys.stdin.read() if name == "-" else Path(name).read_text()
    documents = [document for document in yaml.safe_load_all(text) if document is not None]
    objects: list[object] = [d for d in documents if isinstance(d, dict) and d.get("kind") in _OBJECT_KINDS]
    pods = [d for d in documents if d not in objects]
    if len(pods) != 1:
        raise PodRefused(f"{name}: holds {len(pods)} pods, needs exactly one (beside Secrets and ConfigMaps)")
    return pods[0], objects


def _named(pairs: list[str], option: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise PodRefused(f"{option} {pair}: write NAME=DIR")
        found[name] = _BUILT_IN[value]() if value in _BUILT_IN else Path(value)
        if not found[name].is_dir():
            raise PodRefused(f"{option} {pair}: {value} is not a directory")
    return found


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.podlet", description=__doc__)
    run = parser.add_subparsers(dest="command", required=True).add_parser("run", help="run one pod")
    run.add_argument(
        "-f", "--file", required=True, help="manifest: one Pod, any Secrets and ConfigMaps; - is stdin"
    )
    run.add_argument(
        "--image", action="append", default=[], metavar="NAME=DIR", help="DIR may be @busybox, @sidemount"
    )
    run.add_argument("--secret", action="append", default=[], metavar="NAME=DIR", help="a file for each key")
    run.add_argument(
        "--config-map", action="append", default=[], metavar="NAME=DIR", help="a file for each key"
    )
    run.add_argument("--claim", action="append", default=[], metavar="NAME=DIR", help="a claim's directory")
    run.add_argument(
        "--root", type=Path, default=None, help="the node's directory (default: a temporary one)"
    )
    run.add_argument("--until-ready", action="store_true", help="delete the pod once it is ready")
    run.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="how long it may take to be ready"
    )
    run.add_argument("--grace", type=int, default=None, metavar="S", help="grace period of the deletion")
    run.add_argument(
        "--time-scale", type=float, default=1.0, help="below 1: shorter back-off and probe periods"
    )
    run.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
