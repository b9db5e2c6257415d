"""What people see of a volume's life: events on the pod, status of its class, metrics; each thing once, whatever becomes of the observer."""

import json
import secrets
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.deployment import Installation
from e2e.tests.exposition import samples
from e2e.tests.pods import Namespace, container_ids, pod, restarts, shell
from e2e.tests.sources import Source
from sidemount.model.names import OWN_NAMESPACE

_TOLD_S, _ROLLOUT_S = 120.0, 180.0
_OBSERVER = "observer"
_DAEMON, _KEEPER = "sidemount-books", "sidemount-keeper"
_QUICK = ("--log-period-seconds=2", "--event-pace-seconds=1", "--status-debounce-seconds=1")
_SCRAPE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/metrics', timeout=10).read().decode())"


class Observing:
    """The observer on the cluster."""

    def __init__(self, api: Kubectl) -> None:
        self.api = api

    def hurry(self) -> None:
        """Have it look and write every other second, and wait until the one that does so leads."""
        at = "/spec/template/spec/containers/0/args/-"
        adds = [{"op": "add", "path": at, "value": flag} for flag in _QUICK]
        self._run("patch", f"deployment/{_OBSERVER}", "--type=json", f"--patch={json.dumps(adds)}")
        self.roll_out()

    def roll_out(self) -> None:
        """Wait until the observer is the one that is wanted, and leads."""
        wait = f"--timeout={_ROLLOUT_S:g}s"
        self._run("rollout", "status", f"deployment/{_OBSERVER}", wait, timeout_s=_ROLLOUT_S + 30)
        assert wait_for(lambda: self.value("sidemount_observer_leads") == 1, _ROLLOUT_S), self.told()

    def replace(self) -> None:
        """Kill it without a word, and wait until another one leads."""
        before = self._names()
        self._run("delete", "pod", *before, "--grace-period=0", "--force", timeout_s=120)
        assert wait_for(lambda: self._names() and not set(self._names()) & set(before), _ROLLOUT_S), (
            self.told()
        )
        self.roll_out()

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric's samples with these labels, None while there is nobody to ask."""
        names = self._names()
        if len(names) != 1:
            return None
        try:
            text = self._run("exec", names[0], "--", "python3", "-c", _SCRAPE)
        except KubectlFailed:  # it is being replaced
            return None
        return sum(sample.value for sample in samples(text, name, **labels))

    def told(self) -> str:
        """Return what a person would look at first."""
        arguments = ("logs", f"--selector=app.kubernetes.io/name={_OBSERVER}", "--tail=40", "--prefix")
        return self._run("get", "pods", "-o", "wide") + self._run(*arguments)

    def _names(self) -> list[str]:
        found = self.api.items("pods", OWN_NAMESPACE, f"app.kubernetes.io/name={_OBSERVER}")
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    def _run(self, *arguments: str, timeout_s: float = 60.0) -> str:
        verb, *others = arguments
        return self.api.run(verb, f"--namespace={OWN_NAMESPACE}", *others, timeout_s=timeout_s)


@pytest.fixture
def observing(installed: Installation) -> Observing:
    """The observer, as it is installed."""
    found = Observing(installed.api)
    found.roll_out()
    return found


@pytest.fixture
def hurried(observing: Observing, installed: Installation) -> Iterator[Observing]:
    """The observer in a hurry."""
    observing.hurry()
    yield observing
    installed.api.run("apply", "-k", str(installed.overlay), timeout_s=120)
    observing.roll_out()


@pytest.fixture
def driver_class(installation: Installation) -> Iterator[str]:
    """A class of the test's own, for a scheme of its own."""
    name = f"observed-{secrets.token_hex(3)}"
    installation.api.create(_class(name, ["dir:///srv/**"]))
    yield name
    installation.api.delete("fusedriverclass", name)


def _class(name: str, sources: list[str]) -> Json:
    spec = {"deliveries": ["sidecar"], "sources": sources, "namespaces": {}, "filesystem": "directory"}
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def _events(ml: Namespace, name: str) -> dict[str, int]:
    """Return how often each thing was told of a pod; every reason has one Event."""
    field = f"--field-selector=involvedObject.name={name},source=sidemount-observer"
    found = json.loads(ml.api.run("get", "events", f"--namespace={ml.name}", field, "-o", "json"))["items"]
    reasons = [each["reason"] for each in found]
    assert len(set(reasons)) == len(reasons), found
    return {each["reason"]: each["count"] for each in found}


def _told(ml: Namespace, observing: Observing, **wanted: int) -> None:
    def are_told() -> bool:
        return _events(ml, "reader") == wanted

    assert wait_for(are_told, _TOLD_S), (
        f"{_events(ml, 'reader')}, not {wanted}\n{observing.told()}\n{ml.described('reader')}"
    )


def _kill_serving(ml: Namespace) -> None:
    lines = ml.logs("reader", _DAEMON).splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    pid = next(message["pid"] for message in reversed(told) if message.get("event") == "serving")
    ml.exec("reader", _DAEMON, "python3", "-S", "-c", f"import os; os.kill({pid}, 9)")


