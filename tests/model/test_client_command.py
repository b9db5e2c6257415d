"""Sources in parts, read-only arguments and credentials of external clients: what becomes argv, and what never does (S4-09)."""

from typing import Any

import pytest

from sidemount.model.client_command import STARTER, client_command, program_of
from sidemount.model.command_template import render_command
from sidemount.model.credential_templates import fill
from sidemount.model.driver_class import DriverClass
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.errors import Faults, InvalidRequest

WHERE = "volume v"


def _class(**spec: Any) -> DriverClass:
    return parse_driver_class(
        {
            "apiVersion": "sidemount.io/v1alpha1",
            "kind": "FuseDriverClass",
            "metadata": {"name": "c"},
            "spec": {
                "deliveries": ["sidecar"],
                "sources": ["s3://**", "sftp://**"],
                "namespaces": {},
                "image": "registry.example/c:1",
                "command": ["c", "${source}", "${mountpoint}"],
                **spec,
            },
        }
    )


def _faults(**spec: Any) -> str:
    with pytest.raises(Faults) as raised:
        _class(**spec)
    return str(raised.value)


def _command(known: DriverClass, source: str, *, read_only: bool = False) -> tuple[str, ...]:
    return client_command(known, source=source, options=(), read_only=read_only, where=WHERE)


@pytest.mark.parametrize(
    ("source", "argv"),
    [
        ("s3://bucket", ("bucket:",)),
        ("s3://bucket/", ("bucket:/",)),
        ("s3://bucket/a/b c", ("bucket:/a/b c",)),
        ("sftp://[fe80::1]/x", ("[fe80::1]:/x",)),
    ],
)
def test_a_source_is_given_in_its_parts(source: str, argv: tuple[str, ...]) -> None:
    assert render_command(["${source.host}:${source.path}"], source=source, options=()) == argv


def test_user_port_and_key_stand_as_they_are_written() -> None:
    command = ["${source.user}${source.host}", "x${source.port}", "x${source.key}"]
    assert render_command(command, source="sftp://me@host:22/a/b", options=()) == ("me@host", "x:22", "xa/b")
    assert render_command(command, source="sftp://host", options=()) == ("host", "x", "x")


@pytest.mark.parametrize(("source", "part"), [("sftp://me@host/x", "user"), ("sftp://host:1/x", "port")])
def test_a_part_that_the_client_would_never_hear_of_is_refused(source: str, part: str) -> None:
    with pytest.raises(InvalidRequest, match=f"names a {part}, which the class's command does not take"):
        render_command(["c", "${source.host}:${source.path}"], source=source, options=())


@pytest.mark.parametrize("command", [["c"], ["c", "${source}"], ["c", "${source}", "${source.host}"]])
def test_a_command_that_takes_no_parts_or_the_whole_may_have_any(command: list[str]) -> None:
    assert render_command(command, source="sftp://me@host:1/x", options=())


@pytest.mark.parametrize(
    ("command", "source"),
    [("${source.host}", "s3://-oallow_root"), ("${source.user}${source.host}", "s3://-F@x"), ("${source.key}", "s3://b/-o")],
)  # fmt: skip
def test_no_source_becomes_an_option(command: str, source: str) -> None:
    with pytest.raises(InvalidRequest, match="would be an option of the client"):
        render_command(["c", command, "x${source.host}${source.path}"], source=source, options=())


def test_read_only_arguments_are_given_to_read_only_volumes_alone() -> None:
    known = _class(command=["c", "${source}", "${readOnly}", "${mountpoint}"], readOnlyArguments=["-o", "ro"])
    assert _command(known, "s3://b") == ("c", "s3://b", "${mountpoint}")
    assert _command(known, "s3://b", read_only=True) == ("c", "s3://b", "-o", "ro", "${mountpoint}")


def test_read_only_arguments_and_their_place_need_each_other() -> None:
    assert "has no place in the command" in _faults(readOnlyArguments=["--ro"])
    assert "readOnlyArguments names none" in _faults(command=["c", "${mountpoint}", "${readOnly}"])
    assert "placeholder" in _faults(
        command=["c", "${mountpoint}", "${readOnly}"], readOnlyArguments=["${source}"]
    )


