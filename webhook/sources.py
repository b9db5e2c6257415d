"""Pod volumes that a daemon reads: its source, its credentials, its cache."""

from dataclasses import dataclass
from typing import Any

from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import Unsupported
from sidemount.model.mountspec import MountSpec
from sidemount.model.names import (
    CACHE_PATH,
    SECRETS_PATH,
    SOURCE_PATH,
    cache_volume,
    secret_volume,
    source_volume,
)
from sidemount.model.nfs_source import nfs_server
from sidemount.model.provisioned import VOLUME_FILESYSTEM
from sidemount.model.source_uri import shown_source

_SECRET_OWNER_MODE = 0o400
_SECRET_ANY_MODE = 0o444


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A pod volume and how the daemon, alone, mounts it. `flag` tells the daemon where."""

    volume: dict[str, Any]
    mount: dict[str, Any]
    flag: str


def source_attachment(spec: MountSpec) -> Attachment | None:
    """Return the source of a `directory` volume or of a provisioned one; every other filesystem reaches its own over the network.

    Raises Unsupported on a scheme that the filesystem does not know.
    """
    if spec.filesystem not in ("directory", VOLUME_FILESYSTEM):
        return None
    scheme, _, rest = spec.source.partition("://")
    host, _, path = rest.partition("/")
    mount: dict[str, Any] = {"name": source_volume(spec.volume), "mountPath": SOURCE_PATH}
    if spec.read_only:
        mount["readOnly"] = True
    volume: dict[str, Any] = {"name": source_volume(spec.volume)}
    match scheme:
        case "dir":
            volume["hostPath"] = {"path": f"/{path}", "type": "Directory"}
        case "pvc":
            volume["persistentVolumeClaim"] = {"claimName": host}
            if spec.read_only:
                volume["persistentVolumeClaim"]["readOnly"] = True
            if path:
                mount["subPath"] = path
        case "nfs":
            volume["nfs"] = {"server": nfs_server(host, spec.volume, spec.source), "path": f"/{path}"}
            if spec.read_only:
                volume["nfs"]["readOnly"] = True
        case _:
            raise Unsupported(
                f"volume {spec.volume}: the directory filesystem cannot serve {shown_source(spec.source)}",
                hint="its sources are dir:///path, pvc://claim/path and nfs://server/path",
            )
    return Attachment(volume=volume, mount=mount, flag="--source")


def secret_attachment(volume: str, secret: str, driver_class: DriverClass, uid: int) -> Attachment | None:
    """Return the credentials of a request: the keys that the class lists, as files."""
    if not secret:
        return None
    name = secret_volume(volume)
    # Only this container mounts it. Kubernetes gives the files to root, so any other daemon needs the bit for others.
    mode = _SECRET_OWNER_MODE if uid == 0 else _SECRET_ANY_MODE
    source: dict[str, Any] = {"secretName": secret, "defaultMode": mode}
    if driver_class.credentials.secret_keys:
        source["items"] = [{"key": key, "path": key} for key in driver_class.credentials.secret_keys]
    return Attachment(
        volume={"name": name, "secret": source},
        mount={"name": name, "mountPath": SECRETS_PATH, "readOnly": True},
        flag="--secrets",
    )


def cache_attachment(volume: str, driver_class: DriverClass) -> Attachment | None:
    """Return the cache of a class that has one, bounded by its size."""
    if not driver_class.cache_size:
        return None
    name = cache_volume(volume)
    return Attachment(
        volume={"name": name, "emptyDir": {"sizeLimit": driver_class.cache_size}},
        mount={"name": name, "mountPath": CACHE_PATH},
        flag="--cache",
    )
