"""Other webhooks that change pods: who they are, and which are known to need a setting of ours."""

from collections.abc import Iterator, Mapping
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict, listed
from sidemount.commands.checks.installation import name_of, own_entries
from sidemount.commands.checks.readings import Reading
from sidemount.commands.health.pod import mapping, mappings, text
from sidemount.model.keeper_log import told

_MIRRORS = (
    "it sends images through a mirror; our containers then look changed by hand (HandMade)",
    "tell the webhook that mirror: --image-mirrors registry.example/proxy",
)
_AUTOPILOT = (
    "GKE Autopilot forbids privileged containers, so no keeper can run",
    "use a Standard cluster, or the CSI delivery when it is there",
)
# A part of a configuration's or an entry's name → what is known of it, and the way out.
_KNOWN: Mapping[str, tuple[str, str]] = {
    "image-swap": _MIRRORS,
    "imageswap": _MIRRORS,
    "harbor-container-webhook": _MIRRORS,
    "kube-image-keeper": _MIRRORS,
    "warden-mutating": _AUTOPILOT,
    "autogke": _AUTOPILOT,
}


def check_others(reading: Reading) -> Iterator[Finding]:
    """Look at every other configuration with an entry for the creation of pods."""
    if doubt := reading.doubt("other webhooks"):
        yield doubt
        return
    changing = [each for each in reading.objects if not own_entries(each) and _changes_pods(each)]
    names = [told(name_of(each)) for each in changing]
    yield Finding(
        topic="other webhooks",
        verdict=Verdict.OK,
        found=f"changing pods too: {listed(names)}" if names else "none changes pods",
        meaning="the trial shows whether they leave our containers alone" if names else "",
    )
    for configuration in changing:
        entries = (text(each.get("name")) for each in mappings(configuration.get("webhooks")))
        called = " ".join((name_of(configuration), *entries)).lower()
        known = next((said for part, said in _KNOWN.items() if part in called), None)
        if known is not None:
            yield Finding(
                topic="other webhooks",
                verdict=Verdict.WARN,
                found=told(name_of(configuration)),
                meaning=known[0],
                way_out=known[1],
            )


def _changes_pods(configuration: Mapping[str, Any]) -> bool:
    return any(
        _names(rule, "resources", "pods")
        and _names(rule, "operations", "CREATE")
        and _names(rule, "apiGroups", "")
        for entry in mappings(configuration.get("webhooks"))
        for rule in mappings(mapping(entry).get("rules"))
    )


def _names(rule: Mapping[str, Any], field: str, wanted: str) -> bool:
    values = rule.get(field)
    return isinstance(values, list) and any(value in (wanted, "*", "*/*") for value in values)
