"""From a MountSpec to what serves a bucket: options, sources, and what is refused with which words."""

import dataclasses
import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.filesystems import build_operations
from sidecar.objects.building import fitting
from sidecar.objects.settings import _OPTIONS, ObjectsSettings, parse_settings
from sidemount.model.errors import Faults, InvalidRequest, VolumeError
from sidemount.model.mountspec import MountSpec, OptionValue
from sidemount.model.objects_options import OBJECTS_OPTIONS, OBJECTS_SCHEMES
from sidemount.stores.opening import _OPENERS

_DOCS = Path(__file__).parents[3] / "docs" / "objects.md"


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Building sets the process up; give the other tests theirs back."""
    umask = os.umask(0o022)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def spec(*options: tuple[str, OptionValue], **fields: Any) -> MountSpec:
    """Return a spec of a volume `data`."""
    base = MountSpec(volume="data", driver_class="s3", source="memory://b/p", filesystem="objects")
    return dataclasses.replace(base, options=options, **fields)


def test_long_request_leaves_time_for_another() -> None:
    assert ObjectsSettings(source="", request_timeout_s=20, retry_timeout_s=60).long_timeout_s == 30
    assert ObjectsSettings(source="", request_timeout_s=20, retry_timeout_s=30).long_timeout_s == 20


def test_defaults_are_those_of_the_settings() -> None:
    assert parse_settings(spec()) == ObjectsSettings(source="memory://b/p")


def test_every_option_arrives() -> None:
    settings = parse_settings(
        spec(
            ("attributeTimeout", 5),
            ("blockSize", 1 << 20),
            ("cacheBytes", 1 << 30),
            ("directoryMode", "0750"),
            ("endpoint", "https://s3.example:9000/"),
            ("fileMode", "640"),
            ("gid", 8),
            ("ignorePermissions", False),
            ("largestRename", 0),
            ("partSize", 16 << 20),
            ("pathStyle", False),
            ("prefetch", "a/**;b"),
            ("readAhead", 0),
            ("region", "eu-1"),
            ("stagingBytes", 7),
            ("uid", 7),
            ("uploads", 2),
            sub_path="a/b",
            read_only=True,
        )
    )
    assert settings == ObjectsSettings(
        source="memory://b/p",
        sub_path="a/b",
        read_only=True,
        attribute_timeout_s=5,
        entry_timeout_s=5,  # one is enough
        block_bytes=1 << 20,
        disk_cache_bytes=1 << 30,
        directory_mode=0o750,
        endpoint="https://s3.example:9000",
        file_mode=0o640,
        uid=7,
        gid=8,
        ignore_permissions=False,
        largest_rename=0,
        part_bytes=16 << 20,
        path_style=False,
        prefetch="a/**;b",
        read_ahead_blocks=0,
        region="eu-1",
        staging_bytes=7,
        uploading=2,
    )


@pytest.mark.parametrize(
    ("option", "words"),
    [
        pytest.param(("cacheSize", 1), "option cacheSize is not one of this filesystem's", id="unknown"),
        pytest.param(("fileMode", "rw-r--r--"), "not three octal digits", id="mode-in-letters"),
        pytest.param(("fileMode", "4755"), "not three octal digits", id="set-id"),
        pytest.param(("uid", -1), "not a user or group id", id="negative"),
        pytest.param(("uid", True), "not a user or group id", id="boolean"),
        pytest.param(("partSize", 1), "not a number of bytes from", id="small-part"),
        pytest.param(("retryTimeout", 0), "not a number of seconds from 1", id="no-patience"),
        pytest.param(("endpoint", "https://user:secret@host"), "not a URL of a server", id="credentials"),
        pytest.param(("endpoint", "file:///etc"), "not a URL of a server", id="no-server"),
        pytest.param(("endpoint", "http://host//x"), "not a URL of a server", id="odd-path"),
        pytest.param(("endpoint", "http://host/a/../?x"), "not a URL of a server", id="query"),
        pytest.param(("pathStyle", "yes"), "not a boolean", id="text"),
    ],
)
def test_wrong_option_is_named(option: tuple[str, OptionValue], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as raised:
        parse_settings(spec(option))
    assert "volume data" in raised.value.message


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(Faults) as raised:
        parse_settings(spec(("uid", -1), ("gid", -1), ("nonsense", "x")))
    assert len(raised.value.faults) == 3


def test_every_option_is_documented() -> None:
    documented = _DOCS.read_text(encoding="utf-8")
    assert [name for name in _OPTIONS if f"`{name}`" not in documented] == []


def test_classes_are_warned_of_every_other_option() -> None:
    assert set(OBJECTS_OPTIONS) == set(_OPTIONS)
    assert set(_OPENERS) <= set(OBJECTS_SCHEMES)


def test_bucket_is_built(tmp_path: Path) -> None:
    operations = build_operations(
        spec(("attributeTimeout", 7), read_only=True),
        source="",
        secrets="",
        cache=str(tmp_path),
        state_dir="",
    )
    assert operations.settings.read_only
    assert operations.settings.entry_timeout_s == 7
    assert not operations.settings.acl
    assert operations.enable_writeback_cache is False
    operations.close()


@pytest.mark.parametrize("source", ["ftp://host/x", "s3://", "nothing"])
def test_source_that_is_none_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(VolumeError, match="volume data"):
        build_operations(spec(source=source), source="", secrets="", cache=str(tmp_path), state_dir="")


def test_without_a_cache_volume_what_needs_one_is_off(caplog: pytest.LogCaptureFixture) -> None:
    settings = ObjectsSettings(source="x", disk_cache_bytes=5, staging_bytes=5)
    assert fitting(settings, has_cache=True) == settings
    assert not caplog.records
    fitted = fitting(settings, has_cache=False)
    assert (fitted.disk_cache_bytes, fitted.staging_bytes) == (0, 0)
    assert [record.getMessage() for record in caplog.records] == ["no_cache_volume"]
    assert caplog.records[0].levelno == logging.WARNING


def test_memory_cache_fits_into_what_the_process_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, hard))
    try:
        fitted = fitting(ObjectsSettings(source="x", memory_cache_bytes=2 << 30), has_cache=False)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert fitted.memory_cache_bytes == 1 << 30
