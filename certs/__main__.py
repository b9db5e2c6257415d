"""`python -m certs`: development certificates, rotation in a cluster, and what a certificate says and is worth."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from certs.description import describe, render_description
from certs.development import DevelopmentFiles, Outcome, ensure_development
from certs.handshake import shake_hands
from certs.hosts import parse_host, parse_hosts, render_host
from certs.pem import parse_bundle, parse_certificates, read_pem
from certs.rotate_settings import add_rotate_arguments, parse_address, parse_rotate_settings
from certs.trust import verify
from sidemount.model.errors import InvalidRequest, VolumeError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 the machine refused or a certificate does not hold, 2 bad input."""
    arguments = _parser().parse_args(argv)
    now = datetime.now(UTC)
    try:
        code = _COMMANDS[arguments.command](arguments, now)
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
    verify = commands.add_parser(
        "verify", help="tell whether a client that trusts a bundle accepts a certificate"
    )
    verify.add_argument("--bundle", required=True, type=Path, metavar="FILE", help="what the client trusts")
    verify.add_argument("--name", required=True, metavar="HOST", help="the name that it verifies")
    served = verify.add_mutually_exclusive_group(required=True)
    served.add_argument("--connect", metavar="HOST:PORT", help="shake hands with this address")
    served.add_argument("--cert", type=Path, metavar="FILE", help="judge this chain, leaf first")
    rotate = commands.add_parser(
        "rotate",
        help="keep a webhook's certificate and caBundle in order, in a cluster",
        description="Keep authority and certificate of a webhook in a Secret, its caBundle in the webhook "
        "configurations, and the certificate in a directory. Runs beside every replica; one of them leads.",
    )
    add_rotate_arguments(rotate)
    return parser


def _verify(arguments: argparse.Namespace, now: datetime) -> int:
    bundle = parse_bundle(read_pem(arguments.bundle))
    name = render_host(parse_host(arguments.name))
    if arguments.connect is not None:
        host, port = parse_address("--connect", arguments.connect)
        verdict = asyncio.run(shake_hands(host, port, name, bundle))
    else:
        chain = parse_certificates(read_pem(arguments.cert), str(arguments.cert))
        verdict = verify(chain, bundle, name, now=now)
    print(f"{verdict.trust.value}: {verdict.message}" if verdict.message else verdict.trust.value)
    return 0 if verdict.is_verified else EXIT_FAILED


def _rotate(arguments: argparse.Namespace, now: datetime) -> int:
    # Half a second and tens of megabytes of Kubernetes client, which no other command needs.
    from certs.rotate import default_identity, run_rotate

    run_rotate(parse_rotate_settings(arguments, identity=default_identity()), _announce)
    return 0


def _announce(line: str) -> None:
    # Nobody may be reading; that is no reason not to rotate.
    with suppress(OSError):
        print(line, flush=True)


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


_COMMANDS = {"dev": _dev, "inspect": _inspect, "verify": _verify, "rotate": _rotate}

if __name__ == "__main__":
    sys.exit(main())
