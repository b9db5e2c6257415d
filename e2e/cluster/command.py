"""`python -m e2e.cluster`: start, use and stop a real one-node Kubernetes cluster on this machine.

Exit status: 0 good; 1 the cluster has a fault; 2 wrong usage; 3 this machine lacks something.
"""

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from e2e.cluster.bring_up import bring_up, prepare
from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.namespaces import entering
from e2e.cluster.places import BUILD, known_clusters, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, is_held, take_down
from e2e.cluster.service_images import load_services, service_archives

_DEFAULT_NAME = "sidemount"
_FAULT, _LACKS = 1, 3


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    words, rest = split_rest(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words)
    arguments.rest = rest
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(arguments.run(arguments))
    except MachineLacks as fault:
        print(f"cluster: {fault}", file=sys.stderr)
        return _LACKS
    except ClusterFault as fault:
        print(f"cluster: {fault}", file=sys.stderr)
        return _FAULT
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return _FAULT
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def split_rest(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own words and those of the command that `kubectl` and `shell` run, which may begin with a flag."""
    if not argv or argv[0] not in ("kubectl", "shell"):
        return list(argv), []
    own = 1
    if len(argv) > own and (argv[own].startswith("--name=") or argv[own] == "--name"):
        own += 1 if "=" in argv[own] else 2
    elif len(argv) > own and argv[own] in ("-h", "--help"):
        own += 1
    rest = list(argv[own:])
    return list(argv[:own]), rest[1:] if rest[:1] == ["--"] else rest


def _up(arguments: argparse.Namespace) -> int:
    progress = Progress()
    cluster = bring_up(places_of(arguments.name), progress, api_only=arguments.api_only)
    images = load_services(cluster, BUILD, progress) if arguments.load_images else ()
    if arguments.output == "json":
        print(json.dumps({**_told(cluster), "images": images}, indent=1))
        return 0
    name = "" if arguments.name == _DEFAULT_NAME else f" --name {arguments.name}"
    print(f"ready in {progress.elapsed_s:.0f} s. Use it:")
    for command, text in (
        (f"python -m e2e.cluster kubectl{name} get pods -A", "kubectl"),
        (f"python -m e2e.cluster shell{name}", "a shell on the node, with kubectl"),
        (f"python -m e2e.cluster logs{name} kubelet", "what a component says"),
        (f"python -m e2e.cluster down{name}", "the end of all of it"),
    ):
        print(f"  {command:<56} # {text}")
    shown = cluster.kubectl()
    print(f"  KUBECONFIG={shown.kubeconfig} {shlex.join(shown.argv())} …")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    wanted = known_clusters() if arguments.all else (places_of(arguments.name),)
    for places in wanted:
        was_there = take_down(places)
        print(f"{places.name}: {'down' if was_there else 'was not up'}", file=sys.stderr)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = [_told(RunningCluster(places)) for places in known_clusters()]
    if arguments.output == "json":
        print(json.dumps(found, indent=1))
    elif not found:
        print("no cluster")
    for each in found if arguments.output != "json" else ():
        print(f"{each['name']}: {'runs' if each['running'] else 'does not run'}")
        for name, component in each["components"].items():
            state = f"pid {component['pid']}" if component["pid"] else f"ended with {component['last_exit']}"
            print(f"  {name:<26} {state:<18} starts {component['starts']}")
    return 0 if all(each["running"] for each in found) else _FAULT


def _told(cluster: RunningCluster) -> dict[str, Any]:
    runs = is_held(cluster.places)
    return {
        "name": cluster.places.name,
        "running": runs,
        "node": cluster.description.node,
        "pid": cluster.pid if runs else None,
        "kubeconfig": str(cluster.places.kubeconfig),
        "kubectl": cluster.kubectl().argv() if runs else [],
        "logs": str(cluster.places.logs),
        "components": dict(cluster.status()) if runs else {},
    }


def _shell(arguments: argparse.Namespace) -> int:
    cluster = RunningCluster(places_of(arguments.name))
    path = f"{os.path.dirname(cluster.description.kubectl)}:{os.path.dirname(cluster.description.ctr)}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(cluster.places.kubeconfig), "PATH": path}
    command = arguments.rest or [os.environ.get("SHELL", "/bin/sh")]
    argv = [*entering(cluster.pid), "env", "--chdir=/", *command]
    os.execvpe(argv[0], argv, env)


def _kubectl(arguments: argparse.Namespace) -> int:
    kubectl = RunningCluster(places_of(arguments.name)).kubectl()
    argv = kubectl.argv(*arguments.rest)
    os.execvpe(argv[0], argv, kubectl.environment())


def _logs(arguments: argparse.Namespace) -> int:
    places = places_of(arguments.name)
    known = sorted(path.stem for path in places.logs.glob("*.log"))
    if not arguments.component:
        print("\n".join(known) if known else f"no logs in {places.logs}")
        return 0
    if arguments.component not in known:
        raise ClusterFault(
            f"no log of {arguments.component!r}", hint=f"there are: {', '.join(known) or 'none'}"
        )
    argv = [
        "tail",
        "-n",
        str(arguments.lines),
        *(["-F"] if arguments.follow else []),
        str(places.log(arguments.component)),
    ]
    os.execvp(argv[0], argv)


def _build(arguments: argparse.Namespace) -> int:
    progress = Progress()
    prepare(BUILD, progress)
    if arguments.images:
        service_archives(BUILD, progress)
    progress("everything is built")
    return 0


def _images(arguments: argparse.Namespace) -> int:
    for reference, archive in service_archives(BUILD, Progress()).items():
        print(f"{reference} {archive}")
    return 0


def _load_images(arguments: argparse.Namespace) -> int:
    images = load_services(RunningCluster(places_of(arguments.name)), BUILD, Progress())
    print(json.dumps({"images": images}, indent=1) if arguments.output == "json" else "\n".join(images))
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=_DEFAULT_NAME, help=f"the cluster (default {_DEFAULT_NAME})")
    formed = argparse.ArgumentParser(add_help=False)
    formed.add_argument("-o", "--output", choices=("text", "json"), default="text")

    up = commands.add_parser("up", parents=[named, formed], help="build what is missing and start a cluster")
    up.add_argument("--api-only", action="store_true", help="etcd and the API server alone: ready in seconds")
    up.add_argument("--load-images", action="store_true", help="and give it the images of this project")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", parents=[named], help="end a cluster; its logs are kept")
    down.add_argument("--all", action="store_true", help="end every cluster")
    down.set_defaults(run=_down)
    commands.add_parser("status", parents=[formed], help="what runs").set_defaults(run=_status)
    shell = commands.add_parser(
        "shell", parents=[named], help="a shell, or the COMMAND that follows, on the node"
    )
    shell.set_defaults(run=_shell)
    kubectl = commands.add_parser(
        "kubectl", parents=[named], help="kubectl as the administrator, with what follows"
    )
    kubectl.set_defaults(run=_kubectl)
    logs = commands.add_parser("logs", parents=[named], help="the log of a component, or which there are")
    logs.add_argument("component", nargs="?", default="")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=int, default=200)
    logs.set_defaults(run=_logs)
    build = commands.add_parser("build", help="build what is missing and start nothing")
    build.add_argument("--images", action="store_true", help="the images of this project too")
    build.set_defaults(run=_build)
    images = commands.add_parser("images", help="build the project's images, and print their OCI archives")
    images.set_defaults(run=_images)
    load = commands.add_parser(
        "load-images", parents=[named, formed], help="build the project's images and import them"
    )
    load.set_defaults(run=_load_images)
    return parser
