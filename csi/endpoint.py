"""The socket that callers connect to: its place, its rights, and what may lie there from before.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#protocol
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from urllib.parse import quote

from sidemount.model.errors import HostFailure, InvalidRequest, OperationPending, shown

_SCHEME = "unix://"
_PATH_MAX_BYTES = 107  # sun_path without its NUL
_DIRECTORY_MODE = 0o750
_CONNECT_S = 2.0


def parse_endpoint(text: str) -> str:
    """Return the path of unix:///path.sock. Raises ValueError."""
    if not text.startswith(_SCHEME):
        raise ValueError(f"is not {_SCHEME}/PATH.sock; only unix sockets are served")
    path = text.removeprefix(_SCHEME)
    if not path.startswith("/") or os.path.normpath(path) != path or "\0" in path:
        raise ValueError("names no plain absolute path")
    if not path.endswith(".sock"):
        raise ValueError("does not end in .sock")
    size = len(os.fsencode(path))
    if size > _PATH_MAX_BYTES:
        raise ValueError(f"is a path of {size} bytes; a socket's holds {_PATH_MAX_BYTES}")
    return path


def grpc_address(path: str) -> str:
    """Return the path as gRPC takes it."""
    return f"unix:{quote(path)}"


def prepare_socket(path: str) -> None:
    """Make the directory, and take away the socket of a process that is gone.

    Raises OperationPending if somebody listens there, InvalidRequest if something else lies there, HostFailure.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=_DIRECTORY_MODE, exist_ok=True)
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostFailure(f"endpoint {path}: {error.strerror}", errno=error.errno or 0) from error
    if not stat.S_ISSOCK(status.st_mode):
        raise InvalidRequest(
            f"endpoint {path}: something that is no socket lies there",
            hint="move it away, or name another path",
        )
    if _is_listened_to(path):
        raise OperationPending(
            f"endpoint {path}: another process serves it", hint="end it first, or name another path"
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def private_sockets() -> Iterator[None]:
    """Have sockets that are made meanwhile open to their owner alone, from the first moment."""
    mask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(mask)


def _is_listened_to(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except TimeoutError:
            return True
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EPROTOTYPE):  # a full queue; a socket of another kind
                return True
            raise HostFailure(f"endpoint {shown(path)}: {error.strerror}", errno=error.errno or 0) from error
    return True
