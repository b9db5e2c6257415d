"""A container's environment, command and fields, as a kubelet works them out.

Source: https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

import re
import socket
from collections.abc import Mapping

from e2e.podlet.image import Image
from e2e.podlet.objects import MissingObject, Objects
from e2e.podlet.pod import Container, EnvVar, FieldRef, KeyRef, Pod, ResourceRef
from sidemount.model.errors import shown

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]\Z")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
POD_IP = "127.0.0.1"  # the pod's network has nothing but its loopback


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) of known names; $$ is one $; whatever else looks like a reference stays as it is."""
    out: list[str] = []
    at = 0
    while at < len(text):
        char, rest = text[at], text[at + 1 : at + 2]
        if char != "$" or not rest:
            out.append(char)
            at += 1
        elif rest == "(" and (end := text.find(")", at + 2)) >= 0:
            name = text[at + 2 : end]
            out.append(variables.get(name, f"$({name})"))
            at = end + 1
        else:
            out.append("$" if rest == "$" else "$" + rest)
            at += 2
    return "".join(out)


def environment(pod: Pod, container: Container, objects: Objects) -> dict[str, str]:
    """Return the variables that the manifest gives, in order, each expanded with those before it.

    Raises MissingObject.
    """
    found: dict[str, str] = {}
    for variable in container.env:
        match variable.source:
            case None:
                found[variable.name] = expand(variable.value, found)
            case FieldRef(path=path):
                found[variable.name] = field(pod, path)
            case ResourceRef() as reference:
                found[variable.name] = resource(pod, container.name, reference)
            case KeyRef() as reference:
                found.update(_from_object(pod, variable, reference, objects))
    return found


def process_environment(pod: Pod, image: Image, variables: Mapping[str, str]) -> list[str]:
    """Return the whole environment of the process: the runtime's, the image's, the manifest's."""
    merged = {"PATH": _PATH}
    for line in image.env:
        name, _, value = line.partition("=")
        merged[name] = value
    merged["HOSTNAME"] = socket.gethostname() if pod.host_network else pod.hostname
    merged.update(variables)
    return [f"{name}={value}" for name, value in merged.items()]


def command_line(container: Container, image: Image, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the argv, empty if neither the manifest nor the image says one."""
    command = tuple(expand(word, variables) for word in container.command)
    args = tuple(expand(word, variables) for word in container.args)
    if command:
        return command + args
    return image.entrypoint + (args or image.command)


def field(pod: Pod, path: str) -> str:
    """Return a field of the pod by its fieldPath. Raises MissingObject for one that podlet has not."""
    if keyed := _KEYED.match(path):
        return (pod.labels if keyed[1] == "labels" else pod.annotations).get(keyed[2], "")
    plain = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "metadata.labels": _map_text(pod.labels),
        "metadata.annotations": _map_text(pod.annotations),
        "spec.nodeName": socket.gethostname(),
        "spec.serviceAccountName": pod.service_account,
        "status.podIP": POD_IP,
        "status.podIPs": POD_IP,
        "status.hostIP": POD_IP,
        "status.hostIPs": POD_IP,
    }
    if path not in plain:
        raise MissingObject(f"podlet does not know the field {shown(path)}")
    return plain[path]


def resource(pod: Pod, asking: str, reference: ResourceRef) -> str:
    """Return a request or limit in units of its divisor, rounded up; an unset limit is the node's capacity."""
    name = reference.container or asking
    found = next((c.resources for c in pod.containers if c.name == name), None)
    if found is None:
        raise MissingObject(f"no container is named {shown(name)}")
    milli = {
        "limits.memory": _milli(found.memory_limit_bytes, _node_memory_bytes()),
        "requests.memory": _milli(found.memory_request_bytes, 0),
        "limits.cpu": found.cpu_limit_milli if found.cpu_limit_milli is not None else _node_cpus() * 1000,
        "requests.cpu": found.cpu_request_milli or 0,
    }[reference.resource]
    return str(-(-milli // reference.divisor_milli))


def _milli(amount: int | None, default: int) -> int:
    return (default if amount is None else amount) * 1000


def _node_memory_bytes() -> int:
    with open("/proc/meminfo") as meminfo:
        return int(meminfo.readline().split()[1]) * 1024


def _node_cpus() -> int:
    with open("/proc/cpuinfo") as cpuinfo:
        return sum(line.startswith("processor") for line in cpuinfo)


def _from_object(pod: Pod, variable: EnvVar, reference: KeyRef, objects: Objects) -> dict[str, str]:
    content = objects.find(reference.kind, pod.namespace, reference.name)
    if content is None:
        if reference.optional:
            return {}
        raise MissingObject(f'{reference.kind.lower()} "{reference.name}" not found')
    if not variable.name:
        return {
            reference.prefix + key: value.decode(errors="surrogateescape")
            for key, value in content.items()
            if _ENV_NAME.match(reference.prefix + key)
        }
    if reference.key not in content:
        if reference.optional:
            return {}
        raise MissingObject(
            f"couldn't find key {reference.key} in {reference.kind} {pod.namespace}/{reference.name}"
        )
    return {variable.name: content[reference.key].decode(errors="surrogateescape")}


def _map_text(mapping: Mapping[str, str]) -> str:
    return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(mapping.items()))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