CREDENTIALS: dict[str, Any] = {
    "secretKeys": ["id", "key"],
    "files": {"passwd": "${id}:${key}"},
    "environment": {"AWS_KEY": "${key}", "AWS_FILE": "${files}/passwd", "CONFIG": "${secrets}/id"},
}


def test_credentials_are_in_argv_by_name_alone() -> None:
    known = _class(
        command=["c", "${source}", "${files}/passwd", "${mountpoint}"],
        credentials={**CREDENTIALS, "required": True},
    )
    argv = _command(known, "s3://b")
    assert argv == (
        *STARTER,
        "--secrets=/secrets",
        "--files=${files}",
        "--file=passwd=${id}:${key}",
        "--environment=AWS_FILE=${files}/passwd",
        "--environment=AWS_KEY=${key}",
        "--environment=CONFIG=/secrets/id",
        "--",
        "c",
        "s3://b",
        "${files}/passwd",
        "${mountpoint}",
    )
    assert program_of(argv) == "c"
    assert "--optional" in _command(_class(credentials=CREDENTIALS), "s3://b")


def test_a_process_of_the_node_finds_its_credentials_elsewhere() -> None:
    argv = client_command(
        _class(credentials=CREDENTIALS), source="s3://b", options=(), read_only=False, where=WHERE, secrets="/s"
    )  # fmt: skip
    assert {"--secrets=/s", "--environment=CONFIG=/s/id"} <= {*argv}


@pytest.mark.parametrize(
    ("credentials", "fault"),
    [
        ({"files": {"x": "${other}"}}, "which is no key of secretKeys"),
        ({"files": {"../x": "${id}"}}, "is no name of a file"),
        ({"files": {".x": "${id}"}}, "is no name of a file"),
        ({"files": {"x": "${id"}}, "without its }"),
        ({"files": {"x": 1}}, "is not a text"),
        ({"files": {"x": "a\x1b"}}, "not printable"),
        ({"environment": {"LD_PRELOAD": "${id}"}}, "decides which program runs"),
        ({"environment": {"PATH": "${id}"}}, "decides which program runs"),
        ({"environment": {"PYTHONPATH": "${id}"}}, "decides which program runs"),
        ({"environment": {"lower": "${id}"}}, "is no name of a variable"),
        ({"environment": {"X": "${cache}"}}, "cacheSize is not given"),
        ({"secretKeys": ["files"], "files": {"x": "${files}"}}, "means a directory"),
        ({"files": {f"f{i}": "x" for i in range(33)}}, "more than 32"),
    ],
)
def test_templates_that_cannot_be_meant_are_refused(credentials: dict[str, Any], fault: str) -> None:
    assert fault in _faults(credentials={"secretKeys": ["id"], **credentials})


def test_files_of_a_command_need_their_templates() -> None:
    assert "credentials.files names none" in _faults(command=["c", "${files}/x", "${mountpoint}"])


def test_a_built_in_filesystem_has_no_templates() -> None:
    with pytest.raises(Faults, match="is for a class with a command"):
        parse_driver_class(
            {
                "apiVersion": "sidemount.io/v1alpha1",
                "kind": "FuseDriverClass",
                "metadata": {"name": "c"},
                "spec": {
                    "deliveries": ["sidecar"],
                    "sources": ["dir:///srv"],
                    "namespaces": {},
                    "filesystem": "directory",
                    "credentials": {"secretKeys": ["id"], "files": {"x": "${id}"}},
                },
            }
        )


def test_a_whole_value_is_taken_as_it_is() -> None:
    assert fill("${key}", lambda _key: 'two\nlines "\\', "/f") == 'two\nlines "\\'


def test_a_value_within_a_line_loses_its_line_break_only() -> None:
    assert fill("a=${key} ${files}/x\n", lambda _key: "v=w\n", "/f") == "a=v=w /f/x\n"


@pytest.mark.parametrize("value", ["a\nendpoint = evil", "a\rb", "a\0b", 'a"b', "a'b", "a\\b", "", "\n"])
def test_no_value_writes_a_second_line_or_field(value: str) -> None:
    with pytest.raises(InvalidRequest, match='credential "key"') as raised:
        fill("a=${key}", lambda _key: value + "\n", "/f")
    assert not value.strip() or value not in str(raised.value)


def test_what_a_value_holds_is_no_template() -> None:
    assert fill("${a}${b}", {"a": "${b}", "b": "${files}"}.__getitem__, "/f") == "${b}${files}"
