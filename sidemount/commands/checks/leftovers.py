"""After a removal: is anything of ours left, and can it hold a pod back. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict, listed, many
from sidemount.commands.checks.installation import TYPE, name_of, own_configurations
from sidemount.commands.checks.namespaces import open_namespaces
from sidemount.commands.checks.readings import CARRIERS, LEFTOVERS, Reading, Readings
from sidemount.commands.health.pod import mapping
from sidemount.model.names import CSI_DRIVER, OWN_NAMESPACE

_PLURALS = {"mutating": "mutatingwebhookconfiguration", "validating": "validatingwebhookconfiguration"}
_POLICIES = {"policies": "validatingadmissionpolicy", "bindings": "validatingadmissionpolicybinding"}


def check_leftovers(readings: Readings) -> Iterator[Finding]:
    """Look for everything that an installation has."""
    yield from _blocking(readings)
    yield _type(readings["types"], readings["classes"])
    yield _namespace(readings["namespaces"])
    yield _harmless(readings)
    yield _carriers(readings[CARRIERS])


def _blocking(readings: Readings) -> Iterator[Finding]:
    for name, kind in (_PLURALS | _POLICIES).items():
        topic = f"{name} webhook" if name in _PLURALS else f"admission {name}"
        if doubt := readings[name].doubt(topic):
            yield doubt
            continue
        objects = own_configurations(readings[name]) if name in _PLURALS else _own(readings[name])
        names = [name_of(each) for each in objects]
        if names:
            yield Finding(
                topic=topic,
                verdict=Verdict.FAIL,
                found=f"left: {listed(names)}",
                meaning="pods that ask for volumes cannot be created",
                way_out=f"kubectl delete {kind} {' '.join(names)}",
            )
        else:
            yield Finding(topic=topic, verdict=Verdict.OK, found="none")


def _type(types: Reading, classes: Reading) -> Finding:
    if doubt := types.doubt("type"):
        return doubt
    manifest = next((each for each in types.objects if name_of(each) == TYPE), None)
    if manifest is None:
        return Finding(topic="type", verdict=Verdict.OK, found="none")
    held = [name_of(each) for each in classes.objects if mapping(each.get("metadata")).get("finalizers")]
    if _is_ending(manifest) and held:
        return Finding(
            topic="type",
            verdict=Verdict.FAIL,
            found=f"{TYPE} cannot go",
            meaning=f"classes with finalizers hold it: {listed(held)}",
            way_out='kubectl patch fusedriverclass NAME --type=merge -p \'{"metadata":{"finalizers":null}}\'',
        )
    return Finding(
        topic="type",
        verdict=Verdict.WARN,
        found=f"left: {TYPE}, {many(len(classes.objects), 'class', 'classes')}",
        meaning="it is being deleted" if _is_ending(manifest) else "it holds nothing back",
        way_out="" if _is_ending(manifest) else f"kubectl delete customresourcedefinition {TYPE}",
    )


def _namespace(namespaces: Reading) -> Finding:
    if doubt := namespaces.doubt("namespaces"):
        return doubt
    found = next((each for each in namespaces.objects if name_of(each) == OWN_NAMESPACE), None)
    labelled = [name_of(each) for each in open_namespaces(namespaces)]
    remark = f"labels that do nothing any more: {listed(labelled)}" if labelled else ""
    if found is None:
        return Finding(topic="namespaces", verdict=Verdict.OK, found=f"no {OWN_NAMESPACE}", meaning=remark)
    return Finding(
        topic="namespaces",
        verdict=Verdict.WARN,
        found=f"left: {OWN_NAMESPACE}",
        meaning="it is being deleted" if _is_ending(found) else "it holds nothing back",
        way_out="" if _is_ending(found) else f"kubectl delete namespace {OWN_NAMESPACE}",
    )


def _harmless(readings: Readings) -> Finding:
    kinds = [name for name in LEFTOVERS if name != CARRIERS]
    doubts = [reading.fault for name in (*kinds, "drivers") if (reading := readings[name]).fault]
    names = [f"{name} {name_of(each)}" for name in kinds for each in readings[name].objects]
    names += [
        f"CSIDriver {CSI_DRIVER}" for each in readings["drivers"].objects if name_of(each) == CSI_DRIVER
    ]
    if names:
        return Finding(
            topic="the rest",
            verdict=Verdict.WARN,
            found=f"left: {listed(names)}",
            meaning="they hold nothing back",
            way_out="kubectl delete -k manifests/overlays/default --ignore-not-found",
        )
    if doubts:
        return Finding(topic="the rest", verdict=Verdict.UNKNOWN, found="; ".join(doubts))
    return Finding(topic="the rest", verdict=Verdict.OK, found="none")


def _carriers(pods: Reading) -> Finding:
    if doubt := pods.doubt("running pods"):
        return doubt
    if not pods.objects:
        return Finding(topic="running pods", verdict=Verdict.OK, found="none has volumes")
    number = many(len(pods.objects), "pod")
    return Finding(
        topic="running pods", verdict=Verdict.OK, found=f"{number} with volumes, kept until they end"
    )


def _own(reading: Reading) -> list[Mapping[str, Any]]:
    return [each for each in reading.objects if name_of(each).startswith("sidemount-")]


def _is_ending(manifest: Mapping[str, Any]) -> bool:
    return mapping(manifest.get("metadata")).get("deletionTimestamp") is not None
