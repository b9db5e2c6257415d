"""Settings of the process: flags first, then SIDEMOUNT_CSI_* variables, then defaults. One frozen value, built once."""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from csi.endpoint import parse_endpoint
from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.sub_path import unprintable_fault

ENV_PREFIX = "SIDEMOUNT_CSI_"
ENDPOINT_ENV = "CSI_ENDPOINT"  # the one variable that the specification itself names
PROCESS = "process"
_LAUNCHERS = (PROCESS,)
_ROLES = ("node", "all")  # the same today: there is no controller service yet
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_NODE_ID_MAX_BYTES = 256
_LIST_SEPARATOR = ","

# Kubernetes itself sets these in every pod of a namespace that has a Service named sidemount-csi.
_SERVICE_LINK = re.compile(
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the operator decides about this process. All paths are absolute; `endpoint` is the socket's."""

    role: str
    endpoint: str
    node_id: str
    launcher: str
    state_dir: str
    target_roots: tuple[str, ...]
    facts: Path
    mount_timeout_s: float = 30.0
    stats_timeout_s: float = 8.0
    grace_s: float = 25.0
    log_level: str = "INFO"

    def told(self) -> dict[str, str]:
        """Return the settings as text for a log. There is no secret among them."""
        return {entry.name: str(getattr(self, entry.name)) for entry in fields(self)}


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting: `--flag-name` and `SIDEMOUNT_CSI_FLAG_NAME`. A default of None means that it must be given."""

    flag: str
    metavar: str
    parse: Callable[[str], Any]
    default: str | None
    text: str
    is_list: bool = False
    field: str = ""

    @property
    def env(self) -> str:
        return ENDPOINT_ENV if self.flag == "endpoint" else ENV_PREFIX + self.name.upper()

    @property
    def name(self) -> str:
        return self.flag.replace("-", "_")


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings. Raises InvalidRequest naming flag or variable, value and way out.

    `--help` and unknown flags end the process, as argparse does.
    """
    _refuse_unknown(environ)
    given = vars(_parser().parse_args(argv))
    values: dict[str, Any] = {"role": given["role"]}
    for setting in _SETTINGS:
        values[setting.field or setting.name] = _value(setting, given[setting.name], environ)
    settings = Settings(**values)
    _check_places(settings)
    return settings


def _value(setting: _Setting, flag: Any, environ: Mapping[str, str]) -> Any:
    if setting.is_list:
        where = f"--{setting.flag}" if flag else setting.env
        texts = flag or [text for text in environ.get(setting.env, "").split(_LIST_SEPARATOR) if text]
    else:
        text = flag if flag is not None else environ.get(setting.env, setting.default)
        where = f"--{setting.flag}" if flag is not None else setting.env
        texts = [] if text is None else [text]
    if not texts:
        raise InvalidRequest(f"--{setting.flag} is missing", hint=f"give it, or set {setting.env}")
    try:
        parsed = []
        for text in texts:
            parsed.append(setting.parse(text))
    except ValueError as error:
        raise InvalidRequest(f"{where}: {shown(text)} {error}") from error
    return tuple(dict.fromkeys(parsed)) if setting.is_list else parsed[0]


def _check_places(settings: Settings) -> None:
    """The socket's directory is the caller's as well: nothing else may lie there; nor may our state lie among the targets."""
    if _holds(settings.state_dir, os.path.dirname(settings.endpoint)) or _holds(
        os.path.dirname(settings.endpoint), settings.state_dir
    ):
        raise InvalidRequest(
            f"--state-dir {settings.state_dir}: lies beside the socket {settings.endpoint}, or around it",
            hint="name a directory of its own",
        )
    for root in settings.target_roots:
        if _holds(root, settings.state_dir) or _holds(settings.state_dir, root):
            raise InvalidRequest(
                f"--state-dir {settings.state_dir}: lies in the target root {root}, or around it",
                hint="name a directory of its own",
            )


def _holds(directory: str, path: str) -> bool:
    return os.path.commonpath((os.path.realpath(directory), os.path.realpath(path))) == os.path.realpath(
        directory
    )


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
        prog="python -m csi", description="Serve CSI at a unix socket.", allow_abbrev=False
    )
    parser.add_argument("role", choices=_ROLES, help="which services to serve, besides identity")
    for setting in _SETTINGS:
        default = f" (default {setting.default})" if setting.default else ""
        parser.add_argument(
            f"--{setting.flag}",
            metavar=setting.metavar,
            action="append" if setting.is_list else "store",
            help=f"{setting.text}{default} [{setting.env}]",
        )
    return parser


def _directory(text: str) -> str:
    if not text.startswith("/") or unprintable_fault(text) or ".." in text.split("/"):
        raise ValueError("is no plain absolute path")
    path = os.path.normpath(text)
    if path == "/" or path.startswith("//"):
        raise ValueError("is the root directory; name one beneath it")
    return path


def _node_id(text: str) -> str:
    if not text or unprintable_fault(text):
        raise ValueError("is no name of a node")
    if len(text.encode()) > _NODE_ID_MAX_BYTES:
        raise ValueError(f"is longer than {_NODE_ID_MAX_BYTES} bytes")
    return text


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise ValueError("is no directory")
    return path


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d{1,3})?", text) or float(text) <= 0:
        raise ValueError("is not a number of seconds above 0")
    return float(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text

    return parse


_SETTINGS = (
    _Setting("endpoint", "URI", parse_endpoint, None, "where to listen: unix:///PATH.sock"),
    _Setting("node-id", "NAME", _node_id, None, "this node's name in the cluster"),
    _Setting("launcher", "KIND", _one_of(*_LAUNCHERS), PROCESS, "where daemons run"),
    _Setting("state-dir", "DIR", _directory, None, "what has to survive a restart; not beside the socket"),
    _Setting(
        "target-root",
        "DIR",
        _directory,
        None,
        "where targets may lie; may be given more than once (in the variable: with commas)",
        is_list=True,
        field="target_roots",
    ),
    _Setting("facts", "DIR", _existing, None, "directory of manifests: classes, namespaces"),
    _Setting(
        "mount-timeout-seconds",
        "SECONDS",
        _seconds,
        "30",
        "how long a volume may take to be live",
        field="mount_timeout_s",
    ),
    _Setting(
        "stats-timeout-seconds",
        "SECONDS",
        _seconds,
        "8",
        "after which a mount that does not answer is abnormal",
        field="stats_timeout_s",
    ),
    _Setting(
        "grace-seconds", "SECONDS", _seconds, "25", "from SIGTERM to the exit, at most", field="grace_s"
    ),
    _Setting("log-level", "LEVEL", _one_of(*_LOG_LEVELS), "INFO", "least level that is logged"),
)
