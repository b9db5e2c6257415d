"""What a controller needs to be told, and what it does not."""

from pathlib import Path

import pytest

from csi.settings import parse_settings
from sidemount.model.errors import InvalidRequest


def _flags(work: Path, *more: str, role: str = "controller") -> list[str]:
    (work / "facts").mkdir(exist_ok=True)
    return [role, "--endpoint", f"unix://{work}/run/csi.sock", "--facts", f"{work}/facts", *more]


def test_a_controller_needs_pools_and_nothing_of_a_node(tmp_path: Path) -> None:
    settings = parse_settings(
        _flags(tmp_path, "--pool", "/srv/a", "--pool", "/srv/b/", "--pool", "/srv/a"), {}
    )
    assert settings.pools == ("/srv/a", "/srv/b")
    assert (settings.node_id, settings.state_dir, settings.target_roots) == ("", "", ())
    with pytest.raises(InvalidRequest, match="--pool is missing"):
        parse_settings(_flags(tmp_path), {})


def test_pools_may_come_from_the_environment(tmp_path: Path) -> None:
    settings = parse_settings(_flags(tmp_path), {"SIDEMOUNT_CSI_POOL": "/srv/a,/srv/b"})
    assert settings.pools == ("/srv/a", "/srv/b")


def test_both_at_once_need_what_a_node_needs(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--node-id is missing"):
        parse_settings(_flags(tmp_path, "--pool", "/srv/a", role="all"), {})


@pytest.mark.parametrize(
    ("pools", "told"),
    [
        (["relative"], "no plain absolute path"),
        (["/"], "root directory"),
        (["/srv/a/../b"], "no plain absolute path"),
        (["/srv/50%"], "percent"),
        (["/srv/a?b"], "query"),
        (["/srv/a", "/srv/a/b"], "lies in the pool"),
        (["/srv/a/b", "/srv/a"], "lies in the pool"),
        (["file:///srv/a", "/srv/a"], "lies in the pool"),
        (["/srv/a/b", "file:///srv/a"], "lies in the pool"),
        (["file://{work}/run/pool"], "beside the socket"),
        (["file:///"], "absolute path"),
        (["file://host/a"], "absolute path"),
        (["s3://ml/a", "s3://ml/a/b"], "name a prefix of its own"),
        (["s3://ml", "s3://ml/a"], "name a prefix of its own"),
        (["s3://ml/a", "s3://ML/a"], "name a prefix of its own"),
        (["s3://ml/a", "s3://me@ml:443/a"], "name a prefix of its own"),
        (["{work}/run"], "beside the socket"),
        (["{work}"], "beside the socket"),
    ],
)
def test_pools_that_are_refused(tmp_path: Path, pools: list[str], told: str) -> None:
    flags = [part for pool in pools for part in ("--pool", pool.format(work=tmp_path))]
    with pytest.raises(InvalidRequest, match=told):
        parse_settings(_flags(tmp_path, *flags), {})
