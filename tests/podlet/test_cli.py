"""python -m e2e.podlet."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.podlet.pods import Json, container, exec_probe, pod, task

pytestmark = pytest.mark.root


def _run(tmp_path: Path, manifests: list[Json], *options: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    argv = [sys.executable, "-m", "e2e.podlet", "run", "-f", str(file), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_until_ready_prints_a_table_and_progress_and_cleans_up(tmp_path: Path) -> None:
    done = _run(tmp_path, [pod(container("app"))], "--image", "busybox=@busybox", "--until-ready")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "pod pod: Running"
    assert done.stdout.splitlines()[2].split() == ["app", "app", "yes", "Running", "0"]
    assert "started app" in done.stderr
    assert "app ended: Completed, exit code 0" in done.stderr


def test_a_job_with_a_secret_runs_to_its_end_in_json(tmp_path: Path) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s", "namespace": "ns"}, "stringData": {"k": "v"}}
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    job = pod(task("job", 'test "$K" = v', env=env), restartPolicy="Never")
    done = _run(tmp_path, [secret, job], "--image", "busybox=@busybox", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["phase"] == "Succeeded"


def test_a_pod_that_fails_or_is_late_or_refused_says_so(tmp_path: Path) -> None:
    image = ("--image", "busybox=@busybox")
    failed = _run(tmp_path, [pod(task("job", "exit 4"), restartPolicy="Never")], *image)
    assert failed.returncode == 1
    late = _run(
        tmp_path, [pod(container("app", readinessProbe=exec_probe("false")))], *image, "--timeout", "0.5"
    )
    assert late.returncode == 1
    assert "is not ready after 0.5 s" in late.stderr
    refused = _run(tmp_path, [pod(container("app", comand=[]))], *image)
    assert refused.returncode == 2
    assert refused.stderr == 'podlet: pod.spec.containers[0]: podlet does not know "comand"\n'
    for bad in (["--image", "x"], ["--image", "x=/no/such/place"]):
        assert _run(tmp_path, [pod(container("app"))], *bad).returncode == 2
    assert "needs exactly one" in _run(tmp_path, [], *image).stderr


def test_an_interrupt_deletes_the_pod_gracefully(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod(container("app"))))
    argv = [sys.executable, "-m", "e2e.podlet", "run", "-f", str(file), "--image", "busybox=@busybox"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the table comes when the pod is ready
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "podlet: deleting the pod" in errors
    assert "app ended: Completed, exit code 0" in errors
