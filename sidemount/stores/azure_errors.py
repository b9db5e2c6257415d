"""What Azure's error codes mean: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes."""

import errno
from collections.abc import Mapping

from sidemount.stores import xml_text
from sidemount.stores.faults import kind_of_status
from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.retries import Refusal
from sidemount.stores.s3_errors import pause_of
from sidemount.stores.store import FaultKind

_KINDS: Mapping[str, FaultKind] = {
    "AccountIsDisabled": FaultKind.DENIED,
    "AuthenticationFailed": FaultKind.CREDENTIALS,
    "BlobAlreadyExists": FaultKind.EXISTS,
    "BlobArchived": FaultKind.DENIED,
    "BlobImmutableDueToPolicy": FaultKind.DENIED,
    "BlobNotFound": FaultKind.MISSING,
    "ConditionNotMet": FaultKind.CHANGED,
    "ContainerBeingDeleted": FaultKind.MISSING,
    "ContainerNotFound": FaultKind.MISSING,
    "ExpiredAuthenticationToken": FaultKind.CREDENTIALS,
    "InternalError": FaultKind.SERVER,
    "InvalidAuthenticationInfo": FaultKind.CREDENTIALS,
    "InvalidBlockList": FaultKind.MISSING,  # of an upload that is completed, or that another has ended
    "InvalidMd5": FaultKind.CHECKSUM,
    "InvalidRange": FaultKind.RANGE,
    "Md5Mismatch": FaultKind.CHECKSUM,
    "OperationTimedOut": FaultKind.TIMEOUT,
    "PendingCopyOperation": FaultKind.CONFLICT,
    "RequestBodyTooLarge": FaultKind.TOO_LARGE,
    "ResourceNotFound": FaultKind.MISSING,
    "ServerBusy": FaultKind.THROTTLED,
    "SourceConditionNotMet": FaultKind.CHANGED,
    "TargetConditionNotMet": FaultKind.EXISTS,
}
_NUMBERS: Mapping[str, int] = {"OutOfRangeInput": errno.ENAMETOOLONG}
_SECRET = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo"})
_TEXT = 300


def refusal_of(answer: Answer) -> Refusal:
    """Return why the store refused."""
    told: dict[str, str] = {}
    if answer.body:
        try:
            told = xml_text.texts(xml_text.parse(answer.body.removeprefix(b"\xef\xbb\xbf"), "Error"))
        except ExchangeFailed:
            told = {}
    code = answer.headers.get("x-ms-error-code") or told.get("Code", "")
    status = answer.status
    kind = _KINDS.get(code) or (FaultKind.CREDENTIALS if status == 401 else kind_of_status(status))
    text = f"HTTP {status}" + (f" {code[:80]}" if code else "")
    message = told.get("Message", "").partition("\n")[0]
    # What was signed, and with what, is told with a signature that does not match: it is of no use to an application.
    if message and code not in _SECRET:
        text += f": {' '.join(message.split())[:_TEXT]}"
    return Refusal(kind, text, code, status, pause_of(answer), number=_NUMBERS.get(code, 0))
