import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.source_glob import glob_fault, glob_matches, glob_scheme


@pytest.mark.parametrize(
    ("glob", "source", "is_match"),
    [
        ("s3://**", "s3://bucket/a/b", True),
        ("s3://**", "s3://", True),
        ("s3://**", "gs://bucket", False),
        ("s3://*", "s3://bucket", True),
        ("s3://*", "s3://bucket/a", False),
        ("s3://*/a", "s3://bucket/a", True),
        ("s3://*/a", "s3://x/y/a", False),
        ("s3://team-*/**", "s3://team-ml/x/y", True),
        ("s3://team-*/**", "s3://team-ml", False),
        ("dir:///srv/**", "dir:///srv/a", True),
        ("dir:///srv/**", "dir:///srv", False),
        ("dir:///srv/**", "dir:///srvx/a", False),
        ("dir:///srv/*/out", "dir:///srv/a/out", True),
        ("dir:///srv/**/out", "dir:///srv/a/b/out", True),
        ("dir:///srv/**/out", "dir:///srv/out", False),
        ("dir:///srv/a.b", "dir:///srv/aXb", False),
        ("dir:///srv/a", "dir:///srv/a", True),
        ("dir:///srv/a", "dir:///srv/ab", False),
        ("dir:///**/a*b/c", "dir:///x/ab/ayb/c", True),
        ("s3://**", "s3://b/a\nb", True),
    ],
)
def test_one_star_stays_within_a_segment(glob: str, source: str, is_match: bool) -> None:
    assert glob_matches(glob, source) is is_match


@pytest.mark.parametrize(
    "glob",
    [
        "",
        "**",
        "*://a",
        "s3:",
        "s3://",
        "S3://**",
        "s3://***",
        "s3://?",
        "s3://{a,b}",
        "s3://[ab]",
        "s3://a b",
        "s3://ä",
        "s3://a\n",
        "s3://" + "a" * 600,
        "3s://a",
    ],
)
def test_what_is_no_glob_is_a_fault(glob: str) -> None:
    assert glob_fault(glob)


def test_the_scheme_is_literal() -> None:
    assert glob_fault("s3://**") == ""
    assert glob_scheme("s3://**") == "s3"


@given(st.text("ab*/", max_size=8), st.text("ab/", max_size=10))
def test_matching_agrees_with_an_expression(tail: str, path: str) -> None:
    glob = "x://" + tail
    if glob_fault(glob):
        return
    parts = re.split(r"(\*+)", glob)
    expression = "".join(".*" if p == "**" else "[^/]*" if p == "*" else re.escape(p) for p in parts)
    assert glob_matches(glob, "x://" + path) == (re.fullmatch(expression, "x://" + path) is not None)


def test_a_hostile_source_costs_no_more_than_its_length() -> None:
    started = time.thread_time()
    assert not glob_matches("s3://" + "*a" * 200, "s3://" + "a" * 2000 + "b")
    assert not glob_matches("s3://" + "**a" * 150, "s3://" + "a/" * 1000 + "b")
    assert time.thread_time() - started < 1
