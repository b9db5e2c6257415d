"""Settings of `python -m certs rotate`: one frozen value, built once."""

import argparse
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from certs.authority import AUTHORITY_LIFETIME
from certs.hosts import parse_hosts
from certs.live import ServiceName
from certs.rotation import GRACE, SERVING_LIFETIME, Policy
from sidemount.model.errors import InvalidRequest, shown

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SHORTEST_SERVING = timedelta(minutes=1)
_LONGEST = timedelta(days=36500)
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateSettings:
    """Everything the operator decides about this process."""

    namespace: str
    secret: str
    lease: str
    configurations: tuple[str, ...]
    directory: Path
    identity: str
    policy: Policy
    listen: tuple[str, int] | None = None
    probe: tuple[str, int] | None = None
    kubeconfig: Path | None = None
    period_s: float = 5.0
    settle_s: float = 10.0
    log_level: str = "INFO"


def add_rotate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `rotate`."""
    for title, flags in _FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            default = f" (default {flag.default})" if flag.default else ""
            if flag.repeatable:
                group.add_argument(
                    f"--{flag.name}",
                    action="append",
                    required=flag.required,
                    default=None if flag.required else [],
                    metavar=flag.metavar,
                    help=f"{flag.text}; repeatable",
                )
            else:
                group.add_argument(
                    f"--{flag.name}",
                    required=flag.required,
                    default=flag.default or None,
                    choices=flag.choices or None,
                    metavar=flag.metavar,
                    help=f"{flag.text}{default}",
                )


def parse_rotate_settings(arguments: argparse.Namespace, *, identity: str) -> RotateSettings:
    """Return the settings. `identity` is used where none is given. Raises: InvalidRequest naming the flag."""
    namespace = _matching("--namespace", arguments.namespace, _LABEL, "a namespace")
    service = ServiceName(namespace, _matching("--service", arguments.service, _LABEL, "a Service's name"))
    secret = _matching("--secret", arguments.secret, _NAME, "a Secret's name")
    names = tuple(
        _matching("--webhook-config", name, _NAME, "a configuration's name")
        for name in dict.fromkeys(arguments.webhook_config)
    )
    if not arguments.dir:
        raise InvalidRequest("--dir names no directory")
    parse_hosts([service.host, *arguments.host])
    return RotateSettings(
        namespace=namespace,
        secret=secret,
        lease=_matching("--lease", arguments.lease or secret, _NAME, "a Lease's name"),
        configurations=names,
        directory=Path(arguments.dir),
        identity=_identity(arguments.identity or identity),
        policy=_policy(service, arguments),
        listen=_address("--listen", arguments.listen),
        probe=_address("--probe", arguments.probe),
        kubeconfig=Path(arguments.kubeconfig) if arguments.kubeconfig else None,
        period_s=_period("--period", arguments.period),
        settle_s=_duration("--settle", arguments.settle).total_seconds(),
        log_level=arguments.log_level,
    )


def parse_address(where: str, text: str) -> tuple[str, int]:
    """Return host and port. Raises: InvalidRequest naming the flag."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidRequest(f"{where}: {shown(text)} is not HOST:PORT, such as 127.0.0.1:8443 or [::1]:8443")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or not host:
        raise InvalidRequest(f"{where}: {shown(text)} is not HOST:PORT; an IPv6 address is put in brackets")
    return host, int(port)


def _policy(service: ServiceName, arguments: argparse.Namespace) -> Policy:
    serving = _duration("--serving-lifetime", arguments.serving_lifetime)
    authority = _duration("--authority-lifetime", arguments.authority_lifetime)
    if serving < _SHORTEST_SERVING:
        raise InvalidRequest(
            f"--serving-lifetime: {arguments.serving_lifetime} is too short", hint="give 1m or more"
        )
    if authority < 3 * serving or authority > _LONGEST:
        raise InvalidRequest(
            f"--authority-lifetime: {arguments.authority_lifetime} is not between three times the "
            f"--serving-lifetime of {arguments.serving_lifetime} and 36500d",
            hint="make it longer, or --serving-lifetime shorter",
        )
    return Policy(
        service=service,
        more_hosts=tuple(arguments.host),
        authority_lifetime=authority,
        serving_lifetime=serving,
        grace=_duration("--grace", arguments.grace),
    )


def _matching(where: str, text: str, pattern: re.Pattern[str], what: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidRequest(f"{where}: {shown(text)} is not {what}", hint="lower-case letters, digits and -")
    return text


def _identity(text: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", text):
        raise InvalidRequest(f"--identity: {shown(text)} is not a word of printable ASCII")
    return text


def _address(where: str, text: str | None) -> tuple[str, int] | None:
    return None if text is None else parse_address(where, text)


def _period(where: str, text: str) -> float:
    seconds = _duration(where, text).total_seconds()
    if not 1 <= seconds <= 3600:
        raise InvalidRequest(f"{where}: {text} is not between 1s and 1h")
    return seconds


def _duration(where: str, text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{where}: {shown(text)} is no time such as 90d, 12h, 30m or 45s")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _told(time: timedelta) -> str:
    return f"{time.days}d" if time.days > 1 else f"{int(time.total_seconds() // 3600)}h"


@dataclass(frozen=True, slots=True)
class _Flag:
    """One flag. What is not required and has no default may be left out."""

    name: str
    metavar: str
    text: str
    default: str = ""
    required: bool = False
    repeatable: bool = False
    choices: tuple[str, ...] = ()


_FLAGS = {
    "what to look after": (
        _Flag("namespace", "NAME", "our namespace", required=True),
        _Flag("service", "NAME", "the Service through which API servers call the webhook", required=True),
        _Flag("secret", "NAME", "the Secret that keeps authority and certificate", required=True),
        _Flag(
            "webhook-config",
            "NAME",
            "a MutatingWebhookConfiguration or ValidatingWebhookConfiguration (or both) of this name, whose entries "
            "that call the Service get their caBundle",
            required=True,
            repeatable=True,
        ),
        _Flag("dir", "DIR", "where tls.crt and tls.key are put for the webhook", required=True),
    ),
    "times (such as 90d, 12h, 30m, 45s)": (
        _Flag("serving-lifetime", "TIME", "how long a certificate lives", _told(SERVING_LIFETIME)),
        _Flag("authority-lifetime", "TIME", "how long an authority lives", _told(AUTHORITY_LIFETIME)),
        _Flag(
            "grace",
            "TIME",
            "how long an old authority is trusted at least, after the new one signs",
            _told(GRACE),
        ),
        _Flag("period", "TIME", "between two looks", "5s"),
        _Flag("settle", "TIME", "how long a bundle is published before it is relied on", "10s"),
    ),
    "more": (
        _Flag("lease", "NAME", "the Lease that says who leads (default: the Secret's name)"),
        _Flag("identity", "TEXT", "who we are in the Lease (default: the host's name and a random part)"),
        _Flag("host", "HOST", "one more name of the certificate", repeatable=True),
        _Flag("listen", "HOST:PORT", "serve /startz, /livez, /readyz and /metrics here, without TLS"),
        _Flag(
            "probe",
            "HOST:PORT",
            "where the webhook of this pod listens: ready only if a handshake verifies; replicas are looked at on the same "
            "port before an old authority is retired",
        ),
        _Flag("kubeconfig", "FILE", "how to reach the API server (default: as a pod does)"),
        _Flag("log-level", "LEVEL", "least level that is logged", "INFO", choices=_LOG_LEVELS),
    ),
}
