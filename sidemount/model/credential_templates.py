"""Templates of what a client's credentials become: `credentials.files` and `credentials.environment` of a class. Pure.

`${key}` is the value of a key of the Secret. What holds more than that one value is a line of somebody's configuration, and whoever
fills the Secret must not be able to write a second line, or another field, into it.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.fields import Fields

TEMPLATES_MAX = 32
TEMPLATE_MAX = 4096
PLACES = ("files", "secrets", "cache")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)(\}?)")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}\Z")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,62}\Z")
# They decide what runs, not who somebody is.
_NO_CREDENTIALS = re.compile(
    r"(LD_|PYTHON|GIO_|GCONV_|NSS_|BASH_|JAVA_TOOL_)|(PATH|IFS|ENV|SHELL|LOCPATH|MALLOC_TRACE)\Z"
)
_NEVER = "\"'\\"


def parse_templates(
    credentials: Fields, secret_keys: tuple[str, ...], *, is_external: bool, has_cache: bool
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return files and environment; faults go to `credentials`."""
    files = _parse(credentials, "files", _file_fault, secret_keys, has_cache=has_cache)
    environment = _parse(credentials, "environment", _variable_fault, secret_keys, has_cache=has_cache)
    for key, found in (("files", files), ("environment", environment)):
        if found and not is_external:
            credentials.fault(
                key, "is for a class with a command", "a built-in filesystem reads the keys themselves"
            )
    return files, environment


def fill(template: str, value_of: Callable[[str], str], files: str) -> str:
    """Return a template with values in it. `value_of` may raise InvalidRequest, and so does this for a value that does not fit.

    A template that is one key alone takes its value as it is; any other takes one line without quotes and backslashes.
    """
    names = keys_of(template)
    if len(names) == 1 and template == f"${{{names[0]}}}":
        return value_of(names[0])

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "files":
            return files
        text = value_of(name).removesuffix("\n").removesuffix("\r")
        fault = _value_fault(text)
        if fault:
            raise InvalidRequest(
                f"credential {shown(name)} {fault}, and it becomes a part of a line",
                hint="put the value alone into the Secret, as one line",
            )
        return text

    return _PLACEHOLDER.sub(value, template)


def keys_of(template: str) -> tuple[str, ...]:
    """Return the keys of the Secret that a template holds, each once."""
    found = (name for name, _ in _PLACEHOLDER.findall(template))
    return tuple(dict.fromkeys(name for name in found if name not in PLACES))


def _value_fault(text: str) -> str:
    if not text:
        return "is empty"
    if not text.isprintable():
        return "holds a line break or another control character"
    return next((f"holds {char}" for char in _NEVER if char in text), "")


def _parse(
    credentials: Fields,
    field: str,
    name_fault: Callable[[str], str],
    secret_keys: tuple[str, ...],
    *,
    has_cache: bool,
) -> Mapping[str, str]:
    raw = credentials.mapping(field)
    if len(raw) > TEMPLATES_MAX:
        credentials.fault(field, f"has {len(raw)} entries, more than {TEMPLATES_MAX}")
        return {}
    before = len(credentials.faults)
    for name, template in raw.items():
        where = f"{field}.{name}"
        why = name_fault(name) if isinstance(name, str) else "is not a text"
        if why:
            credentials.fault(where, why)
        if not isinstance(template, str):
            credentials.fault(where, f"{shown(template)} is not a text", "put it in quotes")
        elif fault := _template_fault(template, secret_keys, has_cache=has_cache):
            credentials.fault(where, fault)
    return MappingProxyType(dict(raw)) if len(credentials.faults) == before else {}


def _template_fault(template: str, secret_keys: tuple[str, ...], *, has_cache: bool) -> str:
    if len(template) > TEMPLATE_MAX:
        return f"is longer than {TEMPLATE_MAX} characters"
    if not template.replace("\n", "").isprintable():
        return "holds a character that is not printable"
    for name, closing in _PLACEHOLDER.findall(template):
        if not closing:
            return "has a ${ without its }"
        if name == "cache" and not has_cache:
            return "has ${cache}, but cacheSize is not given"
        if name in PLACES:
            continue
        if name not in secret_keys:
            known = ", ".join(f"${{{key}}}" for key in (*secret_keys, *PLACES))
            return f"has ${{{name}}}, which is no key of secretKeys; known: {known}"
    return ""


def _file_fault(name: str) -> str:
    return (
        ""
        if _FILE.match(name)
        else "is no name of a file: letters, digits, . _ and -, not beginning with . or -"
    )


def _variable_fault(name: str) -> str:
    if not _VARIABLE.match(name):
        return "is no name of a variable: capital letters, digits and _"
    return "is no credential: it decides which program runs" if _NO_CREDENTIALS.match(name) else ""
