"""mutate(): the bytes of an AdmissionReview in, the bytes of its answer out. Pure, given facts and settings.

Decisions are kept by pod shape: pods of one workload differ in nothing that matters, and what was proved for the first holds for
all. Nothing kept outlives the settings that it came from, nor the answers of the facts that it read; other facts may change.
"""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from sidemount.model.errors import InvalidRequest, Reason
from sidemount.model.facts import Facts
from sidemount.model.names import DOMAIN
from webhook.asked import read_asked
from webhook.consulted import Consulted, Reads, doubts_of, still_holds
from webhook.decision import Decided, PodCase, judge, refused, unchanged
from webhook.gate import CREATE, is_enabled, is_mirror, is_pod, is_system_namespace, namespace_of
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Answer, Doubt, Outcome
from webhook.pod import Pod, decode_object, decode_pod
from webhook.review import (
    RawRequest,
    decode_pod_review,
    decode_review,
    is_null,
    render_answer,
    render_tail,
)
from webhook.shape import (
    PodShape,
    claim_volumes,
    has_reserved_container,
    is_request,
    own_annotations,
    shape_of,
)

_KEPT_MAX = 1024
_KEPT_MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """An outcome and everything of its answer but the uid; what it read of the facts, and when these last said the same."""

    outcome: Outcome
    tail: bytes
    size_bytes: int = 0
    reads: Reads = ()
    doubts: tuple[Doubt, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes that a pod came in: alone, or within its review."""

    text: bytes
    is_review: bool

    def decode(self) -> dict[str, Any]:
        """Return the pod as plain JSON. Raises InvalidRequest."""
        return decode_object(bytes(decode_review(self.text).object) if self.is_review else self.text)


class Memory:
    """Decisions by pod shape, for one set of settings, within a bound; the least recently used go first.

    When the facts change, each is looked at again when it is asked for: cheaper than to decide, and most still hold.
    """

    def __init__(self, facts: Facts, settings: InjectionSettings) -> None:
        self.settings = settings
        self._epochs = count()
        self._present = (facts, facts.generation(), next(self._epochs))
        self.size_bytes = 0
        self._kept: OrderedDict[PodShape, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def is_of(self, settings: InjectionSettings) -> bool:
        """Whether decisions made under these settings are kept here."""
        return self.settings is settings or self.settings == settings

    def look_at(self, facts: Facts) -> int:
        """Take these as the present facts; return the number of their epoch."""
        generation = facts.generation()
        known, known_generation, epoch = self._present
        if known is not facts or known_generation != generation:
            # All at once, and no number twice: large reviews are decided on a thread of their own.
            epoch = next(self._epochs)
            self._present = (facts, generation, epoch)
        return epoch

    def get(self, shape: PodShape) -> Kept | None:
        """Return what was decided for a shape."""
        kept = self._kept.get(shape)
        if kept is not None:
            # Large reviews are decided on a thread of their own, which may just have pushed this one out.
            with suppress(KeyError):
                self._kept.move_to_end(shape)
        return kept

    def keep(self, shape: PodShape, kept: Kept) -> None:
        """Keep a decision."""
        known = self._kept.get(shape)
        self._kept[shape] = kept
        self.size_bytes += kept.size_bytes - (known.size_bytes if known is not None else 0)
        while len(self._kept) > _KEPT_MAX or self.size_bytes > _KEPT_MAX_BYTES:
            try:
                _, oldest = self._kept.popitem(last=False)
            except KeyError:
                return
            self.size_bytes -= oldest.size_bytes


def mutate(body: bytes, *, facts: Facts, settings: InjectionSettings) -> Answer:
    """Answer one review of the mutating webhook. Raises BadReview on what is no review."""
    request = decode_pod_review(body)
    if request is None:
        return _mutate_any(decode_review(body), facts, settings)
    if request.operation != CREATE or request.sub_resource or not is_pod(request.kind, request.resource):
        return _answer(request.uid, _NOT_A_POD_CREATE)
    source = Source(body, is_review=True)
    return _answer(request.uid, _decide(request.object, request.namespace, source, facts, settings))


def _mutate_any(request: RawRequest, facts: Facts, settings: InjectionSettings) -> Answer:
    """Answer a review whose object is no pod of the usual types."""
    is_create = request.operation == CREATE and not request.sub_resource
    if not is_create or not is_pod(request.kind, request.resource) or is_null(request.object):
        return _answer(request.uid, _NOT_A_POD_CREATE)
    raw = bytes(request.object)
    try:
        pod = decode_pod(raw)
    except InvalidRequest as fault:
        return _answer(request.uid, _unreadable(raw, fault, request.namespace, settings))
    source = Source(raw, is_review=False)
    return _answer(request.uid, _decide(pod, request.namespace, source, facts, settings))


def _decide(
    pod: Pod,
    requested_namespace: str | None,
    source: Source,
    facts: Facts,
    settings: InjectionSettings,
) -> Kept:
    metadata = pod.metadata
    namespace = namespace_of(requested_namespace, metadata.namespace if metadata is not None else "")
    if is_system_namespace(namespace, settings):
        return _SYSTEM_NAMESPACE
    if metadata is not None and metadata.annotations and is_mirror(metadata.annotations):
        return _MIRROR_POD
    ours = own_annotations(pod)
    asked = read_asked(ours)
    if not ours and not is_enabled(known := facts.namespace(namespace)):
        if known is None and claim_volumes(pod):
            return replace(_NOT_REQUESTED, doubts=(Doubt("Namespace", "", namespace),))
        return _NOT_REQUESTED
    claims = claim_volumes(pod)
    wanted = asked.names | claims if claims else asked.names
    if not ours and not wanted and not has_reserved_container(pod):
        return _NOT_REQUESTED
    shape = shape_of(pod, namespace, ours, wanted)
    memory = _memory_of(facts, settings)
    epoch = memory.look_at(facts)
    kept = memory.get(shape)
    if kept is not None and kept.epoch != epoch:
        kept = replace(kept, epoch=epoch) if still_holds(kept.reads, facts) else None
        if kept is not None:
            memory.keep(shape, kept)
    if kept is None:
        consulted = Consulted(facts)
        case = PodCase(
            shape=shape,
            asked=asked,
            decode=source.decode,
            reshape=lambda more: shape_of(pod, namespace, ours, wanted | more),
        )
        kept = _kept(judge(case, consulted, settings), len(source.text))
        reads = consulted.reads
        kept = replace(kept, reads=reads, doubts=doubts_of(reads, kept.outcome), epoch=epoch)
        # What a pod carries of ours is no part of its shape, and a fault of ours may not last.
        if not shape.carries_ours and kept.outcome.code < _SERVER_FAULT:
            memory.keep(shape, kept)
    return kept


def _memory_of(facts: Facts, settings: InjectionSettings) -> Memory:
    global _memory
    if _memory is None or not _memory.is_of(settings):
        _memory = Memory(facts, settings)
    return _memory


def _unreadable(
    raw: bytes, fault: InvalidRequest, requested_namespace: str | None, settings: InjectionSettings
) -> Kept:
    """Refuse an object that is no proper pod only if it asks for something; the API server refuses the rest by itself."""
    if is_system_namespace(namespace_of(requested_namespace, ""), settings):
        return _SYSTEM_NAMESPACE
    try:
        metadata = decode_object(raw).get("metadata")
    except InvalidRequest:
        return _kept(refused(fault)) if DOMAIN.encode() in raw else _NOT_REQUESTED
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict) or not any(is_request(key) for key in annotations):
        return _NOT_REQUESTED
    return _kept(refused(fault))


def _kept(decided: Decided, pod_bytes: int = 0) -> Kept:
    """Return a decision as it is kept; its size counts the pod's too, of which the shape is a part."""
    tail = render_tail(decided.outcome, decided.audit)
    return Kept(decided.outcome, tail, len(tail) + len(decided.outcome.patch) + pod_bytes)


def _answer(uid: str, kept: Kept) -> Answer:
    # Only here may failurePolicy decide: there is no verdict yet.
    status = 500 if kept.outcome.reason is Reason.NOT_READY else 200
    return Answer(
        body=render_answer(uid, kept.tail), outcome=kept.outcome, http_status=status, doubts=kept.doubts
    )


_SERVER_FAULT = 500
_NOT_A_POD_CREATE = _kept(unchanged(Reason.NOT_A_POD_CREATE))
_SYSTEM_NAMESPACE = _kept(unchanged(Reason.SYSTEM_NAMESPACE))
_MIRROR_POD = _kept(unchanged(Reason.MIRROR_POD))
_NOT_REQUESTED = _kept(unchanged(Reason.NOT_REQUESTED))
_memory: Memory | None = None
