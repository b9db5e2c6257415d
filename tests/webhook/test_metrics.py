"""What is counted, and that nobody can make a label up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidemount.model.errors import Reason
from tests.webhook.eventually import eventually
from tests.webhook.raw_client import RawClient, get, post
from tests.webhook.reviews import make_pod, make_review
from tests.webhook.running import RunningServer, running_server
from webhook.metrics import BYTES, SECONDS, Gauges, Metrics, TlsFault
from webhook.metrics import Path as Question
from webhook.outcome import Outcome, Verdict

PREFIX = "sidemount_webhook_"
GAUGES = Gauges(
    is_ready=True,
    is_draining=False,
    in_flight=1,
    connections=2,
    slow_clients=3,
    facts_age_s=4.5,
    facts_faults=5,
    facts_generation=6,
    driver_classes=7,
    certificate_not_after=8.0,
    certificate_is_faulty=False,
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _samples(text: str) -> Samples:
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def _key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_decisions_are_counted_by_question_verdict_and_reason() -> None:
    metrics = Metrics(lambda: GAUGES)
    denied = Outcome(verdict=Verdict.DENIED, reason=Reason.CLASS_OFF)
    for _ in range(3):
        metrics.decided(Question.MUTATE, denied, 0.0004, 6000)
    metrics.decided(
        Question.VALIDATE, Outcome(verdict=Verdict.UNCHANGED, reason=Reason.NOT_REQUESTED), 5.0, 10
    )
    samples = _samples(metrics.render().decode())
    assert samples[_key("admission_requests_total", path="mutate", verdict="denied", reason="ClassOff")] == 3
    assert (
        samples[_key("admission_requests_total", path="validate", verdict="unchanged", reason="NotRequested")]
        == 1
    )
    assert samples[_key("admission_duration_seconds_bucket", path="mutate", le="0.00025")] == 0
    assert samples[_key("admission_duration_seconds_bucket", path="mutate", le="0.0005")] == 3
    assert samples[_key("admission_duration_seconds_bucket", path="mutate", le="+Inf")] == 3
    assert samples[_key("admission_duration_seconds_count", path="mutate")] == 3
    assert samples[_key("admission_duration_seconds_sum", path="mutate")] == pytest.approx(0.0012)
    assert samples[_key("admission_duration_seconds_bucket", path="validate", le="3.0")] == 0
    assert samples[_key("admission_duration_seconds_bucket", path="validate", le="10.0")] == 1
    assert samples[_key("body_bytes_bucket", path="mutate", le="4096")] == 0
    assert samples[_key("body_bytes_bucket", path="mutate", le="16384")] == 3


@pytest.mark.parametrize("value", [*SECONDS, *BYTES])
def test_a_value_on_a_bound_counts_below_it(value: float) -> None:
    metrics = Metrics(lambda: GAUGES)
    outcome = Outcome(verdict=Verdict.UNCHANGED, reason=Reason.NOT_REQUESTED)
    metrics.decided(Question.MUTATE, outcome, value, int(value))
    samples = _samples(metrics.render().decode())
    name = "admission_duration_seconds_bucket" if value in SECONDS else "body_bytes_bucket"
    assert samples[_key(name, path="mutate", le=str(value))] == 1


def test_failures_and_the_state_of_things_are_shown() -> None:
    metrics = Metrics(lambda: GAUGES)
    metrics.refused(413)
    metrics.tls_failed(TlsFault.TIMEOUT)
    metrics.certificate_loaded()
    metrics.certificate_faulty()
    withheld = Outcome(verdict=Verdict.DENIED, reason=Reason.PATCH_NOT_PROVED, proof_failed=True)
    metrics.decided(Question.MUTATE, withheld, 0.1, 1)
    samples = _samples(metrics.render().decode())
    expected = {
        _key("http_refusals_total", status="413"): 1,
        _key("tls_failures_total", reason="timeout"): 1,
        _key("tls_failures_total", reason="protocol"): 0,
        _key("patch_proof_failures_total"): 1,
        _key("certificate_loads_total"): 1,
        _key("certificate_faults_total"): 1,
        _key("ready"): 1,
        _key("draining"): 0,
        _key("in_flight_requests"): 1,
        _key("connections"): 2,
        _key("slow_clients_total"): 3,
        _key("facts_age_seconds"): 4.5,
        _key("facts_faults"): 5,
        _key("facts_generation"): 6,
        _key("driver_classes"): 7,
        _key("certificate_not_after_seconds"): 8,
        _key("certificate_faulty"): 0,
    }
    assert {key: samples[key] for key in expected} == expected


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("metrics")) as started:
        yield started


def _scrape(server: RunningServer) -> Samples:
    with RawClient(server.port, server.files.bundle) as client:
        response = client.ask(get("/metrics"), "GET")
    assert response is not None
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "process_resident_memory_bytes" in response.text
    return _samples(response.text)


def test_no_request_can_make_up_a_label(server: RunningServer) -> None:
    for number in range(30):
        for content in (
            post(make_review(make_pod(f"gopher://{number}")), f"/mutate?timeout={number}s"),
            post(make_review(make_pod(), namespace=f"ns-{number}")),
            post(b"junk", f"/nowhere-{number}"),
            get(f"/{number}", f"M{number}" if number % 2 else "GET"),
        ):
            with RawClient(server.port, server.files.bundle) as client:
                assert client.ask(content) is not None
    samples = _scrape(server)
    allowed = {
        "path": {question.value for question in Question},
        "verdict": {verdict.value for verdict in Verdict},
        "reason": {reason.value for reason in Reason} | {fault.value for fault in TlsFault},
        "status": {str(status) for status in (400, 404, 405, 408, 413, 415, 417, 500, 503, 504)},
    }
    for name, labels in samples:
        for label, value in labels:
            assert label == "le" or value in allowed[label], (name, label, value)
    assert len(samples) < 150


def test_a_fault_in_the_facts_shows_by_number_and_by_name(server: RunningServer) -> None:
    before = _scrape(server)
    assert before[_key("facts_faults")] == 0
    (server.facts / "bad.yaml").write_text("kind: [")
    eventually(lambda: _scrape(server)[_key("facts_faults")] == 1, "the fault is counted")
    with RawClient(server.port, server.files.bundle) as client:
        response = client.ask(get("/readyz"), "GET")
    assert response is not None
    assert response.status == 200
    assert "bad.yaml" in response.text
    assert server.log.read_text().count("facts_faulty") == 1
    (server.facts / "bad.yaml").unlink()
    eventually(lambda: _scrape(server)[_key("facts_faults")] == 0, "the fault is over")
    assert _scrape(server)[_key("facts_generation")] > before[_key("facts_generation")]


def test_facts_follow_their_files_while_reviews_are_answered(server: RunningServer) -> None:
    """A class that an admin adds is there within seconds, without a restart."""
    content = post(make_review(make_pod("test://somewhere")))

    def verdict() -> bool:
        with RawClient(server.port, server.files.bundle) as client:
            response = client.ask(content)
        assert response is not None
        assert response.status == 200
        return b'"allowed":true' in response.body

    assert not verdict()
    classes = (server.facts / "classes.yaml").read_text()
    added = classes.split("\n---\n")[0].replace("{name: directory}", "{name: other}")
    added = added.replace('["dir:///srv/**", "pvc://**", "nfs://**"]', '["nfs://elsewhere/**"]')
    content = post(make_review(make_pod("nfs://elsewhere/x?class=other")))
    assert not verdict()
    (server.facts / "more.yaml").write_text(added)
    eventually(verdict, "the new class is in force")
    (server.facts / "more.yaml").write_text("kind: [")
    assert verdict(), "what was last good stays in force"
    (server.facts / "more.yaml").unlink()
    eventually(lambda: not verdict(), "the class is gone")


def test_metrics_of_a_fresh_process_are_complete(tmp_path: Path) -> None:
    text = Metrics(lambda: GAUGES).render().decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {PREFIX + "admission_requests", PREFIX + "http_refusals", PREFIX + "ready"} <= names
