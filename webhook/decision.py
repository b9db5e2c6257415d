"""What becomes of one pod: from its shape, and the pod itself where a patch is made, to the operations that it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sidemount.model.errors import InvalidRequest, NotReady, Reason, VolumeError, shown
from sidemount.model.facts import Facts, NamespaceFacts
from sidemount.model.volume_request import VolumeRequest
from webhook.asked import Asked
from webhook.boundary import denied, not_proved, unexpected
from webhook.choice import Setting
from webhook.claims import claims_in, left_alone, split, taken_up
from webhook.gate import delivery_facts, enabled_namespace, is_enabled
from webhook.injection_settings import InjectionSettings
from webhook.operations import Operation
from webhook.outcome import Outcome, Verdict, VolumeOutcome
from webhook.patch import patch_operations
from webhook.plan import InjectionPlan, make_plan
from webhook.present import NOTHING, Present, hand_made, hand_made_volume, read_present
from webhook.proof import NotProved, prove
from webhook.shape import PodShape

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """An outcome, its audit annotations, and the operations without which the pod would lack its volumes."""

    outcome: Outcome
    audit: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCase:
    """One pod to be decided on.

    `decode` returns it as plain JSON, `reshape` its shape when further volumes, by name, concern us. `takes_claims`: claims in
    spec.volumes count as requests.
    """

    shape: PodShape
    asked: Asked
    decode: Callable[[], dict[str, Any]]
    reshape: Callable[[frozenset[str]], PodShape]
    takes_claims: bool = True


def unchanged(reason: Reason, *, told: str = "", volumes: tuple[VolumeOutcome, ...] = ()) -> Decided:
    """Return the decision to leave a pod as it is; `told` is said in a warning."""
    warnings = (f"sidemount: {told} ({reason.value})",) if told else ()
    audit = audit_annotations(reason, volumes) if told or volumes else {}
    return Decided(
        outcome=Outcome(
            verdict=Verdict.UNCHANGED, reason=reason, message=told, warnings=warnings, volumes=volumes
        ),
        audit=audit,
    )


def judge(case: PodCase, facts: Facts, settings: InjectionSettings) -> Decided:
    """Decide on a pod; every error is a denial."""
    return guarded(lambda: decide_pod(case, facts, settings))


def guarded(decide: Callable[[], Decided]) -> Decided:
    """Return a decision; every error becomes a denial here and nowhere else."""
    try:
        return decide()
    except VolumeError as error:
        # What is known of an annotation is remembered, its fault too: with a trace it would hold on to a whole pod.
        return refused(error.with_traceback(None))
    except NotProved as error:
        outcome = not_proved(error)
    except (
        Exception
    ) as error:  # the boundary: no fault of ours may reach the API server as anything but an answer
        outcome = unexpected(error)
    return Decided(outcome=outcome, audit=audit_annotations(outcome.reason))


def refused(error: VolumeError) -> Decided:
    """Return the decision to deny."""
    return Decided(outcome=denied(error), audit=audit_annotations(error.reason))


def decide_pod(case: PodCase, facts: Facts, settings: InjectionSettings) -> Decided:
    """Decide on a pod that may ask for volumes, by annotation or by a claim of ours. Raises VolumeError, NotProved."""
    shape, asked = case.shape, case.asked
    if asked.inject_fault is not None:
        raise asked.inject_fault.with_traceback(None)
    if asked.opted_out or _opted_out_by_label(shape, asked):
        return unchanged(Reason.OPTED_OUT, told="the pod opts out of injection" if asked.asks else "")
    if asked.is_nothing_supplied and not shape.carries_ours:
        return unchanged(Reason.NOTHING_SUPPLIED, told="no volume of the pod is supplied")
    namespace = facts.namespace(shape.namespace)
    if not asked.asks and not is_enabled(namespace):
        return unchanged(Reason.NOT_REQUESTED)
    namespace = enabled_namespace(shape.namespace, namespace)
    if asked.fault is not None:
        raise asked.fault.with_traceback(None)
    if not shape.containers:
        if not asked.asks:
            return unchanged(Reason.NOT_REQUESTED)
        raise InvalidRequest("spec.containers is empty: there is nothing to mount a volume in")
    pod = case.decode()
    present = read_present(pod) if shape.carries_ours else NOTHING
    if present.claims:
        shape = case.reshape(frozenset(present.claims))
    requests = (*asked.requests, *taken_up(asked, present))
    named = asked.names | present.claims.keys()
    claims = claims_in(shape, named, facts) if case.takes_claims else []
    if not requests and not claims:
        if present.containers:
            raise hand_made(next(iter(present.containers)), "is there, but the pod asks for no volume")
        if present.volumes:
            raise hand_made_volume(next(iter(present.volumes)))
        return unchanged(Reason.NOTHING_SUPPLIED if asked.asks else Reason.NOT_REQUESTED)
    plan = _plan(shape, requests, claims, present, namespace, facts, settings)
    return _patched(pod, shape, plan, present, settings)


def _opted_out_by_label(shape: PodShape, asked: Asked) -> bool:
    """The annotation decides where both are there."""
    if asked.opted_out is not None or shape.opt_out_label is None:
        return False
    match shape.opt_out_label:
        case "true" | "false":
            return shape.opt_out_label == "false"
    raise InvalidRequest(
        f'label "sidemount.io/inject": {shown(shape.opt_out_label)} is not a boolean',
        hint='write "true" or "false"',
    )


def _plan(
    shape: PodShape,
    requests: tuple[VolumeRequest, ...],
    claims: list[VolumeRequest],
    present: Present,
    namespace: NamespaceFacts,
    facts: Facts,
    settings: InjectionSettings,
) -> InjectionPlan:
    """Plan everything. A claim that we cannot deliver is left as it is and never fails the pod."""
    setting = Setting(
        namespace=namespace,
        facts=facts,
        delivery=delivery_facts(shape, namespace, facts.cluster(), settings),
        settings=settings,
        carried=frozenset(mount.spec.volume for mount in present.config.mounts),
    )

    served, left = split(shape, claims, len(requests), setting)
    if served:
        try:
            return make_plan(shape, _sorted((*requests, *served)), present, setting, tuple(left))
        except NotReady:
            raise
        except VolumeError as fault:
            left = [*(left_alone(request, fault) for request in served), *left]
    return make_plan(shape, _sorted(requests), present, setting, tuple(left))


def _sorted(requests: tuple[VolumeRequest, ...]) -> tuple[VolumeRequest, ...]:
    return tuple(sorted(requests, key=_name))


def _name(request: VolumeRequest) -> str:
    return request.name


def _patched(
    pod: dict[str, Any],
    shape: PodShape,
    plan: InjectionPlan,
    present: Present,
    settings: InjectionSettings,
) -> Decided:
    """Make the patch, prove it on the pod and return it."""
    operations, needed = patch_operations(shape, plan, present, settings)
    is_left_alone = all(outcome.reason is Reason.LEFT_TO_CSI for outcome in plan.outcomes)
    if is_left_alone and not needed:
        return unchanged(Reason.LEFT_TO_CSI, volumes=plan.outcomes)
    first = plan.outcomes[0].reason
    audit = audit_annotations(first, plan.outcomes)
    if not operations:
        return Decided(
            outcome=Outcome(verdict=Verdict.UNCHANGED, reason=Reason.ALREADY_INJECTED, volumes=plan.outcomes),
            audit=audit,
        )
    prove(pod, operations, plan)
    is_repair = not present.is_empty
    outcome = Outcome(
        verdict=Verdict.REPAIRED if is_repair else Verdict.INJECTED,
        reason=Reason.REPAIRED if is_repair else first,
        message="; ".join(volume.message for volume in plan.outcomes),
        warnings=plan.warnings,
        volumes=plan.outcomes,
        patch=_encode(operations),
    )
    return Decided(outcome=outcome, audit=audit, needed=tuple(needed))


def audit_annotations(reason: Reason, volumes: tuple[VolumeOutcome, ...] = ()) -> dict[str, str]:
    """Return the audit annotations of a decision: the same in every round of one admission, as the API server demands.

    Shape: `decision` is a reason code; `volumes` is `name=Reason,…`. Keys carry no "/": the API server puts the webhook's
    name before one.
    """
    found = {"decision": reason.value}
    if volumes:
        found["volumes"] = ",".join(f"{volume.volume}={volume.reason.value}" for volume in volumes)
    return found
