"""Credentials in memory: a mapping that shows nothing of itself, wherever it is told of: a loop that is debugged tells of every result."""


class HiddenTexts(dict[str, str]):
    """Texts by key. Its values are for files alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    __str__ = __repr__
