"""Stands that cannot work: each should end soon, with a code that is not 0 and words that say why, or tell at the first use."""

import os
import re
from collections.abc import Iterator, Sequence

from sidemount.commands.conformance.children import Refused, ask
from sidemount.commands.conformance.finding import CannotTry, Finding, NotAsDeclared
from sidemount.commands.conformance.running import Running
from sidemount.commands.conformance.scene import Scene, found

_ANSWER_S = 15.0
_SHOWN = 160
_OURS = re.compile(r"sidemount-(no-such|missing|wrong)-")
_FAULT = re.compile(r"(?i)error|fatal|fail|invalid|denied|no such|not found|unknown|cannot|wrong")
_WHY_NOT = {
    "wrong-option": "a built-in filesystem has no argv: options are checked before anything starts",
    "missing-source": "the class's sources or its command leave no other source to name",
    "wrong-credentials": "no credentials were given",
}


def try_missing_source(scene: Scene) -> Iterator[Finding]:
    """Yield the finding of the stand whose source is not there."""
    yield found("missing-source", lambda: _refusal(scene, "missing-source"))


def try_refusals(scene: Scene) -> Iterator[Finding]:
    """Yield the findings of the other stands that cannot work, and what all stands have told."""
    for name in ("wrong-option", "wrong-credentials"):
        yield found(name, lambda name=name: _refusal(scene, name))  # type: ignore[misc] # a bound default
    yield found("output", lambda: _output(scene))


def _refusal(scene: Scene, name: str) -> str:
    if name not in scene.stands:
        raise CannotTry(_WHY_NOT[name])
    with scene.stand(name) as stand:
        why = stand.wait_live(scene.timeout_s)
        if not why:
            return _first_use(scene, stand, name)
        code = stand.daemon.poll()
        words = stand.output() or stand.faults()
        if code is None:
            raise NotAsDeclared(
                f"neither live nor ended after {scene.timeout_s:g} s, so nobody learns why: {words[-1:]}"
            )
        if code == 0:
            raise NotAsDeclared("ends with code 0, as if all were well")
        if not words:
            raise NotAsDeclared(f"ends with code {code} and says nothing")
        return f"ends with code {code}: {_telling(words)[:_SHOWN]}"


def _telling(words: Sequence[str]) -> str:
    """Return the line that says most: many programs end with how they are called."""
    found = [line for line in words if _OURS.search(line)] or [line for line in words if _FAULT.search(line)]
    return found[0] if found else words[-1]


def _first_use(scene: Scene, stand: Running, name: str) -> str:
    if name == "wrong-option":
        raise NotAsDeclared(
            "an unknown argument is taken for fine: a class's typing error would go unnoticed"
        )
    try:
        names = ask(lambda: os.listdir(stand.root), within_s=_ANSWER_S)
    except Refused as error:
        return f"comes up, and the first use is refused: {error}"
    if name == "missing-source" and names:
        raise NotAsDeclared(f"shows {len(names)} names of a source that does not exist")
    if name == "missing-source":
        raise CannotTry("comes up empty: to this store a prefix that nobody has written is no error")
    raise CannotTry("the store takes any credential, or lists without")


def _output(scene: Scene) -> str:
    if scene.leaks:
        raise NotAsDeclared(f"a credential is in {', '.join(sorted(scene.leaks))}")
    if not scene.words and not scene.stands["main"].spec.command:
        raise CannotTry("nothing went wrong that a built-in filesystem could have told")
    if not scene.words:
        raise NotAsDeclared(
            "the client has said nothing on any stand: its errors go elsewhere, such as to syslog"
        )
    return f"reaches the log, without credentials; last: {scene.words[-1][:_SHOWN]}"
