from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.driver_class import Abilities, Credentials, Resources
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.errors import Faults
from sidemount.model.options import OptionRule, OptionType
from sidemount.model.volume_request import Delivery
from tests.model.known_facts import class_from_file

DIRECTORY: dict[str, Any] = {
    "deliveries": ["sidecar"],
    "sources": ["dir:///srv/**"],
    "namespaces": {},
    "filesystem": "directory",
}
OBJECTS: dict[str, Any] = {**DIRECTORY, "sources": ["s3://**"], "filesystem": "objects"}
EXTERNAL: dict[str, Any] = {
    "deliveries": ["sidecar"],
    "sources": ["x://**"],
    "namespaces": {},
    "image": "registry.example/x:1",
    "command": ["x", "${source}", "${mountpoint}", "${options}"],
}


def _manifest(spec: Any, **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": "x"},
        "spec": spec,
        **changes,
    }


def _faults(manifest: Any) -> list[str]:
    with pytest.raises(Faults) as raised:
        parse_driver_class(manifest)
    return [str(fault) for fault in raised.value.faults]


def test_a_directory_class_with_its_defaults() -> None:
    parsed = class_from_file("directory")
    assert parsed.name == "datasets"
    assert parsed.deliveries == (Delivery.SIDECAR, Delivery.CSI)
    assert (parsed.filesystem, parsed.image, parsed.command) == ("directory", "", ())
    assert parsed.uid == 0
    assert parsed.capabilities == ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
    assert parsed.abilities == Abilities(descriptor=True, takeover=True, read_only="enforced")
    assert parsed.options["attributeTimeout"] == OptionRule(type=OptionType.DURATION, maximum=3600, default=1)
    assert parsed.options["capacity"] == OptionRule(type=OptionType.SIZE, minimum=2**20, maximum=10 * 2**40)
    assert parsed.resources == Resources(
        requests={"cpu": "50m", "memory": "64Mi"},
        limits={"cpu": "1", "memory": "512Mi"},
        max_limits={"cpu": "4", "memory": "4Gi"},
    )
    assert parsed.namespaces.matches({"team": "data"})
    assert not parsed.namespaces.matches({"team": "data", "quarantined": ""})
    assert parsed.hung_after_s == 30
    assert parsed.selinux_type == "container_file_t"


def test_a_class_that_provisions() -> None:
    parsed = parse_driver_class(_manifest({**DIRECTORY, "provisions": True}))
    assert parsed.provisions
    assert parse_driver_class(
        _manifest({**OBJECTS, "provisions": True, "sources": ["s3://b/pool"]})
    ).provisions
    assert not parse_driver_class(_manifest({**OBJECTS, "provisions": False})).provisions
    assert not class_from_file("directory").provisions


def test_an_object_store_class_is_unprivileged() -> None:
    parsed = class_from_file("s3")
    assert (parsed.uid, parsed.capabilities) == (65532, ())
    assert parsed.abilities == Abilities(descriptor=True, takeover=True, read_only="enforced")
    assert parsed.credentials == Credentials(
        secret_keys=("access-key-id", "secret-access-key"), required=True
    )
    assert (parsed.hung_after_s, parsed.cache_size, parsed.image_pull_policy) == (90, "2Gi", "IfNotPresent")
    assert parsed.options["listing"].values == ("flat", "on", "off")
    assert parsed.options["cacheBytes"].default == 2**30


def test_an_external_class_keeps_its_command_and_pull_settings() -> None:
    parsed = class_from_file("rclone")
    assert parsed.command[:2] == ("rclone", "mount2")
    assert parsed.filesystem == ""
    assert parsed.image_pull_policy == "Always"
    assert parsed.image_pull_secrets == ("registry",)
    assert parsed.abilities == Abilities(descriptor=True, takeover=False, read_only="mount")
    assert parsed.warnings == ()


def test_a_class_without_deliveries_is_off_and_a_client_that_mounts_may_keep_sys_admin() -> None:
    parsed = class_from_file("s3fs")
    assert parsed.deliveries == ()
    assert parsed.capabilities == ("SYS_ADMIN",)
    assert not parsed.abilities.descriptor
    assert "names no fixed version" in parsed.warnings[0]


