"""A pod's status as `kubectl get pod -o json` and `kubectl get pod` would show it."""

from datetime import UTC, datetime

from e2e.podlet.pod import Kind
from e2e.podlet.record import Record, Running, State, Terminated, Waiting

Json = dict[str, object]


def render_container(record: Record) -> Json:
    """Return one entry of containerStatuses, with the container's kind added."""
    rendered: Json = {
        "name": record.container.name,
        "kind": record.container.kind.value,
        "image": record.container.image,
        "ready": record.is_ready,
        "started": record.is_started,
        "restartCount": record.restart_count,
        "state": _render_state(record.state),
    }
    if record.last is not None and record.state is not record.last:
        rendered["lastState"] = _render_state(record.last)
    return rendered


def is_ready(records: list[Record]) -> bool:
    """Tell the pod's Ready condition: every app container and every native sidecar is ready."""
    return all(record.is_ready for record in records)


def summary(phase: str, records: list[Record], *, is_terminating: bool, passed: int) -> str:
    """Return the STATUS column of kubectl."""
    if is_terminating:
        return "Terminating"
    if phase in ("Succeeded", "Failed"):
        return "Completed" if phase == "Succeeded" else "Error"
    inits = [record for record in records if record.container.kind is not Kind.APP]
    if passed < len(inits):
        word = _word(inits[passed].state)
        return (
            f"Init:{word}"
            if word not in ("Running", "PodInitializing", "Completed")
            else f"Init:{passed}/{len(inits)}"
        )
    down = (record for record in inits if record.container.kind is Kind.SIDECAR and not record.is_running)
    if (record := next(down, None)) is not None:
        return f"Init:{_word(record.state)}"
    words = [_word(record.state) for record in records if record.container.kind is Kind.APP]
    return next((word for word in words if word != "Running"), "Running")


def _word(state: State) -> str:
    match state:
        case Waiting(reason=reason) | Terminated(reason=reason):
            return reason
        case Running():
            return "Running"


def _render_state(state: State) -> Json:
    match state:
        case Waiting(reason=reason, message=message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(started_at=started_at):
            return {"running": {"startedAt": _timestamp(started_at)}}
        case Terminated() as ended:
            terminated: Json = {
                "exitCode": ended.exit_code,
                "reason": ended.reason,
                "startedAt": _timestamp(ended.started_at),
                "finishedAt": _timestamp(ended.finished_at),
            }
            if ended.message:
                terminated["message"] = ended.message
            return {"terminated": terminated}


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
