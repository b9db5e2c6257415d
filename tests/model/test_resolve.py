import json
from dataclasses import replace
from typing import Any

import pytest

from sidemount.model.command_template import render_command
from sidemount.model.driver_class import Abilities, DriverClass
from sidemount.model.errors import (
    Faults,
    InvalidRequest,
    PolicyDenied,
    Reason,
    UnknownDriverClass,
    Unsupported,
    VolumeError,
)
from sidemount.model.facts import ClaimFacts, NamespaceFacts, VolumeFacts
from sidemount.model.mountspec import MountSpec, decode_spec, encode_spec
from sidemount.model.requests import parse_annotations, parse_volume_context
from sidemount.model.resolve import ResolvedVolume, resolve
from sidemount.model.selector import LabelSelector
from sidemount.model.volume_request import Claim, Delivery, SourceUri, VolumeRequest
from tests.model.known_facts import ML, KnownFacts, all_classes

OURS = "csi.sidemount.io"
CLASSES = all_classes()
FACTS = KnownFacts(classes=CLASSES)
PLAIN = NamespaceFacts(name="plain")


def _request(**fields: Any) -> VolumeRequest:
    (request,) = parse_annotations({"sidemount.io/volumes": json.dumps([{"name": "train", **fields}])})
    return request


def _volume(**changes: Any) -> VolumeFacts:
    volume = VolumeFacts(
        name="pv-1",
        driver=OURS,
        handle="vol-1",
        access_modes=frozenset({"ReadWriteMany"}),
        attributes={"class": "datasets", "source": "dir:///srv/datasets/x", "subPath": "sessions"},
        claim=("ml", "data"),
    )
    return replace(volume, **changes)


def _facts(*volumes: VolumeFacts, **changes: Any) -> KnownFacts:
    claims = (
        ClaimFacts(namespace="ml", name="data", volume="pv-1"),
        ClaimFacts(namespace="ml", name="waiting"),
    )
    return replace(KnownFacts(classes=CLASSES, volumes=volumes, claims=claims), **changes)


def _refused(
    request: VolumeRequest, facts: KnownFacts = FACTS, namespace: NamespaceFacts = ML, **more: Any
) -> VolumeError:
    with pytest.raises(VolumeError) as raised:
        resolve(request, namespace, facts, **more)
    return raised.value


EXISTING = {"driver": OURS, "handle": "vol-1", "accessMode": "READ_WRITE_MANY"}


def test_a_source_becomes_the_spec_of_its_class() -> None:
    resolved = resolve(
        _request(source="dir:///srv/datasets/x", subPath="a", readOnly=True, options={"capacity": "1Gi"}),
        ML,
        FACTS,
    )
    assert resolved.driver_class.name == "datasets"
    assert resolved.spec == MountSpec(
        volume="train",
        driver_class="datasets",
        source="dir:///srv/datasets/x",
        filesystem="directory",
        sub_path="a",
        read_only=True,
        options=(("attributeTimeout", 1), ("capacity", 2**30)),
        descriptor=True,
        takeover=True,
        uid=0,
        hung_after_s=30,
    )
    assert decode_spec(encode_spec(resolved.spec)) == resolved.spec


def test_the_same_request_in_any_form_gives_the_same_spec() -> None:
    flat = {
        "class": "s3",
        "readOnly": "true",
        "subPath": "a/b",
        "secret": "keys",
        "region": "eu-1",
        "parallel": "4",
        "cacheBytes": "2Gi",
        "pathStyle": "true",
        "metadataTtl": "1m30s",
    }
    query = "&".join(f"{key}={value}" for key, value in flat.items())
    (short,) = parse_annotations({"volume.sidemount.io/train": f"s3://b/x?{query}"})
    listed = _request(
        source="s3://b/x",
        readOnly=True,
        subPath="a/b",
        secret="keys",
        options={
            "region": "eu-1",
            "parallel": 4,
            "cacheBytes": 2**31,
            "pathStyle": True,
            "metadataTtl": "90s",
        },
        **{"class": "s3"},
    )
    context = parse_volume_context(
        "train", {"source": "s3://b/x", **flat, "csi.storage.k8s.io/ephemeral": "true"}
    )
    specs = {resolve(request, PLAIN, FACTS).spec for request in (short, listed, context)}
    assert len(specs) == 1
    (spec,) = specs
    assert dict(spec.options) == {
        "cacheBytes": 2**31,
        "listing": "flat",
        "metadataTtl": 90,
        "parallel": 4,
        "pathStyle": True,
        "region": "eu-1",
    }


