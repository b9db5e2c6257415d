"""Delivery by CSI: inline volumes for pods that ask and cannot take a sidecar, the same mounts that a sidecar would have."""

import copy
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csi.proto import csi_pb2
from csi.publish_plan import plan_publish
from csi.publish_request import parse_publish
from sidemount.model.facts import ClaimFacts, ClusterFacts, VolumeFacts
from sidemount.model.mountspec import MountSpec, decode_keeper_config
from sidemount.model.sub_path import join_sub_paths
from sidemount.model.volume_request import Delivery
from tests.webhook.admission import (
    TOKEN_PATH,
    Json,
    assert_only_ours_changed,
    between_rounds,
    golden_facts,
    mutated,
    pod_with,
    validated,
)

OURS = "csi.sidemount.io"
PRESENT = ClusterFacts(
    server_version=(1, 33), csi_drivers=frozenset({OURS}), csi_inline_drivers=frozenset({OURS})
)
ABSENT = ClusterFacts(server_version=(1, 33))
PERSISTENT = replace(PRESENT, csi_inline_drivers=frozenset())
BOTH_WAYS = (Delivery.SIDECAR, Delivery.CSI)
POOL = "dir:///srv-pool"
BUCKET_POOL = "s3://claims/pool"


class Cluster:
    """The golden facts, every class in these deliveries, on a cluster with or without our CSIDriver."""

    def __init__(
        self, *deliveries: Delivery, cluster: ClusterFacts = PRESENT, volumes: tuple[VolumeFacts, ...] = ()
    ) -> None:
        known = dict(golden_facts().driver_classes())
        known["pool"] = replace(known["directory"], name="pool", sources=(POOL,), provisions=True)
        known["bucket"] = replace(
            known["directory"],
            name="bucket",
            sources=(BUCKET_POOL,),
            filesystem="objects",
            provisions=True,
            uid=65532,
        )
        self.classes = {name: replace(c, deliveries=deliveries or BOTH_WAYS) for name, c in known.items()}
        self._cluster = cluster
        self._volumes = {volume.name: volume for volume in volumes}

    def __getattr__(self, name: str) -> Any:
        return getattr(golden_facts(), name)

    def cluster(self) -> ClusterFacts:
        return self._cluster

    def driver_classes(self) -> Any:
        return self.classes

    def driver_class(self, name: str) -> Any:
        return self.classes.get(name)

    def volume(self, name: str) -> VolumeFacts | None:
        return self._volumes.get(name)

    def volumes_by_handle(self, driver: str, handle: str) -> tuple[VolumeFacts, ...]:
        return tuple(v for v in self._volumes.values() if (v.driver, v.handle) == (driver, handle))

    def claim(self, namespace: str, name: str) -> ClaimFacts | None:
        return ClaimFacts(namespace=namespace, name=name, volume=name) if name in self._volumes else None


SIDECAR, CSI = Cluster(Delivery.SIDECAR), Cluster(Delivery.CSI)


def pod_of(entries: list[Json], mounts: list[Json], **spec: Any) -> Json:
    """Return a pod that asks in the list form and whose only container has these mounts."""
    names = dict.fromkeys(entry["name"] for entry in entries if "mountPath" not in entry)
    return pod_with(
        {"sidemount.io/volumes": json.dumps(entries)},
        **{
            "volumes": [{"name": name, "emptyDir": {}} for name in names],
            "containers": [{"name": "app", "image": "i", "volumeMounts": mounts}],
            **spec,
        },
    )


def inline_volumes(pod: Json) -> dict[str, Json]:
    return {v["name"]: v["csi"] for v in pod["spec"].get("volumes", ()) if "csi" in v}


def published(source: Json, facts: Cluster) -> MountSpec:
    """Return the MountSpec that the node service makes of an inline volume, as the kubelet publishes it."""
    pod_info = {
        "csi.storage.k8s.io/pod.name": "p" * 253,
        "csi.storage.k8s.io/pod.namespace": "ml",
        "csi.storage.k8s.io/pod.uid": "u" * 36,
        "csi.storage.k8s.io/serviceAccount.name": "s" * 253,
        "csi.storage.k8s.io/ephemeral": "true",
    }
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id="csi-" + "0" * 64,
        target_path="/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount",
        readonly=source.get("readOnly", False),
        volume_context={**source["volumeAttributes"], **pod_info},
        secrets={"access-key-id": "k"} if "nodePublishSecretRef" in source else {},
    )
    request.volume_capability.mount.SetInParent()
    request.volume_capability.access_mode.mode = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
    parsed = parse_publish(request)
    return plan_publish(parsed, parsed.target, facts, "/run").record.spec


