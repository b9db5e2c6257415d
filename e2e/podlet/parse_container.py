"""A container of a manifest → Container: the API server's defaults and refusals.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#Container
"""

from dataclasses import dataclass
from decimal import Decimal

from e2e.podlet.errors import PodRefused
from e2e.podlet.fields import Fields
from e2e.podlet.pod import (
    Container,
    EnvVar,
    FieldRef,
    KeyRef,
    Kind,
    PreStop,
    Probe,
    Propagation,
    ResourceRef,
    Resources,
    Security,
    VolumeMount,
)
from sidemount.model.errors import shown

_MILLI = Decimal("0.001")
_RESOURCES = tuple(f"{kind}.{name}" for kind in ("limits", "requests") for name in ("cpu", "memory"))
_FROM_LOG = "FallbackToLogsOnError"
_HANDLERS = ("httpGet", "tcpSocket", "grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSecurity:
    """The pod's securityContext: what its containers inherit, and the groups of the whole pod."""

    run_as_user: int | None
    run_as_group: int | None
    run_as_non_root: bool
    seccomp: str
    fs_group: int | None
    supplemental_groups: tuple[int, ...]


def parse_container(
    fields: Fields, *, is_init: bool, inherited: PodSecurity, volumes: frozenset[str]
) -> Container:
    """Parse one entry of containers or initContainers. Raises PodRefused."""
    name = fields.label("name")
    kind = _kind(fields, is_init)
    security = _security(fields.part("securityContext"), inherited)
    container = Container(
        name=name,
        kind=kind,
        image=fields.text("image"),
        command=fields.texts("command"),
        args=fields.texts("args"),
        working_dir=fields.text("workingDir", ""),
        env=_env(fields),
        mounts=_mounts(fields, volumes, security.privileged),
        security=security,
        resources=parse_resources(fields.part("resources")),
        startup=_probe(fields, "startupProbe"),
        liveness=_probe(fields, "livenessProbe"),
        readiness=_probe(fields, "readinessProbe"),
        pre_stop=_pre_stop(fields),
        termination_path=fields.text("terminationMessagePath", "/dev/termination-log"),
        message_from_log=fields.choice("terminationMessagePolicy", ("File", _FROM_LOG), "File") == _FROM_LOG,
    )
    if kind is Kind.INIT and (
        container.startup or container.liveness or container.readiness or container.pre_stop
    ):
        raise PodRefused(
            f"{fields.where}: an init container without restartPolicy Always has no probes or lifecycle"
        )
    for key in ("stdin", "tty", "stdinOnce"):
        fields.only(key, (False,), "podlet gives no terminal")
    fields.ignore("ports", "imagePullPolicy", "resizePolicy")
    fields.close()
    return container


def parse_resources(fields: Fields) -> Resources:
    """Parse resources of a container or a pod; requests default to limits. Raises PodRefused."""
    limits, requests = fields.part("limits"), fields.part("requests")
    memory_limit, cpu_limit = limits.quantity("memory"), limits.quantity("cpu", _MILLI)
    memory_request, cpu_request = requests.quantity("memory"), requests.quantity("cpu", _MILLI)
    for part in (limits, requests):
        part.ignore("ephemeral-storage")
        part.close()
    fields.close()
    for what, limit, request in (("memory", memory_limit, memory_request), ("cpu", cpu_limit, cpu_request)):
        if limit is not None and request is not None and request > limit:
            raise requests.refusal(what, "is greater than its limit")
    return Resources(
        memory_limit_bytes=memory_limit,
        memory_request_bytes=memory_limit if memory_request is None else memory_request,
        cpu_limit_milli=cpu_limit,
        cpu_request_milli=cpu_limit if cpu_request is None else cpu_request,
    )


def parse_field_source(fields: Fields) -> FieldRef | ResourceRef | None:
    """Take fieldRef or resourceFieldRef of an env valueFrom or a downwardAPI item."""
    if field := fields.child("fieldRef"):
        field.only("apiVersion", ("v1",), "only v1 is known")
        found = FieldRef(path=field.text("fieldPath"))
        field.close()
        return found
    if resource := fields.child("resourceFieldRef"):
        reference = ResourceRef(
            container=resource.text("containerName", ""),
            resource=resource.choice("resource", _RESOURCES),
            divisor_milli=resource.quantity("divisor", _MILLI) or 1000,
        )
        resource.close()
        return reference
    return None


def parse_seccomp(fields: Fields, inherited: str) -> str:
    """Take seccompProfile; without one kubelet runs the container unconfined."""
    profile = fields.child("seccompProfile")
    if profile is None:
        return inherited
    found = profile.choice("type", ("RuntimeDefault", "Unconfined"))
    profile.close()
    return found


def _kind(fields: Fields, is_init: bool) -> Kind:
    policy = fields.raw("restartPolicy")
    if policy is None:
        return Kind.INIT if is_init else Kind.APP
    if not is_init or policy != "Always":
        raise fields.refusal(
            "restartPolicy", f"{shown(policy)}: only an init container may have it, only Always"
        )
    return Kind.SIDECAR


def _env(fields: Fields) -> tuple[EnvVar, ...]:
    return (
        *(_env_from(entry) for entry in fields.children("envFrom")),
        *map(_env_var, fields.children("env")),
    )


def _env_from(entry: Fields) -> EnvVar:
    prefix = entry.text("prefix", "")
    source = _key_ref(entry, "secretRef", "configMapRef", prefix)
    if source is None:
        raise PodRefused(f"{entry.where}: needs secretRef or configMapRef")
    entry.close()
    return EnvVar(name="", source=source)


def _env_var(entry: Fields) -> EnvVar:
    name = entry.text("name")
    if not name or "=" in name:
        raise entry.refusal("name", f"{shown(name)} is not a name of an environment variable")
    value_from = entry.child("valueFrom")
    if value_from is None:
        variable = EnvVar(name=name, value=entry.text("value", ""))
        entry.close()
        return variable
    if entry.text("value", ""):
        raise entry.refusal("valueFrom", "cannot stand beside a value")
    source = parse_field_source(value_from) or _key_ref(value_from, "secretKeyRef", "configMapKeyRef", "")
    if source is None:
        raise PodRefused(f"{value_from.where}: no source that podlet knows")
    value_from.close()
    entry.close()
    return EnvVar(name=name, source=source)


def _key_ref(fields: Fields, secret: str, config_map: str, prefix: str) -> KeyRef | None:
    for key, kind in ((secret, "Secret"), (config_map, "ConfigMap")):
        if (found := fields.child(key)) is not None:
            reference = KeyRef(
                kind=kind,
                name=found.text("name"),
                key=found.text("key") if key.endswith("KeyRef") else "",
                optional=found.flag("optional"),
                prefix=prefix,
            )
            found.close()
            return reference
    return None


def _mounts(fields: Fields, volumes: frozenset[str], privileged: bool) -> tuple[VolumeMount, ...]:
    mounts = tuple(_mount(entry, volumes, privileged) for entry in fields.children("volumeMounts"))
    seen: set[str] = set()
    for mount in mounts:
        if mount.mount_path in seen:
            raise fields.refusal("volumeMounts", f"mountPath {shown(mount.mount_path)} is used twice")
        seen.add(mount.mount_path)
    fields.only("volumeDevices", ([],), "podlet has no block devices")
    return mounts


def _mount(entry: Fields, volumes: frozenset[str], privileged: bool) -> VolumeMount:
    volume = entry.text("name")
    if volume not in volumes:
        raise entry.refusal("name", f"no volume is named {shown(volume)}")
    path = entry.text("mountPath")
    if not path.startswith("/") or ":" in path:
        raise entry.refusal("mountPath", f"{shown(path)} must be absolute and without a colon")
    propagation = Propagation(entry.choice("mountPropagation", tuple(p.value for p in Propagation), "None"))
    if propagation is Propagation.BIDIRECTIONAL and not privileged:
        raise entry.refusal("mountPropagation", "Bidirectional needs a privileged container")
    sub_path, sub_path_expr = (_sub_path(entry, key) for key in ("subPath", "subPathExpr"))
    if sub_path and sub_path_expr:
        raise entry.refusal("subPathExpr", "cannot stand beside a subPath")
    mount = VolumeMount(
        volume=volume,
        mount_path=path,
        sub_path=sub_path,
        sub_path_expr=sub_path_expr,
        read_only=entry.flag("readOnly"),
        propagation=propagation,
    )
    entry.only("recursiveReadOnly", ("Disabled",), "podlet does not do it")
    entry.close()
    return mount


def _sub_path(entry: Fields, key: str) -> str:
    path = entry.text(key, "")
    if path.startswith("/") or ".." in path.split("/"):
        raise entry.refusal(key, f"{shown(path)} must be relative and hold no '..'")
    return path


def _security(fields: Fields, inherited: PodSecurity) -> Security:
    privileged = fields.flag("privileged")
    escalation = fields.optional_flag("allowPrivilegeEscalation")
    capabilities = fields.part("capabilities")
    added, dropped = capabilities.texts("add"), capabilities.texts("drop")
    capabilities.close()
    if escalation is False and (privileged or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added)):
        raise fields.refusal("allowPrivilegeEscalation", "cannot be false for privileged or CAP_SYS_ADMIN")
    user, group = fields.optional_number("runAsUser"), fields.optional_number("runAsGroup")
    non_root = fields.optional_flag("runAsNonRoot")
    security = Security(
        privileged=privileged,
        run_as_user=inherited.run_as_user if user is None else user,
        run_as_group=inherited.run_as_group if group is None else group,
        run_as_non_root=inherited.run_as_non_root if non_root is None else non_root,
        read_only_root=fields.flag("readOnlyRootFilesystem"),
        no_new_privileges=escalation is False,
        cap_add=added,
        cap_drop=dropped,
        seccomp=parse_seccomp(fields, inherited.seccomp),
    )
    fields.only("procMount", ("Default",), "podlet masks /proc as a runtime does by default")
    fields.ignore("seLinuxOptions", "appArmorProfile")
    fields.close()
    return security


