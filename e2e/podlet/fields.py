"""Reading one object of a manifest key by key, so that a key nobody understands is refused, not ignored."""

import re
from decimal import ROUND_CEILING, Decimal

from e2e.podlet.errors import PodRefused
from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.quantity import parse_quantity

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


class Fields:
    """One object of a manifest and where it stands. null counts as absent, as in Kubernetes."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise PodRefused(f"{where}: {shown(raw)} is not an object")
        self.where = where
        self._left: dict[str, object] = {str(k): v for k, v in raw.items() if v is not None}

    def refusal(self, key: str, why: str) -> PodRefused:
        """Return the error that names the field."""
        return PodRefused(f"{self.where}.{key}: {why}")

    def has(self, key: str) -> bool:
        """Tell whether the key is given and not taken yet."""
        return key in self._left

    def raw(self, key: str) -> object:
        """Take a value as it is, or None."""
        return self._left.pop(key, None)

    def text(self, key: str, default: str | None = None) -> str:
        """Take a string; without a default it is required."""
        found = self._left.pop(key, default)
        if found is None:
            raise self.refusal(key, "is required")
        if not isinstance(found, str):
            raise self.refusal(key, f"{shown(found)} is not a string")
        if "\0" in found:
            raise self.refusal(key, "holds a NUL character")
        return found

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """Take one of a closed set of strings."""
        found = self.text(key, default)
        if found not in allowed:
            raise self.refusal(key, f"{shown(found)} is not one of {', '.join(map(shown, allowed))}")
        return found

    def label(self, key: str) -> str:
        """Take a DNS label: container and volume names become directory names."""
        found = self.text(key)
        if not _LABEL.match(found):
            raise self.refusal(key, f"{shown(found)} is not a DNS label")
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """Take a boolean."""
        return bool(self.optional_flag(key) if self.has(key) else default)

    def optional_flag(self, key: str) -> bool | None:
        """Take a boolean that may be absent."""
        found = self._left.pop(key, None)
        if found is not None and not isinstance(found, bool):
            raise self.refusal(key, f"{shown(found)} is not a boolean")
        return found

    def number(self, key: str, default: int, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """Take an integer within bounds."""
        found = self.optional_number(key, minimum, maximum)
        return default if found is None else found

    def optional_number(self, key: str, minimum: int = 0, maximum: int = 2**31 - 1) -> int | None:
        """Take an integer that may be absent."""
        found = self._left.pop(key, None)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not minimum <= found <= maximum:
            raise self.refusal(key, f"{shown(found)} is not an integer from {minimum} to {maximum}")
        return found

    def quantity(self, key: str, unit: Decimal = Decimal(1)) -> int | None:
        """Take a quantity as a whole number of `unit`s, rounded up as Kubernetes does."""
        found = self._left.pop(key, None)
        if found is None:
            return None
        try:
            amount = parse_quantity(found) / unit
        except InvalidRequest as error:
            raise self.refusal(key, str(error)) from error
        if amount < 0:
            raise self.refusal(key, f"{shown(found)} is negative")
        return int(amount.to_integral_value(ROUND_CEILING))

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of strings; absent is empty."""
        found = self._left.pop(key, [])
        if not isinstance(found, list) or not all(
            isinstance(item, str) and "\0" not in item for item in found
        ):
            raise self.refusal(key, f"{shown(found)} is not a list of strings")
        return tuple(found)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Take a list of group ids; absent is empty."""
        found = self._left.pop(key, [])
        if not isinstance(found, list) or not all(type(item) is int and 0 <= item < 2**31 for item in found):
            raise self.refusal(key, f"{shown(found)} is not a list of ids")
        return tuple(found)

    def pairs(self, key: str) -> dict[str, str]:
        """Take a map of strings; absent is empty."""
        found = self._left.pop(key, {})
        if not isinstance(found, dict) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in found.items()
        ):
            raise self.refusal(key, "is not a map of strings")
        return dict(found)

    def child(self, key: str) -> "Fields | None":
        """Take an object that may be absent."""
        found = self._left.pop(key, None)
        return None if found is None else Fields(found, f"{self.where}.{key}")

    def part(self, key: str) -> "Fields":
        """Take an object; absent is empty."""
        return Fields(self._left.pop(key, {}), f"{self.where}.{key}")

    def children(self, key: str) -> "tuple[Fields, ...]":
        """Take a list of objects; absent is empty."""
        found = self._left.pop(key, [])
        if not isinstance(found, list):
            raise self.refusal(key, f"{shown(found)} is not a list")
        return tuple(Fields(item, f"{self.where}.{key}[{i}]") for i, item in enumerate(found))

    def only(self, key: str, accepted: tuple[object, ...], why: str) -> None:
        """Take a field of which podlet can honour only some values."""
        found = self._left.pop(key, None)
        if found is not None and found not in accepted:
            raise self.refusal(key, f"{shown(found)}: {why}")

    def ignore(self, *keys: str) -> None:
        """Drop fields that change nothing on the node."""
        for key in keys:
            self._left.pop(key, None)

    def close(self) -> None:
        """Refuse whatever nobody took."""
        if self._left:
            raise PodRefused(
                f"{self.where}: podlet does not know {', '.join(map(shown, sorted(self._left)))}"
            )
