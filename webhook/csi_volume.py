"""The volume source that has our CSI driver deliver a request: its claim, or an inline ephemeral volume.

Source: https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#csi-ephemeral-volumes
"""

from typing import Any

from sidemount.model.mountspec import OptionValue
from sidemount.model.names import CSI_DRIVER
from sidemount.model.resolve import ResolvedVolume
from sidemount.model.volume_request import Claim

CLAIM = "persistentVolumeClaim"
CSI = "csi"


def csi_source(resolved: ResolvedVolume) -> dict[str, Any]:
    """Return the volume source that has our CSI driver deliver a request: its claim, or an inline ephemeral volume."""
    request, spec = resolved.request, resolved.spec
    if isinstance(request.origin, Claim):
        claim: dict[str, Any] = {"claimName": request.origin.name}
        return {CLAIM: {**claim, "readOnly": True} if request.read_only else claim}
    inline: dict[str, Any] = {"driver": CSI_DRIVER, "volumeAttributes": _context(resolved)}
    if spec.read_only:
        inline["readOnly"] = True
    if request.secret:
        inline["nodePublishSecretRef"] = {"name": request.secret}
    return {CSI: inline}


def _context(resolved: ResolvedVolume) -> dict[str, str]:
    """Return the flat form of a request, from which the node service makes the same MountSpec."""
    spec, request = resolved.spec, resolved.request
    context: dict[str, str] = {}
    if resolved.volume is not None:
        context |= resolved.volume.attributes
        for entry in resolved.volume.mount_options:
            name, equals, value = entry.partition("=")
            if name != "ro":
                context.setdefault(name, value if equals else "true")
    context |= {name: _text(value) for name, value in request.options}
    context |= {"source": spec.source, "class": resolved.driver_class.name}
    for key, value in (
        ("subPath", spec.sub_path),
        ("secret", request.secret),
        ("readOnly", "true" if spec.read_only else ""),
    ):
        if value:
            context[key] = value
        else:
            context.pop(key, None)
    return dict(sorted(context.items()))


def _text(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_same_csi(found: Any, rendered: dict[str, Any]) -> bool:
    """Say whether a csi source is the rendered one; fields that mean nothing aside."""
    if not isinstance(found, dict):
        return False
    kept = {key: value for key, value in found.items() if value not in (None, "", False, {})}
    return kept == rendered
