import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import BadMessage
from sidemount.model.mountspec import (
    KeeperConfig,
    KeeperMount,
    MountSpec,
    View,
    decode_keeper_config,
    decode_spec,
    encode_keeper_config,
    encode_spec,
)
from sidemount.model.sub_path import sub_path_fault

SPEC = MountSpec(
    volume="train",
    driver_class="s3",
    source="s3://b/$(X)",
    filesystem="objects",
    options=(("a", 1), ("b", True)),
)
CONFIG = KeeperConfig(
    mounts=(
        KeeperMount(
            spec=SPEC, views=(View(name="train"), View(name="train.0123", sub_path="a/b", read_only=True))
        ),
    )
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
VOLUMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
SUB_PATHS = TEXTS.filter(lambda text: not sub_path_fault(text))
OPTIONS = st.dictionaries(TEXTS, TEXTS | st.integers(-(2**63), 2**63) | st.booleans(), max_size=5)


@st.composite
def specs(draw: st.DrawFn) -> MountSpec:
    filesystem = draw(st.sampled_from(["directory", "objects", ""]))
    return MountSpec(
        volume=draw(VOLUMES),
        driver_class=draw(TEXTS),
        source=draw(TEXTS),
        filesystem=filesystem,
        command=() if filesystem else tuple(draw(st.lists(TEXTS, min_size=1, max_size=4))),
        sub_path=draw(SUB_PATHS),
        read_only=draw(st.booleans()),
        options=tuple(sorted(draw(OPTIONS).items())),
        descriptor=draw(st.booleans()),
        takeover=draw(st.booleans()),
        uid=draw(st.integers(0, 2**32 - 2)),
        hung_after_s=draw(st.integers(1, 2**31 - 1)),
        selinux_context=draw(TEXTS),
    )


@st.composite
def configs(draw: st.DrawFn) -> KeeperConfig:
    mounts = []
    for i, spec in enumerate(draw(st.lists(specs(), max_size=3))):
        volume = f"v{i}-{spec.volume}"
        count = draw(st.integers(1, 3))
        views = tuple(
            View(
                name=f"{volume}.{n:02x}" if n else volume,
                sub_path=draw(SUB_PATHS),
                read_only=draw(st.booleans()),
            )
            for n in range(count)
        )
        mounts.append(KeeperMount(spec=replace(spec, volume=volume), views=views))
    return KeeperConfig(mounts=tuple(mounts))


@given(specs())
def test_a_spec_round_trips(spec: MountSpec) -> None:
    text = encode_spec(spec)
    assert decode_spec(text) == spec
    assert encode_spec(decode_spec(text)) == text


@given(configs())
def test_a_keeper_config_round_trips(config: KeeperConfig) -> None:
    assert decode_keeper_config(encode_keeper_config(config)) == config


@given(configs())
def test_an_encoded_config_is_safe_in_an_environment_variable(config: KeeperConfig) -> None:
    """Kubernetes expands $(NAME) in env values."""
    text = encode_keeper_config(config)
    assert "$" not in text
    assert text.isascii()
    assert text.isprintable()


def test_the_format_is_stable() -> None:
    """Keepers and daemons of running pods read what this release writes: change it only with its version."""
    assert encode_spec(SPEC) == (
        '{"version":1,"volume":"train","driverClass":"s3","source":"s3://b/\\u0024(X)","filesystem":"objects",'
        '"command":[],"subPath":"","readOnly":false,"options":{"a":1,"b":true},"descriptor":true,"takeover":false,'
        '"uid":65532,"hungAfterSeconds":30,"selinuxContext":""}'
    )
    assert '"views":[{"name":"train","subPath":"","readOnly":false},' in encode_keeper_config(CONFIG)


def test_options_are_encoded_in_order_of_their_names() -> None:
    reordered = replace(SPEC, options=tuple(reversed(SPEC.options)))
    assert encode_spec(reordered) == encode_spec(SPEC)


def _changed(**changes: Any) -> str:
    fields = json.loads(encode_spec(SPEC))
    return json.dumps({**fields, **changes}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "not the JSON", id="empty"),
        pytest.param("{", "not the JSON", id="cut"),
        pytest.param("[]", "must be a mapping", id="list"),
        pytest.param("null", "must be a mapping", id="null"),
        pytest.param("{}", "version is null", id="no version"),
        pytest.param("[" * 100_000, "not the JSON", id="deeply nested"),
        pytest.param('{"a":' * 50_000, "not the JSON", id="deeply nested mapping"),
        pytest.param('{"version":1,"version":1}', "not the JSON", id="duplicate key"),
        pytest.param(" " * (1 << 20) + "{}", "longer than", id="too long"),
        pytest.param(_changed(version=2), "version is 2, this program reads 1", id="later version"),
        pytest.param(_changed(version=True), "version is true", id="boolean version"),
        pytest.param(_changed(version="1"), 'version is "1"', id="text version"),
        pytest.param(_changed(extra=1), '"extra" is unknown', id="unknown field"),
        pytest.param(_changed(uid="0"), "uid: must be a whole number", id="text uid"),
        pytest.param(_changed(uid=True), "uid: must be a whole number", id="boolean uid"),
        pytest.param(_changed(uid=-1), "uid: must be a whole number", id="negative uid"),
        pytest.param(_changed(uid=2**32 - 1), "uid: must be a whole number", id="the uid that means none"),
        pytest.param(_changed(hungAfterSeconds=0), "hungAfterSeconds", id="no patience"),
        pytest.param(_changed(readOnly=1), "readOnly: must be true or false", id="number for a boolean"),
        pytest.param(_changed(volume="../x"), "not a name", id="volume with a path"),
        pytest.param(_changed(volume=""), "not a name", id="empty volume"),
        pytest.param(_changed(subPath="../x"), 'component ".."', id="sub-path that leaves"),
        pytest.param(_changed(source="a\0"), "without NUL", id="NUL"),
        pytest.param(
            _changed(options={"a": None}), "must be a text, a whole number or a boolean", id="null option"
        ),
        pytest.param(_changed(options={"a": 0.5}), "not the JSON", id="fraction"),
        pytest.param(_changed(options=[]), "options: must be a mapping", id="options as list"),
        pytest.param(_changed(command=["a"]), "exactly one of", id="two clients"),
        pytest.param(_changed(filesystem=""), "exactly one of", id="no client"),
        pytest.param(_changed(command="ls"), "must be a list", id="command as text"),
        pytest.param(
            _changed().replace(":65532", ":1" + "0" * 5000), "not the JSON|whole number", id="huge number"
        ),
        pytest.param(_changed().replace(":65532", ":NaN"), "not the JSON", id="NaN"),
    ],
)
def test_anything_else_is_a_bad_message(text: str, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_spec(text)


def test_a_missing_field_is_named() -> None:
    fields = json.loads(encode_spec(SPEC))
    for key in set(fields) - {"version"}:
        with pytest.raises(BadMessage, match=f'"{key}" is missing'):
            decode_spec(json.dumps({k: v for k, v in fields.items() if k != key}))


def _config(change: Any) -> str:
    raw = json.loads(encode_keeper_config(CONFIG))
    change(raw)
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda c: c["mounts"][0].update(views=[]), "at least one view", id="no view"),
        pytest.param(
            lambda c: c["mounts"][0]["views"][0].update(name="../etc"), "not a name", id="view elsewhere"
        ),
        pytest.param(lambda c: c["mounts"][0]["views"][0].update(name=".."), "not a name", id="parent view"),
        pytest.param(
            lambda c: c["mounts"][0]["views"][0].update(subPath="/etc"), "absolute", id="absolute sub-path"
        ),
        pytest.param(lambda c: c["mounts"].append(c["mounts"][0]), "twice", id="volume twice"),
        pytest.param(
            lambda c: c["mounts"][0]["views"].append(c["mounts"][0]["views"][0]), "twice", id="view twice"
        ),
        pytest.param(lambda c: c.pop("mounts"), '"mounts" is missing', id="no mounts"),
        pytest.param(lambda c: c.update(mounts={}), "must be a list", id="mounts as mapping"),
        pytest.param(
            lambda c: c["mounts"][0]["spec"].update(x=1), '"x" is unknown', id="unknown field in a spec"
        ),
        pytest.param(lambda c: c["mounts"][0].pop("spec"), '"spec" is missing', id="no spec"),
    ],
)
def test_a_keeper_config_that_could_mount_elsewhere_is_refused(change: Any, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_keeper_config(_config(change))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.text()
    | JSON_VALUES.map(json.dumps)
    | st.dictionaries(st.sampled_from(list(json.loads(encode_spec(SPEC)))), JSON_VALUES).map(json.dumps)
)
def test_decoding_raises_only_our_error(text: str) -> None:
    for decode in (decode_spec, decode_keeper_config):
        with suppress(BadMessage):
            decode(text)


@given(st.sampled_from(sorted(json.loads(encode_spec(SPEC)))), JSON_VALUES)
def test_one_wrong_field_raises_only_our_error(key: str, value: Any) -> None:
    with suppress(BadMessage):
        decode_spec(_changed(**{key: value}))


def test_a_spec_that_no_daemon_could_be_given_is_refused() -> None:
    mount = replace(CONFIG.mounts[0], spec=replace(SPEC, options=(("a", '"' * 20_000),)))
    with pytest.raises(BadMessage, match=r"mounts\[0\]\.spec: \d+ characters, at most 57344"):
        decode_keeper_config(encode_keeper_config(KeeperConfig(mounts=(mount,))))
