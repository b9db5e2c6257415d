"""The volume source that has our CSI driver deliver a request: its claim, or an inline ephemeral volume.

Source: https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#csi-ephemeral-volumes
"""

from typing import Any

from sidemount.model.errors import Unsupported
from sidemount.model.mountspec import OptionValue, View
from sidemount.model.names import CSI_DRIVER
from sidemount.model.requests import is_of_co
from sidemount.model.resolve import ResolvedVolume
from sidemount.model.sub_path import join_sub_paths
from sidemount.model.volume_request import Claim

CLAIM = "persistentVolumeClaim"
CSI = "csi"
# CSI allows a volume context 4 KiB. The kubelet's part of it (podInfoOnMount) is below 800 bytes.
CONTEXT_MAX_BYTES = 4096 - 800


def csi_source(resolved: ResolvedVolume, view: View | None = None) -> dict[str, Any]:
    """Return the volume source that has our CSI driver deliver a request: its claim, or an inline ephemeral volume.

    `view` is the part of an inline volume that is to be shown, None for the whole. Credentials are named, never held, and are of
    the pod's own namespace: Kubernetes has no place for another. Raises Unsupported.
    """
    request, spec = resolved.request, resolved.spec
    if isinstance(request.origin, Claim):
        return {CLAIM: claim_source(resolved)}
    read_only = spec.read_only or (view is not None and view.read_only)
    sub_path = join_sub_paths(spec.sub_path, view.sub_path if view is not None else "")
    context = _context(resolved, sub_path, read_only)
    _check_size(resolved, context)
    inline: dict[str, Any] = {"driver": CSI_DRIVER, "volumeAttributes": context}
    if read_only:
        inline["readOnly"] = True
    if request.secret:
        inline["nodePublishSecretRef"] = {"name": request.secret}
    return {CSI: inline}


def claim_source(resolved: ResolvedVolume) -> dict[str, Any]:
    """Return the claim of a request that names one."""
    request = resolved.request
    name = request.origin.name if isinstance(request.origin, Claim) else ""
    return {"claimName": name, "readOnly": True} if request.read_only else {"claimName": name}


def _context(resolved: ResolvedVolume, sub_path: str, read_only: bool) -> dict[str, str]:
    """Return the flat form of a request, from which the node service makes the same MountSpec."""
    context: dict[str, str] = {}
    if resolved.volume is not None:
        context |= {key: value for key, value in resolved.volume.attributes.items() if not is_of_co(key)}
        for entry in resolved.volume.mount_options:
            name, equals, value = entry.partition("=")
            if name != "ro":
                context.setdefault(name, value if equals else "true")
    context |= {name: _text(value) for name, value in resolved.request.options}
    context |= {"source": resolved.spec.source, "class": resolved.driver_class.name}
    for key, value in (("subPath", sub_path), ("secret", ""), ("readOnly", "true" if read_only else "")):
        if value:
            context[key] = value
        else:
            context.pop(key, None)
    return dict(sorted(context.items()))


def _check_size(resolved: ResolvedVolume, context: dict[str, str]) -> None:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in context.items())
    if size > CONTEXT_MAX_BYTES:
        raise Unsupported(
            f"{resolved.request.where}: source, sub-path and options come to {size} bytes, more than the {CONTEXT_MAX_BYTES} that "
            "CSI leaves for them",
            hint="shorten them, or let the pod have a sidecar",
        )


def _text(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_same_csi(found: Any, rendered: dict[str, Any]) -> bool:
    """Say whether a csi source is the rendered one; fields that mean nothing aside."""
    if not isinstance(found, dict):
        return False
    kept = {key: value for key, value in found.items() if value not in (None, "", False, {})}
    return kept == rendered
