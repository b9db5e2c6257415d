"""Our annotations are immutable once a pod exists: compared by what they mean, not by how they are written (S2-05, S2-06)."""

import json
from collections.abc import Mapping
from typing import Any

from sidemount.model.errors import PolicyDenied, Reason, VolumeError, shown
from sidemount.model.names import INJECT_ANNOTATION, STATUS_ANNOTATION
from sidemount.model.requests import parse_annotations, parse_inject
from webhook.pod import Pod
from webhook.shape import is_request


def check_frozen(old: Pod, new: Pod) -> None:
    """Refuse a change of what a pod asks for. Raises PolicyDenied naming the annotations that differ."""
    was, now = _ours(old), _ours(new)
    if was == now:
        return
    changed = []
    if not _is_same_request(was, now):
        changed += _differing(was, now, INJECT_ANNOTATION, STATUS_ANNOTATION)
    if not _is_same_inject(was, now):
        changed.append(INJECT_ANNOTATION)
    if not _is_same_json(was.get(STATUS_ANNOTATION), now.get(STATUS_ANNOTATION)):
        changed.append(STATUS_ANNOTATION)
    if changed:
        raise PolicyDenied(
            f"{'annotation' if len(changed) == 1 else 'annotations'} {', '.join(shown(key) for key in changed)} "
            "cannot change once the pod exists: its volumes are mounted already",
            reason=Reason.IMMUTABLE,
            hint="create a new pod; in a workload, change spec.template.metadata.annotations",
        )


def _ours(pod: Pod) -> dict[str, str]:
    annotations = (pod.metadata.annotations if pod.metadata is not None else None) or {}
    return {key: value for key, value in annotations.items() if is_request(key) or key == STATUS_ANNOTATION}


def _differing(was: Mapping[str, str], now: Mapping[str, str], *others: str) -> list[str]:
    keys = sorted((was.keys() | now.keys()) - set(others))
    return [key for key in keys if was.get(key) != now.get(key)]


def _is_same_request(was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    if not _differing(was, now, INJECT_ANNOTATION, STATUS_ANNOTATION):
        return True
    try:
        return parse_annotations(was) == parse_annotations(now)
    except VolumeError:
        # What cannot be read has no meaning to compare: any other text is a change.
        return False


def _is_same_inject(was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    if was.get(INJECT_ANNOTATION) == now.get(INJECT_ANNOTATION):
        return True
    try:
        return parse_inject(was) is parse_inject(now)
    except VolumeError:
        return False


def _is_same_json(was: str | None, now: str | None) -> bool:
    return was == now or (was is not None and now is not None and _json(was) == _json(now))


def _json(text: str) -> str:
    """Return a text of JSON with its keys in order and no white space; the text itself if it is none.

    Compared as text, because true is 1 and 1.0 is 1 to Python.
    """
    try:
        return json.dumps(json.loads(text, object_pairs_hook=_once), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that is there twice: readers differ in which of them counts. Raises ValueError."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is there twice")
    return fields
