"""What the node service remembers of each target, on disk before anything is done about it.

One file a target, named by the target's hash, so that no target can have two. Written aside, synced, renamed: a reader finds the
old or the new one, whole. Holds no secret.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from csi.access_modes import AccessMode
from csi.event_subject import PodRef, decode_pod_ref, encode_pod_ref
from csi.pod_launch import PodLaunch, decode_pod_launch, encode_pod_launch
from sidemount.host.logs import log
from sidemount.host.regular_file import read_regular
from sidemount.model.errors import BadMessage, HostFailure, VolumeError
from sidemount.model.mountspec import MountSpec, decode_spec, encode_spec

VERSION = 1
_FILE_MAX_BYTES = 1 << 18
_NAME_HEX = 32
_SUFFIX = ".json"
_ASIDE = ".new"


class Stage(Enum):
    """How far a publication is."""

    PUBLISHING = "publishing"  # nobody was told OK yet: after a crash it is undone
    PUBLISHED = "published"  # to be kept alive
    REMOVING = "removing"  # a tombstone: to be torn down, whatever happens


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What starts a volume's daemon again without its class, which may have changed since. `memory_bytes` None: no limit.

    `source_dir` is what the daemon opens by itself, `given_source` what the keeper opens for it. `pod`: it runs in a pod of its own.
    """

    source_dir: str = ""
    capabilities: tuple[str, ...] = ()
    memory_bytes: int | None = None
    given_source: str = ""
    pod: PodLaunch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One target. `path` is the target with its root resolved. `arguments`: a digest of what it was published with.

    `made`: the directory is ours, not the caller's. `file_keys`: the credentials that it has from files of the node, by key.
    `consumer`: the pod that uses it, None if the caller named none.
    """

    volume_id: str
    target: str
    path: str
    stage: Stage
    mode: AccessMode
    arguments: str
    spec: MountSpec
    launch: Launch
    made: bool = False
    file_keys: tuple[str, ...] = ()
    consumer: PodRef | None = None

    @property
    def name(self) -> str:
        """Return the name of everything that belongs to this target on the node; a DNS label."""
        return target_name(self.path)

    @property
    def mount_source(self) -> str:
        """Return what mountinfo shows as the mount's source."""
        return f"sidemount:csi/{self.name}"

    def at(self, stage: Stage, *, made: bool | None = None) -> "Record":
        """Return the record at another stage; with `made`, as that is then known."""
        return replace(self, stage=stage, made=self.made if made is None else made)


def target_name(path: str) -> str:
    """Return the name of a target's belongings. By its resolved path: two spellings are one target."""
    digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    return f"csi-{digest[:_NAME_HEX]}"


class RecordStore:
    """The records of a node."""

    def __init__(self, directory: str) -> None:
        """Make the directory. Raises HostFailure."""
        self._directory = directory
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as error:
            raise _failure(directory, error) from error

    def load(self) -> list[Record]:
        """Return every record. One that cannot be read is told of and left as it is: its mount is nobody else's to touch."""
        records = []
        try:
            names = sorted(os.listdir(self._directory))
        except OSError as error:
            raise _failure(self._directory, error) from error
        for name in names:
            path = f"{self._directory}/{name}"
            if name.endswith(_ASIDE):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            elif name.endswith(_SUFFIX):
                try:
                    record = decode_record(_read(path))
                    if f"{record.name}{_SUFFIX}" != name:
                        raise BadMessage("it is of another target")
                    records.append(record)
                except VolumeError as error:
                    log("csi.records").error("record_unreadable", file=path, fault=str(error))
        return records

    def write(self, record: Record) -> None:
        """Remember it; when this returns it survives a power cut. Raises HostFailure."""
        path = f"{self._directory}/{record.name}{_SUFFIX}"
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)  # somebody may have removed it
            with open(f"{path}{_ASIDE}", "wb", opener=_private) as file:
                file.write(encode_record(record).encode())
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{path}{_ASIDE}", path)
            self._sync_directory()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}{_ASIDE}")
            raise _failure(path, error) from error

    def remove(self, record: Record) -> None:
        """Forget it. Raises HostFailure."""
        path = f"{self._directory}/{record.name}{_SUFFIX}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                self._sync_directory()
        except OSError as error:
            raise _failure(path, error) from error

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def encode_record(record: Record) -> str:
    """Render as versioned JSON."""
    launch = record.launch
    return json.dumps(
        {
            "version": VERSION,
            "volumeId": record.volume_id,
            "target": record.target,
            "path": record.path,
            "stage": record.stage.value,
            "mode": record.mode.name,
            "arguments": record.arguments,
            "made": record.made,
            "fileKeys": list(record.file_keys),
            "consumer": None if record.consumer is None else encode_pod_ref(record.consumer),
            "spec": encode_spec(record.spec),
            "launch": {
                "sourceDir": launch.source_dir,
                "capabilities": list(launch.capabilities),
                "memoryBytes": launch.memory_bytes,
                "givenSource": launch.given_source,
                "pod": None if launch.pod is None else encode_pod_launch(launch.pod),
            },
        }
    )


def decode_record(text: str) -> Record:
    """Parse what `encode_record` wrote. Raises BadMessage."""
    try:
        raw: Mapping[str, Any] = json.loads(text)
        if raw["version"] != VERSION:
            raise BadMessage(f"a record of version {raw['version']!r}; this program reads {VERSION}")
        launch = raw["launch"]
        # What is taken by `get` the records of earlier releases do not have.
        return Record(
            volume_id=_text(raw["volumeId"]),
            target=_text(raw["target"]),
            path=_text(raw["path"]),
            stage=Stage(raw["stage"]),
            mode=AccessMode[raw["mode"]],
            arguments=_text(raw["arguments"]),
            made=raw["made"] is True,
            file_keys=tuple(_text(key) for key in raw.get("fileKeys", ())),
            consumer=decode_pod_ref(raw.get("consumer")),
            spec=decode_spec(_text(raw["spec"])),
            launch=Launch(
                source_dir=_text(launch["sourceDir"]),
                capabilities=tuple(_text(name) for name in launch["capabilities"]),
                memory_bytes=None if launch["memoryBytes"] is None else int(launch["memoryBytes"]),
                given_source=_text(launch.get("givenSource", "")),
                pod=None if launch.get("pod") is None else decode_pod_launch(launch["pod"]),
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadMessage(f"no record of ours ({type(error).__name__})") from error


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(type(raw).__name__)
    return raw


def _read(path: str) -> str:
    _, content = read_regular(Path(path), max_bytes=_FILE_MAX_BYTES)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadMessage(f"no record of ours ({type(error).__name__})") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _failure(path: str, error: OSError) -> HostFailure:
    return HostFailure(f"state {path}: {error.strerror}", errno=error.errno or 0)
