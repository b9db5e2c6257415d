"""FuseDriverClass on a real API server: its schema and every rule of it, what only the webhook can say, and what a broken one does."""

import json
import re
from typing import Any

import pytest
import yaml

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.places import SOURCE
from e2e.cluster.waiting import wait_for
from e2e.tests.admission.admitting import WAIT_S, Admitting, apply, ours, pod, refusal
from e2e.tests.rendered import try_all
from tests.manifests.class_cases import ONLY_THE_WEBHOOK, manifest, refused_specs

_TYPE = SOURCE / "manifests/base/fuse-driver-class.yaml"
_BUILT_IN: Json = {
    "deliveries": ["sidecar"],
    "sources": ["dir:///srv/**"],
    "namespaces": {},
    "filesystem": "directory",
}
_CLIENT: Json = {"deliveries": ["sidecar"], "sources": ["sftp://**"], "namespaces": {}, "image": "registry.example/c:1", "command": ["c", "${mountpoint}"]}  # fmt: skip
_OPTION: Json = {"argument": "--o=${value}"}


def _client(**spec: Any) -> Json:
    return {**_CLIENT, **spec}


def _built_in(**spec: Any) -> Json:
    return {**_BUILT_IN, **spec}


def _with(option: Json) -> Json:
    return _built_in(options={"a": option})


