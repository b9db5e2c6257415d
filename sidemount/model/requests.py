"""Volume requests from pod annotations and CSI volume contexts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import Faults, InvalidRequest, Reason, VolumeError, shown
from sidemount.model.fields import UNKNOWN_TOLD
from sidemount.model.names import (
    DOMAIN,
    INJECT_ANNOTATION,
    STATUS_ANNOTATION,
    VOLUME_ANNOTATION_PREFIX,
    VOLUMES_ANNOTATION,
)
from sidemount.model.request_fields import request_from_flat, request_from_list
from sidemount.model.source_uri import parse_query
from sidemount.model.volume_request import SourceUri, VolumeRequest
from sidemount.model.yamltext import parse_yaml

ANNOTATIONS_MAX_BYTES = 256 * 1024  # what Kubernetes allows for all annotations of an object
VOLUMES_MAX = 64

_KNOWN = (INJECT_ANNOTATION, VOLUMES_ANNOTATION, STATUS_ANNOTATION)
_SPELLINGS = (*_KNOWN, f"{VOLUME_ANNOTATION_PREFIX}<name>")
_CO_CONTEXT_KEYS = ("storage.kubernetes.io/csiProvisionerIdentity",)
_CO_CONTEXT_PREFIX = "csi.storage.k8s.io/"
_INLINE_KEY = (
    "csi.storage.k8s.io/ephemeral"  # the kubelet sets it whatever the pod wrote there, with podInfoOnMount
)


def parse_annotations(annotations: Mapping[str, str]) -> tuple[VolumeRequest, ...]:
    """Return every volume that a pod's annotations ask for, sorted by name.

    The same volumes in another spelling, order or white space give an equal result. Raises Faults with every fault there is.
    """
    ours: dict[str, Any] = {key: value for key, value in annotations.items() if _is_ours(key)}
    size_bytes = sum(_size_bytes(key) + _size_bytes(value) for key, value in ours.items())
    if size_bytes > ANNOTATIONS_MAX_BYTES:
        raise _faults(
            [
                InvalidRequest(
                    f"annotations of {DOMAIN} hold {size_bytes} bytes, more than {ANNOTATIONS_MAX_BYTES}",
                    hint="Kubernetes takes no more for all annotations of an object: shorten them",
                )
            ]
        )
    faults: list[VolumeError] = []
    found: dict[str, VolumeRequest] = {}
    for key, value in ours.items():
        if not isinstance(value, str):
            faults.append(
                InvalidRequest(
                    f"annotation {shown(key)}: {shown(value)} is not a text", hint="put it in quotes"
                )
            )
        elif key.startswith(VOLUME_ANNOTATION_PREFIX):
            _add(found, _short_form(key, value, faults), faults)
        elif key == VOLUMES_ANNOTATION:
            for request in _list_form(value, faults):
                _add(found, request, faults)
        elif key not in _KNOWN:
            hint = suggestion(key, _SPELLINGS) if len(faults) < UNKNOWN_TOLD else ""
            faults.append(InvalidRequest(f"annotation {shown(key)} is unknown", hint=hint))
    if len(found) > VOLUMES_MAX:
        faults.append(
            InvalidRequest(
                f"the pod's annotations of {DOMAIN} ask for {len(found)} volumes, more than {VOLUMES_MAX}",
                hint="mount a common parent directory once, and its parts by the subPath of volumeMounts",
            )
        )
    if faults:
        raise _faults(faults)
    return tuple(found[name] for name in sorted(found))


def parse_inject(annotations: Mapping[str, str]) -> bool | None:
    """Return what the opt-out annotation says, None if it is absent. Raises InvalidRequest."""
    value: Any = annotations.get(INJECT_ANNOTATION)
    match value:
        case None:
            return None
        case "true" | "false":
            return bool(value == "true")
    raise InvalidRequest(
        f'annotation "{INJECT_ANNOTATION}": {shown(value)} is not a boolean', hint='write "true" or "false"'
    )


def parse_volume_context(name: str, context: Mapping[str, str]) -> VolumeRequest:
    """Return the request that a CSI volume context (a PV's volumeAttributes) makes; `name` becomes its name.

    Keys that the CO itself adds are passed over (S4-10), but for the one that tells a volume of the pod's own. Raises Faults.
    """
    faults: list[VolumeError] = []
    where = f"volume context of {shown(name)}"
    pairs = [(key, value) for key, value in context.items() if not is_of_co(key)]
    request = request_from_flat(pairs, name, where, faults, is_context=True)
    if request.provisioned and not isinstance(request.origin, SourceUri):
        faults.append(
            InvalidRequest(f'{where}, field "volume": needs source, the pool that the volume is in')
        )
    if faults:
        raise _faults(faults)
    return replace(request, is_inline=context.get(_INLINE_KEY) == "true")


def _short_form(key: str, value: str, faults: list[VolumeError]) -> VolumeRequest:
    source, question, query = value.partition("?")
    where = f"annotation {shown(key)}"
    pairs = parse_query(query, where, faults) if question else ()
    if "source" in dict(pairs):
        faults.append(InvalidRequest(f'{where}, field "source": is what stands before the question mark'))
    name = key.removeprefix(VOLUME_ANNOTATION_PREFIX)
    return request_from_flat(
        (("source", source), *(p for p in pairs if p[0] != "source")), name, where, faults
    )


def _list_form(text: str, faults: list[VolumeError]) -> list[VolumeRequest]:
    try:
        entries = parse_yaml(text)
    except InvalidRequest as error:
        faults.append(InvalidRequest(f'annotation "{VOLUMES_ANNOTATION}": {error.message}', hint=error.hint))
        return []
    if entries is None:
        return []
    if not isinstance(entries, list):
        faults.append(
            InvalidRequest(
                f'annotation "{VOLUMES_ANNOTATION}": must be a list, not {shown(entries)}',
                hint="write - name: … for each volume",
            )
        )
        return []
    requests = (_entry(raw, i, faults) for i, raw in enumerate(entries[: VOLUMES_MAX + 1], 1))
    return [request for request in requests if request is not None]


def _entry(raw: Any, number: int, faults: list[VolumeError]) -> VolumeRequest | None:
    where = f'annotation "{VOLUMES_ANNOTATION}", entry {number}'
    if not isinstance(raw, dict):
        faults.append(InvalidRequest(f"{where}: must be a mapping, not {shown(raw)}"))
        return None
    name = raw.get("name")
    if isinstance(name, str) and name:
        return request_from_list(raw, name, f"{where} ({shown(name)})", faults)
    why = "is missing or empty" if name is None or name == "" else f"{shown(name)} is not a text"
    faults.append(InvalidRequest(f'{where}, field "name": {why}', hint="name the pod volume it becomes"))
    request_from_list(raw, "unnamed", where, faults)  # for the faults of its other fields
    return None


def _add(found: dict[str, VolumeRequest], request: VolumeRequest, faults: list[VolumeError]) -> None:
    earlier = found.setdefault(request.name, request)
    if earlier is not request:
        faults.append(
            InvalidRequest(
                f"{request.where}: volume {shown(request.name)} is there already: {earlier.where}",
                hint="keep one of them",
                reason=Reason.NAME_COLLISION,
            )
        )


def _is_ours(key: str) -> bool:
    domain = key.partition("/")[0]
    return domain in (DOMAIN, f"volume.{DOMAIN}", f"volumes.{DOMAIN}")


def is_of_co(key: str) -> bool:
    """Tell whether a key of a volume context is one that the CO adds by itself."""
    return key in _CO_CONTEXT_KEYS or key.startswith(_CO_CONTEXT_PREFIX)


def _size_bytes(text: object) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0


def _faults(faults: list[VolumeError]) -> Faults:
    return Faults(tuple(faults))
