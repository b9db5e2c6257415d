"""mutate(): decisions kept by shape are the decisions that would be made anew, and never outlive what they came from."""

import copy
import json
import statistics
import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import webhook.admit
from sidemount.model.facts import Facts
from tests.webhook.admission import SETTINGS, Json, golden_facts, mutated, pod_with, review, validated
from tests.webhook.test_any_pod import pods
from webhook.admit import mutate
from webhook.asked import read_asked
from webhook.decision import judge
from webhook.injection_settings import InjectionSettings


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook.admit, "_memory", None)


def answer(pod: Any, facts: Facts | None = None, settings: InjectionSettings = SETTINGS) -> bytes:
    """Return the answer's bytes."""
    return mutate(review(pod), facts=facts or golden_facts(), settings=settings).body


def forget() -> None:
    """Forget everything that is kept."""
    webhook.admit._memory = None


def decisions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count decisions that are made anew."""
    made: list[int] = []

    def counted(*arguments: Any) -> Any:
        made.append(1)
        return judge(*arguments)

    monkeypatch.setattr(webhook.admit, "judge", counted)
    return made


def of_a_workload(number: int) -> Json:
    """Return one pod of a workload: its token volume, name, labels and image differ from the others'."""
    volume = f"kube-api-access-{number:05}"
    pod = pod_with()
    pod["metadata"].update(name=f"web-{number}", labels={"index": str(number)}, uid=str(number))
    pod["spec"]["volumes"].append({"name": volume, "projected": {"sources": [{"x": number}]}})
    container = pod["spec"]["containers"][0]
    container["image"] = f"app:{number}"
    container["env"] = [{"name": "N", "value": str(number)}]
    container["volumeMounts"].append({"name": volume, "mountPath": "/var/run/secrets/x", "readOnly": True})
    return pod


def test_pods_of_one_workload_share_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    made = decisions(monkeypatch)
    answers = {answer(of_a_workload(number)) for number in range(20)}
    assert len(made) == 1
    assert len(answers) == 1
    for number in range(3):
        after = mutated(of_a_workload(number)).after
        assert after["spec"]["volumes"][1]["name"] == f"kube-api-access-{number:05}"


def _renamed(value: Any, old: str, new: str) -> Any:
    return json.loads(json.dumps(value).replace(f'"{old}"', f'"{new}"'))


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(pods(), pods())
def test_what_is_kept_is_what_would_be_decided(pod: Json, other: Json) -> None:
    relative = _renamed(copy.deepcopy(pod), "tmp", "tmp-of-another")
    relative["metadata"]["name"] = "another"
    for container in relative["spec"]["containers"]:
        container["image"] = "another"
    fresh = []
    for candidate in (pod, relative, other):
        forget()
        fresh.append(answer(candidate))
    forget()
    assert [answer(candidate) for candidate in (pod, relative, other)] == fresh
    assert [answer(candidate) for candidate in (other, relative, pod)] == fresh[::-1]


DIFFERENT: list[Any] = [
    pytest.param(lambda p: p["spec"]["containers"][0]["volumeMounts"][0].update(subPath="a"), id="sub-path"),
    pytest.param(
        lambda p: p["spec"]["containers"][0]["volumeMounts"][0].update(readOnly=True), id="read-only"
    ),
    pytest.param(lambda p: p["spec"]["containers"].insert(0, {"name": "b"}), id="container"),
    pytest.param(lambda p: p["spec"].update(initContainers=[{"name": "i"}]), id="init-container"),
    pytest.param(lambda p: p["spec"]["containers"][0].update(name="other"), id="container-name"),
    pytest.param(lambda p: p["spec"].update(runtimeClassName="gvisor"), id="runtime-class"),
    pytest.param(lambda p: p["spec"].update(hostUsers=False), id="host-users"),
    pytest.param(lambda p: p["spec"].update(os={"name": "windows"}), id="os"),
    pytest.param(lambda p: p["spec"].update(nodeSelector={"kubernetes.io/os": "windows"}), id="selector"),
    pytest.param(lambda p: p["spec"].update(terminationGracePeriodSeconds=0), id="grace"),
    pytest.param(
        lambda p: p["spec"].update(securityContext={"runAsUser": 1, "seccompProfile": {}}), id="security"
    ),
    pytest.param(lambda p: p["spec"].update(resources={"limits": {"memory": "1Mi"}}), id="resources"),
    pytest.param(
        lambda p: p["spec"]["containers"][0].update(resources={"limits": {"cpu": 1, "memory": "1Gi"}}),
        id="guaranteed",
    ),
    pytest.param(
        lambda p: p["metadata"]["annotations"].update({"sidemount.io/inject": "false"}), id="opted-out"
    ),
    pytest.param(
        lambda p: p["metadata"].update(labels={"sidemount.io/inject": "false"}), id="opted-out-label"
    ),
    pytest.param(
        lambda p: p["metadata"]["annotations"].update({"kubectl.kubernetes.io/default-container": "x"}),
        id="default",
    ),
    pytest.param(
        lambda p: p["spec"]["volumes"][0].update(hostPath={"path": "/"}, emptyDir=None), id="volume-kind"
    ),
    pytest.param(
        lambda p: p["spec"]["containers"][0].update(volumeDevices=[{"name": "train", "devicePath": "/d"}]),
        id="device",
    ),
]


