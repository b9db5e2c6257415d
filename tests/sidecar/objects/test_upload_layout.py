"""Which part has which bytes."""

from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.objects.upload_layout import LARGEST_OBJECT, Layout

MIB = 1 << 20
part_sizes = st.sampled_from([5 * MIB, 8 * MIB, 64 * MIB, 5 << 30])
prefixes = st.one_of(st.just(0), st.integers(5 * MIB, LARGEST_OBJECT))


@example(5 * MIB, 50_734_301_184, 0)
@example(5 * MIB, LARGEST_OBJECT - 10**9, LARGEST_OBJECT - 3 * 10**9)
@given(part_sizes, prefixes, st.integers(0, LARGEST_OBJECT - 1))
def test_every_byte_is_in_one_part_and_no_object_has_too_many(part: int, prefix: int, offset: int) -> None:
    layout = Layout(part, prefix, 5 << 30)
    number = layout.number_at(offset)
    span = layout.span(number)
    assert span.start <= offset < span.end
    assert layout.span(number + 1).start == span.end
    assert layout.number_at(span.end) == number + 1
    assert number == 1 or layout.span(number - 1).end == span.start
    assert 5 * MIB <= span.end - span.start <= 5 << 30
    assert layout.number_at(LARGEST_OBJECT - 1) <= 10_000


def test_parts_are_of_one_size_up_to_32_gb_and_begin_at_0() -> None:
    layout = Layout(8 * MIB, 0, 5 << 30)
    assert layout.span(1) == (1, 0, 8 * MIB)
    assert [one.number for one in layout.spans(0, 17 * MIB)] == [1, 2, 3]
    assert [one.number for one in layout.spans(8 * MIB, 8 * MIB)] == []
    assert layout.span(4000) == (4000, 3999 * 8 * MIB, 4000 * 8 * MIB)
    assert layout.span(4001).end - layout.span(4001).start == 16 * MIB
