"""Every client of a template that is said to be proven, run for real by `sidemount classes --check` (S0-29, S4-09).

The quick form mounts once: it comes up as declared, serves applications, outlives a kill, and ends. The whole one is slow but for one client.
"""

import json
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.clients.servers import SshPlace, juicefs_volume
from e2e.servers.fake_gcs import GcsPlace
from e2e.servers.s3_place import S3Place
from sidemount.commands.classes_templates import templates
from tests.clients.checks import run_check

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(600, func_only=True)]
_PROVEN = sorted(name for name, each in templates().items() if each.is_proven)
_ALL = {
    "starts", "descriptor", "user", "secrecy", "list", "write", "read", "non-root", "view", "kill", "signals", "end", "kept",
    "sub-path", "read-only", "clean-up", "hang", "wrong-option", "missing-source", "wrong-credentials", "output",
}  # fmt: skip
# What does not apply, where nothing else may be left untried: the store has no such thing as a missing source, or no credentials.
_UNTRIED = {
    "bindfs": {"secrecy", "wrong-credentials"},
    "gcsfuse": {"secrecy", "wrong-credentials", "missing-source"},
    "juicefs": {"secrecy", "wrong-credentials"},
    "rclone": {"missing-source"},
    "weed": {"secrecy", "wrong-credentials", "missing-source"},
}


@dataclass(frozen=True, slots=True)
class Subject:
    """How a client is checked."""

    flags: tuple[str, ...]
    path: str = ""
    endpoint: str = ""


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a directory that any user may look into, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="clients-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that any user may look into."""
    with scratch() as directory:
        yield directory


@pytest.fixture
def subject(client: str, request: pytest.FixtureRequest, open_directory: Path) -> Subject:
    """What the client is checked against; the server is started by whoever needs it first."""
    tmp_path = open_directory
    scripts = sysconfig.get_path("scripts")
    match client:
        case "bindfs":
            return Subject(_writable(tmp_path, f"bindfs://{_shown(tmp_path)}"))
        case "juicefs":
            source = juicefs_volume(tmp_path / "volume")
            return Subject((*_writable(tmp_path, source), "--own-tmp"), scripts)
        case "sshfs":
            ssh: SshPlace = request.getfixturevalue("ssh")
            return Subject(
                (
                    f"--source=sftp://root@127.0.0.1{ssh.path}",
                    f"--secrets={ssh.secrets}",
                    f"--option=port={ssh.port}",
                )
            )
        case "gcsfuse":
            gcs: GcsPlace = request.getfixturevalue("gcs_server")
            program: Path = request.getfixturevalue("gcsfuse")
            endpoint = f"{gcs.endpoint}/storage/v1/"
            options = (f"endpoint={endpoint}", "anonymous", "implicitDirs", "flat")
            flags = (f"--source=gs://{gcs.bucket}", *(f"--option={each}" for each in options))
            return Subject(flags, str(program.parent), endpoint)
        case "weed":
            place: S3Place = request.getfixturevalue("seaweedfs_server")
            filer = place.filer.rpartition(".")[0]
            return Subject((f"--source=weed://{filer}/buckets/{place.bucket}",), scripts)
        case _:
            place = request.getfixturevalue("seaweedfs_server")
            more = ("--option=provider=SeaweedFS",) if client == "rclone" else ()
            return Subject((*_s3(place, tmp_path), *more), scripts, place.endpoint)


def _shown(directory: Path) -> Path:
    """Return a directory that the allowlist of bindfs has, and that ends with the test's."""
    shown = directory / "shown"
    shown.mkdir()
    shown.chmod(0o777)
    (shown / "hello").write_text("hello\n")
    return shown


def _writable(directory: Path, source: str) -> tuple[str, ...]:
    return (f"--source={source}", f"--writable={directory}")


def _s3(
    place: S3Place, directory: Path, keys: tuple[str, str] = ("accessKey", "secretKey")
) -> tuple[str, ...]:
    secrets = directory / "secrets"
    secrets.mkdir()
    for key, value in zip(keys, (place.access_key, place.secret_key), strict=True):
        (secrets / key).write_text(value)
    options = (f"--option=endpoint={place.endpoint}", "--option=pathStyle")
    return (f"--source=s3://{place.bucket}", f"--secrets={secrets}", *options)


