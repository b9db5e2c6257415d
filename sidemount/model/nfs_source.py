"""nfs:// sources as a pod's volume takes them."""

import re

from sidemount.model.errors import Unsupported
from sidemount.model.source_uri import shown_source

_NFS_PORT = 2049
_PORT = re.compile(r":([0-9]{1,5})\Z")


def nfs_server(host: str, volume: str, source: str) -> str:
    """Return the server without the standard port: Kubernetes has no place for another one. Raises Unsupported."""
    found = _PORT.search(host)
    if found is None:
        return host
    if int(found[1]) != _NFS_PORT:
        raise Unsupported(
            f"volume {volume}: {shown_source(source)} names port {found[1]}, and Kubernetes mounts NFS at port "
            f"{_NFS_PORT} only",
            hint="leave the port out, or use a PersistentVolume with mountOptions and a pvc:// source",
        )
    return host[: found.start()]
