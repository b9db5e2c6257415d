"""Mount paths inside a container that a request may name."""

from sidemount.model.names import MOUNTS_PATH, RUN_PATH, TOKEN_PATH
from sidemount.model.sub_path import sub_path_fault

# Kubernetes mounts the token after us, at this path or through /run: a mount above it would receive the token's directories.
_TOKEN_PATHS = (TOKEN_PATH, TOKEN_PATH.removeprefix("/var"))
_TAKEN = ("/proc", "/sys", "/dev", MOUNTS_PATH, RUN_PATH, *_TOKEN_PATHS)


def mount_path_fault(path: str) -> str:
    """Return why a volume may not be mounted at this path of a container, "" if it may."""
    if not path.startswith("/"):
        return "is not absolute"
    if path == "/":
        return "is the container's root"
    if path.startswith("//"):
        return "has an empty component"
    why = sub_path_fault(path[1:])
    if why:
        return why
    if ":" in path:
        return "holds a colon, which Kubernetes refuses in a mount path"
    for taken in _TAKEN:
        if path == taken or path.startswith(taken + "/"):
            return f"lies at or below {taken}, which is not the volume's to take"
    for token in _TOKEN_PATHS:
        if token.startswith(path + "/"):
            return f"lies above {token}, where the service-account token is mounted"
    return ""
