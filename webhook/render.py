"""The JSON of what we add to a pod: containers, volumes, annotations. Pure; every field is explicit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sidemount.model.amounts import Amounts
from sidemount.model.daemon_container import (
    DAEMON_COMMAND,
    MESSAGE_POLICY,
    PROBE_COMMAND,
    RUN_SIZE,
    liveness_probe,
)
from sidemount.model.driver_class import DriverClass
from sidemount.model.mountspec import KeeperConfig, MountSpec, encode_keeper_config
from sidemount.model.names import (
    KEEPER_CONTAINER,
    MOUNTS_ENV,
    MOUNTS_PATH,
    MOUNTS_VOLUME,
    NO_TOKEN_VOLUME,
    POD_UID_ENV,
    RUN_PATH,
    RUN_VOLUME,
    TOKEN_PATH,
    daemon_container,
)
from webhook.injection_settings import InjectionSettings
from webhook.security import daemon_context, keeper_context
from webhook.shape import PodShape
from webhook.sources import Attachment

STATUS_VERSION = 1
CLAIM_ENV = "VOLUME_CLAIM"
_KEEPER = ["python3", "-m", "sidecar", "keeper"]
_BIDIRECTIONAL = "Bidirectional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """What the container of one volume is made from. `attachments` are its alone.

    `claim` is the claim that the pod used in spec.volumes, "" if an annotation asks: a later round finds it in the container.
    """

    spec: MountSpec
    driver_class: DriverClass
    amounts: Amounts
    attachments: tuple[Attachment, ...] = ()
    claim: str = ""


def keeper_container(
    config: KeeperConfig, amounts: Amounts, shape: PodShape, settings: InjectionSettings
) -> dict[str, Any]:
    """Render the keeper."""
    return {
        "name": KEEPER_CONTAINER,
        **_image(settings.sidecar_image, settings.image_pull_policy, settings),
        "command": list(_KEEPER),
        "env": [
            {"name": MOUNTS_ENV, "value": encode_keeper_config(config)},
            {"name": POD_UID_ENV, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        "restartPolicy": "Always",
        "terminationMessagePolicy": MESSAGE_POLICY,
        "resources": amounts.render(),
        "securityContext": keeper_context(shape),
        "volumeMounts": [
            _mounts_mount(),
            {"name": RUN_VOLUME, "mountPath": RUN_PATH},
            _no_token_mount(),
        ],
    }


def daemon_container_of(daemon: Daemon, shape: PodShape, settings: InjectionSettings) -> dict[str, Any]:
    """Render the container that serves one volume.

    Its startup probe holds back everything of the user's. Its liveness probe fails only when the keeper says that nobody in it
    does anything any more: only kubelet can end processes of another container that have stopped.
    """
    spec, driver_class = daemon.spec, daemon.driver_class
    args = ["--run-dir", RUN_PATH]
    for attachment in daemon.attachments:
        args += [attachment.flag, str(attachment.mount["mountPath"])]
    mounts = [{"name": RUN_VOLUME, "mountPath": RUN_PATH, "subPath": spec.volume}]
    mounts += [attachment.mount for attachment in daemon.attachments]
    if not driver_class.abilities.descriptor:
        mounts.append(_mounts_mount())
    return {
        "name": daemon_container(spec.volume),
        **_image(
            driver_class.image or settings.sidecar_image,
            driver_class.image_pull_policy or settings.image_pull_policy,
            settings,
        ),
        "command": list(DAEMON_COMMAND),
        "args": args,
        **({"env": [{"name": CLAIM_ENV, "value": daemon.claim}]} if daemon.claim else {}),
        "restartPolicy": "Always",
        "terminationMessagePolicy": MESSAGE_POLICY,
        "resources": daemon.amounts.render(),
        "securityContext": daemon_context(driver_class, shape),
        **_probes(settings),
        "volumeMounts": [*mounts, _no_token_mount()],
    }


def _probes(settings: InjectionSettings) -> dict[str, Any]:
    return {
        "startupProbe": {
            "exec": {"command": [*PROBE_COMMAND, "--run-dir", RUN_PATH]},
            "periodSeconds": 1,
            "timeoutSeconds": settings.probe_timeout_s,
            "failureThreshold": settings.probe_failures,
        },
        "livenessProbe": liveness_probe(),
    }


def own_volumes(daemons: tuple[Daemon, ...]) -> list[dict[str, Any]]:
    """Render every pod volume that we add."""
    return [
        # Memory is a safety rule: kubelet unmounts such a volume before it deletes, so it cannot delete through a mount.
        {"name": MOUNTS_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": RUN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": RUN_SIZE}},
        {"name": NO_TOKEN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        *(attachment.volume for daemon in daemons for attachment in daemon.attachments),
    ]


def status_annotation(volumes: Mapping[str, Mapping[str, str]]) -> str:
    """Render the status: for people, and for who observes. No decision ever reads it back."""
    return msgspec.json.encode(
        {"version": STATUS_VERSION, "volumes": volumes}, order="deterministic"
    ).decode()


def _image(image: str, pull_policy: str, settings: InjectionSettings) -> dict[str, str]:
    found = {"image": settings.registries.prefixed(image)}
    if pull_policy:
        found["imagePullPolicy"] = pull_policy
    return found


def _mounts_mount() -> dict[str, Any]:
    return {"name": MOUNTS_VOLUME, "mountPath": MOUNTS_PATH, "mountPropagation": _BIDIRECTIONAL}


def _no_token_mount() -> dict[str, Any]:
    # The API server mounts a token into every container that has nothing at this very path.
    return {"name": NO_TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}