def _kill_container(cluster: RunningCluster, ml: Namespace, container: str) -> None:
    before = ml.pod("reader")
    assert before is not None
    number = container_ids(before)[container].removeprefix("containerd://")
    cluster.ctr("task", "kill", "--signal", "SIGKILL", number)
    count = restarts(before)[container]
    ml.until("reader", lambda now: restarts(now)[container] > count, f"restarted ({container})")


def _reader(source: Source, driver_class: str) -> Json:
    asked = [{"name": "books", "class": driver_class, "source": source.uri}]
    app: dict[str, Any] = shell("app", volumeMounts=[{"name": "books", "mountPath": "/data"}])
    annotations = {"sidemount.io/volumes": json.dumps(asked)}
    return pod("reader", app, annotations=annotations, volumes=[{"name": "books", "emptyDir": {}}])


def _status(api: Kubectl, name: str) -> Json:
    return dict((api.get("fusedriverclass", name) or {}).get("status", {}))


def test_a_death_is_told_on_the_pod(
    cluster: RunningCluster, observing: Observing, ml_beside: Namespace, source: Source, driver_class: str
) -> None:
    """A container's death is looked into at once, however rarely logs are read otherwise."""
    ml, api = ml_beside, observing.api
    ml.run(_reader(source, driver_class))
    _told(ml, observing, Injected=1)
    _kill_container(cluster, ml, _DAEMON)
    _told(ml, observing, Injected=1, TakenOver=1)
    assert "a fresh process serves it" in ml.described("reader")
    assert observing.value("sidemount_takeovers_total", **{"class": driver_class}) == 1
    assert wait_for(lambda: _status(api, driver_class).get("usedBy") == 1, _TOLD_S), observing.told()


@pytest.mark.slow
def test_what_happens_to_a_volume_is_told_once(
    cluster: RunningCluster, hurried: Observing, ml_beside: Namespace, source: Source, driver_class: str
) -> None:
    """Its process, its container and its keeper die in turn; then the observer itself, and nothing is told again."""
    ml, observing, api = ml_beside, hurried, hurried.api
    ml.run(_reader(source, driver_class))
    _told(ml, observing, Injected=1)
    assert wait_for(lambda: _status(api, driver_class).get("usedBy") == 1, _TOLD_S), observing.told()
    _kill_serving(ml)
    _told(ml, observing, Injected=1, TakenOver=1)
    _kill_container(cluster, ml, _DAEMON)
    _told(ml, observing, Injected=1, TakenOver=2)
    _kill_container(cluster, ml, _KEEPER)
    _told(ml, observing, Injected=1, TakenOver=2, KeeperRestarted=1)
    described = ml.described("reader")
    assert "sidemount-observer" in described
    assert "a fresh process serves it" in described
    of_class = {"class": driver_class}
    assert observing.value("sidemount_takeovers_total", **of_class) == 2
    assert observing.value("sidemount_stall_seconds_count", **of_class) == 2
    assert observing.value("sidemount_volumes", state="serving", **of_class) == 1
    observing.replace()
    assert wait_for(lambda: observing.value("sidemount_volumes", state="serving", **of_class) == 1, _TOLD_S)
    _kill_serving(ml)
    _told(ml, observing, Injected=1, TakenOver=3, KeeperRestarted=1)
    assert observing.value("sidemount_takeovers_total", **of_class) == 1
    ml.delete("reader")
    assert wait_for(lambda: _status(api, driver_class).get("usedBy") == 0, _TOLD_S), observing.told()


def test_a_dry_run_is_told_of_nowhere(
    observing: Observing, ml_beside: Namespace, source: Source, driver_class: str
) -> None:
    """A pod that comes after it, and waits for a node that there is not, is told of; so it would have been, too."""
    ml, api = ml_beside, observing.api
    manifest = _reader(source, driver_class)
    manifest["metadata"]["namespace"] = ml.name
    api.run("create", "--dry-run=server", "-f", "-", text=json.dumps(manifest))
    manifest["metadata"]["name"] = "other"
    manifest["spec"]["nodeSelector"] = {"sidemount.test/nowhere": "true"}
    api.create(manifest)
    assert wait_for(lambda: _events(ml, "other") == {"Injected": 1}, _TOLD_S), observing.told()
    assert wait_for(lambda: _status(api, driver_class).get("usedBy") == 1, _TOLD_S), observing.told()
    assert _events(ml, "reader") == {}


def test_a_class_says_whether_it_is_accepted(observing: Observing, driver_class: str) -> None:
    def columns() -> list[str]:
        header, line = observing.api.run("get", "fusedriverclass", driver_class).splitlines()
        starts = [header.index(name) for name in ("USED BY", "FAULTS", "AGE")]
        return [line[begin:end].strip() for begin, end in pairwise(starts)]

    assert wait_for(lambda: columns() == ["0", "[]"], _TOLD_S), (columns(), observing.told())
    (condition,) = _status(observing.api, driver_class)["conditions"]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == (
        "Accepted",
        "True",
        1,
    )
