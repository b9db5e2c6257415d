"""Pods as a cluster has them: golden ones with the status that a kubelet would give, and a keeper's log."""

import copy
import json
from functools import cache
from typing import Any

import yaml

from tests.webhook.admission import GOLDEN

Json = dict[str, Any]
STARTED = "2026-01-02T03:00:00Z"
STARTED_MS = 1767322800000


@cache
def _golden(case: str) -> str:
    return json.dumps(yaml.safe_load((GOLDEN / case / "after.yaml").read_text()))


def golden(case: str = "init-containers", **metadata: Any) -> Json:
    """Return an injected pod, not scheduled yet."""
    pod: Json = json.loads(_golden(case))
    pod["metadata"] |= {"creationTimestamp": "2026-01-02T02:59:00Z", **metadata}
    pod["status"] = {"phase": "Pending"}
    return pod


def running(pod: Json, **states: Json) -> Json:
    """Return the pod with every container of ours started; `states` replace those of some, by name with _ for -."""
    pod = copy.deepcopy(pod)
    pod["spec"]["nodeName"] = "node-1"
    statuses = []
    for container in pod["spec"].get("initContainers", []):
        name = container["name"]
        status = {
            "name": name,
            "restartCount": 0,
            "started": True,
            "ready": True,
            "state": {"running": {"startedAt": STARTED}},
        }
        statuses.append(status | states.get(name.replace("-", "_"), {}))
    pod["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Initialized", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        "initContainerStatuses": statuses,
    }
    return pod


def log_line(event: str, volume: str = "", **fields: Any) -> str:
    """Return a line of a keeper's log."""
    line = {"time": "2026-01-02T03:04:05.678Z", "level": "info", "process": "keeper", "event": event}
    return json.dumps({**line, **({"volume": volume} if volume else {}), **fields})


def log(*lines: str) -> str:
    """Return a log from its beginning."""
    return "\n".join((log_line("keeper_started"), *lines)) + "\n"
