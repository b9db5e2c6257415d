"""What the API server's Go types do to a pod: refuse wrong types, drop unknown fields, fill in defaults.

The schema is that of the official Kubernetes client, so nothing here is ours to get wrong conveniently.
"""

import copy
import re
from collections.abc import Callable
from typing import Any

from kubernetes.client import models

_CONTAINER_OF = re.compile(r"(list|dict)[\[(](?:str, )?(.+)[\])]", re.IGNORECASE)
_INT_OR_STRING = frozenset({"port"})  # of probes: an object in the schema


class NotDecodable(Exception):
    """The JSON does not fit the type: an InternalError of the API server, whatever the failurePolicy."""


def decode_typed(manifest: Any, kind: str = "V1Pod", where: str = "") -> Any:
    """Return a manifest as its Go type would encode it again. Raises: NotDecodable."""
    if manifest is None:
        return None
    if match := _CONTAINER_OF.fullmatch(kind):
        return _decode_container(manifest, match[1].lower(), match[2], where)
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain(manifest, where)
    model = getattr(models, kind)
    if not isinstance(manifest, dict):
        raise NotDecodable(f"{where}: cannot unmarshal {type(manifest).__name__} into {kind}")
    decoded = {}
    for attribute, field in model.attribute_map.items():
        if field in manifest:
            decoded[field] = decode_typed(manifest[field], model.openapi_types[attribute], f"{where}.{field}")
    return decoded


def _decode_container(manifest: Any, container: str, kind: str, where: str) -> Any:
    if container == "list":
        if not isinstance(manifest, list):
            raise NotDecodable(f"{where}: cannot unmarshal {type(manifest).__name__} into a list")
        return [decode_typed(entry, kind, f"{where}[{index}]") for index, entry in enumerate(manifest)]
    if not isinstance(manifest, dict):
        raise NotDecodable(f"{where}: cannot unmarshal {type(manifest).__name__} into a map")
    if kind == "str" and where.endswith((".limits", ".requests", ".overhead", ".capacity")):
        kind = "quantity"
    return {key: decode_typed(value, kind, f"{where}.{key}") for key, value in manifest.items()}


def _exactly(*types: type) -> Callable[[Any, str], Any]:
    def decode(value: Any, where: str) -> Any:
        if type(value) not in types:
            raise NotDecodable(f"{where}: cannot unmarshal {type(value).__name__} into {types[0].__name__}")
        return value

    return decode


def _quantity(value: Any, where: str) -> str:
    if type(value) not in (str, int, float):
        raise NotDecodable(f"{where}: quantities must match a regular expression")
    return str(value)


_PLAIN: dict[str, Callable[[Any, str], Any]] = {
    "str": _exactly(str),
    "int": _exactly(int),
    "bool": _exactly(bool),
    "float": _exactly(float, int),
    "datetime": _exactly(str),
    "quantity": _quantity,
    "object": lambda value, where: value,
}


def default_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with the defaults that the API server fills in. Source: pkg/apis/core/v1/defaults.go."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    metadata.setdefault("creationTimestamp", None)
    _set(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
        enableServiceLinks=True,
        serviceAccountName="default",
        priority=0,
        preemptionPolicy="PreemptLowerPriority",
    )
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            _default_container(container)
    return pod


def _default_volume(volume: dict[str, Any]) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "projected", "downwardAPI"):
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")


def _default_container(container: dict[str, Any]) -> None:
    image = str(container.get("image", ""))
    tag = image.rpartition("/")[2].partition(":")[2]
    _set(
        container,
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent",
        resources={},
    )
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(probe), dict):
            _set(container[probe], timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            if isinstance(container[probe].get("httpGet"), dict):
                container[probe]["httpGet"].setdefault("scheme", "HTTP")
    for variable in container.get("env") or ():
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if isinstance(field, dict):
            field.setdefault("apiVersion", "v1")
    limits = container["resources"].get("limits") or {}
    if limits:
        requests = container["resources"].setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)


def _set(fields: dict[str, Any], **defaults: Any) -> None:
    for name, value in defaults.items():
        if fields.get(name) is None:
            fields[name] = copy.deepcopy(value)


def validation_faults(pod: dict[str, Any]) -> list[str]:
    """Return what the registry's validation has against a pod: the rules that injectors run into."""
    spec = pod["spec"]
    faults = []
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    init, main = spec.get("initContainers") or [], spec.get("containers") or []
    names = [container["name"] for container in (*init, *main)]
    faults += [
        f"spec.volumes: Duplicate value: {name}" for name in sorted(set(volumes)) if volumes.count(name) > 1
    ]
    faults += [
        f"spec.containers: Duplicate value: {name}" for name in sorted(set(names)) if names.count(name) > 1
    ]
    for volume in spec.get("volumes") or ():
        if len([source for source in volume if source != "name" and volume[source] is not None]) != 1:
            faults.append(f"spec.volumes[{volume['name']}]: may not specify more than 1 volume type")
    for container in (*init, *main):
        paths = [mount["mountPath"] for mount in container.get("volumeMounts") or ()]
        if len(set(paths)) != len(paths):
            faults.append(f"{container['name']}.volumeMounts: must be unique")
        for mount in container.get("volumeMounts") or ():
            if mount["name"] not in volumes:
                faults.append(f"{container['name']}.volumeMounts: Not found: {mount['name']}")
            privileged = (container.get("securityContext") or {}).get("privileged")
            if mount.get("mountPropagation") == "Bidirectional" and not privileged:
                faults.append(f"{container['name']}: Bidirectional needs privileged")
    for container in init:
        for field in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(field) and container.get("restartPolicy") != "Always":
                faults.append(
                    f"{container['name']}.{field}: Forbidden: may not be set without restartPolicy=Always"
                )
    if not main:
        faults.append("spec.containers: Required value")
    return faults
