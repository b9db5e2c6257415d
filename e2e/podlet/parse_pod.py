"""A Pod manifest → Pod: the API server's defaults, its refusals, the service-account token it adds.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

import dataclasses
import re
import secrets
import uuid
from collections import Counter

from e2e.podlet.errors import PodRefused
from e2e.podlet.fields import Fields
from e2e.podlet.parse_container import PodSecurity, parse_container, parse_resources, parse_seccomp
from e2e.podlet.parse_volume import parse_volume, token_volume
from e2e.podlet.pod import Container, Pod, Propagation, VolumeMount
from sidemount.model.errors import shown
from sidemount.model.names import TOKEN_PATH

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
# Where a pod goes, who may pull its images: nothing that the node does differently.
_CLUSTER_ONLY = (
    "affinity", "dnsConfig", "dnsPolicy", "enableServiceLinks", "imagePullSecrets", "nodeName", "nodeSelector",
    "overhead", "preemptionPolicy", "priority", "priorityClassName", "schedulerName", "serviceAccount",
    "subdomain", "tolerations", "topologySpreadConstraints",
)  # fmt: skip
_UNHONOURED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hostPID", (False,)),
    ("hostIPC", (False,)),
    ("hostUsers", (True,)),
    ("runtimeClassName", ()),
    ("ephemeralContainers", ([],)),
    ("hostAliases", ([],)),
    ("readinessGates", ([],)),
    ("schedulingGates", ([],)),
    ("os", ({"name": "linux"},)),
)


def parse_pod(manifest: object) -> Pod:
    """Parse, default and check one manifest of kind Pod. Raises PodRefused."""
    top = Fields(manifest, "pod")
    top.only("kind", ("Pod",), "podlet runs Pods only; give a workload's template as a Pod")
    top.only("apiVersion", ("v1",), "a Pod is of v1")
    top.ignore("status")
    meta, spec = top.part("metadata"), top.part("spec")
    top.close()
    name = _name(meta)
    security = _pod_security(spec.part("securityContext"))
    volumes = [parse_volume(entry) for entry in spec.children("volumes")]
    has_token = spec.optional_flag("automountServiceAccountToken") is not False
    if has_token:
        volumes.append(token_volume())
    _once("spec.volumes", [volume.name for volume in volumes])
    containers = _containers(spec, security, frozenset(volume.name for volume in volumes))
    pod = Pod(
        namespace=meta.text("namespace", "default"),
        name=name,
        uid=_uid(meta),
        labels=meta.pairs("labels"),
        annotations=meta.pairs("annotations"),
        service_account=spec.text("serviceAccountName", "") or "default",
        containers=tuple(map(_with_token, containers)) if has_token else containers,
        volumes=tuple(volumes),
        restart_policy=spec.choice("restartPolicy", ("Always", "OnFailure", "Never"), "Always"),
        grace_s=spec.number("terminationGracePeriodSeconds", 30),
        active_deadline_s=spec.optional_number("activeDeadlineSeconds", 1),
        hostname=spec.text("hostname", name.split(".")[0][:63]),
        host_network=spec.flag("hostNetwork"),
        share_process_namespace=spec.flag("shareProcessNamespace"),
        fs_group=security.fs_group,
        supplemental_groups=security.supplemental_groups,
        resources=parse_resources(spec.part("resources")),
    )
    for key, accepted in _UNHONOURED:
        spec.only(key, accepted, "podlet does not do it")
    spec.ignore(*_CLUSTER_ONLY)
    spec.close()
    return pod


def _name(meta: Fields) -> str:
    prefix = meta.text("generateName", "")
    name = meta.text("name", prefix + secrets.token_hex(3)[:5] if prefix else None)
    if not _NAME.match(name):
        raise meta.refusal("name", f"{shown(name)} is not a DNS subdomain")
    return name


def _uid(meta: Fields) -> str:
    uid = meta.text("uid", "") or str(uuid.uuid4())
    if not _UID.match(uid):
        raise meta.refusal("uid", f"{shown(uid)} is not a uid")
    return uid


def _once(where: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise PodRefused(f"pod.{where}: the name {shown(name)} is used {count} times")


def _containers(spec: Fields, security: PodSecurity, volumes: frozenset[str]) -> tuple[Container, ...]:
    found = [
        parse_container(entry, is_init=key == "initContainers", inherited=security, volumes=volumes)
        for key in ("initContainers", "containers")
        for entry in spec.children(key)
    ]
    if len(found) == 0 or found[-1].kind.value != "app":
        raise spec.refusal("containers", "at least one is required")
    _once("spec.containers", [container.name for container in found])
    return tuple(found)


def _with_token(container: Container) -> Container:
    """Add the token as the API server does: to every container, injected ones too, that mounts nothing there."""
    if any(mount.mount_path == TOKEN_PATH for mount in container.mounts):
        return container
    token = VolumeMount(
        volume=token_volume().name,
        mount_path=TOKEN_PATH,
        sub_path="",
        sub_path_expr="",
        read_only=True,
        propagation=Propagation.NONE,
    )
    return dataclasses.replace(container, mounts=(*container.mounts, token))


def _pod_security(fields: Fields) -> PodSecurity:
    security = PodSecurity(
        run_as_user=fields.optional_number("runAsUser"),
        run_as_group=fields.optional_number("runAsGroup"),
        run_as_non_root=fields.flag("runAsNonRoot"),
        seccomp=parse_seccomp(fields, "Unconfined"),
        fs_group=fields.optional_number("fsGroup"),
        supplemental_groups=fields.numbers("supplementalGroups"),
    )
    fields.only("sysctls", ([],), "podlet sets none")
    fields.only("supplementalGroupsPolicy", ("Merge",), "podlet merges the image's groups")
    fields.ignore("seLinuxOptions", "appArmorProfile", "fsGroupChangePolicy", "seLinuxChangePolicy")
    fields.close()
    return security