def shown_by_csi(pod: Json) -> dict[str, Any]:
    """Return path → what is shown there: spec with its sub-path, as the whole pod has it."""
    found = {}
    for container in pod["spec"]["containers"]:
        for mount in container.get("volumeMounts", ()):
            if mount["mountPath"] == TOKEN_PATH:
                continue
            source = inline_volumes(pod)[mount["name"]]
            spec = published(source, CSI)
            sub_path = join_sub_paths(spec.sub_path, mount.get("subPath", ""))
            assert mount["mountPropagation"] == "HostToContainer"
            assert mount.get("readOnly", False) in (spec.read_only, False)
            found[mount["mountPath"]] = replace(spec, volume="", sub_path=sub_path)
    return found


def shown_by_sidecar(pod: Json) -> dict[str, Any]:
    keeper = pod["spec"]["initContainers"][0]
    config = decode_keeper_config(keeper["env"][0]["value"])
    views = {view.name: (mount.spec, view) for mount in config.mounts for view in mount.views}
    found = {}
    for container in pod["spec"]["containers"]:
        for mount in container.get("volumeMounts", ()):
            spec, view = views[mount["subPath"]]
            sub_path = join_sub_paths(spec.sub_path, view.sub_path)
            found[mount["mountPath"]] = replace(spec, volume="", sub_path=sub_path, read_only=view.read_only)
    return found