def test_an_external_command_is_rendered_except_for_the_mount_point() -> None:
    request = _request(
        source="rclone://remote/a b",
        secret="keys",
        options={"readAhead": "1Mi", "fast": True, "dirCacheTime": "5m"},
    )
    assert resolve(request, ML, FACTS).spec.command == (
        "rclone",
        "mount2",
        "rclone://remote/a b",
        "${mountpoint}",
        "--config",
        "/secrets/rclone.conf",
        "--cache-dir=/cache/vfs",
        "--vfs-cache-mode=off",
        "--dir-cache-time=300s",
        "--fast-list",
        "--vfs-read-ahead=1048576B",
    )


def test_what_a_value_holds_is_never_expanded_again() -> None:
    assert render_command(["x", "a${source}b", "${mountpoint}"], source="${mountpoint}", options=()) == (
        "x",
        "a${mountpoint}b",
        "${mountpoint}",
    )


@pytest.mark.parametrize(
    ("source", "namespace", "name"),
    [
        pytest.param("s3://b", PLAIN, "s3", id="by scheme"),
        pytest.param("dir:///srv/datasets", ML, "datasets", id="by path"),
        pytest.param("pvc://data-1", ML, "datasets", id="by claim"),
        pytest.param("s3://archive-1/x", PLAIN, "s3", id="of two, the one for this namespace"),
    ],
)
def test_the_only_class_that_serves_a_source_is_picked(
    source: str, namespace: NamespaceFacts, name: str
) -> None:
    assert (
        resolve(
            _request(source=source, secret="keys" if "s3" in source else ""), namespace, FACTS
        ).driver_class.name
        == name
    )


def test_of_several_classes_none_is_guessed() -> None:
    error = _refused(_request(source="s3://archive-1/x", secret="keys"))
    assert isinstance(error, UnknownDriverClass)
    assert error.reason is Reason.AMBIGUOUS_CLASS
    assert '"rclone", "s3"' in error.message
    assert (
        resolve(
            _request(source="s3://archive-1/x", secret="keys", **{"class": "s3"}), ML, FACTS
        ).driver_class.name
        == "s3"
    )


def test_an_unknown_class_is_answered_with_the_known_ones() -> None:
    """S0-01."""
    error = _refused(_request(source="s3://b", **{"class": "dataset"}))
    assert isinstance(error, UnknownDriverClass)
    assert error.reason is Reason.UNKNOWN_CLASS
    assert '"dataset"' in error.message
    assert 'did you mean "datasets"' in error.hint
    assert "rclone, s3" in error.hint


