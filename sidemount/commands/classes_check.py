"""`sidemount classes --check`: does a client do on this machine what its class declares?"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from sidemount.commands.classes_templates import templates
from sidemount.commands.conformance.check import check_class, read_secrets
from sidemount.commands.conformance.finding import Finding, Verdict
from sidemount.commands.conformance.plan import Case
from sidemount.commands.known_facts import load_facts
from sidemount.commands.output import EXIT_FAILED, EXIT_OK, as_json, as_yaml, printable, table
from sidemount.model.did_you_mean import suggestion
from sidemount.model.driver_class import DriverClass
from sidemount.model.driver_class_manifest import KIND, parse_driver_class
from sidemount.model.errors import HostFailure, InvalidRequest, shown

_MARKS = {Verdict.OK: "✓", Verdict.FAILED: "✗", Verdict.UNTRIED: "–"}
_TIMEOUT_S = 30.0
_TIMEOUT_MOST_S = 3600.0


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the check."""
    group = parser.add_argument_group(
        "check",
        "mount a class for real, on this machine and out of sight, and see whether it does what it declares",
    )
    group.add_argument(
        "--check",
        action="extend",
        nargs="+",
        default=[],
        metavar="CLASS",
        help="classes of the facts, templates, or manifests' files",
    )
    group.add_argument(
        "--source", default="", metavar="URI", help="what to mount; it is written to and cleaned up"
    )
    group.add_argument("--secrets", default="", metavar="DIR", help="credentials: a file for each key")
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the class; may be repeated",
    )
    group.add_argument("--read-only", action="store_true", help="the source cannot be written to")
    group.add_argument(
        "--writable",
        action="append",
        default=[],
        metavar="DIR",
        help="a directory that the client may write to, as a volume of its container would be; all else is read-only",
    )
    group.add_argument(
        "--quick",
        action="store_true",
        help="one mount only: no second one, no hang, no errors that should be told",
    )
    group.add_argument(
        "--own-tmp", action="store_true", help="its image has a writable /tmp, such as a link to its cache"
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="how long each step may take (%(default)g)",
    )


def run_check(arguments: argparse.Namespace) -> int:
    """Check the classes and print the findings. Returns 1 when one is not as declared; raises VolumeError."""
    if not arguments.source:
        raise InvalidRequest(
            "--check needs a source to mount", hint="give --source URI, one that the class serves"
        )
    cases = [_case(name, arguments) for name in arguments.check]
    results: list[dict[str, Any]] = []
    for case in cases:
        findings = check_class(case, _teller(arguments.output))
        results.append(_result(case.driver_class.name, findings))
        if arguments.output == "table":
            _print_findings(case.driver_class.name, findings)
    if arguments.output != "table":
        found = {"checks": results}
        print(as_json(found) if arguments.output == "json" else as_yaml([found]).rstrip("\n"))
    return EXIT_OK if all(result["ok"] for result in results) else EXIT_FAILED


def _case(name: str, arguments: argparse.Namespace) -> Case:
    known = _class(name, arguments)
    secrets = read_secrets(arguments.secrets, known.credentials.secret_keys) if arguments.secrets else {}
    return Case(
        driver_class=known,
        source=arguments.source,
        options=tuple(arguments.option),
        secrets=secrets,
        is_source_read_only=arguments.read_only,
        timeout_s=arguments.timeout,
        writable=tuple(arguments.writable),
        own_tmp=arguments.own_tmp,
        is_quick=arguments.quick,
    )


def _class(name: str, arguments: argparse.Namespace) -> DriverClass:
    """Return a class by its manifest's file or its name. Raises VolumeError."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        return _of_file(Path(name))
    found = {key: each.driver_class for key, each in templates().items()} if not arguments.facts else {}
    if name not in found:
        found = {**load_facts(arguments).driver_classes(), **found}
    if name not in found:
        hint = (
            suggestion(name, found)
            or f"there are: {', '.join(sorted(found)) or 'none'}; or name a manifest's file"
        )
        raise InvalidRequest(f"--check {shown(name)}: there is no such class", hint=hint)
    return found[name]


def _of_file(path: Path) -> DriverClass:
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise HostFailure(f"--check {path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"--check {path}: is no YAML") from error
    classes = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    if len(classes) != 1:
        raise InvalidRequest(
            f"--check {path}: has {len(classes)} objects of kind {KIND}",
            hint="name a file with the one to check",
        )
    return parse_driver_class(classes[0])


def _teller(output: str) -> "_Teller":
    return _Teller(is_shown=output == "table" and sys.stderr.isatty())


class _Teller:
    """Shows on a terminal that there is progress."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown

    def __call__(self, finding: Finding) -> None:
        if self._is_shown:
            print(f"{_MARKS[finding.verdict]} {finding.check}", file=sys.stderr)


def _print_findings(name: str, findings: list[Finding]) -> None:
    rows = [(_MARKS[each.verdict], each.check, printable(each.reason)) for each in findings]
    print(table(("", "CHECK", "SEEN"), rows))
    failed = [each.check for each in findings if each.verdict is Verdict.FAILED]
    said = f"is not as declared: {', '.join(failed)}" if failed else "does what it declares"
    print(f"\nclass {name} {said}")


def _result(name: str, findings: list[Finding]) -> dict[str, Any]:
    is_ok = not any(each.verdict is Verdict.FAILED for each in findings)
    return {"class": name, "ok": is_ok, "findings": [each.to_json() for each in findings]}


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= _TIMEOUT_MOST_S:
        raise ValueError(text)
    return value
