"""Which namespaces are open to injection, and whether a keeper may run in them."""

from collections.abc import Iterator, Mapping
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict, listed
from sidemount.commands.checks.installation import name_of
from sidemount.commands.checks.readings import Reading
from sidemount.commands.health.pod import mapping
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE, SYSTEM_NAMESPACES
from webhook.gate import POD_SECURITY_LABEL

_LABEL = f"kubectl label namespace NAME {INJECTION_LABEL}={INJECTION_ENABLED}"


def open_namespaces(reading: Reading) -> list[Mapping[str, Any]]:
    """Return those that are labelled, stay, and where we ever do anything."""
    return [
        each
        for each in reading.objects
        if labels_of(each).get(INJECTION_LABEL) == INJECTION_ENABLED
        and name_of(each) not in SYSTEM_NAMESPACES
        and name_of(each) != OWN_NAMESPACE
        and mapping(each.get("metadata")).get("deletionTimestamp") is None
    ]


def labels_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's labels."""
    return mapping(mapping(manifest.get("metadata")).get("labels"))


def check_namespaces(reading: Reading) -> Iterator[Finding]:
    """Look at the namespaces' labels."""
    if doubt := reading.doubt("namespaces"):
        yield doubt
        return
    opened = open_namespaces(reading)
    wrong = [
        name_of(each)
        for each in reading.objects
        if labels_of(each).get(INJECTION_LABEL) not in (None, INJECTION_ENABLED)
    ]
    if wrong:
        yield Finding(
            topic="namespaces",
            verdict=Verdict.WARN,
            found=f"{listed(wrong)}: the label {INJECTION_LABEL} is not {INJECTION_ENABLED!r}",
            meaning="they are not open to injection",
            way_out=f"{_LABEL} --overwrite, or remove the label",
        )
    if not opened:
        yield Finding(
            topic="namespaces",
            verdict=Verdict.WARN,
            found="none is open to injection",
            meaning="every pod that asks for a volume is refused (NamespaceNotEnabled)",
            way_out=_LABEL,
        )
        return
    narrow = [
        name_of(each)
        for each in opened
        if labels_of(each).get(POD_SECURITY_LABEL, "privileged") != "privileged"
    ]
    free = [name_of(each) for each in opened if name_of(each) not in narrow]
    if free:
        yield Finding(topic="namespaces", verdict=Verdict.OK, found=f"open to injection: {listed(free)}")
    if narrow:
        yield Finding(
            topic="namespaces",
            verdict=Verdict.WARN,
            found=f"{listed(narrow)}: labelled, but Pod Security forbids the keeper there",
            meaning="their volumes come by CSI, or not at all (PodSecurity)",
            way_out=f"kubectl label namespace NAME {POD_SECURITY_LABEL}=privileged --overwrite, where that may be",
        )
