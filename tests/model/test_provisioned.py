from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import Faults, PolicyDenied, Reason, VolumeError
from sidemount.model.facts import ClaimFacts, VolumeFacts
from sidemount.model.mountspec import MountSpec, decode_spec, encode_spec
from sidemount.model.provisioned import pool_reached, provisioned_id_fault, provisioned_source
from sidemount.model.requests import parse_annotations, parse_volume_context
from sidemount.model.resolve import resolve
from sidemount.model.source_uri import source_fault
from sidemount.model.volume_request import Claim, VolumeRequest
from tests.model.known_facts import ML, KnownFacts, all_classes

CLASSES = all_classes()
POOL = replace(CLASSES["datasets"], name="pool", sources=("dir:///srv/pool",), provisions=True)
POOLS = replace(POOL, name="pools", sources=("dir:///mnt/pools/*", "dir:///deep/**"))
BUCKET = replace(
    CLASSES["s3"], name="bucket", sources=("s3://b/pool", "gs://g/team-*/pool"), provisions=True, options={}
)
OPEN = replace(CLASSES["s3"], name="open", sources=("s3://**", "gs://**", "file:///**"), options={})
WIDE = replace(CLASSES["datasets"], name="wide", sources=("dir:///**",))
FACTS = KnownFacts(
    classes={**CLASSES, "pool": POOL, "pools": POOLS, "wide": WIDE, "bucket": BUCKET, "open": OPEN}
)
CONTEXT = {"class": "pool", "source": "dir:///srv/pool", "volume": "pvc-1"}
INLINE = {"csi.storage.k8s.io/ephemeral": "true"}


def _of_context(**context: str) -> VolumeRequest:
    return parse_volume_context("train", {**CONTEXT, **context})


def _refused(request: VolumeRequest, facts: KnownFacts = FACTS) -> VolumeError:
    with pytest.raises(VolumeError) as raised:
        resolve(request, ML, facts)
    return raised.value


def test_a_provisioned_volume_is_served_from_its_place_in_the_pool() -> None:
    spec = resolve(_of_context(subPath="a/b", attributeTimeout="5s"), ML, FACTS).spec
    assert spec == MountSpec(
        volume="train",
        driver_class="pool",
        source="dir:///srv/pool/volumes/pvc-1",
        filesystem="volume",
        sub_path="a/b",
        options=(("attributeTimeout", 5),),
        takeover=True,
        uid=0,
    )
    assert decode_spec(encode_spec(spec)) == spec


def test_the_class_of_a_provisioned_volume_is_found_by_its_pool() -> None:
    """A class that serves the same path to everybody is no choice for it."""
    request = parse_volume_context("train", {"source": "dir:///srv/pool", "volume": "pvc-1"})
    assert resolve(request, ML, FACTS).driver_class is POOL


def test_a_claim_of_a_provisioned_volume_gives_the_same_spec() -> None:
    volume = VolumeFacts(
        name="pv",
        driver="csi.sidemount.io",
        handle="pvc-1",
        access_modes=frozenset({"ReadWriteMany"}),
        attributes={**CONTEXT, "storage.kubernetes.io/csiProvisionerIdentity": "1-2-csi.sidemount.io"},
        claim=("ml", "data"),
    )
    facts = replace(FACTS, volumes=(volume,), claims=(ClaimFacts(namespace="ml", name="data", volume="pv"),))
    request = VolumeRequest(name="train", origin=Claim("data"), where="spec.volumes[0]")
    assert resolve(request, ML, facts).spec == resolve(_of_context(), ML, FACTS).spec


@pytest.mark.parametrize("id_", ["pvc-1", "a", "..a", "...", "A_b.c-9", "-x", "x" * 128])
def test_ids_that_name_a_directory(id_: str) -> None:
    """S4-22."""
    assert provisioned_id_fault(id_) == ""
    assert resolve(_of_context(volume=id_), ML, FACTS).spec.source == f"dir:///srv/pool/volumes/{id_}"