@pytest.mark.parametrize(
    ("fields", "kind", "reason", "told"),
    [
        pytest.param(
            {"source": "gs://b"},
            UnknownDriverClass,
            Reason.UNKNOWN_CLASS,
            'scheme "gs"',
            id="scheme of no class",
        ),
        pytest.param(
            {"source": "dir:///etc"},
            PolicyDenied,
            Reason.SOURCE_NOT_PERMITTED,
            "dir:///srv/datasets/**",
            id="outside the globs",
        ),
        pytest.param(
            {"source": "dir:///srv/datasetsx"},
            PolicyDenied,
            Reason.SOURCE_NOT_PERMITTED,
            "does not serve",
            id="beside the globs",
        ),
        pytest.param(
            {"source": "dir:///srv/datasets/x", "class": "s3", "secret": "k"},
            PolicyDenied,
            Reason.SOURCE_NOT_PERMITTED,
            "s3://**",
            id="source of another class",
        ),
        pytest.param(
            {"source": "s3://b"},
            PolicyDenied,
            Reason.CREDENTIALS_REQUIRED,
            "access-key-id",
            id="no credentials",
        ),
        pytest.param(
            {"source": "dir:///srv/datasets/x", "secret": "k"},
            InvalidRequest,
            Reason.INVALID_REQUEST,
            "reads no credentials",
            id="credentials for nothing",
        ),
        pytest.param(
            {"source": "s3://b", "secret": "k", "options": {"endpoint": "x"}},
            InvalidRequest,
            Reason.INVALID_OPTION,
            "endpoint",
            id="unknown option (S4-12)",
        ),
        pytest.param(
            {"source": "s3://b", "secret": "k", "options": {"parallel": "1e3"}},
            InvalidRequest,
            Reason.INVALID_OPTION,
            "parallel",
            id="bad value",
        ),
        pytest.param(
            {"source": "s3://b", "secret": "k", "options": {"secretAccessKey": "hunter2"}},
            InvalidRequest,
            Reason.INVALID_OPTION,
            "is a credential",
            id="credential as option",
        ),
        pytest.param(
            {"source": "dir:///srv/datasets/x", "resources": {"limits": {"cpu": 5}}},
            PolicyDenied,
            Reason.RESOURCES_EXCEEDED,
            '"5" is above "4"',
            id="more than the most",
        ),
        pytest.param(
            {"source": "dir:///srv/datasets/x", "resources": {"requests": {"ephemeral-storage": 1}}},
            PolicyDenied,
            Reason.RESOURCES_EXCEEDED,
            "leaves no ephemeral-storage",
            id="resource that the class leaves to nobody",
        ),
    ],
)
def test_what_the_allowlist_forbids_is_refused_with_its_reason(
    fields: dict[str, Any], kind: type[VolumeError], reason: Reason, told: str
) -> None:
    error = _refused(_request(**fields))
    assert isinstance(error, kind)
    assert error.reason is reason
    assert told in str(error)
    assert "hunter2" not in str(error)
    assert str(error).startswith('annotation "sidemount.io/volumes", entry 1 ("train")')


def test_resources_up_to_the_classs_bound_pass() -> None:
    request = _request(
        source="dir:///srv/datasets/x",
        resources={"requests": {"cpu": "4000m"}, "limits": {"cpu": 4, "memory": "4Gi"}},
    )
    assert resolve(request, ML, FACTS).request.resources.limits == {"cpu": "4", "memory": "4Gi"}


def test_a_namespace_that_the_class_is_not_for_is_refused() -> None:
    error = _refused(_request(source="dir:///srv/datasets/x"), namespace=PLAIN)
    assert error.reason is Reason.NAMESPACE_NOT_PERMITTED
    assert '"plain"' in str(error)


def test_every_fault_is_told_at_once_policy_first() -> None:
    request = _request(
        source="dir:///etc",
        secret="k",
        options={"nope": 1, "capacity": "x"},
        resources={"limits": {"cpu": 9}},
        **{"class": "datasets"},
    )
    error = _refused(request, namespace=PLAIN)
    assert isinstance(error, Faults)
    assert error.reason is Reason.NAMESPACE_NOT_PERMITTED
    assert [fault.reason for fault in error.faults] == [
        Reason.NAMESPACE_NOT_PERMITTED,
        Reason.SOURCE_NOT_PERMITTED,
        Reason.INVALID_REQUEST,
        Reason.RESOURCES_EXCEEDED,
        Reason.INVALID_OPTION,
        Reason.INVALID_OPTION,
    ]


def test_an_unsupplied_request_is_not_for_here() -> None:
    assert isinstance(_refused(_request(optional=True)), InvalidRequest)


# Claims --------------------------------------------------------------------------------------------------


def _resolved_claim(volume: VolumeFacts, **fields: Any) -> ResolvedVolume:
    return resolve(_request(claim="data", **fields), ML, _facts(volume))


