"""Whether a container or volume of our name is the one that we would add, whatever the API server and others did to it since.

Between two rounds of one admission the API server fills defaults in, mounts tokens, applies LimitRanges; other webhooks change
resources or add a cloud identity. None of that is a difference. What decides the code that runs, and with what rights, is.
"""

from collections.abc import Mapping
from typing import Any

from sidemount.model.errors import InvalidRequest
from sidemount.model.names import MOUNTS_ENV, TOKEN_PATH
from sidemount.model.quantity import parse_quantity
from webhook.csi_volume import CSI, is_same_csi
from webhook.image import Registries

# Fields of a container that say what runs and what it may do or reach.
_DECISIVE = ("command", "args", "workingDir", "envFrom", "volumeDevices", "lifecycle", "restartPolicyRules")
# The kubelet mounts a file there: within the mounts volume it would be one that no keeper takes away.
_MESSAGE_PATHS = (None, "", "/dev/termination-log")
_PROBES = ("livenessProbe", "readinessProbe")
_OWN_PROBES = ("startupProbe", "livenessProbe")
# What other webhooks add to every container: a cloud identity, a proxy, telemetry. Nothing that code is loaded by, and nothing
# that would lead a client to another place than the one its class allows.
_TOLERATED_ENV = frozenset(
    {
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_ROLE_ARN",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AZURE_AUTHORITY_HOST",
        "AZURE_CLIENT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_TENANT_ID",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_CLOUD_PROJECT",
        "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
        "CLOUDSDK_CORE_PROJECT",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "TZ",
    }
)
_TOLERATED_ENV_PREFIXES = ("DD_", "OTEL_")
_TOLERATED_MOUNTS = "/var/run/secrets/"
_PROBE_DEFAULTS = {"successThreshold": 1, "initialDelaySeconds": 0}
_SECURITY_DEFAULTS = {"procMount": "Default", "allowPrivilegeEscalation": True}


def differences(found: Mapping[str, Any], rendered: Mapping[str, Any], registries: Registries) -> list[str]:
    """Return the names of the decisive fields in which a container differs from ours; what can be repaired is not among them."""
    names = [] if registries.is_ours(found.get("image"), rendered["image"]) else ["image"]
    names += [name for name in _DECISIVE if _bare(found.get(name)) != _bare(rendered.get(name))]
    names += [name for name in _PROBES if name not in rendered and _bare(found.get(name)) is not None]
    if found.get("terminationMessagePath") not in _MESSAGE_PATHS:
        names.append("terminationMessagePath")
    if not _is_same_env(_items(found, "env"), _items(rendered, "env")):
        names.append("env")
    if _security(found) != _security(rendered):
        names.append("securityContext")
    if not _is_same_mounts(_items(found, "volumeMounts"), _items(rendered, "volumeMounts")):
        names.append("volumeMounts")
    return names


def stripped_fields(found: Mapping[str, Any], rendered: Mapping[str, Any]) -> list[str]:
    """Return the fields that make a container a native sidecar and that another webhook took away or changed."""
    names = []
    if found.get("restartPolicy") != rendered["restartPolicy"]:
        names.append("restartPolicy")
    return names + [
        probe
        for probe in _OWN_PROBES
        if probe in rendered and not _is_same_probe(found.get(probe), rendered[probe])
    ]


def is_same_volume(found: Mapping[str, Any], rendered: Mapping[str, Any]) -> bool:
    """Say whether a pod volume is ours, defaults of the API server aside. It fills none into a csi volume."""
    if CSI in rendered:
        return set(_bare(found)) == set(rendered) and is_same_csi(found.get(CSI), rendered[CSI])
    return _covers(_bare(found), _bare(rendered), top=True)


