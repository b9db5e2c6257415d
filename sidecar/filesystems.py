"""Which built-in filesystems there are, and how a volume's MountSpec becomes one that pyfuse3 can serve."""

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.directory.filesystem import DirectoryFilesystem, InThread, T
from sidecar.directory.passage import Registrar
from sidecar.directory.root import explain_root_error, open_root
from sidecar.directory.settings import DirectorySettings, parse_settings
from sidecar.directory.store import Store
from sidecar.protocol import FilesystemOperations, ProtocolSettings
from sidecar.takeover.holder import DescriptorHolder
from sidecar.takeover.memory import Memory
from sidecar.takeover.state import begin_state, resume_state
from sidecar.volume.filesystem import VolumeFilesystem
from sidecar.volume.opening import open_volume
from sidemount.host.own_descriptors import raise_descriptor_limit
from sidemount.model.errors import HostFailure, Unsupported
from sidemount.model.mountspec import MountSpec, OptionValue
from sidemount.model.pool_layout import data_dir
from sidemount.model.provisioned import VOLUME_FILESYSTEM

if TYPE_CHECKING:
    import trio

_THREADS = 32
_MOST_DIRECTORIES_OPEN = 8192
_SHARE_FOR_DIRECTORIES = (
    8  # of the descriptors a process may have; the rest is for files that applications open
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """How a daemon comes to serve. `resume`: a predecessor has served the same connection, and left its state.

    `holder` keeps files without a name; `held` is what it has kept for the predecessor: descriptors of ours, by node.
    """

    resume: bool
    holder: DescriptorHolder
    held: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a daemon finds what its volume needs, and how it runs what waits.

    Without a `succession` nothing is kept in `state_dir`, and the connection ends with the daemon. `registrar` has files of a `directory`
    passed through, where that is possible.
    """

    source: str
    secrets: str
    cache: str
    state_dir: str
    in_thread: InThread
    succession: Succession | None
    registrar: Registrar | None = None


def build_operations(
    spec: MountSpec,
    *,
    source: str,
    secrets: str,
    cache: str,
    state_dir: str,
    in_thread: InThread | None = None,
    succession: Succession | None = None,
    registrar: Registrar | None = None,
) -> FilesystemOperations:
    """Return what serves a volume. Sets the process up for it: no umask, as many descriptors as it may have.

    `in_thread` belongs to the runtime that pyfuse3 runs on (default: trio). With a `succession`, the runtime must run
    the operations' `errands`. Raises InvalidRequest for wrong options, Unsupported for an unknown filesystem, HostFailure if the source
    cannot be opened or the state cannot be kept, BadMessage if it cannot be read.
    """
    build = FILESYSTEMS.get(spec.filesystem)
    if build is None:
        known = ", ".join(sorted(FILESYSTEMS))
        raise Unsupported(
            f"volume {spec.volume}: filesystem {spec.filesystem!r} is not built in",
            hint=f"built-in filesystems: {known}",
        )
    os.umask(0)  # the kernel has applied the caller's
    surroundings = Surroundings(
        source=source,
        secrets=secrets,
        cache=cache,
        state_dir=state_dir,
        in_thread=in_thread or in_trio_thread,
        succession=succession,
        registrar=registrar,
    )
    return build(spec, surroundings)


def _directory(spec: MountSpec, surroundings: Surroundings) -> FilesystemOperations:
    settings = parse_settings(spec, surroundings.source)
    store = _open_store(spec, settings)
    memory = open_memory(surroundings)
    return directory_operations(store, settings, surroundings.in_thread, memory, surroundings.registrar)


def _open_store(spec: MountSpec, settings: DirectorySettings) -> Store:
    try:
        return Store(open_root(settings.source, settings.sub_path))
    except OSError as error:
        # A path in /proc tells nobody anything: there the keeper has opened what the spec names.
        is_given = settings.source.startswith("/proc/self/fd/")
        told = spec.source if is_given else settings.source
        message, hint = explain_root_error(error, told, settings.sub_path)
        raise HostFailure(f"volume {spec.volume}: {message}", errno=error.errno or 0, hint=hint) from error


def _volume(spec: MountSpec, surroundings: Surroundings) -> FilesystemOperations:
    settings = parse_settings(spec, data_dir(surroundings.source))
    store = _open_store(spec, settings)
    memory = open_memory(surroundings)
    volume = open_volume(surroundings.source, spec.source, read_only=spec.read_only, memory=memory)
    filesystem = VolumeFilesystem(
        store, settings, surroundings.in_thread, _directories_open(), memory, volume
    )
    return FilesystemOperations(filesystem, _protocol_settings(settings))


def _objects(spec: MountSpec, surroundings: Surroundings) -> FilesystemOperations:
    # 6 MiB of HTTP and TLS, which only who serves objects has to pay; a daemon that will has it before it forks: see `preload`.
    from sidecar.objects.building import build_objects

    return build_objects(spec, surroundings, lambda: open_memory(surroundings))


def preload(filesystem: str) -> None:
    """Import what serves a filesystem, before any process is forked that does."""
    if filesystem == "objects":
        importlib.import_module("sidecar.objects.building")


def open_memory(surroundings: Surroundings) -> Memory:
    """Return where a filesystem keeps what a successor needs. Raises BadMessage, OperationPending, HostFailure."""
    succession = surroundings.succession
    if succession is None:
        return Memory()
    if succession.resume:
        return resume_state(surroundings.state_dir, succession.holder, succession.held)
    return begin_state(surroundings.state_dir, succession.holder)


def directory_operations(
    store: Store,
    settings: DirectorySettings,
    in_thread: InThread,
    memory: Memory | None = None,
    registrar: Registrar | None = None,
) -> FilesystemOperations:
    """Return what serves a store as a `directory` volume."""
    return FilesystemOperations(
        DirectoryFilesystem(store, settings, in_thread, _directories_open(), memory, registrar),
        _protocol_settings(settings),
    )


def _directories_open() -> int:
    return min(_MOST_DIRECTORIES_OPEN, raise_descriptor_limit() // _SHARE_FOR_DIRECTORIES)


def _protocol_settings(settings: DirectorySettings) -> ProtocolSettings:
    return ProtocolSettings(
        read_only=settings.read_only,
        attribute_timeout_s=settings.attribute_timeout_s,
        entry_timeout_s=settings.entry_timeout_s,
        acl=settings.extended_attributes,
        writeback=settings.writeback,
    )


# Options that are settled with the kernel when a connection begins, with their defaults.
_OF_DIRECTORIES: Mapping[str, OptionValue] = {"extendedAttributes": True, "writeback": False}
INIT_OPTIONS: Mapping[str, Mapping[str, OptionValue]] = {
    "directory": _OF_DIRECTORIES,
    VOLUME_FILESYSTEM: _OF_DIRECTORIES,
}
FILESYSTEMS: dict[str, Callable[[MountSpec, Surroundings], FilesystemOperations]] = {
    "directory": _directory,
    "objects": _objects,
    VOLUME_FILESYSTEM: _volume,
}


async def in_trio_thread(function: Callable[..., T], *args: object) -> T:
    """Run a function in a thread of trio's. A cancelled caller (the daemon ends) does not wait for a store that hangs."""
    import trio  # 10 MiB, which only who serves on trio has to pay

    return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=_trio_limiter())


@functools.cache
def _trio_limiter() -> "trio.CapacityLimiter":
    import trio

    return trio.CapacityLimiter(_THREADS)
