"""How a process reaches the API server: by a kubeconfig file, or as its pod does, with a token that is renewed under it."""

import contextlib
import os
from pathlib import Path

from kubernetes.aio import client, config
from kubernetes.aio.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)

from sidemount.model.errors import HostFailure, InvalidRequest

_TOKEN_MAX_BYTES = 1 << 20


async def load_cluster_configuration(kubeconfig: Path | None) -> client.Configuration:
    """Return how to reach the API server: by a file, or as a pod does. Raises: InvalidRequest, HostFailure."""
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            load_pod_configuration(configuration, Path(SERVICE_TOKEN_FILENAME), Path(SERVICE_CERT_FILENAME))
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]  # kubernetes.aio ships no types for it
                config_file=str(kubeconfig), client_configuration=configuration
            )
    except config.ConfigException as error:
        where = "the pod's service account" if kubeconfig is None else str(kubeconfig)
        raise InvalidRequest(
            f"{where} does not tell how to reach the API server: {error}",
            hint="run in a pod with a service account token, or give --kubeconfig FILE",
        ) from error
    except OSError as error:
        raise HostFailure(f"{kubeconfig} cannot be read: {error.strerror}", errno=error.errno or 0) from error
    except Exception as error:  # a file of any content: the library's own errors are of every kind
        raise InvalidRequest(
            f"{kubeconfig} cannot be understood ({type(error).__name__})", hint="give a kubeconfig file"
        ) from None
    # Each caller has its own way of trying again; 0 and False mean for ever here.
    configuration.retries = None
    return configuration


def load_pod_configuration(configuration: client.Configuration, token: Path, authority: Path) -> None:
    """Fill in how a pod reaches the API server. Raises ConfigException, OSError.

    The kubelet replaces the token's file long before the token ends; each call looks whether it has.
    """
    InClusterConfigLoader(str(token), str(authority), try_refresh_token=False).load_and_set(configuration)  # type: ignore[no-untyped-call]
    configuration.refresh_api_key_hook = RenewedToken(token)  # type: ignore[assignment]  # declared as None only


class RenewedToken:
    """Puts a token's present text into a configuration. What cannot be read or is empty leaves the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def __call__(self, configuration: client.Configuration) -> None:
        """Look at the file, and read it if it is another one than before."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found = os.stat(self._path)
            # A projected token is a new file behind a symlink each time, so its inode tells.
            seen = (found.st_dev, found.st_ino, found.st_mtime_ns)
            if seen == self._seen:
                return
            with self._path.open(encoding="ascii") as file:
                token = file.read(_TOKEN_MAX_BYTES).strip()
            if token:
                configuration.api_key["BearerToken"] = f"Bearer {token}"
                self._seen = seen
