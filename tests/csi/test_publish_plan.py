"""What a publish comes to, without a node: the same MountSpec as by a sidecar, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from csi.access_modes import AccessMode
from csi.event_subject import PodRef, pod_of
from csi.publish_plan import Step, plan_publish
from csi.publish_request import PublishRequest
from csi.records import RecordStore, Stage, decode_record, encode_record
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.errors import VolumeError
from sidemount.model.facts import Facts, NamespaceFacts
from sidemount.model.mountspec import MountSpec
from sidemount.model.requests import parse_annotations
from sidemount.model.resolve import resolve
from webhook.csi_volume import csi_source

_CLASSES = """
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: directory}
spec:
  deliveries: [sidecar, csi]
  sources: ["dir:///**"]
  namespaces: {matchLabels: {team: ml}}
  filesystem: directory
  options:
    attributeTimeout: {type: duration, max: 1h, default: 1s}
    writeback: {type: flag}
  credentials: {secretKeys: [token]}
---
apiVersion: v1
kind: Namespace
metadata: {name: ml, labels: {team: ml}}
"""
_POD = {
    "csi.storage.k8s.io/pod.namespace": "ml",
    "csi.storage.k8s.io/pod.name": "p.1",
    "csi.storage.k8s.io/pod.uid": "0000-aa",
}
_ASKED = [
    "dir:///srv/data",
    "dir:///srv/data?readOnly=true",
    "dir:///srv/data?subPath=a/b&attributeTimeout=5s",
    "dir:///srv/d ata?class=directory&writeback=true&secret=s",
]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Return a class and a namespace."""
    (tmp_path / "facts.yaml").write_text(_CLASSES)
    facts = FactsDirectory(tmp_path).facts()
    assert facts.faults() == ()
    return facts


@pytest.mark.parametrize("asked", _ASKED)
def test_an_inline_volume_of_the_webhook_s_gives_the_mount_spec_of_the_sidecar(
    facts: Facts, asked: str
) -> None:
    """Design: for the same request both shells produce the same MountSpec; only the name on the node is another."""
    (request,) = parse_annotations({"volume.sidemount.io/train": asked})
    resolved = resolve(request, NamespaceFacts(name="ml", labels={"team": "ml"}), facts)
    source = csi_source(resolved)["csi"]
    context = {**source["volumeAttributes"], "csi.storage.k8s.io/pod.namespace": "ml"}
    secrets = {"token": "t"} if "nodePublishSecretRef" in source else {}
    made = plan_publish(
        _request(context, read_only=source.get("readOnly", False), secrets=secrets), "/t", facts, "/run"
    )
    assert _renamed(made.record.spec) == _renamed(resolved.spec)
    assert made.secrets == secrets
    assert made.steps == tuple(Step)


def test_mount_flags_and_context_options_are_the_same_thing(facts: Facts) -> None:
    """S4-12."""
    context = {"source": "dir:///srv", "csi.storage.k8s.io/pod.namespace": "ml"}
    by_flag = plan_publish(
        _request(context, flags=("attributeTimeout=5s", "writeback", "ro")), "/t", facts, "/run"
    )
    by_context = plan_publish(
        _request({**context, "attributeTimeout": "5s", "writeback": "true"}, read_only=True),
        "/t",
        facts,
        "/run",
    )
    assert by_flag.record.spec == by_context.record.spec
    assert by_flag.record.arguments != by_context.record.arguments


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ({"source": "dir:///srv", "csi.storage.k8s.io/pod.namespace": "other"}, "not for namespace"),
        ({"source": "dir:///srv"}, "not for namespace"),
        ({"source": "dir:///srv", "delivery": "sidecar"}, 'volume_context of "vol"'),
        ({"source": "dir:///srv", "subPath": "../x"}, 'volume_context of "vol"'),
        ({"source": ""}, "vol"),
    ],
)
def test_refusals_name_the_volume(facts: Facts, context: dict[str, str], told: str) -> None:
    with pytest.raises(VolumeError, match=told):
        plan_publish(_request(context), "/t", facts, "/run")


def test_a_record_survives_its_file_and_one_that_cannot_be_read_is_left_alone(
    facts: Facts, tmp_path: Path
) -> None:
    record = plan_publish(_request({"source": "dir:///srv", **_POD}), "/targets/ü t", facts, "/run").record
    assert record.consumer == PodRef(namespace="ml", name="p.1", uid="0000-aa")
    assert decode_record(encode_record(record)) == record
    store = RecordStore(str(tmp_path / "targets"))
    store.write(record)
    store.write(record.at(Stage.PUBLISHED, made=True))
    (tmp_path / "targets" / "csi-torn.json.new").write_text("{")
    (tmp_path / "targets" / "csi-newer.json").write_text('{"version": 2}')
    assert RecordStore(str(tmp_path / "targets")).load() == [record.at(Stage.PUBLISHED, made=True)]
    assert sorted(path.name for path in (tmp_path / "targets").iterdir()) == sorted(
        [f"{record.name}.json", "csi-newer.json"]
    )
    store.remove(record)
    store.remove(record)
    assert store.load() == []


@pytest.mark.parametrize(
    "part",
    [
        {"csi.storage.k8s.io/pod.namespace": "../../../api/v1/namespaces/kube-system"},
        {"csi.storage.k8s.io/pod.name": "p?x=y"},
        {"csi.storage.k8s.io/pod.name": ""},
        {"csi.storage.k8s.io/pod.uid": "a/b"},
    ],
)
def test_what_can_be_no_pod_is_none(part: dict[str, str]) -> None:
    """A volume's own attributes may say so where kubelet adds none: nobody is told of it then, and nothing else depends on it."""
    assert pod_of({**_POD, **part}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', '{"version": true}'])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(VolumeError):
        decode_record(text)


def _request(
    context: dict[str, str],
    *,
    read_only: bool = False,
    flags: tuple[str, ...] = (),
    secrets: dict[str, str] | None = None,
) -> PublishRequest:
    return PublishRequest(
        volume_id="vol",
        target="/t",
        mode=AccessMode.SINGLE_NODE_WRITER,
        read_only=read_only or "ro" in flags,
        flags=flags,
        context=context,
        secrets=secrets or {},
    )


def _renamed(spec: MountSpec) -> MountSpec:
    return replace(spec, volume="same")
