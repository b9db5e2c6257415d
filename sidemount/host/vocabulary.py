"""What two processes of one release say to each other: one JSON object a datagram, with exactly the keys of its word.

Standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.model.errors import BadMessage


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of a conversation with the fields of each; `between` says whose it is, for errors."""

    between: str
    fields: Mapping[str, tuple[str, ...]]

    def written(self, say: str, **fields: Any) -> bytes:
        """Return the datagram of a word."""
        if set(fields) != set(self.fields[say]):
            raise AssertionError(f"{say}: {sorted(fields)}")
        return json.dumps({"say": say, **fields}).encode()

    def read(self, datagram: bytes) -> tuple[str, dict[str, Any]]:
        """Return word and fields of a datagram. Raises BadMessage."""
        try:
            fields = json.loads(datagram)
            say = fields.pop("say")
            if set(fields) == set(self.fields[say]):
                return say, fields
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadMessage(f"{self.between}: {type(error).__name__}") from error
        raise BadMessage(f"{self.between}: {say} has the wrong fields")
