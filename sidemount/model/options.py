"""Mount options: typed rules of a class, and the strict check of what a workload gives.

Text (a URI's query, a CSI volume context, `mountOptions`) and typed values (the list form) go through the same check and
come out as the same canonical value: flag → bool, int → int, size → bytes, duration → seconds, enum and string → text.
Whatever the pattern of a class says, a text is printable ASCII without space, comma, `=`, `$` or quotes and does not start with a
dash, so that no value can become a second option on somebody's command line.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import InvalidRequest, Reason, VolumeError, raise_faults, shown
from sidemount.model.fields import UNKNOWN_TOLD
from sidemount.model.mountspec import OptionValue
from sidemount.model.quantity import parse_quantity
from sidemount.model.text_pattern import compile_pattern

TEXT_MAX = 4096
VALUE_PLACEHOLDER = "${value}"
INT_MAX = 2**63 - 1

_INT = re.compile(r"(0|-?[1-9][0-9]{0,18})\Z")
_SIZE = re.compile(r"[0-9]{1,19}(\.[0-9]{1,9})?([KMGTPE]i|[kMGTPE])?\Z")
_DURATION = re.compile(r"(?=[0-9])(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?\Z")
_TEXT = re.compile(r"[!-~]*\Z")
_NEVER = ",=$\"'`\\"
_SAFE_NAME = re.compile(r"[a-z][A-Za-z0-9_.-]{0,62}\Z")


class OptionType(Enum):
    """What an option's value is."""

    FLAG = "flag"
    INT = "int"
    SIZE = "size"
    DURATION = "duration"
    ENUM = "enum"
    STRING = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRule:
    """What one option may be.

    `minimum` and `maximum` are in canonical units (bytes, seconds), both inclusive. `pattern` must match the whole text.
    `default` is canonical; None leaves an absent option absent. `argument` is what an external client's argv gets,
    `${value}` standing for the canonical value; a flag's is added when it is true.
    """

    type: OptionType
    minimum: int | None = None
    maximum: int | None = None
    values: tuple[str, ...] = ()
    pattern: str = ""
    max_length: int = 256
    default: OptionValue | None = None
    argument: str = ""


def is_option_name(name: str) -> bool:
    """Tell whether a class may give an option this name."""
    return _SAFE_NAME.match(name) is not None


def option_text_fault(text: str) -> str:
    """Return why a text can be no option's value, whatever the class says; "" if it can."""
    if text.startswith("-"):
        return "starts with a dash"
    if not _TEXT.match(text):
        return "holds a space, a control character or a character beyond ASCII"
    for char in _NEVER:
        if char in text:
            return f"holds {char}, which no option value may"
    return ""


def check_options(
    rules: Mapping[str, OptionRule], given: Iterable[tuple[str, OptionValue]], where: str
) -> tuple[tuple[str, OptionValue], ...]:
    """Return the canonical options, sorted by name, with the defaults of those not given.

    Raises InvalidRequest for one fault, Faults for several. `where` names the request in messages.
    """
    faults: list[VolumeError] = []
    checked: dict[str, OptionValue] = {}
    seen: set[str] = set()
    for name, value in given:
        rule = rules.get(name)
        if name in seen:
            faults.append(_fault(f"{where}: option {shown(name)} is given twice"))
        elif rule is None:
            # The value stays out of the message: it may be a credential that went astray.
            hint = suggestion(name, rules) if len(faults) < UNKNOWN_TOLD else ""
            faults.append(_fault(f"{where}: option {shown(name)} is not allowed", hint))
        else:
            try:
                checked[name] = canonical_value(rule, value)
            except InvalidRequest as error:
                faults.append(_fault(f"{where}: option {shown(name)}: {error.message}", error.hint))
        seen.add(name)
    raise_faults(faults)
    for name, rule in rules.items():
        if name not in seen and rule.default is not None:
            checked[name] = rule.default
    return tuple(sorted(checked.items()))


def canonical_value(rule: OptionRule, value: object) -> OptionValue:
    """Return the canonical value. Raises InvalidRequest without naming the option."""
    match rule.type:
        case OptionType.FLAG:
            return _flag(value)
        case OptionType.INT:
            return _ranged(rule, _int(value), "")
        case OptionType.SIZE:
            return _ranged(rule, _size(value), " bytes")
        case OptionType.DURATION:
            return _ranged(rule, _duration(value), " seconds")
        case OptionType.ENUM:
            return _enum(rule, value)
        case OptionType.STRING:
            return _string(rule, value)


