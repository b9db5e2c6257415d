"""Fields: reads the typed fields of one decoded mapping, collecting every fault instead of stopping at the first."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import InvalidRequest, Reason, VolumeError, shown

_EnumT = TypeVar("_EnumT", bound=Enum)
# Finding the nearest word takes time, and how many unknown words there are is up to anybody.
UNKNOWN_TOLD = 8

TextFault = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Fields:
    """One mapping, at `path` ("" or "spec.options") of the object that `where` names. null counts as absent.

    In a flat form (`is_flat`) every value is a text and a boolean is exactly "true" or "false"; elsewhere a boolean is a boolean.
    Every getter returns a default when the field is absent or at fault; a fault is added to `faults`.
    """

    raw: Mapping[str, Any]
    where: str
    faults: list[VolumeError]
    is_flat: bool = False
    path: str = ""

    def fault(self, key: str, why: str, hint: str = "", *, reason: Reason = Reason.INVALID_REQUEST) -> None:
        """Add a fault of one field; `why` follows the field's name."""
        self.faults.append(
            InvalidRequest(f"{self.where}, field {shown(self._path(key))}: {why}", hint=hint, reason=reason)
        )

    def has(self, key: str) -> bool:
        """Tell whether something is given: neither absent, nor null, nor an empty text."""
        return self.raw.get(key) not in (None, "")

    def only(self, known: Collection[str]) -> None:
        """Add a fault for every key that is not known; past a few, one for all the rest."""
        unknown = [key for key in self.raw if key not in known]
        for key in unknown[:UNKNOWN_TOLD]:
            self.fault(str(key), "is unknown", suggestion(str(key), known))
        if len(unknown) > UNKNOWN_TOLD:
            self.fault(
                str(unknown[UNKNOWN_TOLD]), f"is unknown, and {len(unknown) - UNKNOWN_TOLD - 1} more fields"
            )

    def text(self, key: str, fault_of: TextFault, *, default: str = "", show: TextFault = shown) -> str:
        """Return a text that `fault_of` finds nothing wrong with; an empty one counts as absent.

        `show` renders a refused one for the message: a text that may hold a credential must not be repeated there.
        """
        value = self.raw.get(key)
        if value is None or value == "":
            return default
        if not isinstance(value, str):
            self.fault(key, f"{shown(value)} is not a text", "put it in quotes")
            return default
        why = fault_of(value)
        if why:
            self.fault(key, f"{show(value)} {why}")
            return default
        return value

    def required_text(self, key: str, fault_of: TextFault) -> str:
        """Return a text that must be there."""
        if not self.has(key):
            self.fault(key, "is missing or empty")
            return ""
        return self.text(key, fault_of)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.raw.get(key)
        if value is None:
            return default
        if self.is_flat and value in ("true", "false"):
            return bool(value == "true")
        if not self.is_flat and isinstance(value, bool):
            return value
        way = "write true or false" + ("" if self.is_flat else ", without quotes")
        self.fault(key, f"{shown(value)} is not a boolean", way)
        return default

    def integer(self, key: str, low: int, high: int, *, default: int) -> int:
        """Return a whole number within bounds, both inclusive."""
        value = self.raw.get(key)
        if value is None:
            return default
        if type(value) is int and low <= value <= high:
            return value
        self.fault(key, f"{shown(value)} is not a whole number from {low} to {high}")
        return default

    def choice(self, key: str, choices: type[_EnumT]) -> _EnumT | None:
        """Return the member whose value is given."""
        value = self.raw.get(key)
        if value is None:
            return None
        for member in choices:
            if value == member.value and isinstance(value, str):
                return member
        self.fault(
            key, f"{shown(value)} is not a choice", f"write one of: {', '.join(m.value for m in choices)}"
        )
        return None

    def texts(self, key: str, fault_of: TextFault) -> tuple[str, ...] | None:
        """Return a list of texts, each once; None if absent or at fault."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self.fault(key, f"must be a list, not {shown(value)}")
            return None
        before = len(self.faults)
        seen: set[str] = set()
        for i, item in enumerate(value):
            why = "is not a text" if not isinstance(item, str) else fault_of(item)
            if why:
                self.fault(f"{key}[{i}]", f"{shown(item)} {why}")
            elif item in seen:
                self.fault(f"{key}[{i}]", f"{shown(item)} is there twice", "keep one of them")
            else:
                seen.add(item)
        return tuple(value) if len(self.faults) == before else None

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a mapping, empty if absent or at fault."""
        value = self.raw.get(key)
        if isinstance(value, dict):
            return value
        if value is not None:
            self.fault(key, f"must be a mapping, not {shown(value)}")
        return {}

    def child(self, key: str, known: Collection[str]) -> "Fields":
        """Return the fields of a nested mapping, its unknown keys reported."""
        fields = Fields(self.mapping(key), self.where, self.faults, path=self._path(key))
        fields.only(known)
        return fields

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
