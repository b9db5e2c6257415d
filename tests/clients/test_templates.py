"""The templates that come with the package, proven or not: what a volume's argv is, and that nothing else ever reaches it (S4-09)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidemount.commands.classes_templates import EVIDENCE, TEMPLATES, Template, templates
from sidemount.model.client_command import STARTER, client_command, program_of
from sidemount.model.driver_class import DriverClass
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.errors import InvalidRequest, VolumeError
from sidemount.model.options import OptionRule, OptionType, check_options
from tests.manifests.files import class_schema
from tests.manifests.schema import faults_of

_ROOT = Path(__file__).parent.parent.parent
_GOLDEN = Path(__file__).parent / "argv"
_ALL = templates()
_NAMES = sorted(_ALL)
_SOURCES = {
    "alluxio-fuse": "s3://bucket/some/prefix",
    "bindfs": "bindfs:///srv/some/directory",
    "blobfuse2": "az://container/some/prefix",
    "cephfs-fuse": "ceph://monitor:6789/some/path",
    "davfs2": "https://dav.example/some/path",
    "gcsfuse": "gs://bucket/some/prefix",
    "geesefs": "s3://bucket/some/prefix",
    "goofys": "s3://bucket/some/prefix",
    "juicefs": "redis://meta:6379/1",
    "mountpoint-s3": "s3://bucket/some/prefix/",
    "ossfs": "oss://bucket/some/prefix",
    "rclone": "s3://bucket/some/prefix",
    "s3fs": "s3://bucket/some/prefix",
    "sshfs": "sftp://me@host/some/path",
    "weed": "weed://filer:8888/some/path",
}
_TEXTS = ("a", "0644", "644", "000", "http://host:1/x", "eu-1", "/a/b", "1")


def _value(rule: OptionRule) -> str:
    """Return a value that a rule takes."""
    match rule.type:
        case OptionType.FLAG:
            return "true"
        case OptionType.INT:
            return str(rule.minimum or 0)
        case OptionType.SIZE:
            return str(rule.minimum or 1)
        case OptionType.DURATION:
            return f"{rule.minimum or 60}s"
        case OptionType.ENUM:
            return rule.values[-1]
        case OptionType.STRING:
            return next(text for text in _TEXTS if _is_taken(rule, text))


def _is_taken(rule: OptionRule, text: str) -> bool:
    try:
        check_options({"x": rule}, [("x", text)], "test")
    except VolumeError:
        return False
    return True


def _argv(known: DriverClass, source: str, *, with_options: bool, read_only: bool) -> tuple[str, ...]:
    given = [(name, _value(rule)) for name, rule in known.options.items()] if with_options else []
    options = check_options(known.options, given, "test")
    return client_command(known, source=source, options=options, read_only=read_only, where="test")


def _template(name: str) -> Template:
    return _ALL[name]


@pytest.mark.parametrize("name", _NAMES)
def test_argv_is_as_recorded(name: str, update_golden: bool) -> None:
    known = _template(name).driver_class
    found = {
        "bare": list(_argv(known, _SOURCES[name], with_options=False, read_only=False)),
        "every option, read-only": list(_argv(known, _SOURCES[name], with_options=True, read_only=True)),
    }
    path = _GOLDEN / f"{name}.json"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(path.read_text()) == found


def test_every_record_has_its_template() -> None:
    assert sorted(path.stem for path in _GOLDEN.iterdir()) == _NAMES


@pytest.mark.parametrize("name", _NAMES)
def test_nothing_but_the_allowlist_reaches_argv(name: str) -> None:
    known = _template(name).driver_class
    bare = set(_argv(known, _SOURCES[name], with_options=False, read_only=False))
    every = _argv(known, _SOURCES[name], with_options=True, read_only=False)
    allowed = [rule.argument.partition("${value}")[0] for rule in known.options.values()]
    assert all(part in bare or any(part.startswith(each) for each in allowed) for part in every)
    for given in ("allow_root", "o", "config", "url", "-o", "exec", "ProxyCommand", "passwd_file"):
        with pytest.raises(InvalidRequest, match="is not allowed"):
            check_options(known.options, [(given, "x")], "test")


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize(
    "text", ["x,allow_root", "-oProxyCommand=id", "a b", "a=b", "a;b", "a$(id)", "a\nb", "../../etc", "a'b"]
)
def test_no_text_becomes_a_second_option(name: str, text: str) -> None:
    """Every text that a template takes has a pattern, and a mark that means something to some program is in none."""
    for option, rule in _template(name).driver_class.options.items():
        if rule.type is OptionType.STRING:
            assert rule.pattern, option
            assert not _is_taken(rule, text), option


@pytest.mark.parametrize("name", _NAMES)
def test_no_credential_is_in_argv_but_by_name(name: str) -> None:
    known = _template(name).driver_class
    argv = _argv(known, _SOURCES[name], with_options=True, read_only=False)
    program = argv[argv.index(program_of(argv)) :]
    assert not any(f"${{{key}}}" in part for part in program for key in known.credentials.secret_keys)
    made = known.credentials.files or known.credentials.environment
    assert (argv[: len(STARTER)] == STARTER) == bool(made)


@pytest.mark.parametrize("name", _NAMES)
def test_a_template_is_a_class_that_a_cluster_accepts(name: str) -> None:
    manifest: dict[str, Any] = yaml.safe_load(_template(name).text)
    assert faults_of(class_schema(), manifest) == []
    assert manifest["metadata"]["name"] == name
    assert manifest["metadata"]["labels"][EVIDENCE] in ("proven", "unproven")
    assert ("UNPROVEN" in _template(name).text) is not _template(name).is_proven
    assert _template(name).driver_class.abilities.takeover is False


@pytest.mark.parametrize("name", _NAMES)
def test_every_template_has_its_image_recipe_and_its_row_in_the_docs(name: str) -> None:
    recipe = (_ROOT / "images" / "clients" / f"Containerfile.{name}").read_text()
    assert "ARG SIDEMOUNT" in recipe
    assert recipe.count("FROM ${SIDEMOUNT}") == 1
    assert recipe.rstrip().splitlines()[-1] == "USER 65532:65532"
    known = _template(name)
    row = next(
        line
        for line in (_ROOT / "docs/clients.md").read_text().splitlines()
        if line.startswith(f"| `{name}` ")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    descriptor = "yes" if known.driver_class.abilities.descriptor else "no, privileged"
    assert cells[2:5] == [
        descriptor,
        known.driver_class.abilities.read_only,
        "yes" if known.is_proven else "**unproven**",
    ]


def test_the_files_are_in_the_package() -> None:
    assert TEMPLATES.parent.parent.name == "sidemount"
    assert {path.suffix for path in TEMPLATES.iterdir()} == {".yaml"}


def test_the_class_of_the_docs_is_one() -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (_ROOT / "docs/clients.md").read_text(), re.MULTILINE | re.DOTALL
    )
    found = [parse_driver_class(yaml.safe_load(block)) for block in blocks if "FuseDriverClass" in block]
    assert [known.name for known in found] == ["squashfs"]
    fragment = yaml.safe_load(next(block for block in blocks if block.startswith("credentials:")))
    spec = yaml.safe_load(_template("s3fs").text)["spec"]
    parse_driver_class(
        {
            "apiVersion": "sidemount.io/v1alpha1",
            "kind": "FuseDriverClass",
            "metadata": {"name": "x"},
            "spec": {**spec, **fragment, "options": {}, "readOnlyArguments": None},
        }
    )
