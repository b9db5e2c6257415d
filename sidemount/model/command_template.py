"""The command of an external client: argv with placeholders, the admin's alone.

A value replaces a placeholder within one argument and can never become a second one; only `${options}`, an argument of its own,
becomes as many as there are options. `${mountpoint}` stays in until the keeper or daemon knows it.
"""

import re
from collections.abc import Sequence

from sidemount.model.names import CACHE_PATH, SECRETS_PATH
from sidemount.model.sub_path import unprintable_fault

ARGUMENTS_MAX = 128
ARGUMENT_MAX = 4096
PLACEHOLDERS = {
    "source": "the request's source URI",
    "mountpoint": "where to mount, or the descriptor to serve",
    "options": "the arguments of the options given, an element of its own",
    "secrets": "the directory of the credentials",
    "cache": "the directory of the cache volume",
}

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
    if "${options}" in argument and argument != "${options}":
        return "has ${options} within an argument; it must be an element of its own"
    return ""


def placeholders_of(command: Sequence[str]) -> frozenset[str]:
    """Return the names of the placeholders that a command holds."""
    return frozenset(name for argument in command for name, _ in _PLACEHOLDER.findall(argument))


def render_command(
    command: Sequence[str],
    *,
    source: str,
    options: Sequence[str],
    secrets: str = SECRETS_PATH,
    cache: str = CACHE_PATH,
) -> tuple[str, ...]:
    """Return argv with everything filled in but `${mountpoint}`. `secrets` and `cache` differ for a client that has no container."""
    values = {"source": source, "secrets": secrets, "cache": cache, "mountpoint": "${mountpoint}"}
    argv: list[str] = []
    for argument in command:
        if argument == "${options}":
            argv.extend(options)
        else:
            # One pass: what a value holds is never looked at again.
            argv.append(_PLACEHOLDER.sub(lambda found: values[found[1]], argument))
    return tuple(argv)
