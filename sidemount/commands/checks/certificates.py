"""When the webhook's serving certificates end and how old its facts are: its own metrics, read through the API server."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict
from sidemount.commands.checks.installation import aware_now, name_of
from sidemount.commands.checks.readings import Reading
from sidemount.commands.cluster.api_server import ApiServer
from sidemount.commands.cluster.paths import proxy_path
from sidemount.commands.health.pod import mapping, mappings
from sidemount.host.cluster_reader import ReadFailed, Trouble

_PREFIX = "sidemount_webhook_"
_MAX_BYTES = 4 << 20
_PORT = 8443
_PODS_MAX = 8
_SOON = timedelta(days=20)
_OLD_S = 300.0


async def check_certificates(api: ApiServer, namespace: str, pods: Reading) -> list[Finding]:
    """Look at every replica that can be asked."""
    asked = [each for each in pods.objects if mapping(each.get("status")).get("phase") == "Running"][
        :_PODS_MAX
    ]
    answers = await asyncio.gather(*(_metrics(api, namespace, pod) for pod in asked))
    said = [answer for answer in answers if isinstance(answer, Mapping)]
    refused = [answer for answer in answers if isinstance(answer, str)]
    found = [_certificates(said), _facts(said)] if said else []
    if refused:
        found.append(Finding(topic="certificate", verdict=Verdict.UNKNOWN, found=refused[0]))
    return found


async def _metrics(api: ApiServer, namespace: str, pod: Mapping[str, Any]) -> Mapping[str, float] | str:
    """Return a replica's own numbers, or why it does not tell them."""
    path = proxy_path(namespace, name_of(pod), _port(pod), "metrics")
    try:
        return read_metrics(await api.text_end(path, _MAX_BYTES))
    except ReadFailed as failure:
        if failure.trouble is Trouble.FORBIDDEN:
            return f"needs the right to get pods/proxy in namespace {namespace}"
        return f"the metrics of {name_of(pod)} cannot be read: {failure}"


def read_metrics(text: str) -> dict[str, float]:
    """Return the metrics of ours that have no labels."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith(_PREFIX) and name.isidentifier():
            try:
                found[name.removeprefix(_PREFIX)] = float(value)
            except ValueError:
                continue
    return found


def _certificates(said: Sequence[Mapping[str, float]]) -> Finding:
    topic, way_out = "certificate", "see docs/certificates.md; the log of the container certs says why"
    ends = [each.get("certificate_not_after_seconds", 0.0) for each in said]
    end = min(ends)
    if not 0 < end < 32_503_680_000 or not math.isfinite(end):  # the year 3000
        return Finding(
            topic=topic,
            verdict=Verdict.WARN,
            found="a replica does not say when its own ends",
            way_out=way_out,
        )
    at = datetime.fromtimestamp(end, UTC)
    now = aware_now()
    faulty = any(each.get("certificate_faulty") for each in said)
    if at <= now:
        return Finding(
            topic=topic, verdict=Verdict.FAIL, found=f"ended at {at:%Y-%m-%d %H:%M}", way_out=way_out
        )
    if faulty or at - now < _SOON:
        meaning = "the files hold no usable one" if faulty else "it ends soon and nobody has renewed it"
        return Finding(
            topic=topic,
            verdict=Verdict.WARN,
            found=f"holds until {at:%Y-%m-%d}",
            meaning=meaning,
            way_out=way_out,
        )
    return Finding(topic=topic, verdict=Verdict.OK, found=f"holds until {at:%Y-%m-%d}")


def _facts(said: Sequence[Mapping[str, float]]) -> Finding:
    age_s = max(each.get("facts_age_seconds", 0.0) for each in said)
    if age_s <= _OLD_S:
        return Finding(
            topic="facts", verdict=Verdict.OK, found=f"the webhook's are {max(0.0, age_s):.0f} s old"
        )
    return Finding(
        topic="facts",
        verdict=Verdict.WARN,
        found="never read" if math.isinf(age_s) else f"the webhook's are {age_s:.0f} s old",
        meaning="it decides by what was good then",
        way_out="its log says which kind it cannot read, and why",
    )


def _port(pod: Mapping[str, Any]) -> int:
    for container in mappings(mapping(pod.get("spec")).get("containers")):
        for port in mappings(container.get("ports")):
            number = port.get("containerPort")
            if port.get("name") == "https" and type(number) is int:
                return number
    return _PORT
