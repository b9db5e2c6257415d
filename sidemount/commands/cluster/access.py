"""Access: which API server a command talks to and as whom, found as kubectl finds it."""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import client, config
from kubernetes.aio.config.incluster_config import SERVICE_CERT_FILENAME, SERVICE_TOKEN_FILENAME
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from sidemount.host.cluster_configuration import load_pod_configuration
from sidemount.model.errors import InvalidRequest, VolumeError, shown

_LOAD_S = 60.0  # a credential plugin may ask a person to log in
_HOME = "~/.kube/config"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONTEXTS_TOLD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`namespace` is the one that commands without -n work in, `name` says for messages whose access it is."""

    configuration: client.Configuration
    namespace: str
    name: str

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self.configuration.host)


async def load_access(kubeconfig: str, context: str) -> Access:
    """Return the access that the arguments choose, "" for kubectl's own choice; in a pod, its service account's.

    Raises: InvalidRequest.
    """
    # The library logs what it catches, credentials' plugins' words among it, and goes on without credentials.
    logging.getLogger("kubernetes.aio.config").addHandler(logging.NullHandler())
    logging.getLogger("kubernetes.aio.config").propagate = False
    files = _files(kubeconfig)
    if not files:
        return _of_pod(context)
    try:
        async with asyncio.timeout(_LOAD_S):
            return await _of_files(files, context)
    except VolumeError:
        raise
    except TimeoutError:
        raise InvalidRequest(
            f"{_named(files)}: its credential plugin has not ended after {_LOAD_S:g} s",
            hint="run kubectl get pods, which calls the same plugin",
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{error.filename or _named(files)} cannot be read: {error.strerror}") from error
    except config.ConfigException as error:
        raise InvalidRequest(f"{_named(files)} cannot be used: {_first_line(error)}") from error
    except Exception as error:  # files of any content: the library's own errors are of every kind
        raise InvalidRequest(
            f"{_named(files)} cannot be understood ({type(error).__name__})", hint="try it with kubectl"
        ) from None


def _files(kubeconfig: str) -> tuple[Path, ...]:
    """Return the files that are there. Raises InvalidRequest when one that was named is not."""
    if kubeconfig:
        path = Path(kubeconfig).expanduser()
        if not path.is_file():
            raise InvalidRequest(f"--kubeconfig {kubeconfig}: no such file")
        return (path,)
    named = os.environ.get("KUBECONFIG", "")
    listed = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    found = tuple(path for path in listed or [Path(_HOME).expanduser()] if path.is_file())
    if listed and not found:
        raise InvalidRequest(f"KUBECONFIG={named}: no such file")
    return found


def _of_pod(context: str) -> Access:
    if not Path(SERVICE_TOKEN_FILENAME).is_file():
        raise InvalidRequest(
            f"no cluster is known: there is no {_HOME} and KUBECONFIG is not set",
            hint="give --kubeconfig FILE",
        )
    if context:
        raise InvalidRequest(f"--context {shown(context)}: a pod's service account has no contexts")
    configuration = client.Configuration()
    try:
        load_pod_configuration(configuration, Path(SERVICE_TOKEN_FILENAME), Path(SERVICE_CERT_FILENAME))
        namespace = _POD_NAMESPACE.read_text(encoding="ascii").strip()
    except (config.ConfigException, OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"the pod's service account does not tell how to reach the API server: {error}"
        ) from error
    return _access(configuration, namespace, "the pod's service account")


async def _of_files(files: Sequence[Path], wanted: str) -> Access:
    merged = KubeConfigMerger(os.pathsep.join(map(str, files))).config  # type: ignore[no-untyped-call]  # ships no types
    raw = merged.value if merged is not None else None
    if not isinstance(raw, dict):
        raise InvalidRequest(f"{_named(files)} is no kubeconfig")
    name = wanted or raw.get("current-context")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"{_named(files)} has no current context",
            hint="give --context NAME, or kubectl config use-context NAME",
        )
    context = _context(raw, name, _named(files))
    configuration = client.Configuration()
    loader = KubeConfigLoader(config_dict=merged, active_context=name, config_base_path=None)  # type: ignore[no-untyped-call]
    await loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    _check_plugin(raw, context, configuration)
    namespace = context.get("namespace")
    return _access(configuration, namespace if isinstance(namespace, str) else "", f"context {shown(name)}")


def _context(raw: dict[str, Any], name: str, files: str) -> dict[str, Any]:
    """Return a context. Raises InvalidRequest, which names those that are there."""
    found = _by_name(raw, "contexts", "context")
    if name not in found:
        names = ", ".join(shown(known) for known in list(found)[:_CONTEXTS_TOLD]) or "none"
        more = f" and {len(found) - _CONTEXTS_TOLD} more" if len(found) > _CONTEXTS_TOLD else ""
        raise InvalidRequest(f"{files} has no context {shown(name)}; it has {names}{more}")
    context = found[name]
    for key, plural in (("cluster", "clusters"), ("user", "users")):
        target = context.get(key)
        if not isinstance(target, str) or target not in _by_name(raw, plural, key):
            raise InvalidRequest(f"{files}: context {shown(name)} names no {key} that is there")
    return context


def _check_plugin(raw: dict[str, Any], context: dict[str, Any], configuration: client.Configuration) -> None:
    """Raise InvalidRequest when credentials should have come from a program and have not."""
    user = _by_name(raw, "users", "user")[context["user"]]
    plugin = user.get("exec")
    if (
        isinstance(plugin, dict)
        and not configuration.cert_file
        and "BearerToken" not in configuration.api_key
    ):
        raise InvalidRequest(
            f"the credential plugin {shown(plugin.get('command'))} gave no credentials",
            hint="run kubectl get pods, which shows what it says",
        )


def _by_name(raw: dict[str, Any], plural: str, key: str) -> dict[str, dict[str, Any]]:
    listed = raw.get(plural)
    # The library wraps each entry, to remember which of several files it is from.
    values = [getattr(entry, "value", entry) for entry in listed] if isinstance(listed, list) else []
    entries = [entry for entry in values if isinstance(entry, dict)]
    return {
        entry["name"]: entry.get(key) or {}
        for entry in entries
        if isinstance(entry.get("name"), str) and isinstance(entry.get(key) or {}, dict)
    }


def _access(configuration: client.Configuration, namespace: str, name: str) -> Access:
    # Who calls has its own way of trying again; 0 and False mean for ever here.
    configuration.retries = None
    if configuration.proxy is None:
        configuration.proxy = _proxy(configuration.host)
    return Access(configuration=configuration, namespace=namespace or "default", name=name)


def _proxy(server: str) -> str | None:
    """Return the proxy that the environment sets for an address, as kubectl takes it; None if it sets none, or one of another kind."""
    url = urlsplit(server)
    found = getproxies().get(url.scheme, "")
    is_usable = urlsplit(found).scheme in ("http", "https")
    return found if is_usable and url.hostname and not proxy_bypass(url.hostname) else None


def _named(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
