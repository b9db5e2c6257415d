"""What a failed test leaves to be read, in one file beside the logs of the components: its pods and those of Sidemount, as they were then."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterFault
from e2e.cluster.kubectl import Kubectl, KubectlFailed
from e2e.cluster.places import BUILD
from e2e.cluster.running import RunningCluster
from e2e.tests.pods import Namespace
from sidemount.model.names import OWN_NAMESPACE

_FOREIGN = BUILD / "run" / "foreign" / "logs"
_LINES, _TAIL = 2000, 15
_CALL_S = 60.0
_ASKED = (
    ("get", "pods", "-o", "wide"),
    ("get", "events", "--sort-by=.lastTimestamp"),
    ("describe", "pods"),
)


def keep(item: pytest.Item, phase: str) -> tuple[str, str] | None:
    """Write what there is to a file. Return a heading that names it and the most telling lines, None for a test without a cluster."""
    found: dict[str, object] = getattr(item, "funcargs", {})
    cluster = next((found[name] for name in ("cluster", "own_cluster") if found.get(name)), None)
    api = found.get("api")
    told = ""
    logs = _FOREIGN
    if isinstance(cluster, RunningCluster):
        logs, told = cluster.places.logs, _components(cluster)
        heading = f"the cluster: logs of the components are in {logs}"
    else:
        heading = "the cluster is not ours"
    if isinstance(api, Kubectl):
        namespaces = {each.name for each in found.values() if isinstance(each, Namespace)}
        file = logs / f"{re.sub(r'[^A-Za-z0-9]+', '-', item.name).strip('-')}.{phase}.txt"
        _write(file, api, sorted(namespaces | {OWN_NAMESPACE}))
        heading += f"; pods, events and what containers said: {file}"
    elif not isinstance(cluster, RunningCluster):
        return None
    return heading, told


def _components(cluster: RunningCluster) -> str:
    """Return of each component what it does, and the end of the logs of those that ended meanwhile."""
    try:
        status = cluster.status()
    except ClusterFault as fault:
        return str(fault)
    lines = [
        f"{name}: {'pid ' + str(it['pid']) if it['pid'] else 'ended with ' + str(it['last_exit'])}, starts {it['starts']}"
        for name, it in status.items()
    ]
    culprits = [name for name, it in status.items() if it["pid"] is None or it["starts"] > 1]
    return "\n".join([*lines, *(cluster.log_tail(name, _TAIL) for name in culprits)])


def _write(file: Path, api: Kubectl, namespaces: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as out:
        for namespace in namespaces:
            for heading, text in _told(api, namespace):
                out.write(f"=== {heading}\n{text}\n")


def _told(api: Kubectl, namespace: str) -> Iterator[tuple[str, str]]:
    where = f"--namespace={namespace}"
    for arguments in _ASKED:
        yield f"{namespace}: {' '.join(arguments)}", _answer(api, *arguments, where)
    for name in _answer(api, "get", "pods", where, "-o", "name").split():
        if name.startswith("pod/"):
            logs = ("logs", where, name, "--all-containers", "--prefix", "--timestamps", f"--tail={_LINES}")
            yield f"{namespace}: logs of {name}", _answer(api, *logs)


def _answer(api: Kubectl, *arguments: str) -> str:
    try:
        return api.run(*arguments, timeout_s=_CALL_S)
    except KubectlFailed as fault:
        return str(fault)
