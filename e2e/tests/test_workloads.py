"""What people run, as they write it: README's pod, Deployment, Job, CronJob, StatefulSet; the next pod reads what the last one wrote."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.kubectl import Json
from e2e.cluster.places import SOURCE
from e2e.cluster.waiting import wait_for
from e2e.tests.images import busybox
from e2e.tests.pods import (
    READY_S,
    Namespace,
    controller,
    has_failed,
    is_complete,
    is_ending,
    mounted,
    pod,
    shell,
    task,
    with_volumes,
)
from e2e.tests.sources import ROOT, Source, Sources
from sidemount.model.names import KEEPER_CONTAINER, VOLUME_ANNOTATION_PREFIX

_DATA = [mounted("books", "/data")]
_BOOKS = {"shelf/one": b"whale\n", "shelf/two": b"fish\n"}
_ROLLED_S = 300.0


@pytest.fixture
def books(source: Source) -> Iterator[Source]:
    """A source that the pods may write to, whose own files stay what they are."""
    source.write(_BOOKS, mode=0o777)
    before = source.state()
    yield source
    after = source.state()
    assert {name: after.get(name) for name in before} == before, "what nobody wrote to was changed"


def _readme_pod() -> Json:
    """Return the pod that README shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    found: Json = next(made for block in blocks if (made := yaml.safe_load(block))["kind"] == "Pod")
    return found


def test_the_readme_s_pod_reads_its_data(ml: Namespace, sources: Sources) -> None:
    """As it is written, but for where the image is: a node without a registry has it under another name."""
    manifest = _readme_pod()
    (annotation, asked), *_ = manifest["metadata"]["annotations"].items()
    uri = asked.partition("?")[0]
    shown = sources.make({"n01440764.jpg": b"fish"}, name=uri.removeprefix(f"dir://{ROOT}/"))
    (app,) = manifest["spec"]["containers"]
    app["image"] = busybox()
    try:
        name = manifest["metadata"]["name"]
        ml.create(manifest)
        ml.until(name, lambda found: _has_done(found, app["name"]), "done")
        assert "n01440764.jpg" in ml.logs(name, app["name"])
        created = ml.pod(name)
        assert created is not None
        volume = annotation.removeprefix(VOLUME_ANNOTATION_PREFIX)
        names = [each["name"] for each in created["spec"]["initContainers"]]
        assert names == [KEEPER_CONTAINER, f"sidemount-{volume}"]
        ml.delete(name)
        assert "n01440764.jpg" in shown.digests()
    finally:
        shown.remove()


def _has_done(found: Json, container: str) -> bool:
    """Tell whether a container has ended well, be it that it is started again."""
    for each in found["status"].get("containerStatuses", ()):
        states = (each["state"], each.get("lastState", {}))
        if each["name"] == container and any("terminated" in state for state in states):
            return any(state.get("terminated", {}).get("exitCode") == 0 for state in states)
    return False


def _template(app: Json, books: Source, name: str, **spec: Any) -> Json:
    return with_volumes(pod(name, app, labels={"app": name}, **spec), {"books": books.uri})


def test_a_deployment_is_rolled_out_anew(ml: Namespace, books: Source) -> None:
    """The new pods read what the old ones wrote, beside whom they run for a while."""
    script = "cat /data/shelf/* >/dev/null && echo $HOSTNAME >>/data/starts"
    app = shell("app", script, volumeMounts=_DATA)
    app["readinessProbe"] = {"exec": {"command": ["test", "-s", "/data/shelf/one"]}, "periodSeconds": 1}
    ml.create(controller("apps/v1", "Deployment", "readers", _template(app, books, "readers"), replicas=2))
    _rolled_out(ml, "deployment/readers")
    assert wait_for(lambda: len(books.read("starts").split()) == 2, READY_S)
    first = books.read("starts").split()
    ml.api.run("rollout", "restart", "deployment/readers", f"--namespace={ml.name}")
    _rolled_out(ml, "deployment/readers")
    now = {each["metadata"]["name"] for each in ml.pods("app=readers") if not is_ending(each)}
    assert wait_for(lambda: now <= {*books.read("starts").split()[2:]}, READY_S)
    assert ml.exec(min(now), "app", "cat", "/data/starts").split()[:2] == first


def _rolled_out(ml: Namespace, name: str) -> None:
    waits = (f"--namespace={ml.name}", f"--timeout={_ROLLED_S:g}s")
    ml.api.run("rollout", "status", name, *waits, timeout_s=_ROLLED_S + 30)


def test_jobs_end_when_their_work_is_done_and_are_tried_again_when_it_fails(
    ml: Namespace, books: Source
) -> None:
    """Our containers keep no Job: none of them has to be killed. What a failed attempt wrote, the next one reads."""
    jobs = {
        "good": ("cat /data/shelf/one >/data/copied", 0),
        "again": ("echo x >>/data/attempts; test $(wc -l </data/attempts) -ge 2", 1),
        "bad": ("cat /data/shelf/none", 0),
    }
    for name, (script, retries) in jobs.items():
        template = _template(task("app", script, volumeMounts=_DATA), books, name, restartPolicy="Never")
        ml.create(controller("batch/v1", "Job", name, template, backoffLimit=retries))
    assert ml.until_object("job", "good", is_complete, "complete")["status"]["succeeded"] == 1
    assert ml.until_object("job", "bad", has_failed, "given up")["status"]["failed"] == 1
    again = ml.until_object("job", "again", is_complete, "complete")["status"]
    assert (again["failed"], again["succeeded"]) == (1, 1)
    assert books.read("attempts") == "x\nx\n"
    assert books.read("copied") == "whale\n"
    for each in ml.pods():
        codes = {
            status["name"]: status["state"]["terminated"]["exitCode"]
            for status in each["status"]["initContainerStatuses"]
        }
        assert set(codes.values()) == {0}, (each["metadata"]["name"], codes)


def test_a_cron_job_s_run(ml: Namespace, books: Source) -> None:
    app = task("app", "cat /data/shelf/two >>/data/runs", volumeMounts=_DATA)
    template = controller(
        "batch/v1", "Job", "nightly", _template(app, books, "nightly", restartPolicy="OnFailure")
    )
    spec = {"schedule": "0 3 1 1 *", "jobTemplate": {"spec": template["spec"]}}
    ml.create({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec})
    for name in ("once", "twice"):
        ml.api.run("create", "job", name, "--from=cronjob/nightly", f"--namespace={ml.name}")
        ml.until_object("job", name, is_complete, "complete")
    assert books.read("runs") == "fish\nfish\n"


def test_a_stateful_set_s_pods_have_their_own_and_find_it_again(ml: Namespace, books: Source) -> None:
    app = shell("app", "echo $HOSTNAME >>/data/$HOSTNAME", volumeMounts=_DATA)
    made = _template(app, books, "shelves")
    ml.create(
        controller(
            "apps/v1",
            "StatefulSet",
            "shelves",
            made,
            replicas=2,
            serviceName="shelves",
            podManagementPolicy="Parallel",
        )
    )
    _rolled_out(ml, "statefulset/shelves")
    before = ml.ready("shelves-0")
    ml.api.delete("pod", "shelves-0", ml.name)
    assert wait_for(lambda: _is_another(ml.pod("shelves-0"), before), READY_S)
    ml.ready("shelves-0")
    assert ml.exec("shelves-0", "app", "cat", "/data/shelves-0") == "shelves-0\nshelves-0\n"
    assert ml.exec("shelves-0", "app", "cat", "/data/shelves-1") == "shelves-1\n"


def _is_another(found: Json | None, before: Json) -> bool:
    return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]