@pytest.mark.parametrize(
    ("image", "is_warned"),
    [
        ("x", True),
        ("x:latest", True),
        ("reg:5000/x", True),
        ("x:1.2", False),
        ("reg:5000/x:1", False),
        ("x@sha256:" + "0" * 64, False),
        ("x:latest@sha256:" + "0" * 64, False),
    ],
)
def test_an_image_without_a_fixed_version_is_warned_of(image: str, is_warned: bool) -> None:
    assert bool(parse_driver_class(_manifest({**EXTERNAL, "image": image})).warnings) is is_warned


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        pytest.param(None, "must be a mapping", id="null"),
        pytest.param([], "must be a mapping", id="list"),
        pytest.param({}, "metadata.name", id="empty"),
        pytest.param(_manifest(DIRECTORY, apiVersion="sidemount.io/v1"), "apiVersion", id="apiVersion"),
        pytest.param(_manifest(DIRECTORY, kind="DriverClass"), "kind", id="kind"),
        pytest.param(_manifest(DIRECTORY, metadata={}), "metadata.name", id="no name"),
        pytest.param(_manifest(DIRECTORY, metadata={"name": "X"}), "metadata.name", id="bad name"),
        pytest.param(_manifest(DIRECTORY, metadata=[]), "metadata", id="metadata as list"),
        pytest.param(_manifest({}), "spec", id="empty spec"),
        pytest.param(_manifest(None), "spec", id="null spec"),
        pytest.param(_manifest([]), "spec", id="spec as list"),
        pytest.param(_manifest(DIRECTORY, extra=1), '"extra": is unknown', id="unknown field at the top"),
    ],
)
def test_bad_manifests(manifest: Any, why: str) -> None:
    assert any(why in fault for fault in _faults(manifest))


def _option(**rule: Any) -> dict[str, Any]:
    return {"options": {"a": rule}}