def test_a_claim_is_served_as_its_volume_says() -> None:
    """S2-15, S3-12."""
    resolved = _resolved_claim(_volume(), subPath="a")
    assert resolved.spec.source == "dir:///srv/datasets/x"
    assert resolved.spec.sub_path == "sessions/a"
    assert resolved.request.origin == Claim("data")
    assert resolved.volume == _volume()


def test_the_volumes_own_and_the_cos_attributes_are_told_apart() -> None:
    attributes = {
        **_volume().attributes,
        "storage.kubernetes.io/csiProvisionerIdentity": "1-x",
        "csi.storage.k8s.io/pv/name": "pv-1",
        "capacity": "1Gi",
        "delivery": "csi",
    }
    resolved = _resolved_claim(_volume(attributes=attributes))
    assert dict(resolved.spec.options)["capacity"] == 2**30
    assert resolved.request.delivery is Delivery.CSI


@pytest.mark.parametrize(
    ("changes", "fields", "is_read_only"),
    [
        pytest.param({}, {}, False, id="neither"),
        pytest.param({}, {"readOnly": True}, True, id="the request"),
        pytest.param({"read_only": True}, {}, True, id="the volume's source"),
        pytest.param({"access_modes": frozenset({"ReadOnlyMany"})}, {}, True, id="its only access mode"),
        pytest.param(
            {"access_modes": frozenset({"ReadOnlyMany", "ReadWriteMany"})},
            {},
            False,
            id="one of its access modes",
        ),
        pytest.param({"access_modes": frozenset()}, {}, False, id="no access modes"),
        pytest.param({"mount_options": ("ro",)}, {}, True, id="mountOptions"),
        pytest.param(
            {"attributes": {**_volume().attributes, "readOnly": "true"}}, {}, True, id="an attribute"
        ),
    ],
)
def test_anyone_may_make_it_read_only_and_none_may_undo_it(
    changes: dict[str, Any], fields: dict[str, Any], is_read_only: bool
) -> None:
    resolved = _resolved_claim(_volume(**changes), **fields)
    assert resolved.spec.read_only is is_read_only
    assert resolved.request.read_only is is_read_only


@pytest.mark.parametrize(
    ("fields", "volumes", "kind", "reason", "told"),
    [
        pytest.param(
            {"claim": "nope"},
            (_volume(),),
            PolicyDenied,
            Reason.CLAIM_NOT_FOUND,
            "no such PersistentVolumeClaim",
            id="no such claim",
        ),
        pytest.param(
            {"claim": "waiting"},
            (_volume(),),
            PolicyDenied,
            Reason.CLAIM_NOT_FOUND,
            "not bound",
            id="unbound",
        ),
        pytest.param({"claim": "data"}, (), PolicyDenied, Reason.CLAIM_NOT_OURS, "pv-1", id="volume unknown"),
        pytest.param(
            {"claim": "data"},
            (_volume(driver="nfs.csi.k8s.io"),),
            PolicyDenied,
            Reason.CLAIM_NOT_OURS,
            "nfs.csi.k8s.io",
            id="another driver (S0-01)",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(claim=("other", "data")),),
            PolicyDenied,
            Reason.CLAIM_NOT_FOUND,
            "other/data",
            id="bound to another claim",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(attributes={}),),
            Unsupported,
            Reason.UNSUPPORTED,
            "no attribute source",
            id="provisioned volume",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(attributes={"source": ""}),),
            InvalidRequest,
            Reason.INVALID_REQUEST,
            "pv-1",
            id="empty source",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(attributes={"source": "x", "readOnly": "yes"}),),
            Faults,
            Reason.INVALID_REQUEST,
            'PersistentVolume "pv-1": volume context',
            id="bad attributes",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(attributes={"source": "dir:///srv/datasets/x", "image": "evil"}),),
            Faults,
            Reason.INVALID_REQUEST,
            "only the admin's",
            id="image by attribute (S0-25)",
        ),
        pytest.param(
            {"claim": "data", "class": "s3"},
            (_volume(),),
            InvalidRequest,
            Reason.INVALID_REQUEST,
            'class "s3" differs from "datasets"',
            id="another class",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(attributes={"source": "dir:///etc", "class": "datasets"}),),
            PolicyDenied,
            Reason.SOURCE_NOT_PERMITTED,
            "dir:///etc",
            id="volume outside the globs",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(mount_options=("ro,allow_other",)),),
            InvalidRequest,
            Reason.INVALID_OPTION,
            "ro,allow_other",
            id="smuggled mount option (S4-12)",
        ),
        pytest.param(
            {"claim": "data"},
            (_volume(mount_options=("capacity",)),),
            InvalidRequest,
            Reason.INVALID_OPTION,
            "needs a value",
            id="mount option without its value",
        ),
        pytest.param(
            {"claim": "data", "options": {"capacity": "1Gi"}},
            (_volume(mount_options=("capacity=1Gi",)),),
            InvalidRequest,
            Reason.INVALID_OPTION,
            "twice",
            id="option of both",
        ),
    ],
)
def test_claims_are_refused_with_their_reason(
    fields: dict[str, Any],
    volumes: tuple[VolumeFacts, ...],
    kind: type[VolumeError],
    reason: Reason,
    told: str,
) -> None:
    error = _refused(_request(**fields), _facts(*volumes))
    assert isinstance(error, kind)
    assert error.reason is reason
    assert told in str(error)