def _check(name: str, subject: Subject, *more: str, expects: int = 0) -> dict[str, dict[str, str]]:
    """Run a check and return its findings by their names."""
    environment = {**os.environ, "PATH": f"{subject.path}:{os.environ['PATH']}"}
    argv = ("--check", name, "-o", "json", *subject.flags, *more)
    done = run_check(argv, environment=environment)
    assert done.code == expects, done.said
    assert done.left() == []
    (result,) = json.loads(done.told)["checks"]
    return {each["check"]: each for each in result["findings"]}


def _is_edited(client: str, subject: Subject) -> bool:
    """Tell whether an admin would have to edit the template for this."""
    return bool(subject.endpoint) or client == "bindfs"


def _class_file(client: str, directory: Path, *, endpoint: str = "", **changes: Any) -> str:
    """Return a file with a template's class, changed, its sources allowed wherever they are, and its server."""
    manifest = yaml.safe_load(templates()[client].text)
    scheme = manifest["spec"]["sources"][0].partition("://")[0]
    manifest["spec"]["sources"] = [f"{scheme}://**"]
    if endpoint:
        manifest["spec"]["options"]["endpoint"]["values"] = [endpoint]
    manifest["spec"].update(changes)
    path = directory / f"{client}.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return str(path)


@pytest.mark.parametrize("client", _PROVEN)
def test_a_client_comes_up_serves_outlives_a_kill_and_ends(
    client: str, subject: Subject, tmp_path: Path
) -> None:
    name = _class_file(client, tmp_path, endpoint=subject.endpoint) if _is_edited(client, subject) else client
    found = _check(name, subject, "--quick")
    assert {each for each, finding in found.items() if finding["verdict"] != "ok"} <= {"secrecy"}, found
    assert len(found) == 13


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=[pytest.mark.slow] if name != "sshfs" else []) for name in _PROVEN]
)
def test_a_client_does_all_that_its_template_declares(client: str, subject: Subject, tmp_path: Path) -> None:
    name = _class_file(client, tmp_path, endpoint=subject.endpoint) if _is_edited(client, subject) else client
    found = _check(name, subject)
    assert found.keys() == _ALL
    untried = {each for each, finding in found.items() if finding["verdict"] == "untried"}
    assert untried == _UNTRIED.get(client, set()), found


@pytest.mark.parametrize("client", ["bindfs"])
def test_a_descriptor_that_a_client_cannot_take_is_told(subject: Subject, tmp_path: Path) -> None:
    declared = _class_file("bindfs", tmp_path, abilities={"descriptor": True})
    found = _check(declared, subject, "--quick", expects=1)
    assert found["starts"]["verdict"] == "failed"
    assert "serves no descriptor, it mounts by itself" in found["descriptor"]["reason"]
    assert found["write"]["verdict"] == "untried"


@pytest.mark.parametrize("client", ["sshfs"])
def test_privilege_that_a_client_does_not_need_is_told(subject: Subject, tmp_path: Path) -> None:
    declared = _class_file("sshfs", tmp_path, abilities={"descriptor": False}, uid=0)
    found = _check(declared, subject, "--quick", expects=1)
    assert found["descriptor"]["verdict"] == "failed"
    assert "set abilities.descriptor to true" in found["descriptor"]["reason"]


@pytest.mark.parametrize("client", ["sshfs"])
def test_takeover_that_a_client_does_not_have_is_told(subject: Subject, tmp_path: Path) -> None:
    declared = _class_file("sshfs", tmp_path, abilities={"descriptor": True, "takeover": True})
    found = _check(declared, subject, "--quick", expects=1)
    assert [name for name, each in found.items() if each["verdict"] == "failed"] == ["kill"]
    assert "set abilities.takeover to false" in found["kill"]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["sshfs"])
def test_read_only_that_a_client_does_not_enforce_is_told(subject: Subject, tmp_path: Path) -> None:
    declared = _class_file("sshfs", tmp_path, abilities={"descriptor": True, "readOnly": "enforced"})
    found = _check(declared, subject, expects=1)
    assert [name for name, each in found.items() if each["verdict"] == "failed"] == ["read-only"]
    assert "set abilities.readOnly to mount" in found["read-only"]["reason"]


