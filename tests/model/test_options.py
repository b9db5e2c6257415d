from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import Faults, InvalidRequest, Reason, VolumeError
from sidemount.model.options import (
    OptionRule,
    OptionType,
    canonical_value,
    check_options,
    parse_mount_options,
    render_arguments,
)

FLAG = OptionRule(type=OptionType.FLAG, argument="--flag")
INT = OptionRule(type=OptionType.INT, minimum=-5, maximum=100)
SIZE = OptionRule(type=OptionType.SIZE, maximum=100 * 2**30, default=2**30)
DURATION = OptionRule(type=OptionType.DURATION, minimum=1, maximum=86400, argument="--ttl=${value}s")
ENUM = OptionRule(type=OptionType.ENUM, values=("off", "full"), argument="--mode=${value}")
STRING = OptionRule(
    type=OptionType.STRING, pattern="^[a-z0-9-]+$", max_length=20, argument="--region=${value}"
)
LOOSE = OptionRule(type=OptionType.STRING, pattern=".*")
RULES = {
    "verbose": FLAG,
    "parallel": INT,
    "cacheBytes": SIZE,
    "ttl": DURATION,
    "mode": ENUM,
    "region": STRING,
    "label": LOOSE,
}


@pytest.mark.parametrize(
    ("rule", "text", "typed", "canonical"),
    [
        pytest.param(FLAG, "true", True, True, id="flag"),
        pytest.param(FLAG, "false", False, False, id="flag off"),
        pytest.param(INT, "16", 16, 16, id="int"),
        pytest.param(INT, "-5", -5, -5, id="negative int"),
        pytest.param(INT, "0", 0, 0, id="zero"),
        pytest.param(SIZE, "1048576", 1048576, 1048576, id="size in bytes"),
        pytest.param(SIZE, "512Mi", "512Mi", 512 * 2**20, id="size with a binary suffix"),
        pytest.param(SIZE, "1.5Gi", "1.5Gi", 3 * 2**29, id="size with a fraction"),
        pytest.param(SIZE, "2k", "2k", 2000, id="size with a decimal suffix"),
        pytest.param(DURATION, "90s", "90s", 90, id="seconds"),
        pytest.param(DURATION, "5m", "5m", 300, id="minutes"),
        pytest.param(DURATION, "1h30m", "1h30m", 5400, id="hours and minutes"),
        pytest.param(DURATION, "1h0m1s", "1h0m1s", 3601, id="all three"),
        pytest.param(ENUM, "off", "off", "off", id="enum"),
        pytest.param(STRING, "eu-west-1", "eu-west-1", "eu-west-1", id="string"),
        pytest.param(STRING, "12", "12", "12", id="string of digits"),
    ],
)
def test_text_and_typed_value_give_the_same_canonical_value(
    rule: OptionRule, text: str, typed: Any, canonical: Any
) -> None:
    for given_value in (text, typed):
        value = canonical_value(rule, given_value)
        assert value == canonical
        assert type(value) is type(canonical)


BAD_VALUES: list[tuple[OptionRule, list[Any]]] = [
    (FLAG, ["True", "yes", "1", "", "on", 1, 0, None, "true ", " true", "TRUE"]),
    (
        INT,
        [
            "+5",
            "1_000",
            "0x10",
            "1e3",
            "1.0",
            "",
            " 5",
            "5 ",
            "5\n",
            "٣",
            "５",
            "--5",
            "-0",
            "007",
            "9" * 30,
            "101",
            "-6",
            True,
            False,
            1.0,
            101,
            10**400,
            None,
            [],
            "5,6",
            "5=6",
        ],
    ),
    (
        SIZE,
        [
            "-1",
            "+1",
            "1e3",
            "0x10",
            "1_0",
            "1.5",
            "0.1k1",
            "1gi",
            "1KB",
            "Gi",
            "",
            "101Gi",
            "9" * 30,
            "1m",
            -1,
            True,
            0.5,
            2**70,
            "1 Gi",
            "1Gi\n",
            "١Gi",
        ],
    ),
    (
        DURATION,
        [
            "90",
            "s",
            "",
            "1.5h",
            "5m1h",
            "1h1h",
            "-5s",
            "+5s",
            "1d",
            "5 m",
            "5m\n",
            "25h",
            "0s",
            90,
            True,
            "1H",
            "99999999999s",
        ],
    ),
    (ENUM, ["OFF", "", "on", "off,full", "off ", False, None, ["off"]]),
    (
        STRING,
        [
            "",
            "EU",
            "eu,us",
            "-eu",
            "--eu",
            "eu=x",
            "eu us",
            "eu\n",
            "eu\0",
            "еu",
            "ｅu",
            "x" * 21,
            12,
            True,
            None,
            {},
        ],
    ),
    (
        LOOSE,
        [
            "a,b",
            "-a",
            "a=b",
            "a b",
            "a\tb",
            "a\nb",
            "a\0b",
            "ä",
            "a\ud800",
            "$(X)",
            "${value}",
            "a'b",
            'a"b',
            "a`b",
            "a\\b",
            "x" * 257,
        ],
    ),
]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        pytest.param(rule, value, id=f"{rule.type.value}-{i}")
        for rule, values in BAD_VALUES
        for i, value in enumerate(values)
    ],
)
def test_wrong_values_are_refused(rule: OptionRule, value: Any) -> None:
    """S4-12: wrong type, out of range, smuggled."""
    with pytest.raises(InvalidRequest):
        canonical_value(rule, value)


