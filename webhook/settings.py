"""Settings of the process: flags first, then SIDEMOUNT_WEBHOOK_* variables, then defaults. One frozen value, built once."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import InvalidRequest, shown
from webhook.injection_settings import SANDBOXED_RUNTIME_CLASSES, InjectionSettings

ENV_PREFIX = "SIDEMOUNT_WEBHOOK_"
DIRECTORY, CLUSTER = "directory", "cluster"
_DEFAULTS = InjectionSettings()
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_PULL_POLICIES = ("", "Always", "IfNotPresent", "Never")

# Kubernetes itself sets these in every pod of a namespace that has a Service named sidemount-webhook.
_SERVICE_LINK = re.compile(
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the operator decides about this process."""

    host: str
    port: int
    tls_cert: Path
    tls_key: Path
    facts: Path | None = None
    kubeconfig: Path | None = None
    grace_s: float = 25.0
    lame_duck_s: float = 8.0
    log_level: str = "INFO"
    injection: InjectionSettings = field(default_factory=InjectionSettings)

    def redacted(self) -> dict[str, str]:
        """Return the settings as text for a log. There is no secret among them: the key is named by its file only."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "injection"}
        of_pods = {entry.name: getattr(self.injection, entry.name) for entry in fields(self.injection)}
        return {name: _told(value) for name, value in {**own, **of_pods}.items()}


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting: `--flag-name` and `SIDEMOUNT_WEBHOOK_FLAG_NAME`. A default of None means that it must be given."""

    flag: str
    metavar: str
    parse: Callable[[str], Any]
    default: str | None
    text: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.flag.upper().replace("-", "_")


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings. Raises: InvalidRequest naming flag or variable, value and way out.

    `--help` and unknown flags end the process, as argparse does.
    """
    _refuse_unknown(environ)
    given = vars(_parser().parse_args(argv))
    values: dict[str, Any] = {}
    for setting in _SETTINGS:
        name = setting.flag.replace("-", "_")
        flag, variable = given[name], environ.get(setting.env)
        where, text = (f"--{setting.flag}", flag) if flag is not None else (setting.env, variable)
        if text is None:
            text = setting.default
        if setting.flag == "facts" and values["facts_from"] == CLUSTER:
            if text is not None:
                raise InvalidRequest(
                    f"{where}: names a directory, but the facts are to come from the cluster",
                    hint=f"leave it out, or --facts-from {CLUSTER}",
                )
            values[name] = None
            continue
        if text is None:
            raise InvalidRequest(f"--{setting.flag} is missing", hint=f"give it, or set {setting.env}")
        try:
            values[name] = setting.parse(text)
        except ValueError as error:
            raise InvalidRequest(f"{where}: {shown(text)} {error}") from error
    return _settings_of(values)


def _settings_of(values: Mapping[str, Any]) -> Settings:
    host, port = values["listen"]
    if values["lame_duck_seconds"] > values["grace_seconds"]:
        raise InvalidRequest(
            f"--lame-duck-seconds: {values['lame_duck_seconds']:g} is longer than the grace period of "
            f"{values['grace_seconds']:g} seconds that it is a part of",
            hint="make it shorter, or --grace-seconds longer",
        )
    return Settings(
        host=host,
        port=port,
        tls_cert=values["tls_cert"],
        tls_key=values["tls_key"],
        facts=values["facts"],
        kubeconfig=values["kubeconfig"],
        grace_s=values["grace_seconds"],
        lame_duck_s=values["lame_duck_seconds"],
        log_level=values["log_level"],
        injection=InjectionSettings(
            sidecar_image=values["image"],
            image_prefix=values["image_prefix"],
            image_mirrors=values["image_mirrors"],
            image_pull_policy=values["image_pull_policy"],
            image_pull_secrets=values["image_pull_secrets"],
            sandboxed_runtime_classes=frozenset(values["sandboxed_runtime_classes"]),
            existing_enabled=values["existing_enabled"],
            own_namespace=values["own_namespace"],
        ),
    )


def _told(value: object) -> str:
    if isinstance(value, frozenset | tuple):
        return ",".join(sorted(value))
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {setting.env for setting in _SETTINGS}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in known:
            continue
        if not _SERVICE_LINK.fullmatch(name.removeprefix(ENV_PREFIX)):
            raise InvalidRequest(
                f"the variable {shown(name)[1:-1]} is not known", hint=suggestion(name, known)
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhook", description="Answer admission reviews over TLS.", allow_abbrev=False
    )
    for setting in _SETTINGS:
        default = f" (default {setting.default})" if setting.default else ""
        parser.add_argument(
            f"--{setting.flag}", metavar=setting.metavar, help=f"{setting.text}{default} [{setting.env}]"
        )
    return parser


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("is not HOST:PORT, such as 0.0.0.0:8443 or [::]:8443")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("is not HOST:PORT; put an IPv6 address in brackets")
    return ("" if host == "*" else host), int(port)


def _path(text: str) -> Path:
    if not text:
        raise ValueError("names no file")
    return Path(text)


def _optional_path(text: str) -> Path | None:
    return Path(text) if text else None


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d{1,3})?", text):
        raise ValueError("is not a number of seconds")
    return float(text)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if any(not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name) for name in names):
        raise ValueError("is not a list of names with commas between them")
    return names


def _one_name(text: str) -> str:
    names = _names(text)
    if len(names) != 1:
        raise ValueError("is not one name")
    return names[0]


def _image(text: str) -> str:
    if not text or not re.fullmatch(r"[A-Za-z0-9._/:@-]{1,500}", text):
        raise ValueError("is not an image reference")
    return text


def _image_prefix(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z0-9._/:-]{1,250}", text):
        raise ValueError("is not the beginning of an image reference")
    return text


def _image_mirrors(text: str) -> tuple[str, ...]:
    mirrors = tuple(mirror.strip() for mirror in text.split(",")) if text.strip() else ()
    if any(not mirror or not _image_prefix(mirror) for mirror in mirrors):
        raise ValueError("is not a list of registries with commas between them")
    return mirrors


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choice for choice in choices if choice)}")
        return text

    return parse


_SETTINGS = (
    _Setting("listen", "HOST:PORT", _listen, None, "address to listen on; port 0 takes a free one"),
    _Setting("tls-cert", "FILE", _path, None, "serving certificate with its chain, PEM; reloaded on change"),
    _Setting("tls-key", "FILE", _path, None, "its private key, PEM; reloaded on change"),
    _Setting(
        "facts-from",
        "SOURCE",
        _one_of(DIRECTORY, CLUSTER),
        DIRECTORY,
        "where facts come from: a directory of manifests, or the cluster that the pod runs in",
    ),
    _Setting(
        "kubeconfig", "FILE", _optional_path, "", "with --facts-from cluster: another way to the API server"
    ),
    _Setting(
        "facts",
        "DIR",
        _path,
        None,
        "directory of manifests: classes, namespaces, volumes; reloaded on change",
    ),
    _Setting(
        "image", "IMAGE", _image, _DEFAULTS.sidecar_image, "image of the keeper and the built-in filesystems"
    ),
    _Setting("image-prefix", "PREFIX", _image_prefix, "", "put before every image (air-gapped registries)"),
    _Setting(
        "image-mirrors",
        "PREFIXES",
        _image_mirrors,
        "",
        "registries that another webhook may send our images through, such as registry.example/proxy",
    ),
    _Setting("image-pull-policy", "POLICY", _one_of(*_PULL_POLICIES), "", "pull policy of our image"),
    _Setting("image-pull-secrets", "NAMES", _names, "", "pull secrets of our image, in the pod's namespace"),
    _Setting(
        "sandboxed-runtime-classes",
        "NAMES",
        _names,
        ",".join(sorted(SANDBOXED_RUNTIME_CLASSES)),
        "runtime classes whose pods no mount can reach into",
    ),
    _Setting(
        "existing-enabled", "BOOL", _boolean, "true", "whether pods may name existing volumes by handle"
    ),
    _Setting("own-namespace", "NAME", _one_name, _DEFAULTS.own_namespace, "namespace that is never touched"),
    _Setting("grace-seconds", "SECONDS", _seconds, "25", "from the first SIGTERM to the exit, at most"),
    _Setting(
        "lame-duck-seconds", "SECONDS", _seconds, "8", "of these, how long new connections are still taken"
    ),
    _Setting("log-level", "LEVEL", _one_of(*_LOG_LEVELS), "INFO", "least level that is logged"),
)
