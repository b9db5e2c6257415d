"""Pods with volumes, and what their keepers say."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sidemount.host.event_desk import DeskLimits
from sidemount.host.live_kinds import Key
from webhook.observer.observed_store import POD
from webhook.observer.pod_view import PodView, read_pod
from webhook.observer.settings import ObserverSettings
from webhook.observer.watchtower import Watchtower

Json = dict[str, Any]


def stamp(ago_s: float = 0.0) -> str:
    """Return a moment as a log has it."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def line(event: str, *, ago_s: float = 0.0, volume: str = "train", level: str = "info", **fields: Any) -> str:
    """Return a line of a keeper's log, with the runtime's stamp."""
    moment = stamp(ago_s)
    body = {"time": moment, "level": level, "process": "keeper", "event": event, "volume": volume, **fields}
    return f"{moment} {json.dumps(body)}"


def status_of(name: str, *, number: int = 0, killed: str = "", state: str = "running") -> Json:
    """Return the status of a container; `killed`: when it last died of memory."""
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": killed}} if killed else {}
    return {
        "name": name,
        "containerID": f"containerd://{name}-{number}",
        "restartCount": number,
        "state": {state: {"startedAt": stamp()}},
        "lastState": last,
    }


def pod(
    name: str = "p", *statuses: Json, phase: str = "Running", uid: str = "", volumes: Json | None = None
) -> Json:
    """Return an injected pod; without statuses its keeper runs."""
    told = {"train": {"class": "directory", "delivery": "sidecar", "reason": "SidecarPreferred"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": uid or f"uid-{name}",
            "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "labels": {"sidemount.io/injected": "true"},
            "annotations": {
                "sidemount.io/status": json.dumps(
                    {"version": 1, "volumes": told if volumes is None else volumes}
                )
            },
        },
        "spec": {"initContainers": [{"name": "sidemount-keeper"}, {"name": "sidemount-train"}]},
        "status": {
            "phase": phase,
            "initContainerStatuses": list(statuses) or [status_of("sidemount-keeper")],
        },
    }


def view(*arguments: Any, **fields: Any) -> PodView:
    """Return what is kept of such a pod."""
    found = read_pod(pod(*arguments, **fields))
    assert found is not None
    return found


def driver_class(name: str = "directory", **spec: Any) -> Json:
    """Return a class that is in force, unless `spec` says otherwise."""
    whole = {
        "deliveries": ["sidecar"],
        "sources": ["dir:///srv/**"],
        "namespaces": {},
        "filesystem": "directory",
        **spec,
    }
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": name, "generation": 1},
        "spec": whole,
    }


class _NoElection:
    leads = True
    predecessor = None


def watchtower(found: Json | None = None, log: Any = None) -> Watchtower:
    """Return what the observer's metrics come from, with a pod to tell of, and nobody to call but who gives its log."""
    unused: Any = None
    election: Any = _NoElection()
    tower = Watchtower(
        log,
        unused,
        election,
        ObserverSettings(),
        DeskLimits(),
        instance="test",
        clock=lambda: 0.0,
        wall_ms=lambda: 0,
        random=lambda: 0.5,
    )
    changes: dict[Key, Any] = {}
    tower.store.read(POD, found or pod(), changes)
    tower.store.apply(POD, changes)
    return tower


def samples(tower: Watchtower, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """Return what a metric says, by its labels."""
    return {
        frozenset(sample.labels.items()): sample.value
        for family in tower.collect()
        for sample in family.samples
        if sample.name == name
    }
