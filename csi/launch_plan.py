"""What a launcher needs of a class to start a volume's daemon, and whether it can have it at all. Pure."""

from csi.pod_launch import PodLaunch
from csi.records import Launch
from sidemount.model import client_command as template
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import InvalidRequest, PolicyDenied, Reason, shown
from sidemount.model.mountspec import MountSpec
from sidemount.model.names import CACHE_PATH, RUN_PATH
from sidemount.model.nfs_source import nfs_server
from sidemount.model.quantity import parse_quantity
from sidemount.model.source_uri import shown_source

POD_SECRETS_PATH = f"{RUN_PATH}/secrets"
# What Pod Security's level baseline lets a container add.
# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline
BASELINE_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)


def client_command(spec: MountSpec, driver_class: DriverClass, run_root: str, name: str) -> tuple[str, ...]:
    """Return a client's argv. A process of the node finds its files elsewhere than a container: without a `run_root` it is one."""
    run_dir = f"{run_root}/{name}"
    return template.client_command(
        driver_class,
        source=spec.source,
        options=spec.options,
        read_only=spec.read_only,
        where=f"volume {shown(spec.volume)}",
        secrets=f"{run_dir}/secrets" if run_root else POD_SECRETS_PATH,
        cache=f"{run_dir}/cache" if run_root else CACHE_PATH,
    )


def plan_process(spec: MountSpec, driver_class: DriverClass, volume_id: str) -> Launch:
    """Return how the daemon is started as a process of the node. Raises InvalidRequest."""
    limit = driver_class.resources.limits.get("memory")
    source = ""
    if driver_class.filesystem == "directory":
        scheme, host, path = _parts(spec.source)
        if scheme != "dir" or host:
            raise InvalidRequest(
                f"volume {shown(volume_id)}: launcher process cannot serve {shown_source(spec.source)}",
                hint="its sources are dir:///path; nfs:// needs a mount pod",
            )
        source = path
    return Launch(
        source_dir=source,
        capabilities=driver_class.capabilities,
        memory_bytes=None if limit is None else int(parse_quantity(limit)),
    )


def plan_pod(spec: MountSpec, driver_class: DriverClass, volume_id: str) -> Launch:
    """Return how the daemon is started in a pod of its own. Raises InvalidRequest, PolicyDenied, Unsupported."""
    where = f"volume {shown(volume_id)}: driver class {shown(driver_class.name)}"
    if not driver_class.abilities.descriptor:
        raise PolicyDenied(
            f"{where} has a client that mounts by itself, and a mount pod has no privilege to",
            reason=Reason.NOT_IN_CLASS,
            hint="use a client that serves a descriptor, or delivery sidecar",
        )
    beyond = sorted(set(driver_class.capabilities) - BASELINE_CAPABILITIES)
    if beyond:
        raise PolicyDenied(
            f"{where} needs the capability {beyond[0]}, which Pod Security forbids mount pods",
            reason=Reason.NOT_IN_CLASS,
            hint="take it out of the class, or use delivery sidecar",
        )
    given, server, nfs_path = "", "", ""
    if driver_class.filesystem == "directory":
        given, server, nfs_path = _directory_source(spec, volume_id)
    resources = driver_class.resources
    return Launch(
        capabilities=driver_class.capabilities,
        given_source=given,
        pod=PodLaunch(
            image=driver_class.image,
            pull_policy=driver_class.image_pull_policy,
            pull_secrets=driver_class.image_pull_secrets,
            requests=dict(resources.requests),
            limits=dict(resources.limits),
            cache_size=driver_class.cache_size,
            nfs_server=server,
            nfs_path=nfs_path,
        ),
    )


def _directory_source(spec: MountSpec, volume_id: str) -> tuple[str, str, str]:
    """Return the node's directory that the keeper opens, or server and path of NFS, which the pod mounts."""
    scheme, host, path = _parts(spec.source)
    if scheme == "dir" and not host:
        return path, "", ""
    if scheme == "nfs":
        return "", nfs_server(host, volume_id, spec.source), path
    raise InvalidRequest(
        f"volume {shown(volume_id)}: a mount pod cannot serve {shown_source(spec.source)}",
        hint="its sources are dir:///path and nfs://server/path; a claim of the pod's namespace needs delivery sidecar",
    )


def _parts(source: str) -> tuple[str, str, str]:
    scheme, _, rest = source.partition("://")
    host, _, path = rest.partition("/")
    return scheme, host, f"/{path}"
