"""The nearest known word to a mistyped one, as the tail of a message."""

import difflib
from collections.abc import Iterable

from sidemount.model.errors import shown

_WORD_MAX = 64
_KNOWN_MAX = 20


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a way out for an unknown word: the nearest known one if any is near, and the known ones."""
    choices = sorted(known)
    if not choices:
        return "none is known here"
    listed = ", ".join(choices[:_KNOWN_MAX]) + (", …" if len(choices) > _KNOWN_MAX else "")
    spelled = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(word[:_WORD_MAX].casefold(), spelled, n=1)
    return f"did you mean {shown(spelled[near[0]])}? known: {listed}" if near else f"known: {listed}"