SOURCES = st.sampled_from(
    [
        {"source": "dir:///srv/d"},
        {"source": "dir:///srv/d", "subPath": "v1", "readOnly": True},
        {"source": "dir:///srv/ü", "options": {"attributeTimeout": "5s"}},
        {"source": "s3://b/k", "secret": "keys", "options": {"cacheBytes": "2Gi", "region": "eu"}},
        {"source": "cache://b/k", "subPath": "a/b"},
    ]
)
MOUNTS = st.fixed_dictionaries(
    {"name": st.sampled_from(["train", "out"])},
    optional={
        "subPath": st.sampled_from(["", "a", "a/b", "v1", "ü~1"]),
        "readOnly": st.booleans(),
        "mountPropagation": st.sampled_from(["None", "HostToContainer"]),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(SOURCES, SOURCES), st.lists(MOUNTS, max_size=5))
def test_both_deliveries_show_the_same_at_every_path(sources: tuple[Json, Json], mounts: list[Json]) -> None:
    """Design §3: the same request gives the same MountSpec, whichever way it goes; and neither is patched twice."""
    entries: list[Json] = [
        {"name": n, **s} for n, s in zip(("train", "out"), copy.deepcopy(sources), strict=True)
    ]
    pod = pod_of(entries, [{**mount, "mountPath": f"/m{i}"} for i, mount in enumerate(mounts)])
    by_sidecar, by_csi = mutated(pod, facts=SIDECAR), mutated(pod, facts=CSI)
    for reviewed, facts in ((by_sidecar, SIDECAR), (by_csi, CSI)):
        assert reviewed.outcome.allowed, reviewed.message
        assert_only_ours_changed(pod, reviewed.after)
        assert mutated(reviewed.after, facts=facts).patch == []
        assert mutated(between_rounds(reviewed.after), facts=facts).patch == []
        assert validated(between_rounds(reviewed.after), facts=facts).outcome.allowed
    assert "initContainers" not in by_csi.after["spec"]
    assert shown_by_csi(by_csi.after) == shown_by_sidecar(by_sidecar.after)
    told = [{v.volume: v.mounts for v in reviewed.outcome.volumes} for reviewed in (by_sidecar, by_csi)]
    assert told[0] == told[1]


def test_every_part_that_is_shown_has_a_volume_and_the_same_part_one() -> None:
    mounts: list[Json] = [
        {"name": "train", "mountPath": "/all"},
        {"name": "train", "mountPath": "/a", "subPath": "a"},
        {"name": "train", "mountPath": "/a2", "subPath": "a"},
        {"name": "train", "mountPath": "/a-ro", "subPath": "a", "readOnly": True},
        {"name": "train", "mountPath": "/ro", "readOnly": True},
    ]
    reviewed = mutated(pod_of([{"name": "train", "source": "s3://b/k", "secret": "keys"}], mounts), facts=CSI)
    volumes = inline_volumes(reviewed.after)
    assert sorted(
        (csi["volumeAttributes"].get("subPath", ""), csi.get("readOnly", False)) for csi in volumes.values()
    ) == [("", False), ("", True), ("a", False), ("a", True)]
    assert {csi["nodePublishSecretRef"]["name"] for csi in volumes.values()} == {"keys"}
    assert all("keys" not in csi["volumeAttributes"].values() for csi in volumes.values())
    found = reviewed.after["spec"]["containers"][0]["volumeMounts"]
    assert found[1]["name"] == found[2]["name"] != found[3]["name"]
    assert not any(mount.get("subPath") for mount in found)


def test_sub_paths_that_only_the_kubelet_can_find_stay_its_own() -> None:
    mounts: list[Json] = [
        {"name": "train", "mountPath": "/x", "subPathExpr": "$(POD)"},
        {"name": "train", "mountPath": "/y", "subPathExpr": "$(POD)", "readOnly": True},
    ]
    reviewed = mutated(pod_of([{"name": "train", "source": "s3://b/k"}], mounts), facts=CSI)
    found = reviewed.after["spec"]["containers"][0]["volumeMounts"]
    assert [m["subPathExpr"] for m in found] == ["$(POD)"] * 2
    assert inline_volumes(reviewed.after)[found[1]["name"]]["readOnly"] is True
    assert mutated(reviewed.after, facts=CSI).patch == []
    client: list[Json] = [{"name": "train", "source": "rclone://r/d", "secret": "s"}]
    by_kubelet = mutated(
        pod_of(client, [{"name": "train", "mountPath": "/x", "subPath": "a", "readOnly": True}]), facts=CSI
    )
    (mount,) = by_kubelet.after["spec"]["containers"][0]["volumeMounts"]
    assert mount["subPath"] == "a"
    assert mount["name"].startswith("sidemount-view-train-")
    assert by_kubelet.outcome.volumes[0].mounts[0].sub_path == "a"
    assert mutated(between_rounds(by_kubelet.after), facts=CSI).patch == []
    refused = mutated(pod_of([{**client[0], "subPath": "x"}], []), facts=CSI)
    assert "ClientSubPath" in refused.message
    assert "name the sub-path in the source" in refused.message


@pytest.mark.parametrize(
    ("cluster", "reason", "way"),
    [
        pytest.param(ABSENT, "NoNodePlugin", "install the node plugin", id="no CSIDriver"),
        pytest.param(PERSISTENT, "NoInlineVolumes", "Sidemount's own CSIDriver", id="no Ephemeral"),
        pytest.param(
            replace(PRESENT, csi_inline_levels={OURS: "privileged"}),
            "PodSecurity",
            "PersistentVolumeClaim",
            id="profile of another level",
        ),
    ],
)
def test_without_a_node_side_the_pod_is_refused_with_both_reasons(
    cluster: ClusterFacts, reason: str, way: str
) -> None:
    pod = pod_of([{"name": "train", "source": "s3://b/k"}], [])
    for review in (mutated, validated):
        refused = review(pod, "hardened", facts=Cluster(cluster=cluster))
        assert not refused.outcome.allowed
        assert refused.reason == "NoDelivery"
        assert "sidecar: the namespace enforces Pod Security restricted" in refused.message
        assert f"({reason})" in refused.message
        assert way in refused.message


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        pytest.param({"source": "pvc://c"}, "SourceNeedsSidecar", id="pvc source"),
        pytest.param({"source": POOL}, "ProvisionedOnly", id="a pool"),
        pytest.param(
            {"existing": {"driver": OURS, "handle": "pvc-1", "accessMode": "READ_WRITE_MANY"}},
            "ProvisionedOnly",
            id="a provisioned volume by its handle",
        ),
        pytest.param(
            {"source": "s3://b", "subPath": "x" * 3300}, "4 KiB|more than the", id="too long a context"
        ),
    ],
)
def test_what_the_node_service_would_refuse_is_refused_here(entry: Json, reason: str) -> None:
    facts = Cluster(Delivery.CSI, volumes=(provisioned(),))
    refused = mutated(pod_of([{"name": "train", **entry}], []), facts=facts)
    assert not refused.outcome.allowed
    assert any(part in refused.message for part in reason.split("|")), refused.message


def test_the_longest_context_that_passes_is_one_that_the_node_service_takes() -> None:
    entry = {"name": "train", "source": "s3://b", "subPath": "x" * 3200}
    reviewed = mutated(pod_of([entry], []), facts=CSI)
    assert len(published(inline_volumes(reviewed.after)["train"], CSI).sub_path) == 3200


