"""From a MountSpec to what serves it: options, the root, and what is refused with which words."""

import dataclasses
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.settings import DirectorySettings, PageCache, Storage, parse_settings
from sidecar.filesystems import FILESYSTEMS, build_operations
from sidecar.protocol import FilesystemOperations
from sidemount.host.own_descriptors import raise_descriptor_limit
from sidemount.model.driver_class import BUILT_IN_FILESYSTEMS
from sidemount.model.errors import Faults, HostFailure, InvalidRequest, Unsupported, VolumeError
from sidemount.model.mountspec import MountSpec, OptionValue
from sidemount.model.provisioned import VOLUME_FILESYSTEM


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
    base = MountSpec(volume="data", driver_class="directory", source="dir:///srv", filesystem="directory")
    return dataclasses.replace(base, options=options, **fields)


def build(source: Path, what: MountSpec) -> FilesystemOperations:
    """Build what serves a source."""
    return build_operations(what, source=str(source), secrets="", cache="", state_dir="")


def test_directory_is_built(tmp_path: Path) -> None:
    operations = build(tmp_path, spec(("attributeTimeout", 7), read_only=True))
    assert os.umask(0) == 0  # the kernel has applied the caller's
    assert operations.settings.read_only
    assert operations.settings.attribute_timeout_s == operations.settings.entry_timeout_s == 7
    assert operations.settings.acl
    assert not operations.settings.writeback
    assert operations.enable_writeback_cache is False
    assert operations.supports_dot_lookup is True


def test_unknown_filesystem_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"data: filesystem 'ext4' is not built in; .*directory"):
        build(tmp_path, spec(filesystem="ext4"))


def test_every_filesystem_here_is_one_that_a_class_may_name() -> None:
    assert set(FILESYSTEMS) <= {*BUILT_IN_FILESYSTEMS, VOLUME_FILESYSTEM}


def test_defaults_are_the_safe_ones() -> None:
    settings = parse_settings(spec(), "/source")
    assert settings == DirectorySettings(source="/source")
    assert (settings.attribute_timeout_s, settings.page_cache) == (1, PageCache.AUTO)
    assert not settings.writeback


def test_every_option_arrives() -> None:
    options: list[tuple[str, OptionValue]] = [
        ("attributeTimeout", 0),
        ("entryTimeout", 3),
        ("extendedAttributes", False),
        ("pageCache", "direct"),
        ("storage", "remote"),
        ("writeback", True),
    ]
    settings = parse_settings(spec(*options, sub_path="a/b", read_only=True), "/source")
    assert settings == DirectorySettings(
        source="/source",
        sub_path="a/b",
        read_only=True,
        attribute_timeout_s=0,
        entry_timeout_s=3,
        page_cache=PageCache.DIRECT,
        storage=Storage.REMOTE,
        extended_attributes=False,
        writeback=True,
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("attributeTimeout", True, "not a number of seconds from 0 to 86400"),
        ("attributeTimeout", "1s", "not a number of seconds"),
        ("attributeTimeout", -1, "not a number of seconds"),
        ("entryTimeout", 86401, "not a number of seconds"),
        ("pageCache", "always", "not one of auto, keep, direct"),
        ("pageCache", True, "not one of"),
        ("storage", "", "not one of auto, local, remote"),
        ("writeback", "true", "not a boolean"),
        ("extendedAttributes", 1, "not a boolean"),
        ("allow_other", True, "known options: attributeTimeout, entryTimeout"),
    ],
)
def test_wrong_option_is_refused_by_name_value_and_reason(name: str, value: OptionValue, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_settings(spec((name, value)), "/source")
    assert f"volume data: option {name}" in str(raised.value)
    assert words in str(raised.value)


def test_all_wrong_options_are_reported_together() -> None:
    with pytest.raises(Faults) as raised:
        parse_settings(spec(("pageCache", "x"), ("zeal", 1), ("writeback", 0)), "/source")
    assert len(raised.value.faults) == 3


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source with every obstacle (S2-22 … S2-26)."""
    (tmp_path / "outside").mkdir()
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "file").write_text("")
    (source / "up").symlink_to("..")
    (source / "inside").symlink_to("a")
    (source / "a/out").symlink_to(tmp_path / "outside")
    return source


@pytest.mark.parametrize(
    ("sub_path", "number", "words"),
    [
        ("missing", errno.ENOENT, "does not exist; make the directory: nothing is created automatically"),
        ("a/missing/deep", errno.ENOENT, "does not exist"),
        ("file", errno.ENOTDIR, "is not a directory"),
        ("file/x", errno.ENOTDIR, "is not a directory"),
        ("inside", errno.ELOOP, "crosses a symbolic link"),
        ("inside/b", errno.ELOOP, "crosses a symbolic link"),
        ("up", errno.ELOOP, "crosses a symbolic link"),
        ("a/out", errno.ELOOP, "crosses a symbolic link"),
        ("..", errno.EXDEV, "leads out of the source"),
        ("a/../../outside", errno.EXDEV, "leads out of the source"),
        ("/etc", errno.EXDEV, "leads out of the source"),
    ],
)
def test_sub_path_is_resolved_beneath_the_source(tree: Path, sub_path: str, number: int, words: str) -> None:
    """S2-08, S2-22, S2-23, S2-25, S2-26."""
    before = sorted(tree.rglob("*"))
    with pytest.raises(HostFailure) as raised:
        build(tree, spec(sub_path=sub_path))
    assert raised.value.errno == number
    assert words in str(raised.value)
    assert f"volume data: sub-path {sub_path!r}" in str(raised.value)
    assert sorted(tree.rglob("*")) == before


def test_missing_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostFailure, match=r"volume data: source .*gone does not exist"):
        build(tmp_path / "gone", spec())


def test_failed_build_leaves_no_descriptor(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for sub_path in ("missing", "inside", "file"):
        with pytest.raises(VolumeError):
            build(tree, spec(sub_path=sub_path))
    assert len(os.listdir("/proc/self/fd")) <= before


def test_descriptor_limit_is_raised_to_what_is_allowed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    assert raise_descriptor_limit() == hard