def _probe(fields: Fields, key: str) -> Probe | None:
    entry = fields.child(key)
    if entry is None:
        return None
    for handler in _HANDLERS:
        if entry.has(handler):
            raise entry.refusal(handler, "podlet runs exec probes only")
    action = entry.part("exec")
    probe = Probe(
        command=action.texts("command"),
        initial_delay_s=entry.number("initialDelaySeconds", 0),
        period_s=entry.number("periodSeconds", 10, 1),
        timeout_s=entry.number("timeoutSeconds", 1, 1),
        success_threshold=entry.number("successThreshold", 1, 1),
        failure_threshold=entry.number("failureThreshold", 3, 1),
        grace_s=entry.optional_number("terminationGracePeriodSeconds", 1),
    )
    action.close()
    entry.close()
    if not probe.command:
        raise entry.refusal("exec.command", "is required")
    if key != "readinessProbe" and probe.success_threshold != 1:
        raise entry.refusal("successThreshold", f"must be 1 for a {key}")
    if key == "readinessProbe" and probe.grace_s is not None:
        raise entry.refusal("terminationGracePeriodSeconds", "must not be set for a readinessProbe")
    return probe


def _pre_stop(fields: Fields) -> PreStop | None:
    lifecycle = fields.part("lifecycle")
    hook = lifecycle.child("preStop")
    lifecycle.close()
    if hook is None:
        return None
    action, sleep = hook.part("exec"), hook.part("sleep")
    pre_stop = PreStop(command=action.texts("command"), sleep_s=sleep.number("seconds", 0))
    for part in (action, sleep, hook):
        part.close()
    if not pre_stop.command and not pre_stop.sleep_s:
        raise hook.refusal("exec", "podlet runs exec and sleep hooks only, and this one says neither")
    return pre_stop
