"""References to volumes that outlive the pod, S2: served at a sub-path, or refused at create with the reason, on a real API server."""

import json
from typing import Any

import pytest

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.tests.admission.admitting import Admitting, ours, pod, volume

_DRIVER = "csi.sidemount.io"


def _reference(handle: str, mode: str = "READ_WRITE_MANY", driver: str = _DRIVER, **fields: Any) -> Json:
    return {
        "name": "train",
        "existing": {"driver": driver, "handle": handle, "accessMode": mode},
        **fields,
    }


def _asking(namespace: str, *entries: Json, **spec: Any) -> Json:
    return pod("reader", {"sidemount.io/volumes": json.dumps(list(entries))}, namespace, **spec)


def _mounts(found: Json) -> list[Json]:
    """Return what the keeper is told."""
    (keeper, *_) = found["spec"]["initContainers"]
    mounts: list[Json] = json.loads(keeper["env"][0]["value"])["mounts"]
    return mounts


def test_S2_01_S2_07_S2_36_one_volume_twice_in_a_pod(admitting: Admitting, ml: str) -> None:
    """A directory of one's own to write, another to read; the reference's sub-path is the root of the mount's."""
    admitting.api.create(volume(ml, handle=f"h-{ml}"))
    listed = (
        _reference(f"h-{ml}", subPath="sessions", name="own"),
        _reference(f"h-{ml}", "READ_ONLY_MANY", subPath="mirrors", name="shared"),
    )
    mounts = [
        {"name": "own", "mountPath": "/own", "subPath": "a"},
        {"name": "shared", "mountPath": "/shared", "readOnly": True},
    ]
    app = {"name": "app", "image": "i", "volumeMounts": mounts}
    volumes: list[Json] = [{"name": name, "emptyDir": {}} for name in ("own", "shared")]
    found, _ = admitting.create(_asking(ml, *listed, containers=[app], volumes=volumes))
    own, shared = _mounts(found)
    assert (own["spec"]["source"], own["spec"]["subPath"]) == (f"dir:///srv/{ml}", "sessions")
    assert [view["subPath"] for view in own["views"]] == ["a"]
    assert (shared["spec"]["subPath"], shared["spec"]["readOnly"]) == ("mirrors", True)
    # S2-31: the container's own mount is read-only too.
    (container,) = found["spec"]["containers"]
    assert [mount.get("readOnly", False) for mount in container["volumeMounts"]] == [False, True]


@pytest.mark.parametrize(
    ("modes", "asked", "is_permitted"),
    [
        (["ReadWriteMany"], "READ_WRITE_MANY", True),
        (["ReadWriteMany"], "READ_ONLY_MANY", True),
        (["ReadOnlyMany"], "READ_ONLY_MANY", True),
        (["ReadOnlyMany"], "READ_WRITE_MANY", False),
        (["ReadWriteOnce"], "READ_WRITE_MANY", False),
        (["ReadWriteOnce"], "READ_ONLY_MANY", False),
        (["ReadWriteOncePod"], "READ_ONLY_MANY", False),
        (["ReadWriteOnce", "ReadOnlyMany"], "READ_ONLY_MANY", True),
    ],
)
def test_S2_12_S2_13_the_volume_says_which_mode_it_permits(
    admitting: Admitting, ml: str, modes: list[str], asked: str, is_permitted: bool
) -> None:
    admitting.api.create(volume(ml, handle=f"h-{ml}", modes=modes))
    told = admitting.refused(_asking(ml, _reference(f"h-{ml}", asked)))
    if is_permitted:
        assert told == ""
    else:
        assert f'PersistentVolume "{ml}" permits [{", ".join(sorted(modes))}], not {asked}' in told
        assert "AccessMode" in told


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        pytest.param(_reference("nobody-s"), 'no PersistentVolume of driver "csi.sidemount.io" holds volume "nobody-s"', id="S2_11_S2_40_no_volume"),
        pytest.param(_reference("far"), 'holds volume "far"', id="S2_11_the_handle_of_another_driver"),
        pytest.param(_reference("far", driver="other.example"), 'unknown driver "other.example"', id="S2_10_S2_40_driver"),
        pytest.param(_reference("h", "READ_WRITE_ONCE"), '"READ_WRITE_ONCE" is not a choice', id="S2_04_mode"),
        pytest.param(_reference(""), '"existing.handle"', id="S2_04_no_handle"),
        pytest.param(_reference("h", driver=""), '"existing.driver"', id="S2_04_no_driver"),
        pytest.param(_reference("h", subPath="../x"), "subPath", id="S2_08_out_of_the_volume"),
        pytest.param(_reference("h", subPath="/x"), "subPath", id="S2_08_absolute"),
        pytest.param(_reference("h", name="other"), 'declares no volume "other"', id="S2_09_not_declared"),
    ],
)  # fmt: skip
def test_S2_09_to_12_what_cannot_be_is_refused_at_create(
    admitting: Admitting, ml: str, reference: Json, why: str
) -> None:
    """Never when it is mounted."""
    admitting.api.create(volume(ml, handle=f"h-{ml}"))
    admitting.api.create(volume(f"{ml}-far", handle="far", driver="other.example"))
    existing = reference["existing"]
    if existing["handle"] == "h":
        reference = {**reference, "existing": {**existing, "handle": f"h-{ml}"}}
    told = admitting.refused(_asking(ml, reference))
    assert why in told