@pytest.mark.parametrize("change", DIFFERENT)
def test_what_matters_is_part_of_the_shape(change: Any) -> None:
    first = answer(pod_with())
    pod = pod_with()
    change(pod)
    warm = answer(pod)
    assert warm != first
    forget()
    assert answer(pod) == warm


class Changed:
    """Facts that count as changed whenever they are told to."""

    def __init__(self) -> None:
        self.number = 0
        self.opened = True

    def __getattr__(self, name: str) -> Any:
        return getattr(golden_facts(), name)

    def generation(self) -> int:
        return self.number

    def namespace(self, name: str) -> Any:
        return golden_facts().namespace(name if self.opened else "plain")


def test_nothing_kept_outlives_facts_or_settings() -> None:
    facts = Changed()
    assert b'"allowed":true' in answer(pod_with(), facts)
    facts.opened = False
    facts.number = 1
    assert b'"allowed":false' in answer(pod_with(), facts)
    assert b'"allowed":true' in answer(pod_with(), Changed()), "other facts of the same generation"
    assert b'"allowed":true' in answer(pod_with())
    other = answer(pod_with(), None, InjectionSettings(sidecar_image="other:1"))
    assert other != answer(pod_with())
    assert answer(pod_with(), None, InjectionSettings()) == answer(pod_with())


def test_namespace_is_part_of_what_is_decided() -> None:
    body = json.loads(review(pod_with()))
    body["request"]["namespace"] = "plain"
    assert b'"allowed":true' in answer(pod_with())
    denied = mutate(json.dumps(body).encode(), facts=golden_facts(), settings=SETTINGS)
    assert not denied.outcome.allowed


def test_memory_is_bounded() -> None:
    for number in range(webhook.admit._KEPT_MAX + 50):
        answer(pod_with(runtimeClassName=f"class-{number}"))
    memory = webhook.admit._memory
    assert memory is not None
    assert len(memory) == webhook.admit._KEPT_MAX
    assert memory.size_bytes <= webhook.admit._KEPT_MAX_BYTES


def test_memory_of_large_decisions_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook.admit, "_KEPT_MAX_BYTES", 100_000)
    for number in range(50):
        mounts = [{"name": "train", "mountPath": f"/{number}/{index}"} for index in range(50)]
        answer(pod_with(containers=[{"name": "a", "volumeMounts": mounts}]))
        memory = webhook.admit._memory
        assert memory is not None
        assert memory.size_bytes <= 100_000
        assert memory.size_bytes == sum(kept.size_bytes for kept in memory._kept.values())


def test_a_second_round_is_never_answered_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    injected = mutated(pod_with()).after
    made = decisions(monkeypatch)
    assert mutated(injected).reason == "AlreadyInjected"
    forged = copy.deepcopy(injected)
    forged["spec"]["initContainers"][0]["image"] = "evil"
    assert mutated(forged).reason == "HandMade"
    assert mutated(injected).reason == "AlreadyInjected"
    assert len(made) == 3


def test_two_threads_may_ask_at_once() -> None:
    failures: list[BaseException] = []
    expected = [answer(pod_with(runtimeClassName=f"r{number}")) for number in range(40)]

    def ask() -> None:
        try:
            for _ in range(5):
                for number, body in enumerate(expected):
                    assert answer(pod_with(runtimeClassName=f"r{number}")) == body
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def _cost_us(pod: Json) -> float:
    body = review(pod)
    facts = golden_facts()
    mutate(body, facts=facts, settings=SETTINGS)
    samples = []
    for _ in range(15):
        began = time.perf_counter()
        for _ in range(20):
            mutate(body, facts=facts, settings=SETTINGS)
        samples.append((time.perf_counter() - began) / 20 * 1e6)
    return statistics.quantiles(samples, n=4)[0]


def test_istio34799_cost_grows_no_faster_than_the_bytes() -> None:
    small, large = pod_with(), pod_with()
    for pod, count in ((small, 100), (large, 5000)):
        pod["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": f"value {n}"} for n in range(count)]
    ratio = len(review(large)) / len(review(small))
    assert _cost_us(large) < _cost_us(small) * ratio * 3
    assert _cost_us(large) < 50_000


@pytest.mark.parametrize("judged", [mutated, validated])
@pytest.mark.parametrize(
    "annotation",
    [{"volume.sidemount.io/train": "nonsense"}, {"sidemount.io/inject": "maybe"}],
    ids=["volume", "inject"],
)
def test_a_remembered_fault_holds_on_to_no_pod(judged: Any, annotation: Json) -> None:
    assert not judged(pod_with(annotation)).outcome.allowed
    asked = read_asked(tuple(annotation.items()))
    fault = asked.fault or asked.inject_fault
    assert fault is not None
    assert fault.__traceback__ is None


@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_a_null_container_never_gets_the_patch_of_an_empty_one(section: str) -> None:
    listed = '[{"name": "x", "source": "dir:///srv/d", "mountPath": "/x"}]'
    pod = pod_with({"sidemount.io/volumes": listed})
    pod["spec"].setdefault(section, []).append({})
    assert mutated(pod).patch
    pod["spec"][section][-1] = None
    refused = mutated(pod)
    assert refused.reason == "InvalidRequest"
    assert section in refused.message