@pytest.mark.parametrize(
    "id_", [".", "..", "a/b", "../x", "/", "a b", "x" * 129, "\u00e4", "a\n", "a\0", "%2e%2e", "$(A)"]
)
def test_ids_that_do_not(id_: str) -> None:
    """S4-22."""
    with pytest.raises(Faults, match='field "volume"'):
        _of_context(volume=id_)


@given(pool=st.sampled_from(["dir:///", "dir:///p", "dir:///p/q r"]), id_=st.text(max_size=130))
def test_whatever_passes_as_an_id_makes_a_source_of_one_more_directory(pool: str, id_: str) -> None:
    if not provisioned_id_fault(id_):
        source = provisioned_source(pool, id_)
        assert source_fault(source) == ""
        assert source.rpartition("/")[2] == id_
        assert source.startswith(f"{pool.removesuffix('/')}/volumes/")


def test_a_volume_without_its_pool_is_refused() -> None:
    with pytest.raises(Faults, match="the pool that the volume is in"):
        parse_volume_context("train", {"class": "pool", "volume": "pvc-1", "optional": "true"})


def test_a_class_that_does_not_provision_has_no_volumes() -> None:
    fault = _refused(_of_context(**{"class": "wide", "source": "dir:///home"}))
    assert isinstance(fault, PolicyDenied)
    assert fault.reason is Reason.NOT_PROVISIONED
    assert '"wide" provisions no volumes' in fault.message
    assert "provisions: true" in fault.hint


def test_a_pool_that_the_class_does_not_list_is_refused() -> None:
    fault = _refused(_of_context(source="dir:///srv/other"))
    assert fault.reason is Reason.SOURCE_NOT_PERMITTED


@pytest.mark.parametrize(
    ("source", "classname"),
    [
        pytest.param("dir:///srv/pool", "pool", id="the pool"),
        pytest.param("dir:///srv/pool", "wide", id="the pool by another class"),
        pytest.param("dir:///srv/pool", "", id="the pool by no class"),
        pytest.param("dir:///srv/pool/volumes/pvc-1/data", "wide", id="a volume by its path"),
        pytest.param("dir:///srv", "wide", id="around the pool"),
        pytest.param("dir:///", "wide", id="the whole node"),
        pytest.param("dir:///mnt/pools", "wide", id="around pools by a glob"),
        pytest.param("dir:///mnt", "wide", id="far around pools by a glob"),
        pytest.param("dir:///mnt/pools/a/volumes", "wide", id="within a pool by a glob"),
        pytest.param("dir:///deep/a/b", "wide", id="within a deep glob"),
        pytest.param("dir:///deep", "wide", id="where a deep glob begins"),
        pytest.param("s3://b/pool", "bucket", id="a pool in a bucket"),
        pytest.param("s3://b/pool/", "open", id="the same as a prefix, by another class"),
        pytest.param("s3://b/pool/volumes/v.0/x", "open", id="a volume in a bucket by its keys"),
        pytest.param("s3://b/pool/.sidemount", "open", id="the records of a pool in a bucket"),
        pytest.param("s3://b", "open", id="the whole bucket"),
        pytest.param("s3://b/", "open", id="the whole bucket as a prefix"),
        pytest.param("s3://B/pool", "open", id="a bucket in capitals"),
        pytest.param("s3://b/p%6Fol/x", "open", id="a pool behind an escape"),
        pytest.param("s3://me@b:80/pool", "open", id="a bucket with more around it"),
        pytest.param("gs://g/team-a", "open", id="around a pool by a glob in the middle"),
        pytest.param("file:///srv/pool/volumes/v", "open", id="a directory's pool by another scheme"),
    ],
)
def test_nobody_names_a_pool_by_its_path(source: str, classname: str) -> None:
    entry = {"source": source, "class": classname} if classname else {"source": source}
    of_context = parse_volume_context("train", entry)
    (of_annotation,) = parse_annotations(
        {"volume.sidemount.io/train": source + (f"?class={classname}" if classname else "")}
    )
    for request in (of_context, of_annotation):
        fault = _refused(request)
        told = fault.faults[0] if isinstance(fault, Faults) else fault
        assert any(
            f.reason is Reason.PROVISIONED_ONLY and "PersistentVolumeClaim" in f.hint
            for f in (fault.faults if isinstance(fault, Faults) else (told,))
        ), fault


