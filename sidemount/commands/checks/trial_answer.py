"""What the API server's answer to a trial means: who refused it, why, and the way out. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict
from sidemount.commands.cluster.api_server import Answer
from sidemount.commands.health.pod import mapping, mappings
from sidemount.model.keeper_log import told
from sidemount.model.names import DOMAIN, KEEPER_CONTAINER

_CALL_FAILED = re.compile(r'failed calling webhook "([^"]{1,253})"')
_DENIED_BY_WEBHOOK = re.compile(r'admission webhook "([^"]{1,253})" denied the request')
_DENIED_BY_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']{1,253})'")
_NO_PRIVILEGE = "use another namespace or cluster for pods with volumes, or the CSI delivery when it is there"


@dataclass(frozen=True, slots=True)
class _Known:
    """What a refusal that holds `marks` means."""

    marks: tuple[str, ...]
    found: str
    meaning: str
    way_out: str


_REFUSALS = (
    _Known(
        ("violates PodSecurity",),
        "Pod Security refuses the keeper",
        "the namespace enforces a level that forbids privileged containers",
        "label another namespace, or set pod-security.kubernetes.io/enforce=privileged where that may be",
    ),
    _Known(
        ("security context constraint",),
        "OpenShift's security context constraints refuse the keeper",
        "no constraint that the pod's service account may use allows a privileged container",
        "oc adm policy add-scc-to-user privileged -z default -n NAMESPACE, where that may be",
    ),
    _Known(
        ("GKE Warden", "warden-validating", "autogke-"),
        "GKE Autopilot refuses the keeper",
        "Autopilot allows no privileged container",
        _NO_PRIVILEGE,
    ),
    _Known(
        ("kyverno",),
        "a policy of Kyverno refuses the pod",
        "most likely one that forbids privileged containers or host paths",
        "except the containers sidemount-* of labelled namespaces from it (PolicyException)",
    ),
    _Known(
        ("gatekeeper", "azurepolicy"),
        "a constraint of Gatekeeper refuses the pod",
        "most likely one that forbids privileged containers or host paths",
        "exempt the containers sidemount-* or the labelled namespaces in the constraint",
    ),
    _Known(
        ("exceeded quota",),
        "the namespace's quota refuses the pod",
        "with our containers a pod needs more than what is left",
        "raise the quota, or try another namespace with -n",
    ),
)
_CALLS = (
    _Known(
        ("x509: certificate signed by unknown authority", "certificate is not trusted"),
        "the webhook's certificate is not trusted",
        "caBundle does not hold the authority that signed it (UnknownAuthority)",
        "the built-in rotation repairs it in seconds; if not, its log says why: docs/certificates.md",
    ),
    _Known(
        ("x509:", "tls:"),
        "the webhook's certificate is refused",
        "it has ended, is for another name, or is no server's",
        "docs/troubleshooting.md, Certificates",
    ),
    _Known(
        ("no endpoints available", "not found"),
        "no webhook is there to be asked",
        "its Service has no ready pod behind it, or is not there",
        "look at the webhook's pods",
    ),
    _Known(
        ("connection refused",),
        "the webhook does not listen",
        "its pods run, and nobody takes the connection",
        "look at the webhook's log",
    ),
    _Known(
        ("deadline exceeded", "timeout", "Timeout"),
        "the webhook does not answer in time",
        "API servers outside of the cluster's network need a way to port 8443 of its pods; or it is starved of CPU",
        "docs/install.md: let the API server through the firewall and the network policy",
    ),
)


def read_asking(answer: Answer, namespace: str, driver_class: str) -> Finding:
    """Judge the answer to a pod that should have got a volume."""
    topic = "trial"
    place = f"a pod in {namespace} that asks for a volume of class {driver_class}"
    if answer.status not in (200, 201):
        return _refusal(topic, answer, place)
    stripped = _stripped(answer.document)
    if stripped is None:
        return Finding(
            topic=topic,
            verdict=Verdict.FAIL,
            found=f"{place} came back without it",
            meaning="the mutating webhook was not called, or another one undid its work, and no policy held the pod back",
            way_out="kubectl apply -k manifests/overlays/default; look at the namespace selector of the configuration",
        )
    if stripped:
        return Finding(
            topic=topic,
            verdict=Verdict.FAIL,
            found=f"{place}: its {KEEPER_CONTAINER} has lost restartPolicy: Always",
            meaning="another webhook was built for a Kubernetes that does not know the field",
            way_out="update that webhook",
        )
    return Finding(
        topic=topic,
        verdict=Verdict.OK,
        found=f"{place} gets it: the API server reaches and trusts the webhook",
    )


def read_privileged(answer: Answer, namespace: str) -> Finding:
    """Judge the answer to a pod with a container such as the keeper, before anything is installed."""
    place = f"a privileged native sidecar in {namespace}"
    if answer.status not in (200, 201):
        return _refusal("trial", answer, place)
    return Finding(topic="trial", verdict=Verdict.OK, found=f"{place} is allowed")


def read_free(answer: Answer, namespace: str, what: str) -> Finding:
    """Judge the answer to a pod that nothing of ours may hold back any more."""
    topic, place = f"{what} pod", f"in {namespace}"
    if answer.status in (200, 201):
        return Finding(topic=topic, verdict=Verdict.OK, found=f"can be created {place}")
    refused = _refusal(topic, answer, f"a pod {place}")
    if refused.verdict is Verdict.FAIL and DOMAIN not in answer.message and "sidemount" not in answer.message:
        return Finding(
            topic=topic,
            verdict=Verdict.WARN,
            found=refused.found,
            meaning="nothing of Sidemount is in this",
            way_out="try another namespace with -n",
        )
    return refused


def _stripped(document: Mapping[str, Any] | None) -> bool | None:
    """Tell whether the keeper of a pod is no native sidecar any more, None if there is no keeper."""
    containers = mappings(mapping(mapping(document).get("spec")).get("initContainers"))
    keeper = next((each for each in containers if each.get("name") == KEEPER_CONTAINER), None)
    return None if keeper is None else keeper.get("restartPolicy") != "Always"


def _refusal(topic: str, answer: Answer, place: str) -> Finding:
    message = answer.message
    said = told(message) or f"status {answer.status}"
    if answer.status in (401, 403) and "cannot create resource" in message:
        return Finding(
            topic=topic,
            verdict=Verdict.UNKNOWN,
            found=f"{place}: needs the right to create pods there (it is a dry run)",
        )
    if answer.status == 404 or "does not support dry run" in message or answer.status == 429:
        return Finding(topic=topic, verdict=Verdict.UNKNOWN, found=f"{place}: {said}")
    failed = _CALL_FAILED.search(message)
    if failed is not None:
        return _failed_call(topic, failed[1], message, said, place)
    by_policy, by_webhook = _DENIED_BY_POLICY.search(message), _DENIED_BY_WEBHOOK.search(message)
    refuser = by_policy[1] if by_policy else by_webhook[1] if by_webhook else ""
    if refuser.endswith(f".{DOMAIN}") or refuser.startswith("sidemount-"):
        return Finding(
            topic=topic,
            verdict=Verdict.FAIL,
            found=f"{place} is refused by {refuser} of Sidemount",
            meaning=said,
            way_out="the code in brackets has an entry in docs/troubleshooting.md",
        )
    known = _match(_REFUSALS, message)
    if known is not None:
        return Finding(
            topic=topic,
            verdict=Verdict.FAIL,
            found=f"{place}: {known.found}",
            meaning=f"{known.meaning} ({said})",
            way_out=known.way_out,
        )
    by = f" by {told(refuser)}" if refuser else ""
    return Finding(
        topic=topic,
        verdict=Verdict.FAIL,
        found=f"{place} is refused{by}",
        meaning=said,
        way_out=_NO_PRIVILEGE if "privileged" in message else "",
    )


def _failed_call(topic: str, webhook: str, message: str, said: str, place: str) -> Finding:
    if not webhook.endswith(f".{DOMAIN}"):
        return Finding(
            topic=topic,
            verdict=Verdict.FAIL,
            found=f"{place}: the webhook {told(webhook)} cannot be called, which is not of Sidemount",
            meaning=said,
            way_out="its owner has to repair it, or to remove its configuration",
        )
    known = _match(_CALLS, message) or _Known(
        (), "the webhook cannot be called", "", "look at the webhook's pods"
    )
    return Finding(
        topic=topic,
        verdict=Verdict.FAIL,
        found=f"{place}: {known.found}",
        meaning="; ".join(part for part in (known.meaning, said) if part),
        way_out=known.way_out,
    )


def _match(table: tuple[_Known, ...], message: str) -> _Known | None:
    return next((known for known in table if any(mark in message for mark in known.marks)), None)
