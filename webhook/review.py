"""AdmissionReview v1 on the wire: typed decode of what is read, and the answer's bytes.

Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

import base64
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from sidemount.model.errors import InvalidRequest, shown
from webhook.outcome import Outcome
from webhook.pod import Pod

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
PATCH_TYPE = "JSONPatch"

# The API server replays all warnings cut to 256 once they pass 4,096 together, and drops one with control characters.
WARNING_MAX = 120
WARNINGS_MAX = 16
MESSAGE_MAX = 8192
NULL = Raw(b"null")

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


class BadReview(InvalidRequest):
    """The body is no AdmissionReview that we can answer; the server says 400."""


class GroupVersionKind(Struct, frozen=True, gc=False):
    """What kind of object a rule matched."""

    group: str | None = None
    version: str | None = None
    kind: str | None = None


class GroupVersionResource(Struct, frozen=True, gc=False):
    """What resource a rule matched."""

    group: str | None = None
    version: str | None = None
    resource: str | None = None


class Request(Struct, Generic[_T], frozen=True, gc=False, rename="camel"):
    """The part of AdmissionRequest that is read. `object` is what is created or left by an update."""

    uid: str
    object: _T
    operation: str | None = None
    namespace: str | None = None
    sub_resource: str | None = None
    kind: GroupVersionKind | None = None
    resource: GroupVersionResource | None = None


class Review(Struct, Generic[_T], frozen=True, gc=False, rename="camel"):
    """The part of AdmissionReview that is read."""

    api_version: str
    kind: str
    request: Request[_T]


class RawRequest(Struct, frozen=True, gc=False, rename="camel"):
    """The same with both objects as they were sent. Null and absent are both `null`."""

    uid: str
    operation: str | None = None
    namespace: str | None = None
    sub_resource: str | None = None
    kind: GroupVersionKind | None = None
    resource: GroupVersionResource | None = None
    object: Raw = NULL
    old_object: Raw = NULL


class RawReview(Struct, frozen=True, gc=False, rename="camel"):
    """An AdmissionReview whose objects are not decoded."""

    api_version: str | None = None
    kind: str | None = None
    request: RawRequest | None = None


_raw_decoder = msgspec.json.Decoder(RawReview)
_pod_decoder = msgspec.json.Decoder(Review[Pod])


def decode_pod_review(body: bytes) -> Request[Pod] | None:
    """Decode a review whose object is a pod of the usual types, in one pass; None if it is anything else."""
    try:
        review = _pod_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if review.api_version != API_VERSION or review.kind != KIND or not review.request.uid:
        return None
    return review.request


def decode_review(body: bytes) -> RawRequest:
    """Decode any review, leaving its objects raw. Raises BadReview."""
    try:
        review = _raw_decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadReview(f"the body is no AdmissionReview: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReview(f"the body is not JSON: {error}", hint=f"post a {KIND} of {API_VERSION}") from error
    if review.api_version != API_VERSION or review.kind != KIND:
        raise BadReview(
            f"the body is {shown(review.kind)} of apiVersion {shown(review.api_version)}, not {KIND} of {API_VERSION}",
            hint="set admissionReviewVersions: [v1] in the webhook configuration",
        )
    if review.request is None:
        raise BadReview("the AdmissionReview has no request")
    if not review.request.uid:
        raise BadReview("the AdmissionReview's request.uid is empty")
    return review.request


def is_null(raw: Raw) -> bool:
    """Say whether an object is absent or null."""
    return bytes(raw) == b"null"


def clean(text: str, limit: int) -> str:
    """Return a text as one line of at most `limit` printable characters: what a header and a status may carry."""
    printable = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def clean_warnings(warnings: tuple[str, ...]) -> list[str]:
    """Return warnings that the API server will pass on whole: short, printable, few, each text once."""
    texts = list(dict.fromkeys(clean(text, WARNING_MAX) for text in warnings if text))
    if len(texts) <= WARNINGS_MAX:
        return texts
    more = len(texts) - WARNINGS_MAX + 1
    return [*texts[: WARNINGS_MAX - 1], f"sidemount: and {more} more warnings"]


def render_tail(outcome: Outcome, audit: Mapping[str, str]) -> bytes:
    """Render everything of the answer that follows the uid; the same for every review of the same pod shape."""
    response: dict[str, object] = {"allowed": outcome.allowed}
    if not outcome.allowed:
        response["status"] = _status(outcome)
    elif outcome.patch:
        response["patchType"] = PATCH_TYPE
        response["patch"] = base64.b64encode(outcome.patch).decode()
    warnings = clean_warnings(outcome.warnings)
    if warnings:
        response["warnings"] = warnings
    if audit:
        response["auditAnnotations"] = dict(audit)
    return b"," + _encode(response)[1:] + b"}"


def render_answer(uid: str, tail: bytes) -> bytes:
    """Render the whole AdmissionReview for one request."""
    return _HEAD + _encode(uid) + tail


_HEAD = f'{{"apiVersion":"{API_VERSION}","kind":"{KIND}","response":{{"uid":'.encode()


def _status(outcome: Outcome) -> dict[str, object]:
    # With a reason that the API machinery does not know, clients go by the code: IsForbidden(err) holds for 403.
    return {
        "metadata": {},
        "status": "Failure",
        "message": clean(f"{outcome.reason.value}: {outcome.message}", MESSAGE_MAX),
        "reason": outcome.reason.value,
        "code": outcome.code,
    }