# Each rule's message → (a spec that it lets through, one that it refuses).
_RULES: dict[str, tuple[Json, Json]] = {
    'sources is empty; list URI globs such as "s3://**"': (_built_in(sources=[], deliveries=[]), _built_in(sources=[])),
    "give either filesystem, or image and command of another client": (_BUILT_IN, _client(filesystem="directory")),
    "image and command need each other": (_CLIENT, {k: v for k, v in _CLIENT.items() if k != "image"}),
    "filesystem directory serves dir://, pvc:// and nfs:// only": (_built_in(sources=["nfs://h/**"]), _built_in(sources=["s3://b/**"])),
    "provisions needs filesystem directory or objects": (_built_in(provisions=True), _client(provisions=True)),
    "the sources of a class that provisions are its pools, dir:///path each": (_built_in(provisions=True), _built_in(provisions=True, sources=["nfs://h/**"])),
    "the sources of a class of filesystem objects that provisions are its pools, such as s3://bucket/prefix each": (_built_in(filesystem="objects", provisions=True, sources=["s3://b/pool", "gs://b/pool", "az://b/pool"]), _built_in(filesystem="objects", provisions=True, sources=["https://h/pool"])),
    "command has ${secrets}, but credentials.secretKeys names none": (_client(command=["c", "${secrets}", "${mountpoint}"], credentials={"secretKeys": ["k"]}), _client(command=["c", "${secrets}", "${mountpoint}"])),
    "command has ${files}, but credentials.files names none": (_client(command=["c", "${files}/k", "${mountpoint}"], credentials={"secretKeys": ["k"], "files": {"k": "${k}"}}), _client(command=["c", "${files}/k", "${mountpoint}"], credentials={"secretKeys": ["k"]})),
    "readOnlyArguments and ${readOnly} in the command, once, need each other": (_client(command=["c", "${readOnly}", "${mountpoint}"], readOnlyArguments=["-r"]), _client(readOnlyArguments=["-r"])),
    "files and environment are for a class with a command": (_client(credentials={"secretKeys": ["k"], "environment": {"KEY": "${k}"}}), _built_in(credentials={"secretKeys": ["k"], "files": {"k": "${k}"}})),
    "a file's name has letters, digits, . _ and -, and begins with neither . nor -": (_client(credentials={"secretKeys": ["k"], "files": {"a.b_c-d": "${k}"}}), _client(credentials={"secretKeys": ["k"], "files": {".a": "${k}"}})),
    "a variable's name has capital letters, digits and _": (_client(credentials={"secretKeys": ["k"], "environment": {"A_9": "${k}"}}), _client(credentials={"secretKeys": ["k"], "environment": {"a": "${k}"}})),
    "decides which program runs, and is no credential": (_client(credentials={"secretKeys": ["k"], "environment": {"HOME": "/h"}}), _client(credentials={"secretKeys": ["k"], "environment": {"LD_PRELOAD": "/h"}})),
    "command has ${cache}, but cacheSize is not given": (_client(command=["c", "${cache}", "${mountpoint}"], cacheSize="1Gi"), _client(command=["c", "${cache}", "${mountpoint}"])),
    "command must have ${options} exactly once, because the class has options, which go there": (_client(command=["c", "${options}", "${mountpoint}"], options={"a": {"type": "int", **_OPTION}}), _client(options={"a": {"type": "int", **_OPTION}})),
    "each option of a client with a command needs its argument; an option of a built-in filesystem has none": (_with({"type": "int"}), _with({"type": "int", **_OPTION})),
    "a built-in filesystem never mounts by itself, so descriptor cannot be false": (_built_in(abilities={"descriptor": True}), _built_in(abilities={"descriptor": False, "takeover": False})),
    "SYS_ADMIN is only for a client that mounts by itself; set abilities.descriptor to false": (_client(capabilities=["SYS_ADMIN"], uid=0, abilities={"descriptor": False}), _client(capabilities=["SYS_ADMIN"], uid=0)),
    "Kubernetes gives capabilities to uid 0 only; set uid to 0, or keep none": (_built_in(capabilities=["CHOWN"]), _built_in(capabilities=["CHOWN"], uid=5)),
    "three stars in a row; ** already matches everything": (_built_in(sources=["dir:///**"]), _built_in(sources=["dir:///***"])),
    "a key is not a label key": (_built_in(namespaces={"matchLabels": {"a.b/c": "d"}}), _built_in(namespaces={"matchLabels": {"a b": "d"}})),
    "In and NotIn need values, Exists and DoesNotExist take none": (_built_in(namespaces={"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}), _built_in(namespaces={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]})),
    "the first element names the program itself, without a placeholder": (_client(command=["c", "${mountpoint}"]), _client(command=["${source}", "${mountpoint}"])),
    "has no ${mountpoint}; say where the client takes its mount point": (_client(command=["c", "-f", "${mountpoint}"]), _client(command=["c"])),
    "an option's name starts with a lower-case letter, then letters, digits, - _ .": (_built_in(options={"aB-9": {"type": "int"}}), _built_in(options={"A": {"type": "int"}})),
    "a name is that of a request's own field; choose another": (_built_in(options={"sources": {"type": "int"}}), _built_in(options={"subPath": {"type": "int"}})),
    "min and max are for the types int, size and duration": (_with({"type": "int", "min": 1}), _with({"type": "flag", "min": 1})),
    "an option of type enum lists its values, and no other does": (_with({"type": "enum", "values": ["x"]}), _with({"type": "enum"})),
    "pattern and maxLength are for the type string": (_with({"type": "string", "pattern": "[a-z]+"}), _with({"type": "int", "pattern": "[a-z]+"})),
    "an argument holds ${value}, unless the option is a flag": (_client(command=["c", "${options}", "${mountpoint}"], options={"a": {"type": "flag", "argument": "-x"}}), _client(command=["c", "${options}", "${mountpoint}"], options={"a": {"type": "int", "argument": "-x"}})),
    "min and max are whole numbers": (_with({"type": "int", "min": "-7", "max": 9}), _with({"type": "int", "min": "1.5"})),
    'min and max are sizes such as "512Mi"': (_with({"type": "size", "max": "512Mi"}), _with({"type": "size", "max": "much"})),
    'min and max are durations with their units, such as "90s", "5m" or "1h30m"': (_with({"type": "duration", "max": "1h30m"}), _with({"type": "duration", "max": "90"})),
    "required is true, but secretKeys names none": (_built_in(credentials={"required": True, "secretKeys": ["k"]}), _built_in(credentials={"required": True})),
    "takeover needs descriptor": (_client(abilities={"takeover": True}), _client(abilities={"takeover": True, "descriptor": False})),
    "is not between 1s and 24h": (_built_in(hungAfter="24h"), _built_in(hungAfter="25h")),
    "is no quantity above zero": (_built_in(cacheSize="1Gi"), _built_in(cacheSize="0")),
    "a request is above its limit": (_built_in(resources={"requests": {"cpu": "1"}, "limits": {"cpu": 1}}), _built_in(resources={"requests": {"cpu": "2"}, "limits": {"cpu": 1}})),
    "a limit is above its maxLimit": (_built_in(resources={"limits": {"cpu": 1}, "maxLimits": {"cpu": 1}}), _built_in(resources={"limits": {"cpu": 2}, "maxLimits": {"cpu": 1}})),
    "a request is above its maxLimit": (_built_in(resources={"requests": {"cpu": 1}, "maxLimits": {"cpu": 1}}), _built_in(resources={"requests": {"cpu": 2}, "maxLimits": {"cpu": 1}})),
    "only cpu, memory and ephemeral-storage are known": (_built_in(resources={"limits": {"ephemeral-storage": "1Gi"}}), _built_in(resources={"limits": {"nvidia.com/gpu": 1}})),
    "an amount is no quantity, or is negative": (_built_in(resources={"limits": {"cpu": 0}}), _built_in(resources={"limits": {"cpu": "-1"}})),
}  # fmt: skip


def _messages(node: Any) -> set[str]:
    """Return the message of every rule of the type."""
    if isinstance(node, dict):
        own = {rule["message"] for rule in node.get("x-kubernetes-validations", ())}
        return own.union(*(_messages(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(_messages(value) for value in node))
    return set()


def test_every_rule_of_the_type_lets_one_class_through_and_refuses_another(
    without_webhook: Admitting,
) -> None:
    """Each refusal in the rule's own words. The type alone speaks: its webhook is away, and nothing depends on it."""
    assert _messages(yaml.safe_load(_TYPE.read_text())) == _RULES.keys()
    names = {f"r{number}": message for number, message in enumerate(_RULES)}
    good = [manifest(_RULES[message][0], f"good-{name}") for name, message in names.items()]
    bad = [manifest(_RULES[message][1], f"bad-{name}") for name, message in names.items()]
    answers = try_all(without_webhook.api, [*good, *bad], "--validate=strict")
    assert answers.accepted == {each["metadata"]["name"] for each in good}, "\n".join(answers.refusals)
    told = dict(_by_name("\n".join(answers.refusals)))
    for name, message in names.items():
        assert message in told[f"bad-{name}"], told[f"bad-{name}"]


def _by_name(text: str) -> list[tuple[str, str]]:
    """Return the refusals by the name of the class: one may be several lines long."""
    parts = re.split(r'FuseDriverClass(?:\.sidemount\.io)? "([^"]+)" is invalid:', text)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_the_schema_is_structural_and_knows_every_field(admitting: Admitting) -> None:
    """Unknown fields are refused by a strict client and never kept."""
    (found,) = (
        each
        for each in admitting.api.items("crd")
        if each["metadata"]["name"] == "fusedriverclasses.sidemount.io"
    )
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
    unknown = manifest(_built_in(fileSystem="directory"), "unknown")
    assert 'unknown field "spec.fileSystem"' in refusal(
        admitting.api, unknown, "--dry-run=server", "--validate=strict"
    )


def test_kubectl_explains_the_type(admitting: Admitting) -> None:
    def told(field: str) -> str:
        try:
            return admitting.api.run("explain", field)
        except KubectlFailed:  # published a moment after the type
            return ""

    assert wait_for(lambda: "Which FUSE client may serve which sources" in told("fusedriverclass"), WAIT_S)
    assert "How a volume may reach a pod" in told("fdc.spec.deliveries")
    assert "The value where a request gives none" in told("fdc.spec.options.default")
    assert "How many pods have a volume of this class" in told("fdc.status.usedBy")


def test_the_columns_and_the_status(admitting: Admitting, unique: str) -> None:
    admitting.api.create(manifest(_CLIENT, unique))
    status = {"status": {"observedGeneration": 1, "usedBy": 3, "faults": ["a fault"]}}
    admitting.api.run(
        "patch", "fdc", unique, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}"
    )
    head, row = admitting.api.run("get", "fdc", unique).splitlines()
    assert re.split(r"\s{2,}", head) == [
        "NAME",
        "DELIVERIES",
        "FILESYSTEM",
        "SOURCES",
        "USED BY",
        "FAULTS",
        "AGE",
    ]
    for cell in ('["sidecar"]', '["sftp://**"]', "3", '["a fault"]'):
        assert cell in row
    assert "registry.example/c:1" in admitting.api.run("get", "fdc", unique, "-o", "wide")
    # The status is nobody's who changes the class, and the class nobody's who reports.
    changed = admitting.api.get("fdc", unique)
    assert changed is not None
    assert changed["metadata"]["generation"] == 1


def test_the_webhook_says_what_the_type_cannot(admitting: Admitting) -> None:
    cases = {case: spec for case, spec in refused_specs().items() if case in ONLY_THE_WEBHOOK}
    assert cases.keys() == ONLY_THE_WEBHOOK
    numbered = {f"w{number}": case for number, case in enumerate(sorted(cases))}
    answers = try_all(
        admitting.api,
        (manifest(cases[case]["spec"], name) for name, case in numbered.items()),
        "--validate=strict",
    )
    assert answers.accepted == frozenset()
    assert len(answers.refusals) == len(cases)
    for line in answers.refusals:
        assert re.search(r'admission webhook "classes.sidemount.io" denied the request: \w+: FuseDriverClass "w\d+", field "spec\.', line), line  # fmt: skip


def test_a_broken_class_takes_no_other_with_it_and_is_seen(
    admitting: Admitting, unique: str, ml: str
) -> None:
    """It slips in while no webhook runs. Then it may be labelled, put right and deleted, and not be made worse."""
    broken = _built_in(options={"a": {"type": "string", "pattern": "(a+)+"}})
    admitting.webhook.end()
    try:
        admitting.api.create(manifest(broken, unique))
    finally:
        admitting.webhook.start()
    fault = f"FuseDriverClass {unique}"
    assert fault in admitting.webhook.call("/readyz")[1]
    assert (
        'sidemount_webhook_facts_kind_faults{kind="FuseDriverClass"} 1.0'
        in admitting.webhook.call("/metrics")[1]
    )
    found, _ = admitting.create(
        pod("reader", {"volume.sidemount.io/train": "dir:///srv/x?class=directory"}, ml)
    )
    assert ours(found) == ["sidemount-keeper", "sidemount-train"]
    told = admitting.refused(pod("other", {"volume.sidemount.io/train": f"dir:///srv/x?class={unique}"}, ml))
    assert unique in told
    assert "too many ways" in told

    admitting.api.run("label", "fdc", unique, "a=b")
    worse = {"spec": {"options": {"b": {"type": "string", "pattern": "(b+)+"}}}}
    with pytest.raises(KubectlFailed, match=r"classes\.sidemount\.io"):
        admitting.api.run("patch", "fdc", unique, "--type=merge", f"--patch={json.dumps(worse)}")
    right = {"spec": {"options": None}}
    admitting.api.run("patch", "fdc", unique, "--type=merge", f"--patch={json.dumps(right)}")
    assert wait_for(lambda: fault not in admitting.webhook.call("/readyz")[1], WAIT_S)
    admitting.create(pod("third", {"volume.sidemount.io/train": f"dir:///srv/x?class={unique}"}, ml))
    admitting.api.delete("fdc", unique)


def test_a_rule_of_a_later_release_leaves_what_is_there_alone(admitting: Admitting, unique: str) -> None:
    """Ratcheting: a field that breaks a new rule may stay as it is, and may not be changed to another that breaks it."""
    crd = yaml.safe_load(_TYPE.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    rules = spec["hungAfter"].pop("x-kubernetes-validations")
    long = manifest(_built_in(hungAfter="48h"), unique)
    admitting.webhook.end()
    try:
        apply(admitting.api, crd)
        assert wait_for(lambda: refusal(admitting.api, long, "--dry-run=server") == "", WAIT_S)
        admitting.api.create(long)
        spec["hungAfter"]["x-kubernetes-validations"] = rules
        apply(admitting.api, crd)
        long["metadata"]["name"] = f"{unique}-new"
        assert wait_for(lambda: refusal(admitting.api, long, "--dry-run=server"), WAIT_S)
    finally:
        apply(admitting.api, yaml.safe_load(_TYPE.read_text()))
        admitting.webhook.start()
    admitting.api.run("label", "fdc", unique, "a=b")
    longer = {"spec": {"hungAfter": "72h"}}
    with pytest.raises(KubectlFailed, match="is not between 1s and 24h"):
        admitting.api.run("patch", "fdc", unique, "--type=merge", f"--patch={json.dumps(longer)}")
    admitting.api.delete("fdc", unique)