# Provisioned volumes, claims --------------------------------------------------------------------------------------


def provisioned(**changes: Any) -> VolumeFacts:
    volume = VolumeFacts(
        name="pvc-1",
        driver=OURS,
        handle="pvc-1",
        access_modes=frozenset({"ReadWriteMany"}),
        attributes={
            "class": "pool",
            "source": POOL,
            "volume": "pvc-1",
            "storage.kubernetes.io/csiProvisionerIdentity": "x",
        },
    )
    return replace(volume, **changes)


def claiming(**spec: Any) -> Json:
    return pod_with(
        {},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "pvc-1"}}],
        containers=[{"name": "app", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "a"}]}],
        **spec,
    )  # fmt: skip


def test_a_provisioned_volume_is_served_by_a_sidecar_from_its_own_directory_alone() -> None:
    """S4: under its budget, and with nothing of the pool in reach."""
    facts = Cluster(volumes=(provisioned(),))
    reviewed = mutated(claiming(), facts=facts)
    volumes = {v["name"]: v for v in reviewed.after["spec"]["volumes"]}
    assert volumes["data"] == claiming()["spec"]["volumes"][0]
    assert volumes["sidemount-source-data"]["hostPath"] == {
        "path": "/srv-pool/volumes/pvc-1",
        "type": "Directory",
    }
    (spec,) = (m.spec for m in decode_keeper_config(reviewed.after["spec"]["initContainers"][0]["env"][0]["value"]).mounts)  # fmt: skip
    assert (spec.filesystem, spec.source) == ("volume", f"{POOL}/volumes/pvc-1")
    assert mutated(between_rounds(reviewed.after), facts=facts).patch == []
    assert validated(between_rounds(reviewed.after), facts=facts).outcome.allowed


def test_a_provisioned_volume_in_a_bucket_is_served_by_a_sidecar_from_its_prefix_alone() -> None:
    """S4: the same prefix that the node service mounts, and nothing of the node."""
    attributes = {"class": "bucket", "source": BUCKET_POOL, "volume": "pvc-1.0123456789ab"}
    facts = Cluster(volumes=(provisioned(handle="pvc-1.0123456789ab", attributes=attributes),))
    reviewed = mutated(claiming(), facts=facts)
    assert not any("hostPath" in v for v in reviewed.after["spec"]["volumes"])
    (spec,) = (m.spec for m in decode_keeper_config(reviewed.after["spec"]["initContainers"][0]["env"][0]["value"]).mounts)  # fmt: skip
    assert (spec.filesystem, spec.source) == ("objects", f"{BUCKET_POOL}/volumes/pvc-1.0123456789ab")


@pytest.mark.parametrize(
    ("volume", "namespace", "why"),
    [
        pytest.param(provisioned(access_modes=frozenset({"ReadWriteOncePod"})), "ml", "ExclusiveClaim", id="RWOP"),
        pytest.param(provisioned(), "hardened", "PodSecurity", id="restricted"),
        pytest.param(
            provisioned(attributes={"class": "directory", "source": "dir:///srv", "volume": "pvc-1"}),
            "ml",
            "NotProvisioned|provisions no volumes",
            id="of a class that does not provision",
        ),
    ],
)  # fmt: skip
def test_a_claim_that_no_sidecar_may_serve_is_left_to_csi(
    volume: VolumeFacts, namespace: str, why: str
) -> None:
    pod = claiming()
    reviewed = mutated(pod, namespace, facts=Cluster(volumes=(volume,)))
    assert reviewed.outcome.allowed
    assert reviewed.outcome.volumes[0].delivery == "csi"
    assert any(part in reviewed.outcome.volumes[0].message for part in why.split("|"))
    expected = copy.deepcopy(pod["spec"])
    expected["containers"][0]["volumeMounts"][0]["mountPropagation"] = "HostToContainer"
    assert reviewed.after["spec"] == expected


@pytest.mark.parametrize(("secret", "delivery"), [("", "csi"), ("own", "sidecar")])
def test_credentials_of_a_volume_are_the_kubelets_to_read(secret: str, delivery: str) -> None:
    attributes = {"class": "s3", "source": "s3://b", **({"secret": secret} if secret else {})}
    facts = Cluster(volumes=(provisioned(attributes=attributes, has_secret=True),))
    reviewed = mutated(claiming(), facts=facts)
    assert reviewed.outcome.volumes[0].delivery == delivery
    by_handle = {"driver": OURS, "handle": "pvc-1", "accessMode": "READ_ONLY_MANY"}
    asked = mutated(pod_of([{"name": "train", "existing": by_handle}], []), facts=facts)
    assert asked.outcome.allowed is bool(secret)
    if not secret:
        assert "nodePublishSecretRef" in asked.message