@pytest.mark.parametrize(
    ("base", "changes", "path", "why"),
    [
        pytest.param(
            DIRECTORY, {"delivery": []}, "spec.delivery", 'did you mean "deliveries"', id="unknown field"
        ),
        pytest.param(DIRECTORY, {"deliveries": None}, "spec.deliveries", "missing", id="no deliveries"),
        pytest.param(
            DIRECTORY,
            {"deliveries": ["nfs"]},
            "spec.deliveries[0]",
            "known: sidecar, csi",
            id="unknown delivery",
        ),
        pytest.param(
            DIRECTORY, {"deliveries": ["csi", "csi"]}, "spec.deliveries[1]", "twice", id="delivery twice"
        ),
        pytest.param(
            DIRECTORY, {"deliveries": "sidecar"}, "spec.deliveries", "must be a list", id="deliveries as text"
        ),
        pytest.param(DIRECTORY, {"sources": None}, "spec.sources", "missing", id="no sources"),
        pytest.param(DIRECTORY, {"sources": []}, "spec.sources", "missing or empty", id="empty sources"),
        pytest.param(
            DIRECTORY, {"sources": ["**"]}, "spec.sources[0]", "literal scheme", id="glob without a scheme"
        ),
        pytest.param(
            DIRECTORY,
            {"sources": ["s3://**"]},
            "spec.sources[0]",
            "it serves dir://",
            id="scheme that the filesystem does not serve",
        ),
        pytest.param(DIRECTORY, {"sources": [1]}, "spec.sources[0]", "not a text", id="number as glob"),
        pytest.param(
            DIRECTORY, {"provisions": "true"}, "spec.provisions", "is not a boolean", id="provisions as text"
        ),
        pytest.param(
            OBJECTS,
            {"provisions": True, "sources": ["s3://b/pool", "https://h/pool"]},
            "spec.sources[1]",
            "is no pool",
            id="pool that cannot be written",
        ),
        pytest.param(
            EXTERNAL,
            {"provisions": True},
            "spec.provisions",
            "filesystem directory",
            id="a client provisions",
        ),
        pytest.param(
            DIRECTORY,
            {"provisions": True, "sources": ["dir:///srv/pool", "nfs://nas/pool"]},
            "spec.sources[1]",
            "is no pool",
            id="pool that is no directory",
        ),
        pytest.param(DIRECTORY, {"namespaces": None}, "spec.namespaces", "{} is all", id="no namespaces"),
        pytest.param(
            DIRECTORY,
            {"namespaces": {"matchLabel": {}}},
            "spec.namespaces",
            "matchLabels",
            id="misspelled selector",
        ),
        pytest.param(
            DIRECTORY,
            {"filesystem": "zip"},
            "spec.filesystem",
            "known: directory, objects",
            id="unknown filesystem",
        ),
        pytest.param(DIRECTORY, {"filesystem": None}, "spec.filesystem", "is missing", id="no client"),
        pytest.param(
            DIRECTORY, {"image": "x:1"}, "spec.image", "excludes filesystem", id="filesystem and image"
        ),
        pytest.param(
            DIRECTORY,
            {"command": ["x", "${mountpoint}"]},
            "spec.command",
            "excludes filesystem",
            id="filesystem and command",
        ),
        pytest.param(EXTERNAL, {"image": None}, "spec.image", "is missing", id="command without image"),
        pytest.param(EXTERNAL, {"command": None}, "spec.command", "is missing", id="image without command"),
        pytest.param(EXTERNAL, {"image": "-x"}, "spec.image", "no image reference", id="image with a dash"),
        pytest.param(EXTERNAL, {"image": "a b"}, "spec.image", "no image reference", id="image with a space"),
        pytest.param(EXTERNAL, {"command": []}, "spec.command", "list of 1 to", id="empty command"),
        pytest.param(EXTERNAL, {"command": "x"}, "spec.command", "list of 1 to", id="command as text"),
        pytest.param(
            EXTERNAL, {"command": ["x", 1]}, "spec.command[1]", "not a text", id="number in command"
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "a\n"]},
            "spec.command[2]",
            "U+000A",
            id="newline in command",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mount}"]},
            "spec.command[1]",
            "${mountpoint} (where to mount",
            id="unknown placeholder",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${source"]},
            "spec.command[1]",
            "without its }",
            id="open placeholder",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["${source}", "${mountpoint}"]},
            "spec.command[0]",
            "no program",
            id="source as program",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${source.hostname}", "${mountpoint}"]},
            "spec.command[1]",
            "unknown placeholder",
            id="unknown part of a source",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "-o${readOnly}"]},
            "spec.command[2]",
            "element of its own",
            id="read-only within an argument",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "${readOnly}"]},
            "spec.command",
            "readOnlyArguments names none",
            id="read-only without arguments",
        ),
        pytest.param(
            EXTERNAL,
            {"readOnlyArguments": ["--ro"]},
            "spec.readOnlyArguments",
            "no place in the command",
            id="read-only arguments without a place",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "${readOnly}"], "readOnlyArguments": ["${source}"]},
            "spec.readOnlyArguments[0]",
            "placeholder",
            id="placeholder in a read-only argument",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${files}/a", "${mountpoint}"]},
            "spec.command",
            "credentials.files names none",
            id="files without templates",
        ),
        pytest.param(
            EXTERNAL,
            {"credentials": {"secretKeys": ["a"], "files": {"../x": "${a}"}}},
            "spec.credentials.files.../x",
            "no name of a file",
            id="file elsewhere",
        ),
        pytest.param(
            EXTERNAL,
            {"credentials": {"secretKeys": ["a"], "environment": {"LD_PRELOAD": "${a}"}}},
            "spec.credentials.environment.LD_PRELOAD",
            "decides which program runs",
            id="variable of the loader",
        ),
        pytest.param(
            EXTERNAL,
            {"credentials": {"secretKeys": ["a"], "files": {"x": "${b}"}}},
            "spec.credentials.files.x",
            "no key of secretKeys",
            id="template of an unknown key",
        ),
        pytest.param(
            DIRECTORY,
            {"credentials": {"secretKeys": ["a"], "files": {"x": "${a}"}}},
            "spec.credentials.files",
            "is for a class with a command",
            id="files of a built-in filesystem",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "-o${options}"]},
            "spec.command[2]",
            "element of its own",
            id="options within an argument",
        ),
        pytest.param(EXTERNAL, {"command": ["x"]}, "spec.command", "no ${mountpoint}", id="no mountpoint"),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "${secrets}"]},
            "spec.command",
            "secretKeys names none",
            id="secrets without credentials",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}", "${cache}"]},
            "spec.command",
            "cacheSize is not given",
            id="cache without a size",
        ),
        pytest.param(
            EXTERNAL,
            {"command": ["x", "${mountpoint}"], "options": {"a": {"type": "flag", "argument": "-a"}}},
            "spec.command",
            "${options} exactly once",
            id="options that would be lost",
        ),
        pytest.param(DIRECTORY, {"options": []}, "spec.options", "must be a mapping", id="options as list"),
        pytest.param(
            DIRECTORY,
            {"options": {"A": {"type": "flag"}}},
            "spec.options.A",
            "no option name",
            id="option name in upper case",
        ),
        pytest.param(
            DIRECTORY,
            {"options": {"-a": {"type": "flag"}}},
            "spec.options.-a",
            "no option name",
            id="option name with a dash",
        ),
        pytest.param(
            DIRECTORY,
            {"options": {"readOnly": {"type": "flag"}}},
            "spec.options.readOnly",
            "request's own field",
            id="reserved name",
        ),
        pytest.param(
            DIRECTORY,
            {"options": {"image": {"type": "string"}}},
            "spec.options.image",
            "request's own field",
            id="option called image (S0-25)",
        ),
        pytest.param(DIRECTORY, _option(), "spec.options.a.type", "is missing", id="no type"),
        pytest.param(
            DIRECTORY, _option(type="bool"), "spec.options.a.type", "flag, int, size", id="unknown type"
        ),
        pytest.param(
            DIRECTORY, {"options": {"a": 1}}, "spec.options.a", "must be a mapping", id="rule as number"
        ),
        pytest.param(
            DIRECTORY,
            _option(type="flag", minimum=1),
            "spec.options.a.minimum",
            "is unknown",
            id="unknown key of a rule",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="flag", min=1),
            "spec.options.a.min",
            "not for an option of type flag",
            id="key of another type",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="int", min=5, max=1),
            "spec.options.a.min",
            "above max",
            id="min above max",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="int", min="x"),
            "spec.options.a.min",
            "whole number",
            id="min that is no int",
        ),
        pytest.param(
            DIRECTORY, _option(type="size", max="1e3"), "spec.options.a.max", "size", id="max that is no size"
        ),
        pytest.param(
            DIRECTORY, _option(type="duration", max=5), "spec.options.a.max", "unit", id="max without a unit"
        ),
        pytest.param(
            DIRECTORY,
            _option(type="int", max=5, default=6),
            "spec.options.a.default",
            "too large",
            id="default out of range",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="flag", default="yes"),
            "spec.options.a.default",
            "boolean",
            id="default of another type",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="enum"),
            "spec.options.a.values",
            "missing or empty",
            id="enum without values",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="enum", values=["a", "a"]),
            "spec.options.a.values[1]",
            "twice",
            id="enum value twice",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="enum", values=["a,b"]),
            "spec.options.a.values[0]",
            "no option value may",
            id="enum value with a comma",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="enum", values=[False]),
            "spec.options.a.values[0]",
            "not a text",
            id="enum value that YAML made false",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="string", pattern="("),
            "spec.options.a.pattern",
            "not a regular expression",
            id="broken pattern",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="string", pattern="(a+)+"),
            "spec.options.a.pattern",
            "too many ways",
            id="pattern that could run long",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="string", maxLength=0),
            "spec.options.a.maxLength",
            "1 to 4096",
            id="maxLength",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="string", pattern="a+", default="b"),
            "spec.options.a.default",
            "does not match",
            id="default against the pattern",
        ),
        pytest.param(
            DIRECTORY,
            _option(type="flag", argument="-x"),
            "spec.options.a.argument",
            "class with a command",
            id="argument of a built-in",
        ),
        pytest.param(
            EXTERNAL, _option(type="flag"), "spec.options.a.argument", "is missing", id="no argument"
        ),
        pytest.param(
            EXTERNAL,
            _option(type="int", argument="-x"),
            "spec.options.a.argument",
            "add ${value}",
            id="argument that drops the value",
        ),
        pytest.param(
            EXTERNAL,
            _option(type="flag", argument="-x=${value}"),
            "spec.options.a.argument",
            "a flag has none",
            id="value of a flag",
        ),
        pytest.param(
            EXTERNAL,
            _option(type="int", argument="-x=${values}"),
            "spec.options.a.argument",
            "placeholder other",
            id="unknown placeholder of an argument",
        ),
        pytest.param(
            EXTERNAL,
            _option(type="int", argument="-x=${value}\n"),
            "spec.options.a.argument",
            "printable",
            id="newline in an argument",
        ),
        pytest.param(
            DIRECTORY,
            {"credentials": {"secretKeys": ["secret-key"]}, "options": {"secretKey": {"type": "string"}}},
            "spec.options.secretKey",
            "never passes through options",
            id="credential as option",
        ),
        pytest.param(
            DIRECTORY,
            {"credentials": {"secretKeys": ["a/b"]}},
            "spec.credentials.secretKeys[0]",
            "no key of a Secret",
            id="secret key with a slash",
        ),
        pytest.param(
            DIRECTORY,
            {"credentials": {"secretKeys": [".."]}},
            "spec.credentials.secretKeys[0]",
            "no key of a Secret",
            id="secret key that is a parent",
        ),
        pytest.param(
            DIRECTORY,
            {"credentials": {"required": True}},
            "spec.credentials.required",
            "names none",
            id="required without keys",
        ),
        pytest.param(
            DIRECTORY,
            {"credentials": {"keys": []}},
            "spec.credentials.keys",
            "is unknown",
            id="unknown key of credentials",
        ),
        pytest.param(
            EXTERNAL,
            {"abilities": {"descriptor": False, "takeover": True}},
            "spec.abilities.takeover",
            "needs descriptor",
            id="takeover without descriptor",
        ),
        pytest.param(
            DIRECTORY,
            {"abilities": {"descriptor": False}},
            "spec.abilities.descriptor",
            "built-in",
            id="built-in without descriptor",
        ),
        pytest.param(
            EXTERNAL,
            {"abilities": {"readOnly": True}},
            "spec.abilities.readOnly",
            "enforced, mount",
            id="readOnly as boolean",
        ),
        pytest.param(
            EXTERNAL,
            {"abilities": {"descriptor": "yes"}},
            "spec.abilities.descriptor",
            "not a boolean",
            id="ability as text",
        ),
        pytest.param(
            DIRECTORY,
            {"capabilities": ["CAP_CHOWN"]},
            "spec.capabilities[0]",
            "is written CHOWN",
            id="capability with CAP_",
        ),
        pytest.param(
            DIRECTORY,
            {"capabilities": ["SYS_PTRACE"]},
            "spec.capabilities[0]",
            "not a capability",
            id="capability not allowed",
        ),
        pytest.param(
            DIRECTORY,
            {"capabilities": ["SYS_ADMIN"]},
            "spec.capabilities",
            "mounts by itself",
            id="SYS_ADMIN with a descriptor",
        ),
        pytest.param(
            OBJECTS,
            {"capabilities": ["CHOWN"]},
            "spec.capabilities",
            "lost by uid 65532",
            id="capability that Kubernetes drops",
        ),
        pytest.param(DIRECTORY, {"uid": -1}, "spec.uid", "whole number", id="negative uid"),
        pytest.param(DIRECTORY, {"uid": True}, "spec.uid", "whole number", id="boolean uid"),
        pytest.param(DIRECTORY, {"uid": "0"}, "spec.uid", "whole number", id="uid as text"),
        pytest.param(DIRECTORY, {"uid": 2**31}, "spec.uid", "whole number", id="uid too large"),
        pytest.param(DIRECTORY, {"hungAfter": 30}, "spec.hungAfter", "unit", id="hungAfter without a unit"),
        pytest.param(DIRECTORY, {"hungAfter": "0s"}, "spec.hungAfter", "too small", id="no patience"),
        pytest.param(DIRECTORY, {"cacheSize": 0}, "spec.cacheSize", "above zero", id="empty cache"),
        pytest.param(
            DIRECTORY,
            {"cacheSize": "big"},
            "spec.cacheSize",
            "not a quantity",
            id="cacheSize that is no quantity",
        ),
        pytest.param(
            DIRECTORY,
            {"imagePullPolicy": "always"},
            "spec.imagePullPolicy",
            "Always, IfNotPresent, Never",
            id="pull policy",
        ),
        pytest.param(
            DIRECTORY,
            {"imagePullSecrets": [{"name": "x"}]},
            "spec.imagePullSecrets[0]",
            "not a text",
            id="pull secret as mapping",
        ),
        pytest.param(
            DIRECTORY, {"seLinuxType": "a:b"}, "spec.seLinuxType", "no SELinux type", id="seLinuxType"
        ),
        pytest.param(
            DIRECTORY,
            {"resources": {"limits": {"gpu": 1}}},
            "spec.resources.limits.gpu",
            "is unknown",
            id="unknown resource",
        ),
        pytest.param(
            DIRECTORY,
            {"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}},
            "spec.resources.requests.cpu",
            "above limits.cpu",
            id="request above limit",
        ),
        pytest.param(
            DIRECTORY,
            {"resources": {"limits": {"cpu": 3}, "maxLimits": {"cpu": 2}}},
            "spec.resources.limits.cpu",
            "above maxLimits.cpu",
            id="limit above the most",
        ),
        pytest.param(
            DIRECTORY,
            {"resources": {"limits": {"cpu": "-1"}}},
            "spec.resources.limits.cpu",
            "negative",
            id="negative limit",
        ),
    ],
)
def test_each_fault_names_class_and_path(
    base: dict[str, Any], changes: dict[str, Any], path: str, why: str
) -> None:
    faults = _faults(_manifest({**base, **changes}))
    assert any(f'field "{path}"' in fault and why in fault for fault in faults), faults
    assert all(fault.startswith('FuseDriverClass "x"') for fault in faults)


