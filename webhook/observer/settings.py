"""Settings of the observer's process: flags, then defaults. One frozen value, built once. There is no secret among them."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.names import OWN_NAMESPACE, label_fault, subdomain_fault

_LOG_LEVELS = ("debug", "info", "warning", "error")
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """What the operator decides. `log_period_s`: how often each keeper's log is read while nothing happens to its pod."""

    host: str = "0.0.0.0"  # noqa: S104 - probes and metrics, in a pod of its own
    port: int = 8080
    namespace: str = OWN_NAMESPACE
    lease: str = "observer"
    kubeconfig: Path | None = None
    log_period_s: float = 30.0
    logs_a_second: float = 10.0
    event_pace_s: float = 20.0
    events_a_second: float = 5.0
    status_debounce_s: float = 5.0
    log_level: str = "info"

    def told(self) -> dict[str, str]:
        """Return the settings as text for a log."""
        return {name: str(value) for name, value in asdict(self).items()}


_DEFAULTS = ObserverSettings()
_SECONDS = {
    "log-period-seconds": (_DEFAULTS.log_period_s, "how often each log is read while nothing happens"),
    "event-pace-seconds": (_DEFAULTS.event_pace_s, "between two writes of one Event, at least"),
    "status-debounce-seconds": (
        _DEFAULTS.status_debounce_s,
        "between two writes of one class's status, at least",
    ),
}
_RATES = {
    "logs-per-second": (_DEFAULTS.logs_a_second, "reads of logs, all together, at most"),
    "events-per-second": (_DEFAULTS.events_a_second, "writes of Events, all together, at most"),
}


def parse_settings(argv: Sequence[str]) -> ObserverSettings:
    """Return the settings. Raises InvalidRequest. `--help` and unknown flags end the process, as argparse does."""
    given = vars(_parser().parse_args(argv))
    host, port = _address(given["listen"])
    if label_fault(given["namespace"]):
        raise InvalidRequest(f"--namespace: {shown(given['namespace'])} {label_fault(given['namespace'])}")
    if subdomain_fault(given["lease"]):
        raise InvalidRequest(f"--lease: {shown(given['lease'])} {subdomain_fault(given['lease'])}")
    return ObserverSettings(
        host=host,
        port=port,
        namespace=given["namespace"],
        lease=given["lease"],
        kubeconfig=Path(given["kubeconfig"]) if given["kubeconfig"] else None,
        log_period_s=_number("--log-period-seconds", given["log_period_seconds"], _DAY_S),
        logs_a_second=_number("--logs-per-second", given["logs_per_second"], 1000.0),
        event_pace_s=_number("--event-pace-seconds", given["event_pace_seconds"], _DAY_S),
        events_a_second=_number("--events-per-second", given["events_per_second"], 1000.0),
        status_debounce_s=_number("--status-debounce-seconds", given["status_debounce_seconds"], _DAY_S),
        log_level=given["log_level"],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhook.observer",
        description="Tells what happens to volumes of running pods.",
        allow_abbrev=False,
    )
    parser.add_argument("--listen", default="0.0.0.0:8080", metavar="HOST:PORT", help="probes and metrics")
    parser.add_argument("--namespace", default=_DEFAULTS.namespace, metavar="NAME", help="where the Lease is")
    parser.add_argument("--lease", default=_DEFAULTS.lease, metavar="NAME", help="who of several leads")
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="how to reach the API server; default: as a pod does"
    )
    for flag, (default, text) in {**_SECONDS, **_RATES}.items():
        parser.add_argument(
            f"--{flag}", default=f"{default:g}", metavar="NUMBER", help=f"{text} (default {default:g})"
        )
    parser.add_argument("--log-level", default=_DEFAULTS.log_level, choices=_LOG_LEVELS)
    return parser


def _number(where: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise InvalidRequest(f"{where}: {shown(text)} is no number above 0 and up to {most:g}")
    return value


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port[:6]) > 65535:
        raise InvalidRequest(f"--listen: {shown(text)} is not HOST:PORT, such as 0.0.0.0:8080 or [::]:8080")
    return host, int(port)