# Rounds, flips, collisions ----------------------------------------------------------------------------------------

STATES = {
    "sidecar first": Cluster(Delivery.SIDECAR, Delivery.CSI),
    "csi first": Cluster(Delivery.CSI, Delivery.SIDECAR),
    "csi alone": CSI,
    "sidecar alone": SIDECAR,
    "no CSIDriver": Cluster(Delivery.CSI, Delivery.SIDECAR, cluster=ABSENT),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(STATES, 2)))
def test_what_changes_between_two_rounds_moves_no_pod_to_another_delivery(before: str, after: str) -> None:
    """A class is changed, a CSIDriver comes or goes: the pod keeps what it carries, or is refused."""
    mounts: list[Json] = [
        {"name": "train", "mountPath": "/a", "subPath": "a", "readOnly": True},
        {"name": "train", "mountPath": "/b"},
    ]
    pod = pod_of([{"name": "train", "source": "s3://b/k"}], mounts)
    first = mutated(pod, facts=STATES[before])
    assert first.outcome.allowed
    carried = first.outcome.volumes[0].delivery
    again = between_rounds(first.after)
    possible = {
        "sidecar first": {"sidecar", "csi"},
        "csi first": {"sidecar", "csi"},
        "csi alone": {"csi"},
        "sidecar alone": {"sidecar"},
        "no CSIDriver": {"sidecar"},
    }[after]
    for review in (mutated, validated):
        reviewed = review(again, facts=STATES[after])
        assert reviewed.outcome.code < 500
        if carried in possible:
            assert reviewed.outcome.allowed, reviewed.message
            assert not [o for o in reviewed.patch if not o["path"].startswith("/metadata/annotations")]
        else:
            assert not reviewed.outcome.allowed
            assert f"carried by {carried} already" in reviewed.message


def test_other_webhooks_may_undo_parts_and_add_containers() -> None:
    mounts: list[Json] = [{"name": "train", "mountPath": "/a", "subPath": "a"}]
    pod = pod_of([{"name": "train", "source": "s3://b/k"}], mounts)
    first = mutated(pod, facts=CSI)
    undone = between_rounds(first.after)
    for mount in undone["spec"]["containers"][0]["volumeMounts"]:
        mount.pop("mountPropagation", None)
    undone["spec"]["containers"].append(
        {
            "name": "agent",
            "image": "a",
            "volumeMounts": [
                {"name": "train", "mountPath": "/b", "subPath": "b", "readOnly": True},
                {"name": first.after["spec"]["containers"][0]["volumeMounts"][0]["name"], "mountPath": "/c"},
            ],
        }
    )
    refused = validated(undone, facts=CSI)
    assert refused.reason == "NotInjected"
    again = mutated(undone, facts=CSI)
    assert again.outcome.allowed, again.message
    assert {k: v.sub_path for k, v in shown_by_csi(again.after).items()} == {"/a": "a", "/b": "b", "/c": "a"}
    assert mutated(again.after, facts=CSI).patch == []
    assert validated(between_rounds(again.after), facts=CSI).outcome.allowed


def _tampered(change: str) -> Json:
    pod = pod_of(
        [{"name": "train", "source": "s3://b/k"}], [{"name": "train", "mountPath": "/a", "subPath": "a"}]
    )
    after: Json = mutated(pod, facts=CSI).after
    view = next(v for v in after["spec"]["volumes"] if v["name"].startswith("sidemount-view-"))
    mount = after["spec"]["containers"][0]["volumeMounts"][0]
    match change:
        case "other source":
            view["csi"]["volumeAttributes"]["source"] = "s3://b/other"
        case "other part":
            view["csi"]["volumeAttributes"]["subPath"] = "b"
        case "other secret":
            view["csi"]["nodePublishSecretRef"] = {"name": "theirs"}
        case "other driver":
            view["csi"]["driver"] = "other.example"
        case "deeper":
            mount["subPath"] = "x"
        case "Bidirectional":
            mount["mountPropagation"] = "Bidirectional"
        case "view gone":
            after["spec"]["volumes"].remove(view)
        case "whole by hand":
            after["spec"]["volumes"][0]["csi"]["volumeAttributes"]["source"] = "s3://b"
        case "not asked":
            del after["metadata"]["annotations"]["sidemount.io/volumes"]
            after["metadata"]["annotations"]["volume.sidemount.io/none"] = "?optional=true"
    return after


