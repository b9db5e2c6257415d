"""Option rules of a FuseDriverClass: from spec.options to OptionRule."""

from collections.abc import Mapping
from dataclasses import replace

from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.fields import Fields
from sidemount.model.options import (
    TEXT_MAX,
    VALUE_PLACEHOLDER,
    OptionRule,
    OptionType,
    canonical_value,
    is_option_name,
    option_text_fault,
)
from sidemount.model.request_fields import RESERVED_FIELDS
from sidemount.model.text_pattern import compile_pattern

OPTIONS_MAX = 128

_RANGED = ("min", "max")
_KEYS: Mapping[OptionType, tuple[str, ...]] = {
    OptionType.FLAG: (),
    OptionType.INT: _RANGED,
    OptionType.SIZE: _RANGED,
    OptionType.DURATION: _RANGED,
    OptionType.ENUM: ("values",),
    OptionType.STRING: ("pattern", "maxLength"),
}
_ALWAYS = ("type", "default", "argument")
_ALL_KEYS = frozenset((*_ALWAYS, *_RANGED, "values", "pattern", "maxLength"))


def parse_option_rules(
    spec: Fields, secret_keys: tuple[str, ...], *, is_external: bool
) -> dict[str, OptionRule]:
    """Return the rules of spec.options, sorted by name; faults go to `spec`."""
    raw = spec.mapping("options")
    options = Fields(raw, spec.where, spec.faults, path=f"{spec.path}.options")
    if len(raw) > OPTIONS_MAX:
        spec.fault("options", f"has {len(raw)} options, more than {OPTIONS_MAX}")
        return {}
    secret = {_bare(key) for key in secret_keys}
    rules: dict[str, OptionRule] = {}
    for name in sorted(raw):
        if not is_option_name(name):
            options.fault(
                name, "is no option name", "start with a lower-case letter, then letters, digits, - _ ."
            )
        elif name in RESERVED_FIELDS:
            options.fault(name, "is the name of a request's own field", "choose another name")
        elif _bare(name) in secret:
            options.fault(
                name, "is the name of a credential, which never passes through options", "drop the option"
            )
        rule = options.child(name, _ALL_KEYS)
        parsed = _rule(rule, is_external=is_external)
        if parsed is not None:
            rules[name] = parsed
    return rules


def _bare(name: str) -> str:
    """Return a name without case and punctuation: secretKey, secret-key and SECRET_KEY are one credential."""
    return "".join(char for char in name.casefold() if char.isalnum())


def names_credential(option: str, secret_keys: tuple[str, ...]) -> bool:
    """Tell whether an option is called as one of the class's credentials is."""
    return _bare(option) in {_bare(key) for key in secret_keys}


def _rule(fields: Fields, *, is_external: bool) -> OptionRule | None:
    before = len(fields.faults)
    kind = fields.choice("type", OptionType)
    if kind is None:
        if not fields.has("type"):
            fields.fault("type", "is missing", f"write one of: {', '.join(t.value for t in OptionType)}")
        return None
    for key in fields.raw:
        if key in _ALL_KEYS and key not in (*_ALWAYS, *_KEYS[kind]):
            fields.fault(key, f"is not for an option of type {kind.value}")
    max_length = fields.integer("maxLength", 1, TEXT_MAX, default=256)
    rule = OptionRule(
        type=kind,
        minimum=_bound(fields, "min", kind),
        maximum=_bound(fields, "max", kind),
        values=_values(fields) if kind is OptionType.ENUM else (),
        pattern=_pattern(fields, max_length),
        max_length=max_length,
        argument=_argument(fields, kind, is_external=is_external),
    )
    if rule.minimum is not None and rule.maximum is not None and rule.minimum > rule.maximum:
        fields.fault("min", f"{shown(fields.raw['min'])} is above max {shown(fields.raw['max'])}")
    if len(fields.faults) > before:
        return None
    return _with_default(fields, rule)


def _bound(fields: Fields, key: str, kind: OptionType) -> int | None:
    value = fields.raw.get(key)
    if value is None or key not in _KEYS[kind]:
        return None
    try:
        return int(canonical_value(OptionRule(type=kind), value))
    except InvalidRequest as error:
        fields.fault(key, error.message, error.hint)
        return None


def _values(fields: Fields) -> tuple[str, ...]:
    values = fields.texts("values", option_text_fault)
    if not values and not (fields.raw.get("values") and values is None):
        fields.fault("values", "is missing or empty", "list the values that the option may have")
    return values or ()


def _pattern(fields: Fields, max_length: int) -> str:
    pattern = fields.text("pattern", lambda _text: "")
    try:
        if pattern:
            compile_pattern(pattern, max_length)
    except InvalidRequest as error:
        fields.fault("pattern", error.message, error.hint)
    return pattern


def _argument(fields: Fields, kind: OptionType, *, is_external: bool) -> str:
    argument = fields.text("argument", _argument_fault)
    if argument and not is_external:
        fields.fault(
            "argument", "is for a class with a command", "a built-in filesystem takes its options by name"
        )
    if fields.has("argument") or not is_external:
        takes_value = kind is not OptionType.FLAG
        if argument and takes_value != (VALUE_PLACEHOLDER in argument):
            way = "add ${value} to it" if takes_value else "drop ${value}: a flag has none"
            fields.fault("argument", f"{shown(argument)} does not fit the type {kind.value}", way)
    else:
        fields.fault(
            "argument", "is missing", "say what the client's command line gets, such as --name=${value}"
        )
    return argument


def _argument_fault(argument: str) -> str:
    if "${" in argument.replace(VALUE_PLACEHOLDER, ""):
        return "has a placeholder other than ${value}"
    return "" if argument.isascii() and argument.isprintable() else "is not printable ASCII"


def _with_default(fields: Fields, rule: OptionRule) -> OptionRule:
    value = fields.raw.get("default")
    if value is None:
        return rule
    try:
        default = canonical_value(rule, value)
    except InvalidRequest as error:
        fields.fault("default", error.message, error.hint)
        return rule
    return replace(rule, default=default)