@pytest.mark.parametrize(
    "name",
    [
        "ro,allow_other",
        "-o",
        "--region",
        "region\n",
        "region\0",
        "region=x",
        " region",
        "region ",
        "REGION",
        "Region",
        "regıon",
        "reg\u200bion",
        "",
        "allow_other",
        "uid",
        "suid",
        "dev",
        "endpoint",
        "sanitise",
    ],
)
@pytest.mark.parametrize("value", ["true", True, 1, "x"], ids=repr)
def test_any_other_name_is_refused_by_name_and_its_value_is_not_told(name: str, value: Any) -> None:
    """S4-12."""
    with pytest.raises(InvalidRequest, match="is not allowed") as raised:
        check_options(RULES, [(name, value)], "here")
    assert raised.value.reason is Reason.INVALID_OPTION
    assert "known: " in raised.value.hint


@pytest.mark.parametrize(
    ("name", "meant"), [("REGION", "region"), ("cachebytes", "cacheBytes"), ("paralel", "parallel")]
)
def test_a_mistyped_name_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f'did you mean "{meant}"'):
        check_options(RULES, [(name, "x")], "here")


def test_options_come_sorted_with_their_defaults() -> None:
    assert check_options(RULES, [("ttl", "5m"), ("mode", "off")], "here") == (
        ("cacheBytes", 2**30),
        ("mode", "off"),
        ("ttl", 300),
    )
    assert check_options(RULES, [("cacheBytes", "1Mi")], "here") == (("cacheBytes", 2**20),)
    assert check_options({}, [], "here") == ()


def test_a_name_given_twice_is_refused_even_with_the_same_value() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        check_options(RULES, [("mode", "off"), ("mode", "off")], "here")


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(Faults) as raised:
        check_options(
            RULES, [("mode", "x"), ("nope", "1"), ("parallel", "1e3"), ("ttl", "1s")], "the request"
        )
    assert len(raised.value.faults) == 3
    assert all(str(fault).startswith("the request") for fault in raised.value.faults)


def test_a_bad_default_of_a_rule_made_by_hand_is_not_checked_twice() -> None:
    """Defaults are checked when the class is read; here they are taken as canonical."""
    assert check_options({"a": OptionRule(type=OptionType.FLAG, default=True)}, [("a", "false")], "x") == (
        ("a", False),
    )


@pytest.mark.parametrize(
    ("entries", "given_options"),
    [
        (["verbose", "parallel=5"], (("verbose", True), ("parallel", "5"))),
        (["region=a=b"], (("region", "a=b"),)),
        (["nope"], (("nope", True),)),
        (["nope=1"], (("nope", "1"),)),
        (["verbose,allow_other"], (("verbose,allow_other", True),)),
        ([""], (("", True),)),
    ],
)
def test_mount_options_are_flags_alone_or_name_and_value(
    entries: list[str], given_options: tuple[tuple[str, Any], ...]
) -> None:
    assert parse_mount_options(entries, RULES, "here") == given_options


@pytest.mark.parametrize(
    "entry",
    [
        "verbose=true",
        "verbose=",
        "parallel",
        "parallel=",
        "parallel=x",
        "parallel=-6",
        "parallel=5=5",
        "parallel=5,ro",
        "-o",
        "--parallel=5",
        "PARALLEL=5",
        "parallel =5",
        "parallel= 5",
        "allow_other",
        "ro,allow_other",
        "parallel=99999999999999999999",
        "",
    ],
)
def test_smuggled_mount_options_are_refused(entry: str) -> None:
    """S4-12."""
    with pytest.raises(InvalidRequest):
        check_options(RULES, parse_mount_options([entry], RULES, "here"), "here")


def test_arguments_are_one_each_and_flags_only_when_set() -> None:
    options = check_options(
        RULES, [("verbose", True), ("ttl", "1m"), ("mode", "off"), ("region", "eu")], "here"
    )
    assert render_arguments(RULES, options) == ("--mode=off", "--region=eu", "--ttl=60s", "--flag")
    assert render_arguments(RULES, [("verbose", False)]) == ()


VALUES = st.text() | st.integers() | st.booleans()


@given(st.sampled_from(sorted(RULES)), VALUES)
def test_whatever_passes_becomes_exactly_one_safe_argument(name: str, value: Any) -> None:
    try:
        options = check_options(RULES, [(name, value)], "here")
    except InvalidRequest:
        return
    assert check_options(
        RULES, [o for o in options if o[0] not in ("ttl",)], "here"
    )  # canonical values pass again
    for argument in render_arguments(RULES, [o for o in options if o[0] == name]):
        assert argument.isascii()
        assert not set(argument.partition("=")[2]) & set(" ,=\n\0$'\"")


@given(st.lists(st.tuples(st.sampled_from(sorted(RULES)) | st.text(), VALUES)))
def test_checking_raises_only_our_error(pairs: list[tuple[str, Any]]) -> None:
    with suppress(VolumeError):
        check_options(RULES, pairs, "here")
    with suppress(VolumeError):
        parse_mount_options([name for name, _ in pairs], RULES, "here")
