"""FuseDriverClass as a type of the cluster takes what the parser takes, and refuses what it refuses, as far as it can say it."""

from typing import Any

import pytest
import yaml

from sidemount.model.driver_class_manifest import CAPABILITIES, SOURCES_MAX, parse_driver_class
from sidemount.model.names import DOMAIN
from sidemount.model.option_rules import OPTIONS_MAX
from sidemount.model.options import OptionType
from sidemount.model.request_fields import RESERVED_FIELDS
from tests.manifests.class_cases import ONLY_THE_WEBHOOK, manifest, refused_specs
from tests.manifests.files import MANIFESTS, ROOT, class_schema, objects, of_base
from tests.manifests.schema import faults_of

_GOOD = (
    ROOT / "sidemount/samples/classes.yaml",
    ROOT / "tests/golden/facts/classes.yaml",
    MANIFESTS / "classes/directory.yaml",
    *sorted((ROOT / "tests/model/classes").glob("*.yaml")),
)


def _spec() -> dict[str, Any]:
    schema: dict[str, Any] = class_schema()["properties"]["spec"]
    return schema


@pytest.mark.parametrize("path", _GOOD, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_class_that_we_show_is_accepted(path: Any) -> None:
    found = list(yaml.safe_load_all(path.read_text()))
    assert found
    for each in found:
        assert faults_of(class_schema(), each) == []
        parse_driver_class(each)


@pytest.mark.parametrize("case", sorted(refused_specs()))
def test_what_the_parser_refuses_is_refused_by_the_type_too(case: str) -> None:
    """But for a few, which are named: the webhook's /validate says those, and the status of the class."""
    faults = faults_of(class_schema(), refused_specs()[case])
    assert bool(faults) is (case not in ONLY_THE_WEBHOOK), faults


@pytest.mark.parametrize(
    "changes",
    [
        {"deliveries": [], "sources": []},
        {"uid": 0, "capabilities": ["CHOWN"], "filesystem": "objects"},
        {"cacheSize": 1},
        {"hungAfter": "24h"},
        {"resources": {"requests": {"cpu": 1}, "limits": {"cpu": "1"}, "maxLimits": {"memory": "1e3"}}},
        {"options": {"a": {"type": "size", "min": 1, "max": "1.5Gi", "default": 5}}},
        {"namespaces": {"matchExpressions": [{"key": "example.com/team", "operator": "Exists"}]}},
    ],
)
def test_unusual_classes_are_accepted_by_both(changes: dict[str, Any]) -> None:
    each = manifest({"deliveries": ["sidecar"], "sources": ["dir:///srv/*"], "namespaces": {}, "filesystem": "directory", **changes})  # fmt: skip
    parse_driver_class(each)
    assert faults_of(class_schema(), each) == []


def test_known_words_are_the_parser_s() -> None:
    spec = _spec()["properties"]
    assert spec["capabilities"]["items"]["enum"] == sorted(CAPABILITIES)
    assert spec["capabilities"]["maxItems"] == len(CAPABILITIES)
    assert (spec["sources"]["maxItems"], spec["options"]["maxProperties"]) == (SOURCES_MAX, OPTIONS_MAX)
    rule = spec["options"]["additionalProperties"]["properties"]
    assert rule["type"]["enum"] == [kind.value for kind in OptionType]
    reserved = next(
        each["rule"] for each in spec["options"]["x-kubernetes-validations"] if "'class'" in each["rule"]
    )
    assert reserved == f"self.all(name, !(name in {sorted(RESERVED_FIELDS)}))"


def test_every_field_of_the_type_is_one_that_the_parser_knows() -> None:
    """Each is given the wrong way: the parser complains of its value, and never that it is unknown."""
    for key in _spec()["properties"]:
        with pytest.raises(Exception, match=key) as raised:
            parse_driver_class(manifest({key: object()}))
        assert f'"spec.{key}": is unknown' not in str(raised.value)


def test_every_list_text_and_map_of_the_spec_is_bounded() -> None:
    """Else the worst case of a rule over it may cost more than an API server grants, in some release."""
    unbounded = []

    def walk(schema: Any, path: str) -> None:
        if not isinstance(schema, dict):
            return
        match schema.get("type"):
            case "array" if "maxItems" not in schema:
                unbounded.append(path)
            case "string" if "maxLength" not in schema and "enum" not in schema:
                unbounded.append(path)
            case "object" if "additionalProperties" in schema and "maxProperties" not in schema:
                unbounded.append(path)
        for key, child in schema.get("properties", {}).items():
            walk(child, f"{path}.{key}")
        walk(schema.get("items"), f"{path}[]")
        walk(schema.get("additionalProperties"), f"{path}{{}}")

    walk(_spec(), "spec")
    assert unbounded == []


def test_the_example_of_the_type_is_a_class() -> None:
    example = manifest(_spec()["example"])
    parse_driver_class(example)
    assert faults_of(class_schema(), example) == []


def test_status_and_columns() -> None:
    definition = of_base("CustomResourceDefinition", f"fusedriverclasses.{DOMAIN}")["spec"]
    (version,) = definition["versions"]
    assert definition["scope"] == "Cluster"
    assert version["subresources"] == {"status": {}}
    status = class_schema()["properties"]["status"]["properties"]
    assert set(status) == {"observedGeneration", "usedBy", "faults", "conditions"}
    for column in version["additionalPrinterColumns"]:
        _, section, field = column["jsonPath"].split(".")
        if section != "metadata":
            assert field in class_schema()["properties"][section]["properties"]


def test_the_class_to_begin_with_is_the_sample_of_the_command_line() -> None:
    samples = yaml.safe_load_all((ROOT / "sidemount/samples/classes.yaml").read_text())
    assert next(samples) in objects("FuseDriverClass")