def test_every_fault_of_a_class_is_told_at_once() -> None:
    spec = {
        "deliveries": ["x"],
        "sources": ["x"],
        "namespaces": {"x": 1},
        "filesystem": "x",
        "uid": -1,
        "foo": 1,
        "options": {"a": {"type": "x"}},
        "resources": {"limits": {"cpu": "x"}},
    }
    assert len(_faults(_manifest(spec))) == 8


@pytest.mark.parametrize("spec", [DIRECTORY, OBJECTS, EXTERNAL], ids=["directory", "objects", "external"])
def test_the_least_that_is_a_class(spec: dict[str, Any]) -> None:
    assert parse_driver_class(_manifest(spec, status={"conditions": []})).name == "x"


def test_a_directory_daemon_without_root_keeps_no_capability() -> None:
    assert parse_driver_class(_manifest({**DIRECTORY, "uid": 1000})).capabilities == ()
    assert parse_driver_class(_manifest({**DIRECTORY, "capabilities": []})).capabilities == ()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=6), v, max_size=3),
    max_leaves=6,
)
SPEC_KEYS = [
    *DIRECTORY,
    *EXTERNAL,
    "options",
    "readOnlyArguments",
    "credentials",
    "abilities",
    "capabilities",
    "uid",
    "hungAfter",
    "cacheSize",
    "seLinuxType",
    "resources",
    "imagePullPolicy",
    "imagePullSecrets",
]
RULES = st.dictionaries(
    st.sampled_from(["a", "B", "readOnly"]),
    st.dictionaries(
        st.sampled_from(["type", "min", "max", "values", "pattern", "maxLength", "default", "argument"]),
        JSON_VALUES | st.sampled_from(["flag", "int", "enum", "string"]),
    ),
)


@given(
    st.dictionaries(st.sampled_from(SPEC_KEYS) | st.text(max_size=5), JSON_VALUES, max_size=6),
    RULES | JSON_VALUES,
    st.sampled_from([DIRECTORY, OBJECTS, EXTERNAL, {}]),
)
def test_any_spec_raises_only_our_error(changes: dict[str, Any], options: Any, base: dict[str, Any]) -> None:
    with suppress(Faults):
        parse_driver_class(_manifest({**base, **changes}))
    with suppress(Faults):
        parse_driver_class(_manifest({**base, "options": options}))


@given(JSON_VALUES)
def test_any_json_raises_only_our_error(manifest: Any) -> None:
    with suppress(Faults):
        parse_driver_class(manifest)
