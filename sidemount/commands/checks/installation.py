"""Is Sidemount installed, completely, and does it run."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

from sidemount.commands.checks.finding import Finding, Verdict, listed, many
from sidemount.commands.checks.readings import Reading, Readings
from sidemount.commands.health.pod import mapping, mappings, text
from sidemount.model.keeper_log import told
from sidemount.model.names import API_VERSION, DOMAIN

TYPE = f"fusedriverclasses.{DOMAIN}"
APPLY = "kubectl apply -k manifests/overlays/default"
_NEEDED = (1, 30)
_ENTRIES = {
    "mutating": (f"pods.{DOMAIN}", f"claims.{DOMAIN}"),
    "validating": (f"pods.{DOMAIN}", f"updates.{DOMAIN}", f"classes.{DOMAIN}"),
}
_POLICIES = ("sidemount-pods", "sidemount-images", "sidemount-ephemeral-containers", "sidemount-exec")
_SOON = timedelta(days=20)


def is_installed(readings: Readings) -> bool:
    """Tell whether anything of an installation is there that admission depends on."""
    return bool(
        own_configurations(readings["mutating"])
        or own_configurations(readings["validating"])
        or any(name_of(each) == TYPE for each in readings["types"].objects)
    )


def check_version(version: Mapping[str, Any] | None) -> Finding:
    """Look at the API server's version, None if it may not be read."""
    if version is None:
        return Finding(
            topic="API server", verdict=Verdict.UNKNOWN, found="needs the right to get the path /version"
        )
    shown = told(text(version.get("gitVersion"))) or "no version"
    found = tuple(_number(version.get(part)) for part in ("major", "minor"))
    if found >= _NEEDED:
        return Finding(topic="API server", verdict=Verdict.OK, found=shown)
    return Finding(
        topic="API server",
        verdict=Verdict.FAIL,
        found=shown,
        meaning="native sidecars, match conditions and admission policies are needed as Kubernetes 1.30 has them",
        way_out="upgrade the cluster to Kubernetes 1.30 or newer",
    )


def check_type(types: Reading) -> Finding:
    """Look at the type FuseDriverClass."""
    if doubt := types.doubt("type"):
        return doubt
    manifest = next((each for each in types.objects if name_of(each) == TYPE), None)
    if manifest is None:
        return Finding(topic="type", verdict=Verdict.FAIL, found=f"no {TYPE}", way_out=APPLY)
    version = API_VERSION.partition("/")[2]
    served = [
        text(each.get("name"))
        for each in mappings(mapping(manifest.get("spec")).get("versions"))
        if each.get("served") is True
    ]
    fault = ""
    if mapping(manifest.get("metadata")).get("deletionTimestamp"):
        fault = "it is being deleted"
    elif version not in served:
        fault = f"it serves {listed(served) or 'no version'}, not {version}"
    elif not _holds(manifest, "Established"):
        fault = "the API server has not established it"
    if fault:
        return Finding(topic="type", verdict=Verdict.FAIL, found=TYPE, meaning=fault, way_out=APPLY)
    return Finding(topic="type", verdict=Verdict.OK, found=f"{TYPE}, {version}")


def own_configurations(reading: Reading) -> tuple[Mapping[str, Any], ...]:
    """Return the webhook configurations that have an entry of ours, whatever they are called."""
    return tuple(each for each in reading.objects if own_entries(each))


