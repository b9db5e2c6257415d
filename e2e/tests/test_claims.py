"""Volumes that are there before the pod and stay after it, read and written by real pods: a claim, and a reference at a sub-path."""

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.pods import Namespace, has_ended, pod, task
from e2e.tests.sources import Source

_BOUND_S = 60.0
_DRIVER = "csi.sidemount.io"


@pytest.fixture
def volume(ml: Namespace, source: Source) -> Iterator[str]:
    """A PersistentVolume of ours whose attributes name the source; the admin's, so it is there when the test ends."""
    source.write({"sessions/a/old": b"a\n", "sessions/b/old": b"b\n", "mirrors/fish": b"fish\n"}, mode=0o777)
    attributes = {"class": "directory", "source": source.uri}
    spec: Json = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "csi": {"driver": _DRIVER, "volumeHandle": ml.name, "volumeAttributes": attributes},
        "claimRef": {"namespace": ml.name, "name": "data"},
    }
    ml.api.create(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": ml.name}, "spec": spec}
    )
    try:
        yield ml.name
        assert ml.api.get("pv", ml.name) is not None, "the volume was deleted"
    finally:
        ml.api.delete("pv", ml.name)


def _is_bound(ml: Namespace) -> bool:
    found = ml.api.get("pvc", "data", ml.name)
    return found is not None and found["status"].get("phase") == "Bound"


def test_S3_12_a_pod_that_uses_a_claim_reads_and_writes_it(
    ml: Namespace, volume: str, source: Source
) -> None:
    """S2-15. No annotation: claim and volume say it all, and the controllers bind them."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
    }
    ml.create(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    )
    assert wait_for(lambda: _is_bound(ml), _BOUND_S), ml.api.run(
        "describe", "pvc", "data", f"--namespace={ml.name}"
    )
    app = task(
        "app",
        "cat /data/mirrors/fish && echo new > /data/sessions/a/new",
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    claimed = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    created = ml.create(pod("reader", app, volumes=claimed, restartPolicy="Never"))
    assert [each["name"] for each in created["spec"]["initContainers"]] == [
        "sidemount-keeper",
        "sidemount-data",
    ]
    ended = ml.until("reader", has_ended, "ended")
    assert ended["status"]["phase"] == "Succeeded", ml.described("reader")
    ml.printed("reader", "app", "fish\n")
    assert source.read("sessions/a/new") == "new\n"


def _session(name: str, handle: str) -> Json:
    """Return a pod with a directory of its own to write and a common one to read, both of one volume."""
    listed = [
        {"name": "own", "existing": {"driver": _DRIVER, "handle": handle, "accessMode": "READ_WRITE_MANY"}, "subPath": f"sessions/{name}"},
        {"name": "mirrors", "existing": {"driver": _DRIVER, "handle": handle, "accessMode": "READ_ONLY_MANY"}, "subPath": "mirrors", "readOnly": True},
    ]  # fmt: skip
    script = "exec 2>&1; cat /own/old /mirrors/fish; ls /own; echo mine > /own/mine; echo x > /mirrors/x || echo refused; ls /own/../"
    mounts = [{"name": "own", "mountPath": "/own"}, {"name": "mirrors", "mountPath": "/mirrors"}]
    return pod(
        name,
        task("app", script, volumeMounts=mounts),
        annotations={"sidemount.io/volumes": json.dumps(listed)},
        volumes=[{"name": each, "emptyDir": {}} for each in ("own", "mirrors")],
        restartPolicy="Never",
    )


def test_S2_36_S2_37_S2_38_each_pod_has_its_own_directory_of_one_volume(
    ml: Namespace, volume: str, source: Source
) -> None:
    """Each writes its own alone and neither the common one; when one is deleted, the volume and the other's files stay."""
    before = source.digests()
    for name in ("a", "b"):
        ml.create(_session(name, volume))
    for name in ("a", "b"):
        ended = ml.until(name, has_ended, "ended")
        assert ended["status"]["phase"] == "Succeeded", ml.described(name)
        read, fish, listed, *rest = ml.logs(name, "app").splitlines()
        assert (read, fish, listed) == (name, "fish", "old")
        assert any("Read-only file system" in line for line in rest)
        assert "refused" in rest
    ml.delete("a")
    new = {path: digest for path, digest in source.digests().items() if path not in before}
    assert new.keys() == {"sessions/a/mine", "sessions/b/mine"}
    assert {path: digest for path, digest in source.digests().items() if path in before} == before
