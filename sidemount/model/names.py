"""Names on the wire and names that we derive. Pure functions of their arguments."""

import re

DOMAIN = "sidemount.io"
API_VERSION = "sidemount.io/v1alpha1"
CSI_DRIVER = "csi.sidemount.io"

INJECTION_LABEL = "sidemount.io/injection"
INJECTION_ENABLED = "enabled"
INJECTED_LABEL = "sidemount.io/injected"  # of pods that carry volumes of ours: they are found by it, nothing is granted by it
INJECTED = "true"
INJECT_ANNOTATION = "sidemount.io/inject"
VOLUMES_ANNOTATION = "sidemount.io/volumes"
STATUS_ANNOTATION = "sidemount.io/status"
VOLUME_ANNOTATION_PREFIX = "volume.sidemount.io/"

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
OWN_NAMESPACE = "sidemount-system"

RESERVED_PREFIX = "sidemount-"
INLINE_PREFIX = "sidemount-view-"
KEEPER_CONTAINER = "sidemount-keeper"
MOUNTS_VOLUME = "sidemount"  # the Memory emptyDir that holds nothing but mount points
RUN_VOLUME = "sidemount-run"  # sockets and state, one directory a volume
NO_TOKEN_VOLUME = "sidemount-no-token"  # noqa: S105 - a volume's name: covers the service-account token

# Paths inside our own containers.
MOUNTS_PATH = "/sidemount"
RUN_PATH = "/run/sidemount"
SOURCE_PATH = "/source"
SECRETS_PATH = "/secrets"
CACHE_PATH = "/cache"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a directory
KEEPER_SOCKET = "keeper.sock"  # in the volume's own directory of RUN_PATH
MOUNTS_ENV = "SIDEMOUNT_MOUNTS"  # the keeper's KeeperConfig, JSON
POD_UID_ENV = "SIDEMOUNT_POD_UID"  # the keeper's, from the downward API: marks its mounts in mountinfo

FUSE_SUBTYPE = "sidemount"  # fstype in mountinfo is fuse.sidemount: how we know our own
UNPRIVILEGED_UID = 65532

LABEL_MAX = 63
SUBDOMAIN_MAX = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_HASHED_TAIL = re.compile(r"-[0-9a-f]{10}\Z")


def label_fault(name: str) -> str:
    """Return why a text is no DNS label (RFC 1123), "" if it is one."""
    if len(name) > LABEL_MAX:
        return f"is longer than {LABEL_MAX} characters"
    return "" if _LABEL.match(name) else "is not lower-case letters, digits and inner dashes"


def subdomain_fault(name: str) -> str:
    """Return why a text is no DNS subdomain, which names most objects; "" if it is one."""
    if len(name) > SUBDOMAIN_MAX:
        return f"is longer than {SUBDOMAIN_MAX} characters"
    return "" if _SUBDOMAIN.match(name) else "is not lower-case letters, digits, inner dashes and dots"


def volume_name_fault(name: str) -> str:
    """Return why a volume may not have this name, "" if it may: a DNS label that none of our own names needs."""
    fault = label_fault(name)
    if fault:
        return fault
    if name == "keeper" or name == MOUNTS_VOLUME or name.startswith(RESERVED_PREFIX):
        return "is reserved for Sidemount's own containers and volumes"
    return ""


def _bounded(prefix: str, name: str) -> str:
    """Join to a DNS label of at most 63 characters; a longer one ends in a hash of the whole.

    A name of exactly 63 characters that looks like a hashed one is hashed too, so no two names ever give the same label.
    """
    whole = prefix + name
    if len(whole) < LABEL_MAX or (len(whole) == LABEL_MAX and not _HASHED_TAIL.search(whole)):
        return whole
    return f"{whole[: LABEL_MAX - 11]}-{_digest(whole)[:10]}"


def _digest(text: str) -> str:
    # Imported here: hashlib maps all of libcrypto, 4 MiB that every pod's keeper would pay and never use.
    from hashlib import sha256

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def daemon_container(volume: str) -> str:
    """Return the name of the container that serves a volume."""
    return _bounded("sidemount-", volume)


def source_volume(volume: str) -> str:
    """Return the pod volume that holds a built-in filesystem's source."""
    return _bounded("sidemount-source-", volume)


def secret_volume(volume: str) -> str:
    """Return the pod volume that holds a volume's credentials."""
    return _bounded("sidemount-secret-", volume)


def cache_volume(volume: str) -> str:
    """Return the pod volume that holds a volume's cache."""
    return _bounded("sidemount-cache-", volume)


def inline_volume(volume: str, sub_path: str, read_only: bool) -> str:
    """Return the pod volume that shows a (sub-path, read-only) pair of an inline CSI volume other than what it is as a whole."""
    return _bounded(INLINE_PREFIX, f"{volume}-{_digest(f'{int(read_only)}:{sub_path}')[:16]}")


def view_name(volume: str, sub_path: str, read_only: bool) -> str:
    """Return the directory name of a view in the mounts volume.

    The writable root is the volume's name itself; any other is `name.<hash>`, and no volume
    name holds a dot, so the two never collide.
    """
    if not sub_path and not read_only:
        return volume
    return f"{volume}.{_digest(f'{int(read_only)}:{sub_path}')[:16]}"


def client_place(volume: str) -> str:
    """Return the directory name, in the mounts volume, where a client that mounts by itself does it.

    No container sees it: what is mounted there is shown at the views when it answers. A view's name ends in hexadecimal
    digits, so the two never collide.
    """
    return f"{volume}.client"


def mount_source(pod_uid: str, volume: str) -> str:
    """Return the source field our mounts carry in mountinfo: who they belong to."""
    return f"sidemount:{pod_uid}/{volume}" if pod_uid else f"sidemount:{volume}"
