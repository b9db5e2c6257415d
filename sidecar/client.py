"""Starts an external client that wants credentials otherwise than as the Secret's files, and becomes it.

    python -m sidecar client --secrets DIR --files DIR [--optional] [--file NAME=TEMPLATE] [--environment NAME=TEMPLATE] -- PROGRAM ...

The files are made anew in a directory of its own in memory, which no other user can read; the environment is that of the client's
process alone. Neither is ever an argument. A value that does not fit ends it with 78 (EX_CONFIG) and one line that does not show it.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sidemount.host import process_attributes
from sidemount.host.regular_file import read_regular
from sidemount.model.credential_templates import fill, keys_of
from sidemount.model.errors import InvalidRequest, VolumeError, shown

BAD_CREDENTIALS = 78
_NOT_FOUND = 127
_CANNOT_RUN = 126
_USAGE = 2
_VALUE_MAX_BYTES = 1 << 20
_ENVIRONMENT_MAX = 128 << 10  # what the kernel takes as one text


@dataclass(slots=True)
class Order:
    """What to make, and what to become. Templates by the name of the file or the variable."""

    secrets: str = ""
    files_dir: str = ""
    is_optional: bool = False
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Become the client. Returns only if that fails: 2 usage, 78 credentials, 126 and 127 as a shell has them."""
    process_attributes.forbid_inspection()  # until it is the client
    order = _parse(arguments)
    if order is None:
        sys.stderr.write(
            "usage: python -m sidecar client --secrets DIR --files DIR [--file NAME=TEMPLATE] -- PROGRAM ...\n"
        )
        return _USAGE
    try:
        environment = {**os.environ, **_environment(order)}
        _write_files(order)
    except VolumeError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_CREDENTIALS
    try:
        os.execvpe(order.argv[0], order.argv, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        hint = "the class's image must hold the program that its command names"
        sys.stderr.write(f"cannot start the client {order.argv[0]!r}: {error.strerror}; {hint}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN


def _parse(arguments: list[str]) -> Order | None:
    order = Order()
    for at, argument in enumerate(arguments):
        if argument == "--":
            order.argv = arguments[at + 1 :]
            break
        flag, _, value = argument.partition("=")
        name, _, template = value.partition("=")
        match flag:
            case "--optional":
                order.is_optional = True
            case "--secrets":
                order.secrets = value
            case "--files":
                order.files_dir = value
            case "--file":
                order.files[name] = template
            case "--environment":
                order.environment[name] = template
            case _:
                return None
    return order if order.argv and order.secrets and order.files_dir else None


def _environment(order: Order) -> dict[str, str]:
    made = {}
    for name, value in _filled(order, order.environment, "the environment variable"):
        text = value.removesuffix("\n").removesuffix("\r")
        if "\0" in text or len(text.encode("utf-8", "surrogateescape")) >= _ENVIRONMENT_MAX:
            raise InvalidRequest(
                f"what becomes the environment variable {name} is too long for one, or no text"
            )
        made[name] = text
    return made


def _write_files(order: Order) -> None:
    """Make the directory anew: what an earlier client was given may have been renewed, or taken back."""
    try:
        shutil.rmtree(order.files_dir, ignore_errors=True)
        os.mkdir(order.files_dir, 0o700)
        for name, content in _filled(order, order.files, "the file"):
            target = os.open(
                f"{order.files_dir}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(target, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                file.write(content)
    except OSError as error:
        raise InvalidRequest(f"the client's files cannot be made: {error.strerror}") from error


def _filled(order: Order, templates: dict[str, str], what: str) -> Iterable[tuple[str, str]]:
    """Return name and content of what is to be made.

    With credentials that need not be given, what has none of its keys is left out, and what names a file that is left out.
    """
    for name, template in sorted(templates.items()):
        keys = keys_of(template)
        missing = _missing(order, keys)
        if order.is_optional and (_is_left_out(order, template) or _names_left_out(order, template)):
            continue
        if missing:
            raise InvalidRequest(
                f"{what} {shown(name)} needs the credential {shown(missing[0])}, and there is none",
                hint=f"add the key {shown(missing[0])} to the Secret of the volume",
            )
        try:
            yield name, fill(template, lambda key: _value(order.secrets, key), order.files_dir)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error.message} ({what} {shown(name)})", hint=error.hint) from error


def _missing(order: Order, keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if not os.path.lexists(f"{order.secrets}/{key}")]


def _is_left_out(order: Order, template: str) -> bool:
    keys = keys_of(template)
    return bool(keys) and len(_missing(order, keys)) == len(keys)


def _names_left_out(order: Order, template: str) -> bool:
    return any(
        template == f"{order.files_dir}/{name}" and _is_left_out(order, of_file)
        for name, of_file in order.files.items()
    )


def _value(secrets: str, key: str) -> str:
    try:
        _, content = read_regular(Path(secrets) / key, max_bytes=_VALUE_MAX_BYTES)
    except VolumeError as error:
        raise InvalidRequest(f"credential {shown(key)} {error.message}") from error
    return content.decode("utf-8", "surrogateescape")