def test_mount_options_of_a_volume_go_through_the_same_allowlist() -> None:
    resolved = _resolved_claim(_volume(mount_options=("ro", "capacity=2Gi")))
    assert dict(resolved.spec.options)["capacity"] == 2**31
    assert resolved.spec.read_only


def test_a_claim_of_another_namespace_is_not_seen() -> None:
    elsewhere = NamespaceFacts(name="elsewhere", labels={"team": "ml"})
    assert _refused(_request(claim="data"), _facts(_volume()), elsewhere).reason is Reason.CLAIM_NOT_FOUND


def test_secrets_of_volume_and_request_must_agree() -> None:
    attributes = {"source": "s3://b", "secret": "keys"}
    assert _resolved_claim(_volume(attributes=attributes)).request.secret == "keys"
    assert _resolved_claim(_volume(attributes=attributes), secret="keys").request.secret == "keys"
    assert _resolved_claim(_volume(attributes={"source": "s3://b"}), secret="mine").request.secret == "mine"
    assert "differs" in str(
        _refused(_request(claim="data", secret="mine"), _facts(_volume(attributes=attributes)))
    )


# Existing volumes ----------------------------------------------------------------------------------------


def test_an_existing_volume_at_a_sub_path() -> None:
    """S2-07, S2-15."""
    resolved = resolve(_request(existing=EXISTING, subPath="a"), ML, _facts(_volume()))
    assert (resolved.spec.source, resolved.spec.sub_path) == ("dir:///srv/datasets/x", "sessions/a")
    assert not resolved.spec.read_only


@pytest.mark.parametrize(
    ("modes", "permitted"),
    [
        pytest.param({"ReadWriteMany"}, {"READ_WRITE_MANY", "READ_ONLY_MANY"}, id="RWX"),
        pytest.param({"ReadOnlyMany"}, {"READ_ONLY_MANY"}, id="ROX"),
        pytest.param({"ReadWriteOnce"}, set(), id="RWO"),
        pytest.param({"ReadWriteOncePod"}, set(), id="RWOP"),
        pytest.param({"ReadWriteOnce", "ReadOnlyMany"}, {"READ_ONLY_MANY"}, id="RWO and ROX"),
        pytest.param(set(), set(), id="none"),
    ],
)
def test_access_modes_permit_what_they_name(modes: set[str], permitted: set[str]) -> None:
    """S2-12, S2-13."""
    facts = _facts(_volume(access_modes=frozenset(modes)))
    for mode in ("READ_WRITE_MANY", "READ_ONLY_MANY"):
        request = _request(existing={**EXISTING, "accessMode": mode})
        if mode in permitted:
            assert resolve(request, ML, facts).spec.read_only is (
                mode == "READ_ONLY_MANY" or modes == {"ReadOnlyMany"}
            )
        else:
            error = _refused(request, facts)
            assert error.reason is Reason.ACCESS_MODE
            assert f'PersistentVolume "pv-1" permits [{", ".join(sorted(modes))}], not {mode}' in str(error)


