"""The command of an external client: argv with placeholders, the admin's alone.

A value replaces a placeholder within one argument and can never become a second one; only `${options}` and `${readOnly}`, arguments
of their own, become as many as there are. `${mountpoint}` and `${files}` stay in until the daemon knows them.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.names import CACHE_PATH, SECRETS_PATH
from sidemount.model.source_uri import shown_source, source_parts
from sidemount.model.sub_path import unprintable_fault

ARGUMENTS_MAX = 128
ARGUMENT_MAX = 4096
PLACEHOLDERS = {
    "source": "the request's source URI",
    "source.user": "its user with the @, or nothing",
    "source.host": "its host or bucket",
    "source.port": "its port with the colon, or nothing",
    "source.path": "its path from the slash on, or nothing",
    "source.key": "its path without the first slash",
    "mountpoint": "where to mount, or the descriptor to serve",
    "options": "the arguments of the options given, an element of its own",
    "readOnly": "the readOnlyArguments of a read-only volume, an element of its own",
    "secrets": "the directory of the credentials",
    "files": "the directory of credentials.files",
    "cache": "the directory of the cache volume",
}

ELEMENTS = ("options", "readOnly")
_PARTS = ("user", "host", "port", "path")
_PART_OF = {"key": "path"}
_PLACEHOLDER = re.compile(r"\$\{([^}]*)(\}?)")


def argument_fault(argument: str) -> str:
    """Return why a text cannot be an element of a command, "" if it can."""
    if len(argument) > ARGUMENT_MAX:
        return f"is longer than {ARGUMENT_MAX} characters"
    why = unprintable_fault(argument)
    if why:
        return why
    for name, closing in _PLACEHOLDER.findall(argument):
        if not closing:
            return "has a ${ without its }"
        if name not in PLACEHOLDERS:
            known = ", ".join(f"${{{key}}} ({meaning})" for key, meaning in PLACEHOLDERS.items())
            return f"has the unknown placeholder ${{{name}}}; known: {known}"
    for name in ELEMENTS:
        element = f"${{{name}}}"
        if element in argument and argument != element:
            return f"has {element} within an argument; it must be an element of its own"
    return ""


def placeholders_of(command: Sequence[str]) -> frozenset[str]:
    """Return the names of the placeholders that a command holds."""
    return frozenset(name for argument in command for name, _ in _PLACEHOLDER.findall(argument))


def render_command(
    command: Sequence[str],
    *,
    source: str,
    options: Sequence[str],
    read_only: Sequence[str] = (),
    secrets: str = SECRETS_PATH,
    cache: str = CACHE_PATH,
) -> tuple[str, ...]:
    """Return argv with everything filled in but `${mountpoint}` and `${files}`. Raises InvalidRequest for a source that does not fit.

    `read_only` are the arguments of a volume that is. `secrets` and `cache` differ for a client that has no container.
    """
    parts = source_parts(source)
    values = {
        "source": source,
        "secrets": secrets,
        "cache": cache,
        "mountpoint": "${mountpoint}",
        "files": "${files}",
        "source.key": parts["path"][1:],
        **{f"source.{name}": parts[name] for name in _PARTS},
    }
    _check_parts(placeholders_of(command), parts, source)
    argv: list[str] = []
    for argument in command:
        if argument == "${options}":
            argv.extend(options)
        elif argument == "${readOnly}":
            argv.extend(read_only)
        else:
            # One pass: what a value holds is never looked at again.
            filled = _PLACEHOLDER.sub(lambda found: values[found[1]], argument)
            if filled.startswith("-") and not argument.startswith("-"):
                raise InvalidRequest(
                    f"source {shown_source(source)} would be an option of the client: {shown(filled)} begins with a dash",
                    hint="name a source whose host or first name begins with another character",
                )
            argv.append(filled)
    return tuple(argv)


def _check_parts(used: Collection[str], parts: Mapping[str, str], source: str) -> None:
    """A part of a source that the client never hears of would be another source than the one that is asked for."""
    taken = {_PART_OF.get(name, name) for name in (key.removeprefix("source.") for key in used)} & {*_PARTS}
    if not taken or "source" in used:
        return
    for name in _PARTS:
        if parts[name] not in ("", "/") and name not in taken:
            raise InvalidRequest(
                f"source {shown_source(source)} names a {name}, which the class's command does not take",
                hint=f"leave it out, or have the admin put ${{source.{name}}} into the command",
            )
