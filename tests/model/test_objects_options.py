"""What a class of filesystem `objects` is warned of: nothing that works is refused, nothing that cannot is silent."""

import pytest

from sidemount.model.objects_options import objects_warnings
from sidemount.model.options import OptionRule, OptionType

SIZE, TEXT = OptionRule(type=OptionType.SIZE), OptionRule(type=OptionType.STRING)


def test_class_as_documented_is_warned_of_nothing() -> None:
    choice = OptionRule(type=OptionType.ENUM, values=("https://s3.example",))
    options = {"cacheBytes": SIZE, "region": TEXT, "endpoint": choice}
    assert objects_warnings(["s3", "gs", "az", "https"], options, "10Gi") == ()


@pytest.mark.parametrize(
    ("options", "cache_size", "words"),
    [
        pytest.param({"cacheByte": SIZE}, "1Gi", 'did you mean "cacheBytes"', id="mistyped"),
        pytest.param({"region": SIZE}, "", 'takes a "string"', id="other-type"),
        pytest.param({"stagingBytes": SIZE}, "", "needs cacheSize", id="no-cache-volume"),
    ],
)
def test_option_without_effect_is_named(options: dict[str, OptionRule], cache_size: str, words: str) -> None:
    (warning,) = objects_warnings(["s3"], options, cache_size)
    assert words in warning


def test_source_that_it_cannot_serve_is_named() -> None:
    assert objects_warnings(["s3", "nfs"], {}, "") == (
        "sources: nfs:// is nothing that filesystem objects serves",
    )
