"""`python -m certs`: development certificates, and what a certificate says."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from certs.description import describe, render_description
from certs.development import DevelopmentFiles, Outcome, ensure_development
from certs.hosts import parse_hosts
from certs.pem import parse_certificates, read_pem
from sidemount.model.errors import InvalidRequest, VolumeError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 the machine refused or a certificate does not hold, 2 bad input."""
    arguments = _parser().parse_args(argv)
    now = datetime.now(UTC)
    try:
        code = _dev(arguments, now) if arguments.command == "dev" else _inspect(arguments, now)
        if sys.stdout is not None:
            sys.stdout.flush()
    except VolumeError as error:
        _complain(str(error))
        return EXIT_BAD_INPUT if isinstance(error, InvalidRequest) else EXIT_FAILED
    except OSError as error:  # the output's: every other one is told with its file
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, such as head, has seen enough
            return 0
        _complain(f"the output cannot be written: {error.strerror}")
        return EXIT_FAILED
    return code


def _complain(text: str) -> None:
    """Print an error as one line that no terminal obeys."""
    safe = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    print(f"certs: {safe}", file=sys.stderr)


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("names no directory")
    return Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m certs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    dev = commands.add_parser("dev", help="make or reuse a development authority and serving certificate")
    dev.add_argument("--dir", required=True, type=_directory, metavar="DIR", help="where the files are kept")
    dev.add_argument(
        "--name",
        required=True,
        action="extend",
        nargs="+",
        metavar="HOST",
        help="a DNS name or address to serve",
    )
    dev.add_argument("--force", action="store_true", help="make both anew even if they are good")
    inspect = commands.add_parser("inspect", help="show what the certificates of a PEM file say")
    inspect.add_argument("file", type=Path, metavar="FILE")
    inspect.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _dev(arguments: argparse.Namespace, now: datetime) -> int:
    files = DevelopmentFiles(arguments.dir)
    authority, serving = ensure_development(
        files, parse_hosts(arguments.name), now=now, force=arguments.force
    )
    print(_said("authority", authority, files.bundle))
    print(_said("serving certificate", serving, files.serving))
    return 0


def _said(what: str, outcome: Outcome, path: Path) -> str:
    ends = f"{outcome.issued.certificate.not_valid_after_utc:%Y-%m-%d}"
    done = f"made, because {outcome.made_because}" if outcome.made_because else "reused"
    return f"{what}: {done}; {path}, until {ends}"


def _inspect(arguments: argparse.Namespace, now: datetime) -> int:
    certificates = parse_certificates(read_pem(arguments.file), str(arguments.file))
    descriptions = [describe(certificate, now=now) for certificate in certificates]
    if arguments.output == "json":
        print(json.dumps([description.as_json() for description in descriptions], indent=2))
    else:
        print("\n\n".join(render_description(description) for description in descriptions))
    return 0 if all(description.state == "valid" for description in descriptions) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
