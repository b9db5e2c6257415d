"""How a serving process asks for a file to be registered, and how long it waits."""

import threading
import time
from collections.abc import Callable

from sidecar.registrar import Registrar
from sidemount.host.handover import FromDaemon, Holds, Register, Registered, Unregister


class Line:
    """What was told, and who answers: `answer` is given each request's number."""

    def __init__(self) -> None:
        self.told: list[FromDaemon] = []
        self.answer: Callable[[int], None] = lambda number: None

    def tell(self, message: FromDaemon, descriptor: int | None = None) -> None:
        """Take it."""
        self.told.append(message)
        if isinstance(message, Register):
            assert descriptor == 7
            threading.Thread(target=self.answer, args=(message.number,)).start()


def made(line: Line) -> tuple[Registrar, list[float]]:
    now = [0.0]
    registrar = Registrar(line.tell, clock=lambda: now[0])
    return registrar, now


def test_nobody_is_asked_before_somebody_is_there() -> None:
    line = Line()
    registrar, _ = made(line)
    registrar.begin([3])
    assert registrar.register(7) == 0
    assert line.told == [Holds(backings=[3])]


def test_the_answer_is_the_number() -> None:
    line = Line()
    registrar, _ = made(line)
    registrar.keeper_registers()

    def register() -> bool:  # the answer comes from another thread, which a busy machine may be slow to run
        now[0] += 100
        return registrar.register(7) == 5

    registrar, now = made(line)
    registrar.keeper_registers()
    line.answer = lambda number: registrar.take(Registered(number=number, backing=5))
    assert any(register() for _ in range(100))


def test_a_no_is_not_asked_for_again_at_once() -> None:
    line = Line()
    registrar, now = made(line)
    registrar.keeper_registers()
    line.answer = lambda number: registrar.take(Registered(number=number, backing=0))
    for wait_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
        before = len(line.told)
        assert registrar.register(7) == 0
        now[0] += 0.9 * wait_s
        assert registrar.register(7) == 0
        assert len(line.told) == before + 1
        now[0] += 0.2 * wait_s


def test_the_keeper_is_asked_only_so_often() -> None:
    line = Line()
    registrar, now = made(line)
    registrar.keeper_registers()
    line.answer = lambda number: registrar.take(Registered(number=number, backing=5))
    for _ in range(300):
        registrar.register(7)
        now[0] += 0.001
        registrar._not_before = 0.0
    assert len(line.told) <= 64 + 0.3 * 32 + 1 + sum(isinstance(said, Unregister) for said in line.told)
    now[0] += 10
    before = len(line.told)
    registrar.register(7)
    assert len(line.told) > before


def test_who_does_not_answer_is_waited_for_a_moment_and_what_comes_late_is_given_back() -> None:
    line = Line()
    registrar, _ = made(line)
    registrar.keeper_registers()
    began = time.monotonic()
    assert registrar.register(7) == 0
    assert time.monotonic() - began < 5
    (asked,) = line.told
    assert isinstance(asked, Register)
    registrar.take(Registered(number=asked.number, backing=9))
    registrar.take(Registered(number=asked.number, backing=0))
    assert line.told == [asked, Unregister(backing=9)]
