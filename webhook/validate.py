"""validate(): refuses pods that ask and do not carry, copies of our containers, changed annotations, broken driver classes.

It changes nothing and trusts nothing that the mutating webhook may have done: another webhook runs in between.
"""

import json
from typing import Any

from sidemount.model.driver_class_manifest import KIND as DRIVER_CLASS_KIND
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.errors import InvalidRequest, PolicyDenied, Reason
from sidemount.model.facts import Facts
from sidemount.model.names import DOMAIN
from webhook.asked import read_asked
from webhook.consulted import Consulted, doubts_of
from webhook.decision import Decided, PodCase, guarded, judge, refused, unchanged
from webhook.frozen import check_frozen
from webhook.gate import CREATE, UPDATE, is_mirror, is_pod, is_system_namespace, namespace_of
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Answer
from webhook.pod import Pod, decode_object, decode_pod
from webhook.present import EPHEMERAL, check_foreign_use, hand_made
from webhook.review import RawRequest, decode_review, is_null, render_answer, render_tail
from webhook.shape import has_reserved_container, own_annotations, reserved_container, shape_of

_PATHS_TOLD = 3
_NOT_REQUESTED = unchanged(Reason.NOT_REQUESTED)


def validate(body: bytes, *, facts: Facts, settings: InjectionSettings) -> Answer:
    """Answer one review of the validating webhook. Raises BadReview on what is no review."""
    request = decode_review(body)
    consulted = Consulted(facts)
    decided = guarded(lambda: _decide(request, consulted, settings))
    tail = render_tail(decided.outcome, decided.audit)
    status = 500 if decided.outcome.reason is Reason.NOT_READY else 200
    doubts = () if decided.outcome.allowed else doubts_of(consulted.reads, decided.outcome)
    return Answer(
        body=render_answer(request.uid, tail), outcome=decided.outcome, http_status=status, doubts=doubts
    )


def _decide(request: RawRequest, facts: Facts, settings: InjectionSettings) -> Decided:
    if request.operation not in (CREATE, UPDATE) or is_null(request.object):
        return unchanged(Reason.NOT_A_POD_CREATE)
    kind = request.kind
    if kind is not None and kind.kind == DRIVER_CLASS_KIND and kind.group == DOMAIN:
        return _decide_class(request)
    if not is_pod(request.kind, request.resource):
        return unchanged(Reason.NOT_A_POD_CREATE)
    raw = bytes(request.object)
    try:
        pod = decode_pod(raw)
    except InvalidRequest as fault:
        return _unreadable(raw, fault)
    namespace = namespace_of(request.namespace, pod.metadata.namespace if pod.metadata is not None else "")
    if is_system_namespace(namespace, settings):
        return unchanged(Reason.SYSTEM_NAMESPACE)
    if request.operation == CREATE:
        # A subresource that is created (binding, eviction) has a kind of its own, or says nothing that we judge.
        return _NOT_REQUESTED if request.sub_resource else _decide_new(pod, raw, namespace, facts, settings)
    return _decide_changed(request, pod, raw)


def _decide_class(request: RawRequest) -> Decided:
    """Judge a class, unless its spec stays as it is: one that a later release finds fault with may still be labelled or deleted."""
    driver_class = decode_object(bytes(request.object))
    was = decode_object(bytes(request.old_object)) if not is_null(request.old_object) else {}
    if request.operation != UPDATE or _spec_of(was) != _spec_of(driver_class):
        parse_driver_class(driver_class)
    return unchanged(Reason.NOT_A_POD_CREATE)


def _spec_of(driver_class: dict[str, Any]) -> str:
    """As text, because true is 1 and 1.0 is 1 to Python."""
    return json.dumps(driver_class.get("spec"), sort_keys=True)


def _decide_new(pod: Pod, raw: bytes, namespace: str, facts: Facts, settings: InjectionSettings) -> Decided:
    annotations = (pod.metadata.annotations if pod.metadata is not None else None) or {}
    ours = own_annotations(pod)
    asked = read_asked(ours)
    case = PodCase(
        shape=shape_of(pod, namespace, ours, asked.names),
        asked=asked,
        decode=lambda: decode_object(raw),
        reshape=lambda more: shape_of(pod, namespace, ours, asked.names | more),
        takes_claims=False,
    )
    if asked.inject_fault is not None and not is_mirror(annotations):
        raise asked.inject_fault.with_traceback(None)
    is_out = is_mirror(annotations) or bool(asked.opted_out)
    if is_out or not asked.asks:
        if not has_reserved_container(pod):
            return unchanged(Reason.MIRROR_POD) if is_mirror(annotations) else _NOT_REQUESTED
        if is_out or not _was_injected_for_claims(case, facts, settings):
            raise hand_made(reserved_container(pod), "is there, but the pod asks for no volume")
        return unchanged(Reason.ALREADY_INJECTED)
    decided = judge(case, facts, settings)
    if decided.outcome.reason is Reason.OPTED_OUT and has_reserved_container(pod):
        raise hand_made(reserved_container(pod), "is there, but the pod opts out")
    if not decided.needed:
        # What only makes a pod better may be missing: another webhook's business.
        return decided if not decided.outcome.allowed else unchanged(decided.outcome.reason)
    raise _not_injected(decided)


def _was_injected_for_claims(case: PodCase, facts: Facts, settings: InjectionSettings) -> bool:
    """Whether containers of ours are there because the pod used claims of ours, and are the ones we would add."""
    decided = judge(case, facts, settings)
    if not decided.outcome.allowed or decided.needed:
        return False
    return decided.outcome.reason in (Reason.ALREADY_INJECTED, Reason.REPAIRED)


def _not_injected(decided: Decided) -> PolicyDenied:
    volumes = ", ".join(volume.volume for volume in decided.outcome.volumes)
    if decided.outcome.reason is Reason.REPAIRED:
        paths = list(dict.fromkeys(str(operation["path"]) for operation in decided.needed))
        more = f" and {len(paths) - _PATHS_TOLD} more" if len(paths) > _PATHS_TOLD else ""
        why = (
            f"another webhook took away or changed what was injected: {', '.join(paths[:_PATHS_TOLD])}{more}"
        )
    else:
        why = "nothing was injected: the mutating webhook was not called, or another one undid its patch"
    return PolicyDenied(
        f"the pod asks for volumes ({volumes}) and does not carry them: {why}",
        reason=Reason.NOT_INJECTED,
        hint="check that the mutating webhook runs with reinvocationPolicy IfNeeded, and what other webhooks do",
    )


def _decide_changed(request: RawRequest, pod: Pod, raw: bytes) -> Decided:
    """An update may change much of a pod, but not what it asks for, nor bring in what reaches behind our volumes."""
    if is_null(request.old_object):
        return _NOT_REQUESTED
    try:
        old = decode_pod(bytes(request.old_object))
    except InvalidRequest:
        return _NOT_REQUESTED
    check_frozen(old, pod)
    if EPHEMERAL.encode() in raw:
        check_foreign_use(decode_object(bytes(request.old_object)), decode_object(raw))
    return _NOT_REQUESTED


def _unreadable(raw: bytes, fault: InvalidRequest) -> Decided:
    """Refuse an object that is no proper pod: it cannot be shown to carry what it asks. The API server does so anyway."""
    if DOMAIN.encode() not in raw:
        return _NOT_REQUESTED
    return refused(fault)