def own_entries(configuration: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of ours."""
    return [
        each
        for each in mappings(configuration.get("webhooks"))
        if text(each.get("name")).endswith(f".{DOMAIN}")
    ]


def check_configurations(readings: Readings, now: datetime) -> Iterator[Finding]:
    """Look at both webhook configurations."""
    for kind, expected in _ENTRIES.items():
        topic = f"{kind} webhook"
        if doubt := readings[kind].doubt(topic):
            yield doubt
            continue
        entries = [entry for each in own_configurations(readings[kind]) for entry in own_entries(each)]
        names = [text(entry.get("name")) for entry in entries]
        absent = [name for name in expected if name not in names]
        if absent:
            yield Finding(
                topic=topic,
                verdict=Verdict.FAIL if f"pods.{DOMAIN}" in absent else Verdict.WARN,
                found=f"no {listed(absent)}",
                meaning="the API server does not ask us: pods that ask for volumes are refused by the policies, or run without",
                way_out=APPLY,
            )
            continue
        yield _bundles(topic, entries, now)


def _bundles(topic: str, entries: Sequence[Mapping[str, Any]], now: datetime) -> Finding:
    ends: list[datetime] = []
    for entry in entries:
        bundle = mapping(entry.get("clientConfig")).get("caBundle")
        fault, end = _bundle(bundle, now)
        if fault:
            return Finding(
                topic=topic,
                verdict=Verdict.FAIL,
                found=f"{told(text(entry.get('name')))}: {fault}",
                meaning="the API server cannot verify the webhook, so every pod that asks is refused",
                way_out="see docs/certificates.md; the built-in rotation repairs it in seconds, its log says why not",
            )
        ends.append(end)
    end = min(ends)
    soon = end - now < _SOON
    return Finding(
        topic=topic,
        verdict=Verdict.WARN if soon else Verdict.OK,
        found=f"{many(len(entries), 'entry', 'entries')}, the authority holds until {end:%Y-%m-%d}",
        meaning="the authority ends soon and nobody has renewed it" if soon else "",
        way_out="see docs/certificates.md" if soon else "",
    )


def _bundle(bundle: object, now: datetime) -> tuple[str, datetime]:
    """Return what is wrong with a caBundle, and when the last authority of it ends."""
    if not isinstance(bundle, str) or not bundle:
        return "its caBundle is empty", now
    try:
        authorities = x509.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
    except (ValueError, binascii.Error):
        return "its caBundle holds no certificate that can be read", now
    end = max(each.not_valid_after_utc for each in authorities)
    if end <= now:
        return f"every authority of its caBundle has ended, the last one at {end:%Y-%m-%d}", now
    return "", end


def service_of(readings: Readings) -> tuple[str, str] | None:
    """Return namespace and name of the Service that the API server asks, None if it asks none."""
    for kind in _ENTRIES:
        for configuration in own_configurations(readings[kind]):
            for entry in own_entries(configuration):
                service = mapping(mapping(entry.get("clientConfig")).get("service"))
                if text(service.get("namespace")) and text(service.get("name")):
                    return text(service.get("namespace")), text(service.get("name"))
    return None


def check_policies(readings: Readings) -> Finding:
    """Look at the admission policies and what puts them in force."""
    policies, bindings = readings["policies"], readings["bindings"]
    if doubt := policies.doubt("policies") or bindings.doubt("policies"):
        return doubt
    there = {name_of(each) for each in policies.objects}
    bound = {text(mapping(each.get("spec")).get("policyName")) for each in bindings.objects}
    absent = [name for name in _POLICIES if name not in there]
    loose = [name for name in _POLICIES if name in there and name not in bound]
    if not absent and not loose:
        return Finding(topic="policies", verdict=Verdict.OK, found=f"{len(_POLICIES)}, in force")
    found = "; ".join(
        part
        for part in (f"no {listed(absent)}" if absent else "", f"not bound: {listed(loose)}" if loose else "")
        if part
    )
    return Finding(
        topic="policies",
        verdict=Verdict.WARN,
        found=found,
        meaning="where another webhook undoes ours, pods run without the volumes that they ask for",
        way_out=APPLY,
    )


def check_deployment(service: tuple[str, str], pods: Reading) -> Finding:
    """Look at the webhook's replicas: the pods behind its Service."""
    if doubt := pods.doubt("webhook"):
        return doubt
    ready = [each for each in pods.objects if _holds(each, "Ready")]
    found = f"{len(ready)} of {many(len(pods.objects), 'replica')} ready in {service[0]}"
    look = f"kubectl -n {service[0]} get pods; kubectl -n {service[0]} describe pods"
    if not ready:
        return Finding(
            topic="webhook",
            verdict=Verdict.FAIL,
            found=found,
            meaning="pods that ask for volumes cannot be created; all others can",
            way_out=look,
        )
    if len(ready) < max(2, len(pods.objects)):
        return Finding(
            topic="webhook",
            verdict=Verdict.WARN,
            found=found,
            meaning="with the last one gone, pods that ask for volumes cannot be created",
            way_out=look,
        )
    return Finding(topic="webhook", verdict=Verdict.OK, found=found)


def name_of(manifest: Mapping[str, Any]) -> str:
    """Return an object's name."""
    return text(mapping(manifest.get("metadata")).get("name"))


def aware_now() -> datetime:
    """Return the time, with its zone."""
    return datetime.now(UTC)


def _holds(manifest: Mapping[str, Any], condition: str) -> bool:
    conditions = mappings(mapping(manifest.get("status")).get("conditions"))
    return any(each.get("type") == condition and each.get("status") == "True" for each in conditions)


def _number(value: object) -> int:
    """Return a part of a version: some providers write 30+."""
    digits = text(value).rstrip("+")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 5 else 0
