"""Which keeper is asked to register files, and who hears of the answer."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.zygote_backings import BackingsLine
from sidemount.host.handover import FromDaemon, Holds, Register, Registered, Registers, Unregister


class Child:
    """A serving process: what it was told, as long as it hears."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.hears = True

    def send(self, message: Any, descriptor: int | None = None) -> bool:
        """Tell it."""
        self.told.append(message)
        return self.hears


class Keeper:
    """What a keeper was told, with what came along."""

    def __init__(self) -> None:
        self.told: list[FromDaemon] = []
        self.descriptors: list[Callable[[], int | None]] = []

    def tell(self, message: FromDaemon, descriptor: Callable[[], int | None] | None = None) -> None:
        """Tell it."""
        self.told.append(message)
        if descriptor is not None:
            self.descriptors.append(descriptor)


@pytest.fixture
def stage() -> tuple[BackingsLine, Keeper, Any]:
    keeper = Keeper()
    return BackingsLine(keeper.tell), keeper, Child()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def some_file() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def test_a_keeper_of_an_earlier_release_is_told_once_and_asked_for_nothing(
    stage: tuple[BackingsLine, Keeper, Any],
) -> None:
    line, keeper, child = stage
    line.begin(Holds(backings=[]), child)
    descriptor = some_file()
    line.register(Register(number=1), descriptor, child)
    assert keeper.told == [Holds(backings=[])]
    line.unregister(Unregister(backing=3))
    line.begin(Holds(backings=[9]), child)
    assert keeper.told == [Holds(backings=[])]
    assert child.told == [Registered(number=1, backing=0)]
    assert not is_open(descriptor)
    line.registers(child)
    line.registers(child)
    assert keeper.told == [Holds(backings=[]), Holds(backings=[9])], "it was none after all"


def test_a_request_and_its_answer_pass(stage: tuple[BackingsLine, Keeper, Any]) -> None:
    line, keeper, child = stage
    line.begin(Holds(backings=[4]), child)
    line.registers(child)
    descriptor = some_file()
    line.register(Register(number=1), descriptor, child)
    assert keeper.descriptors[0]() == descriptor
    line.registered(Registered(number=1, backing=5), child)
    assert child.told == [Registers(), Registered(number=1, backing=5)]
    assert not is_open(descriptor)
    line.adopted()
    assert keeper.told[-1] == Holds(backings=[4, 5])
    line.unregister(Unregister(backing=4))
    line.adopted()
    assert keeper.told[-2:] == [Unregister(backing=4), Holds(backings=[5])]


def test_an_answer_that_nobody_hears_is_taken_back(stage: tuple[BackingsLine, Keeper, Any]) -> None:
    line, keeper, child = stage
    line.begin(Holds(backings=[]), child)
    line.registers(child)
    line.registered(Registered(number=1, backing=5), None)
    child.hears = False
    line.registered(Registered(number=2, backing=6), child)
    line.registered(Registered(number=3, backing=0), child)
    assert keeper.told[1:] == [Unregister(backing=5), Unregister(backing=6)]


def test_each_keeper_is_asked_anew_and_each_process_told(stage: tuple[BackingsLine, Keeper, Any]) -> None:
    line, keeper, child = stage
    line.begin(Holds(backings=[]), child)
    line.registers(child)
    descriptor = some_file()
    line.register(Register(number=1), descriptor, child)
    line.new_line()
    assert not is_open(descriptor)
    assert keeper.descriptors[0]() is None, "it need not go any more"
    line.register(Register(number=2), some_file(), child)
    assert child.told[-1] == Registered(number=2, backing=0)
    line.adopted()
    line.registers(None)
    successor: Any = Child()
    line.begin(Holds(backings=[8]), successor)
    assert successor.told == [Registers()]
    assert keeper.told[-2:] == [Holds(backings=[]), Holds(backings=[8])]


def test_no_more_than_a_few_files_are_under_way(stage: tuple[BackingsLine, Keeper, Any]) -> None:
    line, _, child = stage
    line.begin(Holds(backings=[]), child)
    line.registers(child)
    descriptors = [some_file() for _ in range(20)]
    for number, descriptor in enumerate(descriptors):
        line.register(Register(number=number), descriptor, child)
    assert sum(map(is_open, descriptors)) == 8
    line.new_line()


def test_whoever_passes_nothing_through_is_told_nothing(stage: tuple[BackingsLine, Keeper, Any]) -> None:
    line, keeper, child = stage
    line.adopted()
    line.registers(child)
    assert keeper.told == child.told == []
