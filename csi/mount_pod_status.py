"""What the API server tells of a mount pod, as far as the node service wants to know it. Pure.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from csi.last_words import LastWords, last_words_of
from csi.launcher import Ended
from csi.mount_pod import DIGEST_ANNOTATION, INSTANCE_LABEL

_OVER = frozenset({"Failed", "Succeeded"})
_BEGINNING = frozenset({"", "ContainerCreating", "PodInitializing"})
# Nothing that happens on the node alone makes these good.
_HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
_CRASHES = frozenset({"CrashLoopBackOff", "RunContainerError"})
_TOLD_MAX = 600
# As `sidemount.host.last_words` writes it: message, reason, way out.
_OWN_WORDS = re.compile(r"(?P<fault>.*) \([A-Za-z_]+\)(?:; (?P<hint>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPod:
    """One pod. `trouble`: how its daemon ended last, or why it does not begin; None if all is well so far. `restarts`: of its container."""

    namespace: str
    name: str
    uid: str
    instance: str
    digest: str
    is_terminating: bool
    is_over: bool
    is_running: bool
    trouble: Ended | None
    restarts: int = 0

    @property
    def phase(self) -> str:
        """Return how it is in one word."""
        if self.is_over:
            return "over"
        if self.is_terminating:
            return "terminating"
        return "running" if self.is_running else "pending"

    @property
    def told(self) -> str:
        """Return the pod for a message."""
        return f"{self.namespace}/{self.name}"


def parse_mount_pod(manifest: Mapping[str, Any]) -> MountPod:
    """Return what is known of a pod. A field of another type than it should have counts as not there."""
    metadata, status = _mapping(manifest, "metadata"), _mapping(manifest, "status")
    containers = status.get("containerStatuses")
    container = containers[0] if isinstance(containers, list) and containers else {}
    container = container if isinstance(container, dict) else {}
    namespace, name = _text(metadata, "namespace"), _text(metadata, "name")
    return MountPod(
        namespace=namespace,
        name=name,
        uid=_text(metadata, "uid"),
        instance=_text(_mapping(metadata, "labels"), INSTANCE_LABEL),
        digest=_text(_mapping(metadata, "annotations"), DIGEST_ANNOTATION),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        is_over=_text(status, "phase") in _OVER,
        is_running=bool(_mapping(_mapping(container, "state"), "running")),
        trouble=_trouble(f"its mount pod {namespace}/{name}", status, container),
        restarts=_count(container.get("restartCount")),
    )


def _trouble(what: str, status: Mapping[str, Any], container: Mapping[str, Any]) -> Ended | None:
    ended = _mapping(_mapping(container, "state"), "terminated") or _mapping(
        _mapping(container, "lastState"), "terminated"
    )
    if _text(status, "phase") in _OVER:
        reason, message = _text(status, "reason"), _text(status, "message")
        if not reason and ended:
            return _ended(what, ended)
        fault = f"{reason or _text(status, 'phase')}: {message}".rstrip(": ")
        is_room_missing = reason.startswith("OutOf") or reason == "UnexpectedAdmissionError"
        return Ended(-1, LastWords(fault[:_TOLD_MAX]), what, is_room_missing=is_room_missing)
    waiting = _mapping(_mapping(container, "state"), "waiting")
    reason, message = _text(waiting, "reason"), _text(waiting, "message")
    if ended and (reason in _BEGINNING or reason in _CRASHES):
        return _ended(what, ended)
    if reason not in _BEGINNING:
        fault = f"{reason}: {message}".rstrip(": ")
        return Ended(-1, LastWords(fault[:_TOLD_MAX]), what, is_final=reason in _HOPELESS)
    unscheduled = _unscheduled(status)
    if unscheduled:
        # Room may still be made: the pod has a priority, and nodes may be added to.
        return Ended(-1, LastWords(unscheduled[:_TOLD_MAX]), what, is_final=False, is_room_missing=True)
    return None


def _ended(what: str, ended: Mapping[str, Any]) -> Ended:
    code = ended.get("exitCode")
    reason, message = _text(ended, "reason"), _text(ended, "message").strip()
    found = _OWN_WORDS.fullmatch(message)
    how = f"{what} has ended with code {code}"
    if reason not in ("", "Error", "Completed"):
        how = f"{how} ({reason})"
    if found is not None:
        words = LastWords(found["fault"][:_TOLD_MAX], (found["hint"] or "")[:_TOLD_MAX], is_own=True)
    else:
        words = last_words_of([line for line in message.splitlines() if line.strip()])
    return Ended(code if isinstance(code, int) else -1, words, how)


def _unscheduled(status: Mapping[str, Any]) -> str:
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if not isinstance(condition, dict) or condition.get("type") != "PodScheduled":
            continue
        if condition.get("status") == "False" and _text(condition, "reason") == "Unschedulable":
            return f"FailedScheduling: {_text(condition, 'message')}".rstrip(": ")
    return ""


def _mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""
