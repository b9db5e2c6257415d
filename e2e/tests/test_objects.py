"""A bucket as a volume, from the annotation to the store: what an application sees of deaths, of new credentials and of an outage."""

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests import trainer
from e2e.tests.images import sidemount
from e2e.tests.object_store import BUCKET, ObjectStore, give_secret
from e2e.tests.pods import Namespace, pod, restarts
from sidemount.model.names import OWN_NAMESPACE

_ROUNDS_S, _SECRET_S, _OUTAGE_S = 120.0, 240.0, 30.0
_DAEMON = "sidemount-bucket"


@pytest.fixture
def store(cluster: RunningCluster, ml: Namespace) -> ObjectStore:
    """An S3 server that lets nobody in yet."""
    return ObjectStore(ml)


@pytest.fixture
def driver_class(ml: Namespace, store: ObjectStore) -> Iterator[str]:
    """A class for that server and no other."""
    name = f"bucket-{secrets.token_hex(3)}"
    ml.api.create(store.driver_class(name, ["sidecar"]))
    yield name
    ml.api.delete("fusedriverclass", name)


def _training_pod(driver_class: str) -> Json:
    app: dict[str, Any] = {
        "name": "app",
        "image": sidemount(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-S", "-u", "-c", Path(str(trainer.__file__)).read_text(), "/data"],
        "volumeMounts": [{"name": "bucket", "mountPath": "/data"}],
    }
    annotations = {"volume.sidemount.io/bucket": f"s3://{BUCKET}/run?class={driver_class}&secret=bucket"}
    return pod("trainer", app, annotations=annotations, volumes=[{"name": "bucket", "emptyDir": {}}])


def _rounds(ml: Namespace) -> list[Json]:
    return [json.loads(line) for line in ml.logs("trainer", "app").splitlines()]


def _goes_on(ml: Namespace, rounds: int = 5) -> None:
    """Wait until the application has done more of its work, and all of it well; it has never ended."""
    before = len(_rounds(ml))
    done = wait_for(lambda: len(_rounds(ml)) >= before + rounds, _ROUNDS_S)
    assert done, f"the application stands still after {before} rounds\n{ml.described('trainer')}"
    assert not [each for each in _rounds(ml)[before:] if each["faults"]], ml.logs("trainer", "app")[-2000:]
    found = ml.pod("trainer")
    assert found is not None
    assert restarts(found)["app"] == 0, ml.described("trainer")


def _kill_what_serves(ml: Namespace) -> None:
    told = [json.loads(line) for line in ml.logs("trainer", _DAEMON).splitlines() if line.startswith("{")]
    serving = next(int(each["pid"]) for each in reversed(told) if each.get("event") == "serving")
    ml.exec("trainer", _DAEMON, "python3", "-S", "-c", f"import os; os.kill({serving}, 9)")


def test_a_training_pod_sees_no_death_and_no_new_credentials(
    ml: Namespace, store: ObjectStore, driver_class: str
) -> None:
    """Shards are written and read, the daemon is killed twice, the key is replaced and the old one refused, the store is away for 30 s."""
    old, new = secrets.token_hex(16), secrets.token_hex(16)
    store.let_in({"old": old})
    give_secret(ml, "old", old)
    ml.run(_training_pod(driver_class))
    _goes_on(ml)
    for number in range(trainer.SHARDS):
        assert store.digest(f"run/shard-{number}") == hashlib.sha256(trainer.shard(number)).hexdigest()
    for _ in range(2):
        _kill_what_serves(ml)
        _goes_on(ml)
    store.let_in({"old": old, "new": new})
    give_secret(ml, "new", new)
    has_new = "python3 -S -c \"print(open('/secrets/access_key_id').read())\""
    arrived = wait_for(lambda: "new" in ml.exec("trainer", _DAEMON, "sh", "-c", has_new), _SECRET_S)
    assert arrived, ml.described("trainer")
    store.let_in({"new": new})
    _goes_on(ml)
    before = len(_rounds(ml))
    store.go_down()
    time.sleep(_OUTAGE_S)  # what is asked of the store meanwhile is what this is about
    store.come_back()
    _goes_on(ml)
    # docs/objects.md: what takes longer than `retryTimeout` fails, and an outage of half a minute does not.
    assert not [each for each in _rounds(ml)[before:] if each["faults"]]
    found = ml.pod("trainer")
    assert found is not None
    assert not any(restarts(found).values()), ml.described("trainer")
    _says_no_secret(ml, old, new)
    ml.delete("trainer")
    assert store.unfinished() == ""
    assert store.keys() == sorted(
        [f"run/shard-{number}" for number in range(trainer.SHARDS)]
        + [f"run/checkpoint-{number}" for number in range(4)]
    )


def _says_no_secret(ml: Namespace, *secret: str) -> None:
    told = ml.described("trainer") + json.dumps(ml.pod("trainer"))
    told += ml.logs("trainer", _DAEMON) + ml.logs("trainer", "sidemount-keeper")
    told += ml.api.run("logs", f"--namespace={OWN_NAMESPACE}", "deployment/webhook", "--tail=500")
    assert not [each for each in secret if each in told]
