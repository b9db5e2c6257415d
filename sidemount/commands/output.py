"""What people and machines read: tables, JSON, YAML, and errors in one line."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from sidemount.model.errors import Faults, VolumeError
from sidemount.model.yamltext import is_read_as_text

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns, two spaces between, no trailing blanks."""
    lines = [tuple(header), *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return the text with everything a terminal could obey escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def as_json(value: Any) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


_LINE_BREAKS = frozenset("\x85\u2028\u2029")


class _Dumper(yaml.SafeDumper):
    """Indents lists as people write manifests, and shows no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not _LINE_BREAKS.isdisjoint(text):
        style = '"'  # the emitter would fold them
    elif "\n" in text.rstrip("\n"):
        style = "|"
    elif not is_read_as_text(text):
        style = "'"  # such as y and 1e3, which are text to the emitter and not to kubectl
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Iterable[Any]) -> str:
    """Return one YAML document each, in the order of their keys."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def complain(command: str, error: VolumeError) -> None:
    """Print an error to standard error: a line a fault."""
    faults = error.faults if isinstance(error, Faults) else (error,)
    for fault in faults:
        print(f"sidemount {command}: {printable(str(fault))} ({fault.reason.value})", file=sys.stderr)