@pytest.mark.parametrize(
    "change",
    ["other source", "other part", "other secret", "other driver", "deeper", "Bidirectional", "view gone", "whole by hand"],
)  # fmt: skip
def test_a_hand_made_copy_is_refused_in_every_round(change: str) -> None:
    pod = _tampered(change)
    for review in (mutated, validated):
        refused = review(pod, facts=CSI)
        assert not refused.outcome.allowed, change
        assert refused.outcome.code in (400, 403)


def test_views_of_a_pod_that_asks_for_none_are_refused() -> None:
    assert mutated(_tampered("not asked"), facts=CSI).reason in ("HandMade", "InvalidRequest")


@pytest.mark.parametrize("name", ["sidemount-view-train-4162fddd39a3e422", "sidemount-view-x", "sidemount"])
def test_a_users_volume_never_takes_the_place_of_a_view(name: str) -> None:
    pod = pod_of([{"name": "train", "source": "s3://b/k"}], [])
    pod["spec"]["volumes"].append({"name": name, "hostPath": {"path": "/etc"}})
    refused = mutated(pod, facts=CSI)
    assert not refused.outcome.allowed
    assert refused.reason in ("NameCollision", "HandMade")


def test_as_many_inline_volumes_as_a_pod_may_have() -> None:
    entries: list[Json] = [{"name": f"v{i}", "source": f"s3://b/{i}"} for i in range(64)]
    mounts: list[Json] = [{"name": f"v{i}", "mountPath": f"/v{i}"} for i in range(64)]
    reviewed = mutated(pod_of(entries, mounts), facts=CSI)
    assert len(inline_volumes(reviewed.after)) == 64
    assert mutated(reviewed.after, facts=CSI).patch == []
    mounts[0]["subPath"] = "a"
    refused = mutated(pod_of(entries, mounts), facts=CSI)
    assert "65 inline CSI volumes" in refused.message
    many = [{"name": "v0", "mountPath": f"/m{i}", "subPath": f"{i}"} for i in range(1000)]
    assert "1001 inline CSI volumes" in mutated(pod_of(entries[:1], many), facts=CSI).message


def test_names_at_their_longest_stay_names() -> None:
    name = "n" * 63
    mounts: list[Json] = [
        {"name": name, "mountPath": "/a", "subPath": "a"},
        {"name": name, "mountPath": "/b", "readOnly": True},
    ]
    reviewed = mutated(pod_of([{"name": name, "source": "s3://b"}], mounts), facts=CSI)
    names = list(inline_volumes(reviewed.after))
    assert len(set(names)) == 3
    assert all(len(each) <= 63 for each in names)
    assert mutated(reviewed.after, facts=CSI).patch == []


def test_init_containers_and_added_mounts_have_theirs() -> None:
    entries: list[Json] = [
        {"name": "train", "source": "s3://b/k"},
        {"name": "extra", "source": "s3://b/x", "readOnly": True, "mountPath": "/extra"},
    ]
    init: list[Json] = [
        {
            "name": "first",
            "image": "i",
            "volumeMounts": [{"name": "train", "mountPath": "/t", "subPath": "i"}],
        }
    ]
    reviewed = mutated(pod_of(entries, [], initContainers=init), facts=CSI)
    spec = reviewed.after["spec"]
    assert [c["name"] for c in spec["initContainers"]] == ["first"]
    assert inline_volumes(reviewed.after)["extra"]["readOnly"] is True
    for container in (spec["initContainers"][0], spec["containers"][0]):
        extra = next(m for m in container["volumeMounts"] if m["name"] == "extra")
        assert extra == {
            "name": "extra",
            "mountPath": "/extra",
            "mountPropagation": "HostToContainer",
            "readOnly": True,
        }
    assert mutated(reviewed.after, facts=CSI).patch == []


@pytest.mark.parametrize(
    ("context", "is_told"),
    [({}, False), ({"fsGroup": 5}, True), ({"fsGroup": 5, "fsGroupChangePolicy": "OnRootMismatch"}, False)],
)  # fmt: skip
def test_whoever_has_every_file_given_to_a_group_is_told(context: Json, is_told: bool) -> None:
    pod = pod_of([{"name": "train", "source": "s3://b"}], [], securityContext=context)
    warnings = mutated(pod, facts=CSI).response.get("warnings", [])
    assert any("fsGroupChangePolicy" in text for text in warnings) is is_told