@pytest.mark.parametrize(
    ("existing", "volumes", "more", "reason", "told"),
    [
        pytest.param(
            {"driver": "nope.example"},
            (_volume(driver="nope.example"),),
            {},
            Reason.UNKNOWN_DRIVER,
            'unknown driver "nope.example"',
            id="driver (S2-10)",
        ),
        pytest.param(
            {"handle": "vol-2"},
            (_volume(),),
            {},
            Reason.NO_SUCH_VOLUME,
            f'no PersistentVolume of driver "{OURS}" holds volume "vol-2"',
            id="handle (S2-11)",
        ),
        pytest.param(
            {},
            (_volume(driver="other.example"),),
            {},
            Reason.NO_SUCH_VOLUME,
            "no PersistentVolume of driver",
            id="handle of another driver (S2-11)",
        ),
        pytest.param(
            {},
            (_volume(),),
            {"existing_enabled": False},
            Reason.EXISTING_DISABLED,
            "disabled",
            id="switched off (S2-34)",
        ),
        pytest.param(
            {},
            (_volume(attributes={}),),
            {},
            Reason.UNSUPPORTED,
            "no attribute source",
            id="provisioned volume",
        ),
    ],
)
def test_references_are_refused_at_create(
    existing: dict[str, str],
    volumes: tuple[VolumeFacts, ...],
    more: dict[str, bool],
    reason: Reason,
    told: str,
) -> None:
    error = _refused(_request(existing={**EXISTING, **existing}), _facts(*volumes), ML, **more)
    assert error.reason is reason
    assert told in str(error)


def test_of_several_volumes_with_the_handle_one_that_permits_is_taken() -> None:
    once = _volume(name="pv-0", access_modes=frozenset({"ReadWriteOnce"}))
    for volumes in ((once, _volume()), (_volume(), once)):
        resolved = resolve(_request(existing=EXISTING), ML, _facts(*volumes))
        assert resolved.volume == _volume()


def test_the_switch_for_existing_volumes_leaves_the_others_alone() -> None:
    """S2-34."""
    request = _request(source="dir:///srv/datasets/x")
    assert resolve(request, ML, FACTS, existing_enabled=False).spec == resolve(request, ML, FACTS).spec


def test_a_class_that_is_off_still_says_so_by_name() -> None:
    """The delivery decision refuses it; here it must not look like an unknown one."""
    request = _request(source="s3fs://b", secret="k")
    assert resolve(request, PLAIN, FACTS).driver_class.deliveries == ()


def test_no_class_at_all() -> None:
    assert "known classes: none" in str(_refused(_request(source="s3://b"), KnownFacts()))


def test_several_classes_of_the_scheme_tell_what_they_serve() -> None:
    def narrow(name: str) -> DriverClass:
        return DriverClass(
            name=name,
            deliveries=(Delivery.SIDECAR,),
            sources=(f"x://{name}/**",),
            namespaces=LabelSelector(),
            filesystem="objects",
        )

    facts = KnownFacts(classes={"a": narrow("a"), "b": narrow("b")})
    error = _refused(replace(_request(source="x://c/d"), origin=SourceUri("x://c/d")), facts)
    assert error.reason is Reason.SOURCE_NOT_PERMITTED
    assert "a: x://a/**; b: x://b/**" in str(error)


def test_a_client_that_mounts_by_itself_is_root_whatever_delivers_it() -> None:
    """CSI and webhook give the same MountSpec for the same request."""
    datasets = replace(CLASSES["datasets"], abilities=Abilities(descriptor=False), uid=1000)
    facts = KnownFacts(classes={"datasets": datasets})
    assert resolve(_request(source="dir:///srv/datasets/x"), ML, facts).spec.uid == 0
