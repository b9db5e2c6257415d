"""Flags, variables and defaults, and how a start that cannot be is told."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sidemount.model.errors import InvalidRequest
from tests.webhook.running import ROOT, SAMPLES, make_certificates, running_server
from webhook.injection_settings import InjectionSettings
from webhook.listener import open_sockets
from webhook.settings import ENV_PREFIX, parse_settings

REQUIRED = ["--listen", "127.0.0.1:8443", "--tls-cert", "c", "--tls-key", "k", "--facts", "f"]
REQUIRED_ENV = {
    "SIDEMOUNT_WEBHOOK_LISTEN": "[::]:0",
    "SIDEMOUNT_WEBHOOK_TLS_CERT": "c",
    "SIDEMOUNT_WEBHOOK_TLS_KEY": "k",
    "SIDEMOUNT_WEBHOOK_FACTS": "f",
}


def test_defaults_are_those_of_the_settings() -> None:
    parsed = parse_settings(REQUIRED, {})
    assert (parsed.host, parsed.port, parsed.facts) == ("127.0.0.1", 8443, Path("f"))
    assert parsed.injection == InjectionSettings()
    assert parsed.lame_duck_s < parsed.grace_s < 30, "a pod's default grace period has to hold both"


def test_facts_come_from_a_directory_or_from_the_cluster() -> None:
    others = REQUIRED[:-2]
    parsed = parse_settings([*others, "--facts-from", "cluster"], {})
    assert (parsed.facts, parsed.kubeconfig) == (None, None)
    parsed = parse_settings([*others, "--facts-from", "cluster", "--kubeconfig", "/k"], {})
    assert parsed.kubeconfig == Path("/k")
    assert parse_settings([*REQUIRED, "--facts-from", "directory"], {}).facts == Path("f")
    with pytest.raises(InvalidRequest, match="--facts: names a directory, but"):
        parse_settings([*REQUIRED, "--facts-from", "cluster"], {})
    with pytest.raises(InvalidRequest, match="--facts is missing"):
        parse_settings(others, {})
    with pytest.raises(InvalidRequest, match="moon"):
        parse_settings([*others, "--facts-from", "moon"], {})


def test_every_setting_can_come_by_variable_and_a_flag_wins() -> None:
    environ = {
        **REQUIRED_ENV,
        "SIDEMOUNT_WEBHOOK_IMAGE": "img:1",
        "SIDEMOUNT_WEBHOOK_IMAGE_PREFIX": "mirror.example/",
        "SIDEMOUNT_WEBHOOK_IMAGE_PULL_SECRETS": "a, b",
        "SIDEMOUNT_WEBHOOK_SANDBOXED_RUNTIME_CLASSES": "gvisor,my-kata",
        "SIDEMOUNT_WEBHOOK_EXISTING_ENABLED": "false",
        "SIDEMOUNT_WEBHOOK_GRACE_SECONDS": "10",
        "SIDEMOUNT_WEBHOOK_LAME_DUCK_SECONDS": "2.5",
        "PATH": "/bin",
    }
    parsed = parse_settings(["--image", "img:2"], environ)
    assert (parsed.host, parsed.port) == ("::", 0)
    assert parsed.injection.sidecar_image == "img:2"
    assert parsed.injection.image_prefix == "mirror.example/"
    assert parsed.injection.image_pull_secrets == ("a", "b")
    assert parsed.injection.sandboxed_runtime_classes == {"gvisor", "my-kata"}
    assert parsed.injection.existing_enabled is False
    assert (parsed.grace_s, parsed.lame_duck_s) == (10.0, 2.5)
    assert parsed.redacted()["sidecar_image"] == "img:2"


def test_an_unknown_variable_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(
        InvalidRequest, match=r"SIDEMOUNT_WEBHOOK_IMAGES.*did you mean.*SIDEMOUNT_WEBHOOK_IMAGE"
    ):
        parse_settings(REQUIRED, {"SIDEMOUNT_WEBHOOK_IMAGES": "x"})


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_none_of_ours() -> None:
    links = {
        "SIDEMOUNT_WEBHOOK_SERVICE_HOST": "10.0.0.7",
        "SIDEMOUNT_WEBHOOK_SERVICE_PORT": "443",
        "SIDEMOUNT_WEBHOOK_SERVICE_PORT_HTTPS": "443",
        "SIDEMOUNT_WEBHOOK_PORT": "tcp://10.0.0.7:443",
        "SIDEMOUNT_WEBHOOK_PORT_443_TCP": "tcp://10.0.0.7:443",
        "SIDEMOUNT_WEBHOOK_PORT_443_TCP_PROTO": "tcp",
        "SIDEMOUNT_WEBHOOK_PORT_443_TCP_PORT": "443",
        "SIDEMOUNT_WEBHOOK_PORT_443_TCP_ADDR": "10.0.0.7",
    }
    assert parse_settings(REQUIRED, links) == parse_settings(REQUIRED, {})


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("listen", "8443", "is not HOST:PORT"),
        ("listen", "localhost:http", "is not HOST:PORT"),
        ("listen", "localhost:70000", "is not HOST:PORT"),
        ("listen", "::1:8443", "brackets"),
        ("listen", "a:-1", "is not HOST:PORT"),
        ("listen", "a:٣", "is not HOST:PORT"),
        ("facts", "", "names no file"),
        ("tls-cert", "", "names no file"),
        ("image", "", "not an image reference"),
        ("image", "a b", "not an image reference"),
        ("image-prefix", "$(X)/", "beginning of an image reference"),
        ("image-pull-policy", "always", "is none of Always, IfNotPresent, Never"),
        ("image-pull-secrets", "A_b", "is not a list of names"),
        ("sandboxed-runtime-classes", "a,,b", "is not a list of names"),
        ("existing-enabled", "True", "neither true nor false"),
        ("own-namespace", "a,b", "is not one name"),
        ("own-namespace", "", "is not one name"),
        ("grace-seconds", "-1", "not a number of seconds"),
        ("grace-seconds", "1e9", "not a number of seconds"),
        ("lame-duck-seconds", "26", "longer than the grace period"),
        ("log-level", "info", "is none of DEBUG, INFO, WARNING, ERROR"),
    ],
)
def test_a_bad_value_is_refused_by_flag_or_variable(flag: str, value: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as by_flag:
        parse_settings([*REQUIRED, f"--{flag}={value}"], {})
    assert f"--{flag}" in str(by_flag.value)
    variable = ENV_PREFIX + flag.upper().replace("-", "_")
    others = [
        part for name in range(0, 8, 2) if REQUIRED[name] != f"--{flag}" for part in REQUIRED[name : name + 2]
    ]
    with pytest.raises(InvalidRequest, match=said):
        parse_settings(others, {variable: value})


@pytest.mark.parametrize("missing", range(0, 8, 2))
def test_what_must_be_given_is_asked_for_with_its_variable(missing: int) -> None:
    with pytest.raises(
        InvalidRequest, match=f"{REQUIRED[missing]} is missing; give it, or set SIDEMOUNT_WEBHOOK_"
    ):
        parse_settings(REQUIRED[:missing] + REQUIRED[missing + 2 :], {})


def _run(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "webhook", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == ""
    told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(told) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, told[0]


def test_what_cannot_start_says_so_in_one_line(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls")
    good = {
        "--listen": "127.0.0.1:0",
        "--tls-cert": str(files.serving),
        "--tls-key": str(files.serving_key),
        "--facts": str(SAMPLES),
    }

    def run(**changed: str) -> tuple[int, str]:
        given = {**good, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
        return _run(*(part for pair in given.items() for part in pair))

    none = str(tmp_path / "none")
    assert run(tls_cert=none) == (3, f"sidemount webhook: {none} cannot be read: No such file or directory")
    assert run(tls_key=none) == (3, f"sidemount webhook: {none} cannot be read: No such file or directory")
    code, line = run(facts=none)
    assert (code, none in line, "cannot be read" in line) == (3, True, True)
    code, line = run(tls_key=str(files.authority_key))
    assert (code, "is not the one of the certificate" in line) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(listen=f"127.0.0.1:{port}") == (
            3,
            f"sidemount webhook: cannot listen on 127.0.0.1:{port}: Address already in use",
        )
    code, line = run(listen="no-such-host.invalid:0")
    assert (code, "cannot listen on no-such-host.invalid:0" in line) == (3, True)
    code, line = _run(environ={"SIDEMOUNT_WEBHOOK_LISTENN": "x"})
    assert (code, "SIDEMOUNT_WEBHOOK_LISTENN" in line) == (2, True)


def test_it_says_once_that_it_is_ready_and_where(tmp_path: Path) -> None:
    environ = {"SIDEMOUNT_WEBHOOK_LAME_DUCK_SECONDS": "0"}
    with running_server(tmp_path, environ=environ) as server:
        assert re.fullmatch(
            r"sidemount webhook ready on https://127\.0\.0\.1:\d+ "
            r"\(\d+ driver classes, certificate until \d{4}-\d\d-\d\d\)\n",
            server.ready_line,
        )
        server.signal()
        assert server.process.stdout is not None
        assert server.process.stdout.read() == b""
        assert server.wait() == 0
        assert "PRIVATE" not in server.log.read_text()


def test_a_restart_takes_the_same_port_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path, ["--listen", "127.0.0.1:0"]) as server:
        port = server.port
        server.kill()
    with running_server(tmp_path, ["--listen", f"127.0.0.1:{port}"]) as again:
        assert again.port == port


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", ""])
def test_every_address_of_a_host_is_listened_on_with_one_port(host: str) -> None:
    sockets = open_sockets(host, 0)
    try:
        assert len({listening.getsockname()[1] for listening in sockets}) == 1
        families = {
            int(family) for family, *_ in socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)
        }
        assert {int(listening.family) for listening in sockets} == (
            families if host else {int(socket.AF_INET6)}
        )
        port = sockets[0].getsockname()[1]
        for address in ("127.0.0.1",) if host in ("", "127.0.0.1", "localhost") else ("::1",):
            socket.create_connection((address, port), 5).close()
    finally:
        for listening in sockets:
            listening.close()