def parse_mount_options(
    entries: Iterable[str], rules: Mapping[str, OptionRule], where: str
) -> tuple[tuple[str, OptionValue], ...]:
    """Split `mountOptions` entries: `flag` alone, or `name=value`. Raises InvalidRequest or Faults.

    A flag of the class takes no value here, and any other option needs one (S4-12); the values are still to be checked.
    """
    faults: list[VolumeError] = []
    given: list[tuple[str, OptionValue]] = []
    for entry in entries:
        name, equals, value = entry.partition("=")
        rule = rules.get(name)
        is_flag = rule is not None and rule.type is OptionType.FLAG
        if is_flag and equals:
            faults.append(
                _fault(f"{where}: mount option {shown(name)} takes no value", f"write {name} alone")
            )
        elif rule is not None and not is_flag and not equals:
            faults.append(_fault(f"{where}: mount option {shown(name)} needs a value", f"write {name}=…"))
        else:
            given.append((name, value if equals else True))
    raise_faults(faults)
    return tuple(given)


def render_arguments(
    rules: Mapping[str, OptionRule], options: Iterable[tuple[str, OptionValue]]
) -> tuple[str, ...]:
    """Return the arguments that canonical options become on an external client's command line."""
    arguments = []
    for name, value in options:
        argument = rules[name].argument
        if value is False or not argument:
            continue
        arguments.append(argument if value is True else argument.replace(VALUE_PLACEHOLDER, str(value)))
    return tuple(arguments)


def _flag(value: object) -> bool:
    match value:
        case bool():
            return value
        case "true" | "false":
            return value == "true"
    raise _invalid(value, "is not a boolean", "write true or false")


def _int(value: object) -> int:
    match value:
        case bool():
            pass
        case int() if abs(value) <= INT_MAX:
            return value
        case str() if _INT.match(value) and abs(int(value)) <= INT_MAX:
            return int(value)
    raise _invalid(value, "is not a whole number", "write plain decimal digits")


def _size(value: object) -> int:
    if type(value) is int and 0 <= value <= INT_MAX:
        return value
    if isinstance(value, str) and _SIZE.match(value):
        amount = parse_quantity(value)
        if amount == int(amount) <= INT_MAX:
            return int(amount)
    raise _invalid(
        value, "is not a size in whole bytes", 'write digits with an optional suffix, such as "512Mi"'
    )


def _duration(value: object) -> int:
    found = _DURATION.match(value) if isinstance(value, str) and value[-1:] in ("h", "m", "s") else None
    if found is None:
        raise _invalid(value, "is not a duration", 'write it with its unit, such as "90s", "5m" or "1h30m"')
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def _ranged(rule: OptionRule, number: int, unit: str) -> int:
    if rule.minimum is not None and number < rule.minimum:
        raise _invalid(number, "is too small", f"the least is {rule.minimum}{unit}")
    if rule.maximum is not None and number > rule.maximum:
        raise _invalid(number, "is too large", f"the most is {rule.maximum}{unit}")
    return number


def _enum(rule: OptionRule, value: object) -> str:
    if isinstance(value, str) and value in rule.values:
        return value
    raise _invalid(value, "is not one of its values", f"write one of: {', '.join(rule.values)}")


def _string(rule: OptionRule, value: object) -> str:
    if not isinstance(value, str):
        raise _invalid(value, "is not a text", "put it in quotes")
    if len(value) > rule.max_length:
        raise _invalid(value, f"is longer than {rule.max_length} characters")
    why = option_text_fault(value)
    if why:
        raise _invalid(value, why)
    if rule.pattern and not _compiled(rule.pattern, rule.max_length).fullmatch(value):
        raise _invalid(value, f"does not match the pattern {rule.pattern}")
    return value


@lru_cache(maxsize=1024)
def _compiled(pattern: str, max_length: int) -> re.Pattern[str]:
    return compile_pattern(pattern, max_length)


def _invalid(value: object, why: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(f"{shown(value)} {why}", hint=hint)


def _fault(message: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(message, reason=Reason.INVALID_OPTION, hint=hint)
