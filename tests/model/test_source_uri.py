from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import VolumeError
from sidemount.model.source_uri import parse_query, shown_source, source_fault


@pytest.mark.parametrize(
    "source",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/prefix/",
        "s3://bucket/a b/ünï",
        "dir:///",
        "dir:///srv/data",
        "dir:///srv/with space",
        "pvc://claim",
        "pvc://claim/sub/path",
        "nfs://nas.example/export",
        "nfs://nas.example:2049/export",
        "https://host.example:8443/path",
        "https://[2001:db8::1]/path",
        "https://host/with%20space",
        "sftp://user@host/path",
        "abfss://container@account.dfs.core.windows.net/path",
        "local:///tmp/x",
        "s3://bucket/a:b@c",
        "git+https://host/repo",
    ],
)
def test_ordinary_sources_pass(source: str) -> None:
    assert source_fault(source) == ""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param("bucket", "not a URI", id="no scheme"),
        pytest.param("s3:bucket", "not a URI", id="no slashes"),
        pytest.param("S3://bucket", "lower case", id="upper-case scheme"),
        pytest.param("3s://bucket", "not a URI", id="scheme starts with a digit"),
        pytest.param("://bucket", "not a URI", id="empty scheme"),
        pytest.param("s3://", "names nothing", id="nothing after the scheme"),
        pytest.param("s3:///key", "names nothing", id="no bucket"),
        pytest.param("https:///key", "names nothing", id="no server"),
        pytest.param("s3://user:pass@bucket/x", "password", id="password"),
        pytest.param("https://token:@host/", "password", id="empty password"),
        pytest.param("https://user:p/ass@host/", "host part", id="password with a slash"),
        pytest.param("https://host:port/", "host part", id="port in letters"),
        pytest.param("https://a@b@host/", "host part", id="two users"),
        pytest.param("https://ho st/", "host part", id="space in the host"),
        pytest.param("s3://bucket#frag", "fragment", id="fragment"),
        pytest.param("s3://bucket?x=1", "query", id="query"),
        pytest.param("s3://bucket\\x", "backslash", id="backslash"),
        pytest.param("s3://bucket/a\nb", "U+000A", id="newline"),
        pytest.param("s3://bucket/a\0b", "NUL", id="NUL"),
        pytest.param("s3://bucket/\ud800", "surrogate", id="lone surrogate"),
        pytest.param("s3://bucket/a ", "starts or ends with a space", id="trailing space"),
        pytest.param("s3://bucket/../secret", 'component ".."', id="parent"),
        pytest.param("s3://bucket/.", 'component "."', id="dot"),
        pytest.param("s3://bucket//x", "empty component", id="empty component"),
        pytest.param("s3://bucket/x//", "empty component", id="two trailing slashes"),
        pytest.param("https://host/%2e%2e/x", "%2e", id="escaped parent"),
        pytest.param("https://host/a%2Fb", "%2F", id="escaped slash"),
        pytest.param("https://host/a%00b", "%00", id="escaped NUL"),
        pytest.param("https://host/a%252e", "%25", id="escape of an escape"),
        pytest.param("https://host/a%zz", "starts no escape", id="no escape"),
        pytest.param("dir:///a%20b", "taken literally", id="escape in a directory"),
        pytest.param("dir://host/a", "three slashes", id="directory on a host"),
        pytest.param("dir://", "three slashes", id="directory of nothing"),
        pytest.param("dir:///a/", "empty component", id="directory with a trailing slash"),
        pytest.param("dir:////a", "empty component", id="directory with four slashes"),
        pytest.param("dir:///a/../b", 'component ".."', id="directory with a parent"),
        pytest.param("pvc:///x", "PersistentVolumeClaim", id="claim without a name"),
        pytest.param("pvc://Claim", "PersistentVolumeClaim", id="claim in upper case"),
        pytest.param("pvc://claim/../x", 'component ".."', id="claim with a parent"),
        pytest.param("nfs://server", "absolute path", id="nfs without a path"),
        pytest.param("nfs:///export", "server", id="nfs without a server"),
        pytest.param("s3://b/${mountpoint}", "expand", id="template"),
        pytest.param("s3://b/$(TOKEN)", "expand", id="environment variable"),
        pytest.param("s3://" + "x" * 2048, "longer than 2048", id="too long"),
    ],
)
def test_bad_sources_are_refused_with_the_reason(source: str, why: str) -> None:
    fault = source_fault(source)
    assert why in fault
    assert "pass@" not in fault


@pytest.mark.parametrize(
    "source",
    [
        "s3://user:hunter2@b/x",
        "https://hunter2@h",
        "https://h?sig=hunter2",
        "s3://b#hunter2",
        "x://a:hunter2@b@c",
        "https://u:hun@ter2@h/x",
    ],
)
def test_no_credential_in_a_source_is_ever_shown(source: str) -> None:
    """S0-22."""
    assert "hunter2" not in shown_source(source)
    assert "hunter2" not in source_fault(source)


@pytest.mark.parametrize(
    ("query", "pairs"),
    [
        ("a=1", (("a", "1"),)),
        ("a=1&b=2", (("a", "1"), ("b", "2"))),
        ("a=", (("a", ""),)),
        ("a=x=y", (("a", "x=y"),)),
        ("a=b+c", (("a", "b+c"),)),
        ("a=b%20c%26", (("a", "b c&"),)),
        ("a=%C3%A4", (("a", "ä"),)),
        ("a=ä", (("a", "ä"),)),
        ("a=%2520", (("a", "%20"),)),
    ],
)
def test_values_are_decoded_once(query: str, pairs: tuple[tuple[str, str], ...]) -> None:
    faults: list[VolumeError] = []
    assert parse_query(query, "here", faults) == pairs
    assert faults == []


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "no proper name"),
        ("=1", "no proper name"),
        ("a=1&", "no proper name"),
        ("a b=1", "no proper name"),
        ("%61=1", "no proper name"),
        ("-a=1", "no proper name"),
        ("a", "has no value"),
        ("a=1&a=1", "twice"),
        ("a=%", "percent-encoded"),
        ("a=%4", "percent-encoded"),
        ("a=%zz", "percent-encoded"),
        ("a=%ff", "percent-encoded"),
        ("a=%ed%a0%80", "percent-encoded"),
        ("&".join(f"a{i}=1" for i in range(200)), "more than 128 parts"),
    ],
)
def test_bad_queries_are_told_by_part(query: str, why: str) -> None:
    faults: list[VolumeError] = []
    parse_query(query, "here", faults)
    assert why in str(faults[0])
    assert str(faults[0]).startswith("here")


def test_one_bad_part_does_not_hide_the_others() -> None:
    faults: list[VolumeError] = []
    assert parse_query("readOnly=true&&x=%&image=y", "here", faults) == (
        ("readOnly", "true"),
        ("x", ""),
        ("image", "y"),
    )
    assert len(faults) == 2


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][A-Za-z0-9_.-]{0,10}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"])),
        min_size=1,
    )
)
def test_any_text_survives_percent_encoding(values: dict[str, str]) -> None:
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in values.items())
    faults: list[VolumeError] = []
    assert dict(parse_query(query, "here", faults)) == values
    assert faults == []


@given(st.text() | st.text("s3dir:/.@%?#ab\\ \n", max_size=30).map(lambda tail: "s3://" + tail))
def test_checking_never_fails(text: str) -> None:
    with suppress(VolumeError):
        source_fault(text)
        parse_query(text, "here", [])
    assert shown_source(text).isprintable()
