"""What S3's error codes mean: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and what compatible stores add."""

import errno
import re
from collections.abc import Mapping

from sidemount.stores import xml_text
from sidemount.stores.faults import kind_of_status
from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.retries import Refusal
from sidemount.stores.store import FaultKind

_KINDS: Mapping[str, FaultKind] = {
    "AccessDenied": FaultKind.DENIED,
    "AccountProblem": FaultKind.DENIED,
    "AllAccessDisabled": FaultKind.DENIED,
    "AuthorizationHeaderMalformed": FaultKind.DENIED,
    "BadDigest": FaultKind.CHECKSUM,
    "ConditionalRequestConflict": FaultKind.CONFLICT,
    "EntityTooLarge": FaultKind.TOO_LARGE,
    "ExpiredToken": FaultKind.CREDENTIALS,
    "ExpiredTokenException": FaultKind.CREDENTIALS,
    "IncompleteBody": FaultKind.TRUNCATED,
    "InternalError": FaultKind.SERVER,
    "InvalidAccessKeyId": FaultKind.CREDENTIALS,
    "InvalidDigest": FaultKind.CHECKSUM,
    "InvalidRange": FaultKind.RANGE,
    "InvalidToken": FaultKind.CREDENTIALS,
    "MethodNotAllowed": FaultKind.UNSUPPORTED,
    "NoSuchBucket": FaultKind.MISSING,
    "NoSuchKey": FaultKind.MISSING,
    "NoSuchUpload": FaultKind.MISSING,
    "NoSuchVersion": FaultKind.MISSING,
    "NotImplemented": FaultKind.UNSUPPORTED,
    "NotSignedUp": FaultKind.DENIED,
    "OperationAborted": FaultKind.CONFLICT,
    "PreconditionFailed": FaultKind.CHANGED,
    "RequestLimitExceeded": FaultKind.THROTTLED,
    "RequestTimeout": FaultKind.TIMEOUT,
    "RequestTimeTooSkewed": FaultKind.DENIED,
    "ServiceUnavailable": FaultKind.THROTTLED,
    "SignatureDoesNotMatch": FaultKind.CREDENTIALS,
    "SlowDown": FaultKind.THROTTLED,
    "SlowDownRead": FaultKind.THROTTLED,
    "SlowDownWrite": FaultKind.THROTTLED,
    "TemporarilyUnavailable": FaultKind.THROTTLED,
    "Throttling": FaultKind.THROTTLED,
    "ThrottlingException": FaultKind.THROTTLED,
    "TokenRefreshRequired": FaultKind.CREDENTIALS,
    "TooManyRequests": FaultKind.THROTTLED,
    "XAmzContentChecksumMismatch": FaultKind.CHECKSUM,
    "XAmzContentSHA256Mismatch": FaultKind.CHECKSUM,
}

_NUMBERS: Mapping[str, int] = {
    "KeyTooLongError": errno.ENAMETOOLONG,
    "QuotaExceeded": errno.EDQUOT,
    "XMinioAdminBucketQuotaExceeded": errno.EDQUOT,
    "XMinioStorageFull": errno.ENOSPC,
    "InvalidObjectState": errno.EACCES,  # archived: it has to be restored first
}
_AGAIN = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_ERROR = re.compile(rb"\s*(<\?xml[^>]*>)?\s*<Error[\s>]")
_TEXT = 300


class ErrorBody(dict[str, str]):
    """The elements of an <Error>."""

    @classmethod
    def of(cls, answer: Answer) -> "ErrorBody":
        """Return them; none if the body is no <Error>."""
        if not answer.body:
            return cls()
        try:
            return cls(xml_text.texts(xml_text.parse(answer.body, "Error")))
        except ExchangeFailed:
            return cls()


def has_error(answer: Answer) -> bool:
    """Tell whether a 200 says in its body that it has failed after all: a copy or a completion that took long."""
    return answer.status == 200 and _ERROR.match(answer.body) is not None


def refusal_of(answer: Answer) -> Refusal:
    """Return why S3 refused."""
    body = ErrorBody.of(answer)
    code = body.get("Code", "")
    status = answer.status
    kind = _KINDS.get(code) or (kind_of_status(status) if status >= 300 else FaultKind.SERVER)
    if status == 507:
        kind = FaultKind.REQUEST
    number = _NUMBERS.get(code, errno.ENOSPC if status == 507 else 0)
    told = body.get("Message", "")
    request = answer.headers.get("x-amz-request-id") or body.get("RequestId", "")
    text = f"HTTP {status}" + (f" {code}" if code else "")
    # What does not match is told with the string that was signed: it is of no use to an application.
    if told and code != "SignatureDoesNotMatch":
        text += f": {' '.join(told.split())[:_TEXT]}"
    if request:
        text += f" (request {request[:80]})"
    return Refusal(kind, text, code, status, pause_of(answer), code in _AGAIN, number)


def pause_of(answer: Answer) -> float:
    """Return how many seconds an answer asks to wait, 0 if it does not say."""
    told = answer.headers.get("retry-after", "")
    return min(float(told), 60.0) if told.isascii() and told.isdigit() else 0.0
