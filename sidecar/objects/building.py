"""From a MountSpec to what serves a bucket."""

import logging
import os
import resource
from collections.abc import Callable
from dataclasses import replace

from sidecar.filesystems import Surroundings
from sidecar.objects.filesystem import ObjectsFilesystem
from sidecar.objects.places import Places
from sidecar.objects.settings import ObjectsSettings, parse_settings
from sidecar.protocol import FilesystemOperations, ProtocolSettings
from sidecar.takeover.memory import Memory
from sidemount.host.own_descriptors import raise_descriptor_limit
from sidemount.model.errors import HostFailure, InvalidRequest
from sidemount.model.mountspec import MountSpec
from sidemount.stores.opening import open_store
from sidemount.stores.store import StoreFault

_LOG = logging.getLogger(__name__)
_MEMORY_SHARE = 3  # of what the process may have at all, for the cache
_MEMORY_MIN = 8 << 20


def build_objects(
    spec: MountSpec, surroundings: Surroundings, open_memory: Callable[[], Memory]
) -> FilesystemOperations:
    """Return what serves a bucket. Raises InvalidRequest for wrong options or a source that is none, and what `open_memory` raises."""
    succession = surroundings.succession
    places = Places(
        state="" if succession is None else surroundings.state_dir,
        cache=surroundings.cache if os.access(surroundings.cache, os.W_OK | os.X_OK) else "",
        is_resumed=succession is not None and succession.resume,
    )
    settings = fitting(parse_settings(spec), has_cache=bool(places.cache))
    try:
        store = open_store(spec.source, settings, surroundings.secrets)
    except StoreFault as error:
        raise InvalidRequest(f"volume {spec.volume}: {error.strerror}") from error
    memory = open_memory()
    raise_descriptor_limit()  # two for each file that is written
    try:
        filesystem = ObjectsFilesystem(store, settings, surroundings.in_thread, places, memory)
    except OSError as error:
        raise HostFailure(
            f"volume {spec.volume}: what is written cannot be kept until it is in the store: {error.strerror}",
            errno=error.errno or 0,
        ) from error
    return FilesystemOperations(
        filesystem,
        ProtocolSettings(
            read_only=settings.read_only,
            attribute_timeout_s=settings.attribute_timeout_s,
            entry_timeout_s=settings.entry_timeout_s,
            acl=False,
        ),
    )


def fitting(settings: ObjectsSettings, *, has_cache: bool) -> ObjectsSettings:
    """Return settings that fit into this process's memory, and need no cache volume if there is none."""
    bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if bound != resource.RLIM_INFINITY:
        most = max(_MEMORY_MIN, bound // _MEMORY_SHARE)
        settings = replace(settings, memory_cache_bytes=min(settings.memory_cache_bytes, most))
    if has_cache or not (settings.disk_cache_bytes or settings.staging_bytes):
        return settings
    _LOG.warning(
        "no_cache_volume",
        extra={
            "consequence": "nothing is cached beyond memory, and files are only written from their beginning to their end",
            "hint": "give the driver class a cacheSize",
        },
    )
    return replace(settings, disk_cache_bytes=0, staging_bytes=0)
