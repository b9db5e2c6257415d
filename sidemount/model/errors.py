"""The one error tree. Each service maps it to its own boundary in one table."""

from enum import Enum

_FAULTS_TOLD = 50
_SHOWN_MAX = 80


class Reason(Enum):
    """A stable code for every refusal and every choice: warning, audit annotation, metric label, CLI.

    Never rename a value: dashboards and alerts of users key on it.
    """

    # choices
    SIDECAR_PREFERRED = "SidecarPreferred"
    CSI_PREFERRED = "CsiPreferred"
    CSI_REQUESTED = "CsiRequested"
    SIDECAR_REQUESTED = "SidecarRequested"
    CSI_FALLBACK = "CsiFallback"
    SIDECAR_FALLBACK = "SidecarFallback"
    LEFT_TO_CSI = "LeftToCsi"
    # why nothing is done
    NOT_REQUESTED = "NotRequested"
    OPTED_OUT = "OptedOut"
    NOTHING_SUPPLIED = "NothingSupplied"
    SYSTEM_NAMESPACE = "SystemNamespace"
    MIRROR_POD = "MirrorPod"
    NOT_A_POD_CREATE = "NotAPodCreate"
    ALREADY_INJECTED = "AlreadyInjected"
    REPAIRED = "Repaired"
    # refusals: the request
    INVALID_REQUEST = "InvalidRequest"
    INVALID_OPTION = "InvalidOption"
    UNKNOWN_CLASS = "UnknownClass"
    AMBIGUOUS_CLASS = "AmbiguousClass"
    UNKNOWN_VOLUME = "UnknownVolume"
    NAME_COLLISION = "NameCollision"
    MOUNT_PATH_COLLISION = "MountPathCollision"
    SUB_PATH_EXPR = "SubPathExpr"
    IMMUTABLE = "Immutable"
    HAND_MADE = "HandMade"
    NOT_INJECTED = "NotInjected"
    OWN_CONTAINER = "OwnContainer"
    RESOURCES_EXCEEDED = "ResourcesExceeded"
    LIMIT_RANGE_EXCEEDED = "LimitRangeExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    # refusals: policy
    NAMESPACE_NOT_ENABLED = "NamespaceNotEnabled"
    NAMESPACE_NOT_PERMITTED = "NamespaceNotPermitted"
    SOURCE_NOT_PERMITTED = "SourceNotPermitted"
    CLASS_OFF = "ClassOff"
    PROVISIONED_ONLY = "ProvisionedOnly"
    NOT_PROVISIONED = "NotProvisioned"
    CREDENTIALS_REQUIRED = "CredentialsRequired"
    SHARED_UID = "SharedUid"
    EXISTING_DISABLED = "ExistingDisabled"
    UNKNOWN_DRIVER = "UnknownDriver"
    NO_SUCH_VOLUME = "NoSuchVolume"
    ACCESS_MODE = "AccessMode"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_NOT_OURS = "ClaimNotOurs"
    NO_DELIVERY = "NoDelivery"
    # why one delivery cannot be had
    POD_SECURITY = "PodSecurity"
    USER_NAMESPACE = "UserNamespace"
    SANDBOXED_RUNTIME = "SandboxedRuntime"
    WINDOWS = "Windows"
    VIRTUAL_NODE = "VirtualNode"
    OLD_CLUSTER = "OldCluster"
    NO_NODE_PLUGIN = "NoNodePlugin"
    NO_INLINE_VOLUMES = "NoInlineVolumes"
    VOLUME_CREDENTIALS = "VolumeCredentials"
    EXCLUSIVE_CLAIM = "ExclusiveClaim"
    SOURCE_NEEDS_SIDECAR = "SourceNeedsSidecar"
    CLIENT_SUB_PATH = "ClientSubPath"
    NOT_IN_CLASS = "NotInClass"
    # the machine and ourselves
    CONFLICT = "Conflict"
    PENDING = "Pending"
    NOT_READY = "NotReady"
    UNSUPPORTED = "Unsupported"
    HOST_FAILURE = "HostFailure"
    CLUSTER_ACCESS = "ClusterAccess"
    BAD_MESSAGE = "BadMessage"
    PATCH_NOT_PROVED = "PatchNotProved"
    NO_RESEND = "NoResend"


class VolumeError(Exception):
    """Base of every error of ours.

    `message` says what, of which object and field, and why; `hint` says the way out.
    """

    default_reason = Reason.INVALID_REQUEST

    def __init__(self, message: str, *, reason: Reason | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidRequest(VolumeError):
    """The request itself cannot be understood or contradicts itself."""


class UnknownDriverClass(VolumeError):
    """No driver class of that name, or none or several for that source."""

    default_reason = Reason.UNKNOWN_CLASS


class PolicyDenied(VolumeError):
    """Understood, but the admin's allowlist or the cluster's policy forbids it."""

    default_reason = Reason.NO_DELIVERY


class PublishConflict(VolumeError):
    """The place or name is taken by something different."""

    default_reason = Reason.CONFLICT


class OperationPending(VolumeError):
    """The same operation is running already."""

    default_reason = Reason.PENDING


class NotReady(VolumeError):
    """We cannot answer yet: try again."""

    default_reason = Reason.NOT_READY


class Unsupported(VolumeError):
    """Well-formed, but something that we do not do."""

    default_reason = Reason.UNSUPPORTED


class HostFailure(VolumeError):
    """The kernel or the machine refused. `errno` is its number, 0 if there is none."""

    default_reason = Reason.HOST_FAILURE

    def __init__(self, message: str, *, errno: int = 0, reason: Reason | None = None, hint: str = "") -> None:
        super().__init__(message, reason=reason, hint=hint)
        self.errno = errno


class BadMessage(VolumeError):
    """A peer's or an older version's bytes that we cannot read."""

    default_reason = Reason.BAD_MESSAGE


class Faults(InvalidRequest):
    """All the faults of one request, reported together. Never empty.

    `faults` holds every one of them; the message spells out the first fifty.
    """

    def __init__(self, faults: "tuple[VolumeError, ...]") -> None:
        self.faults = faults
        told = [str(fault) for fault in faults[:_FAULTS_TOLD]]
        if len(faults) > _FAULTS_TOLD:
            told.append(f"and {len(faults) - _FAULTS_TOLD} more")
        super().__init__("; ".join(told), reason=faults[0].reason)


def raise_faults(faults: "list[VolumeError]") -> None:
    """Raise what was collected: nothing if empty, the one itself, or all as Faults."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise Faults(tuple(faults))


def shown(value: object) -> str:
    """Render any value for a message: quoted, at most 80 characters of it, nothing unprintable left raw."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _shown_text(value)
        case int():
            # str() of an int of thousands of digits raises; such a number is never worth printing.
            return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
        case float():
            return repr(value)
        case dict():
            return f"a mapping of {len(value)} entries"
        case list() | tuple():
            return f"a list of {len(value)} entries"
    return f"a {type(value).__name__}"


def _shown_text(text: str) -> str:
    cut = text[:_SHOWN_MAX]
    printable = "".join(_shown_char(char) for char in cut)
    return f'"{printable}"' if cut == text else f'"{printable}…" ({len(text)} characters)'


def _shown_char(char: str) -> str:
    if char == '"':
        return '\\"'
    return char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
