"""Which keeper is told what a volume counts."""

from sidecar.zygote_numbers import NumbersLine
from sidemount.host.handover import FromDaemon, Numbers, Offer

ONE, TWO, THREE = (Numbers(process=1, values={"store_requests": count}) for count in (1, 2, 3))


def test_a_keeper_of_an_earlier_release_is_asked_once_and_told_nothing() -> None:
    said: list[FromDaemon] = []
    line = NumbersLine(said.append)
    for numbers in (ONE, TWO, THREE):
        line.take(numbers)
    assert said == [Offer()]


def test_a_keeper_that_wants_them_is_told_the_latest_and_each_further_one() -> None:
    said: list[FromDaemon] = []
    line = NumbersLine(said.append)
    line.take(ONE)
    line.take(TWO)
    line.wanted()
    line.take(THREE)
    assert said == [Offer(), TWO, THREE]


def test_each_keeper_is_asked_anew() -> None:
    said: list[FromDaemon] = []
    line = NumbersLine(said.append)
    line.take(ONE)
    line.wanted()
    line.new_line()
    line.adopted()
    line.take(TWO)
    assert said == [Offer(), ONE, Offer()]
    line.wanted()
    assert said[3:] == [TWO]


def test_whoever_counts_nothing_offers_nothing() -> None:
    said: list[FromDaemon] = []
    line = NumbersLine(said.append)
    line.new_line()
    line.adopted()
    line.wanted()
    assert said == []