def test_S2_02_S2_03_a_mount_needs_a_volume_that_is_declared_for_it(admitting: Admitting, ml: str) -> None:
    """An empty marker: of any other kind, or of none, nothing is made."""
    admitting.api.create(volume(ml, handle=f"h-{ml}"))
    reference = _reference(f"h-{ml}")
    taken = [{"name": "train", "configMap": {"name": "books"}}]
    told = admitting.refused(_asking(ml, reference, volumes=taken))
    assert 'volume "train" of spec.volumes is a configMap, not an emptyDir' in told
    assert "NameCollision" in told
    for mount, why in (
        ({"name": "other", "subPath": "a"}, 'volumeMounts[0].name: Not found: "other"'),
        ({"name": "train", "subPathExpr": "$(A)"}, "SubPathExpr"),
    ):
        app = {"name": "app", "image": "i", "volumeMounts": [{"mountPath": "/x", **mount}]}
        assert why in admitting.refused(_asking(ml, reference, containers=[app]))


def test_S2_05_S2_06_references_are_settled_and_compared_by_what_they_mean(
    admitting: Admitting, ml: str
) -> None:
    admitting.api.create(volume(ml, handle=f"h-{ml}"))
    admitting.create(_asking(ml, _reference(f"h-{ml}")))
    where = ("annotate", f"--namespace={ml}", "pod/reader", "--overwrite")
    reordered = json.dumps([dict(reversed(_reference(f"h-{ml}").items()))], indent=2)
    admitting.api.run(*where, f"sidemount.io/volumes={reordered}")
    admitting.api.run("label", f"--namespace={ml}", "pod/reader", "a=b")
    for changed in (_reference(f"h-{ml}", "READ_ONLY_MANY"), _reference(f"h-{ml}", subPath="x")):
        with pytest.raises(KubectlFailed, match="Immutable"):
            admitting.api.run(*where, f"sidemount.io/volumes={json.dumps([changed])}")
    with pytest.raises(KubectlFailed, match="Immutable"):
        admitting.api.run(*where[:-1], "sidemount.io/volumes-")


@pytest.mark.parametrize(
    "annotations",
    [
        {"sidemount.io/volumes": '[{"name": "train", "optional": true}]'},
        {"sidemount.io/volumes": "[]"},
        {"volume.sidemount.io/train": "?optional=true"},
    ],
    ids=["list", "empty", "short"],
)
def test_S2_16_S2_39_what_is_not_supplied_leaves_the_pod_as_it_is(
    admitting: Admitting, ml: str, annotations: dict[str, str]
) -> None:
    """Compared with a pod that the webhook is never called for."""
    found, _ = admitting.create(pod("one", annotations, ml))
    plain, _ = admitting.create(pod("two", {}, ml))
    assert found["spec"] == plain["spec"]
    assert found["metadata"]["annotations"] == annotations
    assert ours(found) == []


def test_S2_34_the_operator_may_switch_references_off(admitting: Admitting, ml: str) -> None:
    admitting.api.create(volume(ml, handle=f"h-{ml}"))
    admitting.webhook.end()
    try:
        admitting.webhook.start("--existing-enabled", "false")
        assert "references to existing volumes are disabled here" in admitting.refused(
            _asking(ml, _reference(f"h-{ml}"))
        )
    finally:
        admitting.webhook.end()
        admitting.webhook.start()
    assert admitting.refused(_asking(ml, _reference(f"h-{ml}"))) == ""


def test_S2_15_attributes_are_those_of_the_moment(admitting: Admitting, ml: str) -> None:
    """Of the volume as it is when the pod is made: what another volume of the name said before counts for nothing."""
    first = volume(ml, handle=f"h-{ml}", attributes={"class": "directory", "source": "dir:///srv/first"})
    admitting.api.create(first)
    found, _ = admitting.create(_asking(ml, _reference(f"h-{ml}")))
    assert _mounts(found)[0]["spec"]["source"] == "dir:///srv/first"
    admitting.api.run("delete", "pv", ml, "--wait=false")
    admitting.api.run("patch", "pv", ml, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    admitting.api.run("delete", "pod", "reader", f"--namespace={ml}", "--force", "--grace-period=0")
    first["spec"]["csi"]["volumeAttributes"]["source"] = "dir:///srv/second"
    first["spec"]["csi"]["volumeHandle"] = f"again-{ml}"
    admitting.api.create(first)
    found, _ = admitting.create(_asking(ml, _reference(f"again-{ml}")))
    assert _mounts(found)[0]["spec"]["source"] == "dir:///srv/second"