@pytest.mark.parametrize("client", ["sshfs"])
def test_a_credential_in_argv_is_told(subject: Subject, tmp_path: Path) -> None:
    """A class cannot put it there; a program that calls another one can."""
    script = (
        "#!/bin/sh\n"
        'for each in "$@"; do case $each in -oIdentityFile=*) key=$(sed -n 2p "${each#-oIdentityFile=}");; esac; done\n'
        'exec /usr/bin/sshfs "-ofsname=$key" "$@"\n'
    )
    with scratch() as directory:
        (directory / "sshfs").write_text(script)
        (directory / "sshfs").chmod(0o755)
        found = _check("sshfs", Subject(subject.flags, str(directory)), "--quick", expects=1)
    assert "in the arguments of" in found["secrecy"]["reason"]
    assert [name for name, each in found.items() if each["verdict"] == "failed"] == ["secrecy"]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["sshfs"])
def test_a_client_that_shows_what_it_was_not_told_to_show_is_told(subject: Subject) -> None:
    source = next(flag.partition("sftp://")[2] for flag in subject.flags if flag.startswith("--source="))
    shown = source.replace("/", ":/", 1)
    script = (
        "#!/bin/sh\n"
        f'argv=; for each in "$@"; do case $each in root@*) each={shown};; esac; argv="$argv \'$each\'"; done\n'
        "eval exec /usr/bin/sshfs $argv\n"
    )
    with scratch() as directory:
        (directory / "sshfs").write_text(script)
        (directory / "sshfs").chmod(0o755)
        found = _check("sshfs", Subject(subject.flags, str(directory)), expects=1)
    assert [name for name, each in found.items() if each["verdict"] == "failed"] == ["missing-source"]
    assert "of a source that does not exist" in found["missing-source"]["reason"]


def test_a_client_that_is_not_there_is_named(tmp_path: Path) -> None:
    declared = _class_file(
        "bindfs",
        tmp_path,
        command=["no-such-client", "${source.path}", "${mountpoint}"],
        options={},
        readOnlyArguments=None,
    )
    found = _check(declared, Subject(("--source=bindfs:///srv", "--timeout=5")), expects=1)
    assert "no-such-client" in found["starts"]["reason"]
    assert {each["verdict"] for name, each in found.items() if name in ("write", "kill", "hang")} == {
        "untried"
    }


@pytest.mark.slow
def test_a_built_in_filesystem_is_checked_in_the_same_way(tmp_path: Path) -> None:
    shown = _shown(tmp_path)
    path = tmp_path / "class.yaml"
    path.write_text(
        "apiVersion: sidemount.io/v1alpha1\nkind: FuseDriverClass\nmetadata: {name: d}\nspec: {deliveries: [sidecar], "
        'sources: ["dir:///**"], namespaces: {}, filesystem: directory}\n'
    )
    found = _check(str(path), Subject((f"--source=dir://{shown}", f"--writable={tmp_path}")), "--quick")
    assert "same connection" in found["kill"]["reason"]
    assert os.listdir(shown) == ["hello"]


@pytest.mark.slow
def test_objects_are_checked_in_the_same_way(
    seaweedfs_server: S3Place, open_directory: Path, tmp_path: Path
) -> None:
    """With takeover: a file that was open outlives the process that served it."""
    keys = ("access_key_id", "secret_access_key")
    flags = _s3(seaweedfs_server, open_directory, keys)
    manifest = {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": "o"},
        "spec": {
            "deliveries": ["sidecar"],
            "sources": ["s3://**"],
            "namespaces": {},
            "filesystem": "objects",
            "options": {
                "endpoint": {"type": "enum", "values": [seaweedfs_server.endpoint]},
                "pathStyle": {"type": "flag"},
            },
            "credentials": {"secretKeys": [*keys], "required": True},
        },
    }
    path = tmp_path / "class.yaml"
    path.write_text(yaml.safe_dump(manifest))
    found = _check(str(path), Subject(flags))
    assert "same connection" in found["kill"]["reason"]
    untried = {each for each, finding in found.items() if finding["verdict"] == "untried"}
    assert untried <= {"wrong-option", "missing-source", "output"}, found
