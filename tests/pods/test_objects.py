"""A bucket in a pod: what serves is killed again and again, and the store is away for a while; the application sees neither."""

import base64
import ctypes
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.podlet.client import RunningPod
from e2e.servers.fault_proxy import FaultProxy
from e2e.servers.fixtures import seaweedfs_server as seaweedfs_server
from e2e.servers.process import LOOPBACK
from e2e.servers.s3_place import S3Place
from e2e.tests import trainer
from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.opening import open_store
from sidemount.stores.store import ObjectStore
from tests.host.mount_node import eventually
from tests.pods.conftest import MakeStage
from tests.pods.manifests import NAMESPACE, Json, driver_class, mount, pod, program
from tests.pods.stage import READY_S, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(300, func_only=True)]
_AWAY_S = 3.0
_ROUNDS_S = 60.0
_PREFIX = "podlet"
_PORT = 9000  # of the node's own loopback, where nothing else listens
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def bucket(seaweedfs_server: S3Place, tmp_path: Path) -> Iterator[ObjectStore]:
    """The store itself, beneath the test's own prefix."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for key, text in _secret_texts(seaweedfs_server).items():
        (secrets / key).write_text(text)
    settings = ObjectsSettings(source="", endpoint=seaweedfs_server.endpoint, region=seaweedfs_server.region)
    store = open_store(f"s3://{seaweedfs_server.bucket}/{_PREFIX}", settings, str(secrets))
    yield store
    store.delete_many([info.key for info in store.list_page("", delimiter=False).objects])
    store.close()


def _secret_texts(place: S3Place) -> dict[str, str]:
    return {"access_key_id": place.access_key, "secret_access_key": place.secret_key}


def _stage(make_stage: MakeStage, place: S3Place) -> Stage:
    endpoint = f"http://{LOOPBACK}:{_PORT}"
    spec = {
        "deliveries": ["sidecar"],
        "sources": [f"s3://{place.bucket}/**"],
        "namespaces": {},
        "filesystem": "objects",
        "options": {"endpoint": {"type": "enum", "values": [endpoint], "default": endpoint}},
        "credentials": {"secretKeys": ["access_key_id", "secret_access_key"], "required": True},
    }
    data = {key: base64.b64encode(text.encode()).decode() for key, text in _secret_texts(place).items()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bucket", "namespace": NAMESPACE},
        "data": data,
    }
    return make_stage(classes=(driver_class("bucket", spec),), objects=(secret,))


def _socket_in(pid: int) -> socket.socket:
    """Return a socket in the network of a process. Made by a thread that goes there, and ends."""
    made: list[socket.socket] = []

    def make() -> None:
        with open(f"/proc/{pid}/ns/net", "rb") as network:
            if _libc.setns(network.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.socket())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def _trainer(place: S3Place) -> Json:
    # Of all networks only the node's has somebody who listens.
    fields: dict[str, Any] = {"hostNetwork": True}
    app = program("app", Path(str(trainer.__file__)), "/data", volumeMounts=[mount("bucket", "/data")])
    del app["readinessProbe"]
    return pod({"bucket": f"s3://{place.bucket}/{_PREFIX}?secret=bucket"}, app, **fields)


def _rounds(running: RunningPod) -> list[Json]:
    return [json.loads(line) for line in running.logs("app").splitlines() if line.endswith("}")]


def _goes_on(running: RunningPod, rounds: int = 4) -> None:
    before = len(_rounds(running))
    eventually(
        lambda: len(_rounds(running)) >= before + rounds, what=running.logs("app")[-500:], timeout_s=_ROUNDS_S
    )


def _kill_what_serves(running: RunningPod) -> None:
    told = [
        json.loads(line) for line in running.logs("sidemount-bucket").splitlines() if line.startswith("{")
    ]
    serving = next(int(each["pid"]) for each in reversed(told) if each.get("event") == "serving")
    kill = f"import os; os.kill({serving}, 9)"
    assert running.exec("sidemount-bucket", ["python3", "-S", "-c", kill]).exit_code == 0


def test_a_training_pod_sees_no_death_and_no_outage(
    make_stage: MakeStage, seaweedfs_server: S3Place, bucket: ObjectStore
) -> None:
    """Shards and checkpoints are whole in the store afterwards, and nothing else is there."""
    stage = _stage(make_stage, seaweedfs_server)
    with FaultProxy(seaweedfs_server.port, lambda: _socket_in(stage.node.process_id), port=_PORT) as between:
        running = stage.start(_trainer(seaweedfs_server))
        running.wait_ready(READY_S)
        _goes_on(running)
        for _ in range(3):
            _kill_what_serves(running)
            _goes_on(running)
        between.refuse()
        time.sleep(_AWAY_S)
        between.accept()
        _goes_on(running)
        running.delete()
    rounds = _rounds(running)
    assert not [each for each in rounds if each["faults"]]
    assert max(each["took_s"] for each in rounds) >= _AWAY_S / 2, "the store was not away"
    found = {info.key: info.size for info in bucket.list_page("", delimiter=False).objects}
    assert sorted(found) == sorted(
        [f"shard-{number}" for number in range(trainer.SHARDS)]
        + [f"checkpoint-{number}" for number in range(4)]
    )
    for number in range(trainer.SHARDS):
        content = bytearray(trainer.SHARD_BYTES)
        assert bucket.get(f"shard-{number}", 0, memoryview(content)).size == found[f"shard-{number}"]
        assert hashlib.sha256(content).digest() == hashlib.sha256(trainer.shard(number)).digest()
    # One whose id was on its way to a process that was killed is ended an hour later; nothing is in it.
    assert not [parts for key, upload, _ in bucket.uploads("") if (parts := bucket.parts(key, upload))]