def mounts_env(container: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return where the keeper's configuration is in its env, and its text."""
    for index, entry in enumerate(_items(container, "env")):
        if entry.get("name") == MOUNTS_ENV and isinstance(entry.get("value"), str):
            return index, entry["value"]
    return None


def _is_same_env(found: list[dict[str, Any]], rendered: list[dict[str, Any]]) -> bool:
    """The keeper's configuration is compared by what it means, elsewhere; here only that it is there once, as a value."""
    names = [_text(entry, "name") for entry in found]
    if len(set(names)) != len(names):
        return False
    own = {entry["name"]: entry for entry in rendered}
    for name, entry in zip(names, found, strict=True):
        if name == MOUNTS_ENV and name in own:
            if set(_present(entry)) != {"name", "value"}:
                return False
        elif name in own:
            if _entry(entry) != _entry(own[name]):
                return False
        elif name.upper() not in _TOLERATED_ENV and not name.startswith(_TOLERATED_ENV_PREFIXES):
            return False
    return set(own) <= set(names)


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an env entry without the apiVersion that the API server fills into a field reference."""
    kept = _present(entry)
    source = kept.get("valueFrom")
    reference = source.get("fieldRef") if isinstance(source, dict) else None
    if isinstance(reference, dict) and reference.get("apiVersion") == "v1":
        del reference["apiVersion"]
    return kept


def _is_same_mounts(found: list[dict[str, Any]], rendered: list[dict[str, Any]]) -> bool:
    """A token, or none, at the token's path makes no difference: the API server puts one where ours was taken away."""
    own = {mount["mountPath"]: mount for mount in rendered if mount["mountPath"] != TOKEN_PATH}
    seen = set()
    for mount in found:
        path = _text(mount, "mountPath")
        if path in own:
            if path in seen or _mount(mount) != _mount(own[path]):
                return False
            seen.add(path)
        elif not _is_tolerated_mount(mount, path):
            return False
    return seen == set(own)


def _is_tolerated_mount(mount: Mapping[str, Any], path: str) -> bool:
    is_there = path.startswith(_TOLERATED_MOUNTS) and ".." not in path
    return is_there and mount.get("readOnly") is True and mount.get("mountPropagation") != "Bidirectional"


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    kept = _present(mount)
    if kept.get("recursiveReadOnly") == "Disabled":
        del kept["recursiveReadOnly"]
    if kept.get("mountPropagation") == "None":
        del kept["mountPropagation"]
    if kept.get("readOnly") is False:
        del kept["readOnly"]
    return kept


def _security(container: Mapping[str, Any]) -> Any:
    context = container.get("securityContext")
    kept = _present(context) if isinstance(context, dict) else {}
    for name, default in _SECURITY_DEFAULTS.items():
        # A privileged container's escalation cannot be anything else.
        if kept.get(name) == default and (name == "procMount" or kept.get("privileged") is True):
            del kept[name]
    return kept


def _is_same_probe(found: Any, rendered: Mapping[str, Any]) -> bool:
    if not isinstance(found, dict):
        return False
    kept = _present(found)
    for name, default in _PROBE_DEFAULTS.items():
        if name not in rendered and kept.get(name) == default:
            del kept[name]
    return kept == _present(rendered)


def _covers(found: Any, rendered: Any, *, top: bool = False) -> bool:
    """Say whether `found` has all of `rendered`, and, at the top, no other kind of volume beside it."""
    if isinstance(rendered, dict):
        if not isinstance(found, dict) or (top and set(found) != set(rendered)):
            return False
        return all(
            _is_same_size(found.get(key), value) if key == "sizeLimit" else _covers(found.get(key), value)
            for key, value in rendered.items()
        )
    return bool(found == rendered)


def _is_same_size(found: object, rendered: object) -> bool:
    """The API server writes a quantity in its own way: 1024Mi comes back as 1Gi."""
    try:
        return parse_quantity(found) == parse_quantity(rendered)
    except InvalidRequest:
        return False


def _present(mapping: Mapping[str, Any]) -> dict[str, Any]:
    bare = _bare(mapping)
    return bare if isinstance(bare, dict) else {}


def _bare(value: Any) -> Any:
    """Return a value without what means nothing: nulls, empty texts, lists and objects. `False` and 0 mean something."""
    if isinstance(value, dict):
        kept = {key: bare for key, item in value.items() if (bare := _bare(item)) is not None}
        return kept or None
    if isinstance(value, list):
        return [_bare(item) for item in value] or None
    return None if value == "" else value


def _text(mapping: Mapping[str, Any], field: str) -> str:
    value = mapping.get(field)
    return value if isinstance(value, str) else ""


def _items(container: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    items = container.get(field)
    if not isinstance(items, list):
        return []
    return [item if isinstance(item, dict) else {} for item in items]
