"""`python -m e2e.cluster`: start, use and stop a real Kubernetes cluster on this machine, of one node or a few.

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
from e2e.cluster.companion_images import companion_archives, load_companions
from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.more_nodes import join, leave, power_off, power_on
from e2e.cluster.namespaces import entering
from e2e.cluster.places import BUILD, known_clusters, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.cluster.running_node import RunningNode
from e2e.cluster.service_images import load_services, service_archives
from e2e.cluster.topology import MOST_NODES, Topology

_DEFAULT_NAME = "sidemount"
_FAULT, _LACKS = 1, 3
# The options of commands that are followed by another command's words.
_OWN = {"kubectl": ("--name",), "shell": ("--name", "--node")}


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
    if not argv or argv[0] not in _OWN:
        return list(argv), []
    own = 1
    while len(argv) > own and argv[own].partition("=")[0] in _OWN[argv[0]]:
        own += 1 if "=" in argv[own] else 2
    if len(argv) > own and argv[own] in ("-h", "--help"):
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


def _join(arguments: argparse.Namespace) -> int:
    cluster = RunningCluster(places_of(arguments.name))
    node = join(cluster, Progress())
    print(json.dumps(_told(cluster), indent=1) if arguments.output == "json" else node.name)
    return 0


def _leave(arguments: argparse.Namespace) -> int:
    cluster = RunningCluster(places_of(arguments.name))
    leave(cluster, cluster.node(arguments.node))
    return 0


def _reboot(arguments: argparse.Namespace) -> int:
    cluster = RunningCluster(places_of(arguments.name))
    node = cluster.node(arguments.node or cluster.name)
    power_off(node)
    power_on(cluster, node)
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
        for node in each["nodes"]:
            print(f"{each['name']} {node['name']}: {'runs' if node['running'] else 'does not run'}")
            for name, component in node["components"].items():
                state = (
                    f"pid {component['pid']}" if component["pid"] else f"ended with {component['last_exit']}"
                )
                print(f"  {name:<26} {state:<18} starts {component['starts']}")
    return 0 if all(each["running"] for each in found) else _FAULT


def _told(cluster: RunningCluster) -> dict[str, Any]:
    """Return a cluster as JSON; what is not said of a node is of the first one."""
    nodes = [_told_of(node) for node in cluster.nodes]
    first = nodes[0]
    return {
        "name": cluster.places.name,
        "running": all(node["running"] for node in nodes),
        "node": first["name"],
        "pid": first["pid"],
        "kubeconfig": str(cluster.places.kubeconfig),
        "kubectl": cluster.kubectl().argv() if first["running"] else [],
        "logs": str(cluster.places.logs),
        "components": first["components"],
        "nodes": nodes,
    }


def _told_of(node: RunningNode) -> dict[str, Any]:
    runs = node.runs()
    return {
        "name": node.name,
        "running": runs,
        "pid": node.pid if runs else None,
        "logs": str(node.node_places.logs),
        "components": dict(node.status()) if runs else {},
    }


def _shell(arguments: argparse.Namespace) -> int:
    cluster = RunningCluster(places_of(arguments.name))
    path = f"{os.path.dirname(cluster.description.kubectl)}:{os.path.dirname(cluster.description.ctr)}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(cluster.places.kubeconfig), "PATH": path}
    command = arguments.rest or [os.environ.get("SHELL", "/bin/sh")]
    node = cluster.node(arguments.node or cluster.name)
    argv = [*entering(node.pid), "env", "--chdir=/", *command]
    os.execvpe(argv[0], argv, env)


def _kubectl(arguments: argparse.Namespace) -> int:
    kubectl = RunningCluster(places_of(arguments.name)).kubectl()
    argv = kubectl.argv(*arguments.rest)
    os.execvpe(argv[0], argv, kubectl.environment())


def _logs(arguments: argparse.Namespace) -> int:
    places = places_of(arguments.name)
    topology = Topology(arguments.name)
    at = places.of(topology.node(arguments.node) if arguments.node else topology.nodes[0])
    known = sorted(path.stem for path in at.logs.glob("*.log"))
    if not arguments.component:
        print("\n".join(known) if known else f"no logs in {at.logs}")
        return 0
    if arguments.component not in known:
        raise ClusterFault(
            f"no log of {arguments.component!r}", hint=f"there are: {', '.join(known) or 'none'}"
        )
    followed = ["-F"] if arguments.follow else []
    argv = ["tail", "-n", str(arguments.lines), *followed, str(at.log(arguments.component))]
    os.execvp(argv[0], argv)


def _build(arguments: argparse.Namespace) -> int:
    progress = Progress()
    prepare(BUILD, progress)
    companion_archives(BUILD, progress)
    if arguments.images:
        service_archives(BUILD, progress)
    progress("everything is built")
    return 0


def _images(arguments: argparse.Namespace) -> int:
    for reference, archive in service_archives(BUILD, Progress()).items():
        print(f"{reference} {archive}")
    return 0


def _load_images(arguments: argparse.Namespace) -> int:
    cluster, progress = RunningCluster(places_of(arguments.name)), Progress()
    images = load_services(cluster, BUILD, progress)
    if arguments.companions:
        images += load_companions(cluster, BUILD, progress)
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
    placed = argparse.ArgumentParser(add_help=False)
    placed.add_argument("--node", default="", help="the node (default: the first)")
    formed = argparse.ArgumentParser(add_help=False)
    formed.add_argument("-o", "--output", choices=("text", "json"), default="text")

    up = commands.add_parser("up", parents=[named, formed], help="build what is missing and start a cluster")
    up.add_argument("--api-only", action="store_true", help="etcd and the API server alone: ready in seconds")
    up.add_argument("--load-images", action="store_true", help="and give it the images of this project")
    up.add_argument(
        "--nodes", type=int, choices=range(1, MOST_NODES + 1), default=1, help="how many (default 1)"
    )
    up.set_defaults(run=_up)
    joining = commands.add_parser("join", parents=[named, formed], help="have one more node join")
    joining.set_defaults(run=_join)
    leaving = commands.add_parser("leave", parents=[named], help="end a node that has joined, and forget it")
    leaving.add_argument("--node", required=True, help="the node")
    leaving.set_defaults(run=_leave)
    reboot = commands.add_parser(
        "reboot", parents=[named, placed], help="end a node at once and start it again"
    )
    reboot.set_defaults(run=_reboot)
    down = commands.add_parser("down", parents=[named], help="end a cluster; its logs are kept")
    down.add_argument("--all", action="store_true", help="end every cluster")
    down.set_defaults(run=_down)
    commands.add_parser("status", parents=[formed], help="what runs").set_defaults(run=_status)
    shell = commands.add_parser(
        "shell", parents=[named, placed], help="a shell, or the COMMAND that follows, on the node"
    )
    shell.set_defaults(run=_shell)
    kubectl = commands.add_parser(
        "kubectl", parents=[named], help="kubectl as the administrator, with what follows"
    )
    kubectl.set_defaults(run=_kubectl)
    logs = commands.add_parser(
        "logs", parents=[named, placed], help="the log of a component, or which there are"
    )
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
    load.add_argument(
        "--companions", action="store_true", help="and those of Kubernetes that provision volumes"
    )
    load.set_defaults(run=_load_images)
    return parser