@pytest.mark.parametrize(
    "source",
    [
        *("dir:///srv/pool2", "dir:///srv/poo", "dir:///mnt/pools2/a", "dir:///home"),
        *(
            "s3://b/pool2",
            "s3://b/poo",
            "s3://b2/pool",
            "gs://b/pool",
            "gs://g/teams/pool",
            "gs://g/team-a/x",
        ),
    ],
)
def test_a_neighbour_of_a_pool_is_free(source: str) -> None:
    assert pool_reached(source, FACTS.classes.values()) is None
    name = "wide" if source.startswith("dir:") else "open"
    (request,) = parse_annotations({"volume.sidemount.io/train": f"{source}?class={name}&secret=s"})
    if name == "wide":
        request = replace(request, secret="")
    assert resolve(request, ML, FACTS).spec.source == source


def test_a_provisioned_volume_in_a_bucket_is_served_from_its_prefix() -> None:
    """By the class's own filesystem: there is no budget."""
    context = {"class": "bucket", "source": "s3://b/pool", "volume": "pvc-1.0a", "secret": "s"}
    spec = resolve(parse_volume_context("train", context), ML, FACTS).spec
    assert (spec.source, spec.filesystem) == ("s3://b/pool/volumes/pvc-1.0a", "objects")


def test_a_pod_declares_no_provisioned_volume_inline() -> None:
    """The kubelet says that the volume is the pod's own, whatever the pod wrote."""
    fault = _refused(_of_context(**INLINE))
    assert isinstance(fault, PolicyDenied)
    assert fault.reason is Reason.PROVISIONED_ONLY
    assert (
        resolve(_of_context(**{"csi.storage.k8s.io/ephemeral": "false"}), ML, FACTS).spec.filesystem
        == "volume"
    )


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"volume.sidemount.io/a": "dir:///srv/pool?volume=pvc-1"}, id="short form"),
        pytest.param(
            {"sidemount.io/volumes": '[{"name": "a", "source": "dir:///srv/pool", "volume": "pvc-1"}]'},
            id="list form",
        ),
        pytest.param({"sidemount.io/volumes": '[{"name": "a", "claim": "c", "volume": null}]'}, id="null"),
    ],
)
def test_an_annotation_names_no_provisioned_volume(annotations: dict[str, str]) -> None:
    with pytest.raises(Faults) as raised:
        parse_annotations(annotations)
    (fault,) = raised.value.faults
    assert fault.reason is Reason.PROVISIONED_ONLY
    assert fault.hint == "use a PersistentVolumeClaim"


@given(
    context=st.dictionaries(
        st.sampled_from(["class", "source", "volume", "subPath", "optional", *INLINE]),
        st.one_of(
            st.text(max_size=20),
            st.sampled_from(
                ["pool", "wide", "dir:///srv/pool", "dir:///srv", "pvc-1", "..", "true", "a/../b"]
            ),
        ),
    )
)
def test_no_context_leaves_the_pool(context: dict[str, Any]) -> None:
    try:
        spec = resolve(parse_volume_context("train", context), ML, FACTS).spec
    except VolumeError:
        return
    if spec.filesystem == "volume":
        assert spec.source.startswith("dir:///srv/pool/volumes/")
        assert spec.source.count("/") == 6
        assert context.get("csi.storage.k8s.io/ephemeral") != "true"
    else:
        assert pool_reached(spec.source, FACTS.classes.values()) is None
