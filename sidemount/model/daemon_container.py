"""What a daemon's container is made of, whoever renders its pod: the webhook for a sidecar, the node service for a mount pod. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sidemount.model.names import RUN_PATH

DAEMON_COMMAND = ("python3", "-m", "sidecar", "daemon")
# Without site: a probe starts every second and must cost little. The image's PYTHONPATH says where the sidecar is.
PROBE_COMMAND = ("python3", "-S", "-m", "sidecar", "probe")
DAEMON_REQUESTS: Mapping[str, str] = MappingProxyType({"cpu": "50m", "memory": "64Mi"})
DAEMON_LIMITS: Mapping[str, str] = MappingProxyType({"cpu": "2", "memory": "512Mi"})
RUN_SIZE = "64Mi"  # of the volume with sockets and takeover state
# So that the last line of a container that ends is what `kubectl describe` shows.
MESSAGE_POLICY = "FallbackToLogsOnError"
_LIVENESS_PERIOD_S = 10
_LIVENESS_FAILURES = 3
# The probe's own deadline is far below: a machine that is slow to start it has not made a daemon hang.
_LIVENESS_TIMEOUT_S = 60


def liveness_probe() -> dict[str, Any]:
    """Return the probe that fails only when the keeper says that nobody in the container does anything any more.

    Only kubelet can end processes of another container that have stopped.
    """
    return {
        "exec": {"command": [*PROBE_COMMAND, "--run-dir", RUN_PATH, "--ask", "hung"]},
        "periodSeconds": _LIVENESS_PERIOD_S,
        "timeoutSeconds": _LIVENESS_TIMEOUT_S,
        "failureThreshold": _LIVENESS_FAILURES,
        # It stands still: it would not hear SIGTERM before SIGKILL.
        "terminationGracePeriodSeconds": 1,
    }


def daemon_security(uid: int, capabilities: Sequence[str]) -> dict[str, Any]:
    """Return the security context of a daemon that is given a descriptor: no privilege, no capability beyond its class's."""
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsGroup": uid,
        "runAsNonRoot": uid != 0,
        "runAsUser": uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if capabilities:
        context["capabilities"]["add"] = list(capabilities)
    return context
