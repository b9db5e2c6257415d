"""Dashboard and alerts ask for metrics that are really exported, and each alert says what to do."""

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from certs.standing import Standing, StandingCollector
from csi.event_channel import EventChannel
from csi.keeper_link import VolumeStatus
from csi.launcher import Census
from csi.metrics import Observation
from csi.metrics_node import NodeMetrics
from csi.metrics_pools import PoolMetrics
from csi.metrics_volumes import VolumeTally
from csi.records import Stage
from csi.volume_copy import Progress
from sidemount.host.live_report import KindReport, families
from sidemount.host.object_exposition import ObjectCounts
from sidemount.model.errors import NotReady, Reason
from tests.manifests.files import MANIFESTS, ROOT, Json, objects
from tests.webhook.observer.observed import watchtower
from tests.webhook.test_metrics import GAUGES
from webhook.metrics import Metrics

_NAME = re.compile(r"\b(sidemount_[a-z_]+|process_[a-z_]+)\b")
_LABEL = re.compile(r"\bby \(([a-z_, ]+)\)|\{([^}]*)\}")
_OF_PROMETHEUS = {"le", "pod", "namespace", "endpoint"}
_PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


class _All(Collector):
    def collect(self) -> Iterator[Metric]:
        yield from Metrics(lambda: GAUGES).collect()
        yield from families(
            [
                KindReport(
                    kind="Namespace", is_synced=True, is_live=True, age_s=0, objects=1, faults=0, lists=1
                )
            ],
            0,
            "sidemount_webhook_facts",
        )
        yield from StandingCollector(Standing(lambda: 0.0, looked_at_s=0.0)).collect()
        yield from watchtower().collect()


def _exported() -> set[str]:
    registry = CollectorRegistry()
    registry.register(_All())
    names = set(_PROCESS)
    for family in registry.collect():
        match family.type:
            case "counter":
                names.add(f"{family.name}_total")
            case "histogram":
                names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
            case _:
                names.add(family.name)
    return names


def _alerts(name: str = "sidemount") -> list[Json]:
    (rules,) = (each for each in objects("PrometheusRule") if each["metadata"]["name"] == name)
    return [rule for group in rules["spec"]["groups"] for rule in group["rules"]]


def _panels() -> list[Json]:
    dashboard = json.loads((MANIFESTS / "components/monitoring/dashboard.json").read_text())
    panels: list[Json] = dashboard["panels"]
    return panels


def _expressions() -> list[str]:
    return [alert["expr"] for alert in _alerts()] + [
        target["expr"] for panel in _panels() for target in panel["targets"]
    ]


def test_every_metric_that_is_asked_for_is_exported() -> None:
    for expression in _expressions():
        names = set(_NAME.findall(expression))
        assert names, expression
        assert names <= _exported(), expression


def test_every_metric_of_the_webhook_is_on_the_dashboard_or_alerted_on() -> None:
    asked = set(_NAME.findall(" ".join(_expressions())))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    left_out = {
        "sidemount_webhook_facts_generation", "sidemount_webhook_certificate_loads_total", "sidemount_webhook_certificate_faults_total",
        "sidemount_certs_ready", "sidemount_certs_leader", "sidemount_certs_clock_skew_seconds", "sidemount_certs_custody",
        "sidemount_certs_serving_not_after_seconds",
    }  # fmt: skip
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _exported()}
    assert exported - families == left_out


def test_every_label_is_one_that_the_metrics_have() -> None:
    known = {
        "path",
        "verdict",
        "reason",
        "status",
        "trust",
        "state",
        "change",
        "custody",
        "kind",
        "trouble",
        "class",
        "result",
        "place",
    } | _OF_PROMETHEUS
    for expression in _expressions():
        for grouped, matched in _LABEL.findall(expression):
            labels = {label.strip() for label in grouped.split(",") if label.strip()}
            labels |= {part.partition("=")[0].rstrip("!~ ") for part in matched.split(",") if part}
            assert labels <= known, expression


def test_alerts_of_the_csi_path_ask_for_what_its_services_export() -> None:
    families = [family for source in _csi_sources() for family in source.collect()]
    labels = {
        f"{family.name}_total" if family.type == "counter" else family.name: family for family in families
    }
    assert len(labels) > 25
    for alert in _alerts("sidemount-csi"):
        names = set(_NAME.findall(alert["expr"]))
        assert names, alert
        assert names <= labels.keys(), alert
        for grouped, matched in _LABEL.findall(alert["expr"]):
            asked = {label.strip() for label in grouped.split(",") if label.strip()}
            asked |= {part.partition("=")[0].rstrip("!~ ") for part in matched.split(",") if part}
            known = {label for name in names for sample in labels[name].samples for label in sample.labels}
            known |= {"namespace"}  # Prometheus' own, of where it scrapes
            assert asked <= known, alert


def _csi_sources() -> list[Any]:
    """Return what shows the node service and the controller, with one volume, one pool and one failure."""
    tally = VolumeTally()
    tally.publish_failed(Reason.HOST_FAILURE)
    record = SimpleNamespace(stage=Stage.PUBLISHED, name="v", spec=SimpleNamespace(driver_class="directory"))
    publications: Any = SimpleNamespace(records=lambda: [record], under_way=0, leftovers_cleared=0)
    keeper: Any = SimpleNamespace(is_up=True, starts=1, status=lambda name: VolumeStatus())
    census = Census(states={"running": 1}, starts={"pod": 1})
    launcher: Any = SimpleNamespace(census=lambda: census)
    registration: Any = SimpleNamespace(fault="")
    settings: Any = SimpleNamespace(facts="/f", launcher="process", metrics_address=None)
    node = NodeMetrics(publications, keeper, launcher, registration, tally, EventChannel(settings))
    facts: Any = SimpleNamespace(age_s=lambda: 1.0, facts=Mock(side_effect=NotReady("x")))
    pools: Any = SimpleNamespace(
        names=("/srv/pool",),
        stuck=lambda pool: 0,
        progress=lambda pool: Progress(),
        under_way=list,
        oldest_s=lambda: 0.0,
    )
    objects_ = ObjectCounts(tally.label)
    objects_.know("v", "objects")
    return [node, PoolMetrics(pools), Observation(settings, facts, lambda: True), objects_]


def test_panels_have_names_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = _panels()
    assert len({panel["title"] for panel in panels}) == len(panels) == len({panel["id"] for panel in panels})
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


def test_every_alert_has_a_line_in_troubleshooting() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    lines = re.findall(r"^\| `(Sidemount\w+)` \|", page, re.MULTILINE)
    alerts = [*_alerts(), *_alerts("sidemount-csi")]
    assert sorted(lines) == sorted(alert["alert"] for alert in alerts)
    for alert in alerts:
        assert alert["annotations"]["runbook"] == f"docs/troubleshooting.md, {alert['alert']}"
        assert alert["annotations"]["summary"].endswith(".")
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
