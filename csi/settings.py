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
from sidemount.model.names import subdomain_fault
from sidemount.model.provisioned import POOL_SCHEMES
from sidemount.model.source_uri import scheme_of, source_fault, source_parts
from sidemount.model.sub_path import unprintable_fault

ENV_PREFIX = "SIDEMOUNT_CSI_"
ENDPOINT_ENV = "CSI_ENDPOINT"  # the one variable that the specification itself names
PROCESS, POD = "process", "pod"
DIRECTORY, CLUSTER = "directory", "cluster"
_LAUNCHERS = (PROCESS, POD)
NODE, CONTROLLER, ALL = "node", "controller", "all"
_ROLES = (NODE, CONTROLLER, ALL)
_WITH_NODE = (NODE, ALL)
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_NODE_ID_MAX_BYTES = 256
_LIST_SEPARATOR = ","
_PORT_MAX = 65535

# Kubernetes itself sets these in every pod of a namespace that has a Service named sidemount-csi.
_SERVICE_LINK = re.compile(
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the operator decides about this process. All paths are absolute; `endpoint` is the socket's.

    A controller alone has no node: what is a node's is empty then, and `pools` is empty for a node alone.
    """

    role: str
    endpoint: str
    node_id: str
    launcher: str
    state_dir: str
    target_roots: tuple[str, ...]
    facts: Path | None  # None: the cluster's
    secrets_dir: str = ""
    registration_dir: str = ""
    registration_endpoint: str = ""
    pools: tuple[str, ...] = ()
    operation_wait_s: float = 8.0
    pool_timeout_s: float = 5.0
    mount_namespace: str = "sidemount-mounts"
    mount_namespace_baseline: str = "sidemount-mounts-baseline"
    kubelet_dir: str = "/var/lib/kubelet"
    kubeconfig: str = ""
    image: str = ""
    image_prefix: str = ""
    mount_priority_class: str = ""
    mount_grace_s: float = 600.0
    mount_timeout_s: float = 30.0
    stats_timeout_s: float = 8.0
    grace_s: float = 25.0
    metrics_address: tuple[str, int] | None = None
    log_level: str = "INFO"

    def told(self) -> dict[str, str]:
        """Return the settings as text for a log. There is no secret among them."""
        return {entry.name: str(getattr(self, entry.name)) for entry in fields(self)}


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting: `--flag-name` and `SIDEMOUNT_CSI_FLAG_NAME`. A default of None means that it must be given to `needed_by`."""

    flag: str
    metavar: str
    parse: Callable[[str], Any]
    default: str | None
    text: str
    is_list: bool = False
    field: str = ""
    needed_by: tuple[str, ...] = _ROLES

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
        values[setting.field or setting.name] = _value(setting, given[setting.name], environ, given["role"])
    values["facts"] = _facts_directory(values.pop("facts_from"), values["facts"])
    settings = Settings(**values)
    _check_places(settings)
    _check_pods(settings)
    return settings


def _value(setting: _Setting, flag: Any, environ: Mapping[str, str], role: str) -> Any:
    if setting.is_list:
        where = f"--{setting.flag}" if flag else setting.env
        texts = flag or [text for text in environ.get(setting.env, "").split(_LIST_SEPARATOR) if text]
    else:
        text = flag if flag is not None else environ.get(setting.env, setting.default)
        where = f"--{setting.flag}" if flag is not None else setting.env
        texts = [] if text is None else [text]
    if not texts:
        if role not in setting.needed_by:
            return () if setting.is_list else ""
        raise InvalidRequest(f"--{setting.flag} is missing", hint=f"give it, or set {setting.env}")
    try:
        parsed = []
        for text in texts:
            parsed.append(setting.parse(text))
    except ValueError as error:
        raise InvalidRequest(f"{where}: {shown(text)} {error}") from error
    return tuple(dict.fromkeys(parsed)) if setting.is_list else parsed[0]


def _facts_directory(source: str, directory: Path | None) -> Path | None:
    """Return where manifests are, None for the cluster's own. Raises InvalidRequest."""
    if source == CLUSTER and directory is not None:
        raise InvalidRequest(
            f"--facts {directory}: names a directory, but the facts are to come from the cluster",
            hint=f"leave it out, or --facts-from {CLUSTER}",
        )
    if source == DIRECTORY and directory is None:
        raise InvalidRequest(
            "--facts is missing", hint=f"give it, or set {ENV_PREFIX}FACTS, or --facts-from {CLUSTER}"
        )
    return directory


def _check_places(settings: Settings) -> None:
    """The socket's directory is the caller's as well: nothing else may lie there; nor may our state lie among the targets."""
    socket_dir = os.path.dirname(settings.endpoint)
    places = [(f"the target root {root}", root) for root in settings.target_roots]
    if settings.state_dir:
        _check_apart("--state-dir", settings.state_dir, f"beside the socket {settings.endpoint}", socket_dir)
        for what, root in places:
            _check_apart("--state-dir", settings.state_dir, f"in {what}", root)
        places.append((f"the state directory {settings.state_dir}", settings.state_dir))
    if settings.secrets_dir:
        _check_apart(
            "--secrets-dir", settings.secrets_dir, f"beside the socket {settings.endpoint}", socket_dir
        )
        for what, place in places:
            _check_apart("--secrets-dir", settings.secrets_dir, f"in {what}", place)
        places.append((f"the credentials {settings.secrets_dir}", settings.secrets_dir))
    for pool in settings.pools:
        pool_place = _place_of(pool)
        if "://" not in pool_place:
            _check_apart("--pool", pool_place, f"beside the socket {settings.endpoint}", socket_dir)
        for what, place in places:
            _check_apart("--pool", pool_place, f"in {what}", place)
        places.append((f"the pool {pool}", pool_place))


def _place_of(pool: str) -> str:
    """Return a pool as what it stands for, so that one place has one text."""
    if "://" not in pool:
        return pool
    scheme, found = scheme_of(pool), source_parts(pool)
    return found["path"] if scheme == "file" else f"{scheme}://{found['host'].lower()}{found['path']}"


def _check_apart(flag: str, path: str, where: str, other: str) -> None:
    # A pool may be of a server that does not answer now, so nobody looks at it here.
    holds = _holds if flag == "--state-dir" else _names
    if holds(path, other) or holds(other, path):
        what = "prefix" if "://" in path else "directory"
        raise InvalidRequest(f"{flag} {path}: lies {where}, or around it", hint=f"name a {what} of its own")


def _check_pods(settings: Settings) -> None:
    if settings.launcher == POD and settings.role != CONTROLLER and not settings.image:
        raise InvalidRequest(
            "--image is missing, which runs the built-in filesystems in mount pods",
            hint=f"give it, or set {ENV_PREFIX}IMAGE",
        )


def _holds(directory: str, path: str) -> bool:
    return os.path.commonpath((os.path.realpath(directory), os.path.realpath(path))) == os.path.realpath(
        directory
    )


def _names(directory: str, path: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


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


def _pool(text: str) -> str:
    if "://" in text:
        return _bucket(text)
    path = _directory(text)
    fault = source_fault(f"dir://{path}")
    if fault:
        raise ValueError(f"can be no volume's source: it {fault}")
    return path


def _bucket(text: str) -> str:
    fault = source_fault(text)
    if fault:
        raise ValueError(f"can be no volume's source: it {fault}")
    known = POOL_SCHEMES["objects"]
    if scheme_of(text) not in known:
        raise ValueError(f"is no pool: a directory's path, or {'://, '.join(known)}://")
    pool = text.rstrip("/")
    if scheme_of(text) == "file" and not pool.startswith("file:///"):
        raise ValueError("is no pool: file:// is followed by a directory's absolute path")
    return pool


def _existing(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text)
    if not path.is_dir():
        raise ValueError("is no directory")
    return path


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d{1,3})?", text) or float(text) <= 0:
        raise ValueError("is not a number of seconds above 0")
    return float(text)


def _address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and int(port[:6]) <= _PORT_MAX
    if not colon or not host or unprintable_fault(host) or not is_port:
        raise ValueError("is not HOST:PORT, such as 0.0.0.0:8080 or [::]:8080")
    return host, int(port)


def _optional(parse: Callable[[str], str]) -> Callable[[str], str]:
    def parse_given(text: str) -> str:
        return parse(text) if text else ""

    return parse_given


def _named(text: str) -> str:
    fault = subdomain_fault(text)
    if fault:
        raise ValueError(fault)
    return text


def _named_or_none(text: str) -> str:
    return _named(text) if text else ""


def _path(text: str) -> str:
    if unprintable_fault(text):
        raise ValueError("is no path")
    return text


def _image(text: str) -> str:
    if unprintable_fault(text) or " " in text:
        raise ValueError("is no image's name")
    return text


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text

    return parse


_SETTINGS = (
    _Setting("endpoint", "URI", parse_endpoint, None, "where to listen: unix:///PATH.sock"),
    _Setting("node-id", "NAME", _node_id, None, "this node's name in the cluster", needed_by=_WITH_NODE),
    _Setting("launcher", "KIND", _one_of(*_LAUNCHERS), PROCESS, "where daemons run"),
    _Setting(
        "state-dir",
        "DIR",
        _directory,
        None,
        "what has to survive a restart; not beside the socket",
        needed_by=_WITH_NODE,
    ),
    _Setting(
        "target-root",
        "DIR",
        _directory,
        None,
        "where targets may lie; may be given more than once (in the variable: with commas)",
        is_list=True,
        field="target_roots",
        needed_by=_WITH_NODE,
    ),
    _Setting(
        "pool",
        "DIR|URI",
        _pool,
        None,
        "where volumes are made: a directory, at the same path as on every node, or a prefix in a bucket, s3://BUCKET/PREFIX; "
        "may be given more than once",
        is_list=True,
        field="pools",
        needed_by=(CONTROLLER,),
    ),
    _Setting(
        "operation-wait-seconds",
        "SECONDS",
        _seconds,
        "8",
        "how long a call waits for what takes long, such as a copy, which goes on then",
        field="operation_wait_s",
    ),
    _Setting(
        "pool-timeout-seconds",
        "SECONDS",
        _seconds,
        "5",
        "how long a pool may take to answer",
        field="pool_timeout_s",
    ),
    _Setting(
        "facts-from",
        "KIND",
        _one_of(DIRECTORY, CLUSTER),
        DIRECTORY,
        "where classes and namespaces come from: a directory of manifests, or the cluster that the pod runs in",
    ),
    _Setting(
        "secrets-dir",
        "DIR",
        _optional(_directory),
        "",
        "credentials for calls that bring none: DIR/CLASS/KEY, a file for each of the class's secretKeys",
    ),
    _Setting("facts", "DIR", _existing, "", "directory of manifests: classes, namespaces"),
    _Setting(
        "registration-dir",
        "DIR",
        _optional(_directory),
        "",
        "where kubelet looks for sockets of plugins; without it nothing is registered",
    ),
    _Setting(
        "registration-endpoint",
        "PATH",
        _optional(_directory),
        "",
        "the path of the endpoint's socket as kubelet sees it, if it is another one",
    ),
    _Setting(
        "mount-namespace",
        "NAME",
        _named,
        "sidemount-mounts",
        "where mount pods are that Pod Security's level restricted allows",
    ),
    _Setting(
        "mount-namespace-baseline",
        "NAME",
        _named,
        "sidemount-mounts-baseline",
        "where mount pods are that need what only the level baseline allows",
    ),
    _Setting("kubelet-dir", "DIR", _directory, "/var/lib/kubelet", "kubelet's own, with the pods' volumes"),
    _Setting("kubeconfig", "FILE", _path, "", "how to reach the API server; without it as a pod does"),
    _Setting("image", "IMAGE", _image, "", "what runs the built-in filesystems in mount pods"),
    _Setting("image-prefix", "PREFIX", _image, "", "what goes before every image of mount pods"),
    _Setting("mount-priority-class", "NAME", _named_or_none, "", "the PriorityClass of mount pods"),
    _Setting(
        "mount-grace-seconds",
        "SECONDS",
        _seconds,
        "600",
        "how long a mount pod that is told to end serves what is still published",
        field="mount_grace_s",
    ),
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
    _Setting(
        "metrics-address", "HOST:PORT", _address, "", "where /metrics is served over HTTP; without it nowhere"
    ),
    _Setting("log-level", "LEVEL", _one_of(*_LOG_LEVELS), "INFO", "least level that is logged"),
)
