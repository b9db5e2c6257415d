"""Where objects are in the API server."""

from urllib.parse import quote


def pods_path(namespace: str) -> str:
    """Return the collection of a namespace's pods, of all namespaces if it is ""."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"


def pod_path(namespace: str, name: str) -> str:
    """Return a pod."""
    return f"{pods_path(namespace)}/{quote(name, safe='')}"


def log_path(namespace: str, name: str, container: str, *, lines: int) -> str:
    """Return the last lines of a container's log."""
    return f"{pod_path(namespace, name)}/log?container={quote(container, safe='')}&tailLines={lines}"


def object_path(plural: str, namespace: str, name: str) -> str:
    """Return an object of the core group."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"


def proxy_path(namespace: str, pod: str, port: int, path: str) -> str:
    """Return a path of a pod's own HTTPS server, which the API server asks for us."""
    return (
        f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/https:{quote(pod, safe='')}:{port}/proxy/{path}"
    )
