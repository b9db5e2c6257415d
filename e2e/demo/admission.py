"""The webhook as a process of its own, and a client that verifies its certificate as an API server does."""

import base64
import http.client
import json
import os
import queue
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch

from e2e.demo.screen import CheckFailed
from sidemount.commands.pods import review_of

READY_WITHIN_S = 20.0
ANSWER_WITHIN_S = 10.0
STOP_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An answer as an API server reads it. `pod` has the patch applied."""

    allowed: bool
    reason: str
    message: str
    warnings: tuple[str, ...]
    patch: tuple[dict[str, Any], ...]
    pod: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A running webhook."""

    process: subprocess.Popen[str]
    url: str
    bundle: Path

    def review(self, pod: dict[str, Any], namespace: str, path: str = "/mutate") -> Verdict:
        """Send a pod's creation and return the verdict. Raises CheckFailed for an answer that an API server would not take."""
        host, _, port = self.url.removeprefix("https://").rpartition(":")
        context = ssl.create_default_context(cafile=str(self.bundle))
        connection = http.client.HTTPSConnection(host, int(port), timeout=ANSWER_WITHIN_S, context=context)
        body = review_of(pod, namespace)
        try:
            connection.request("POST", f"{path}?timeout=3s", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise CheckFailed(f"the webhook answered {answer.status}: {text[:200]!r}")
        response = json.loads(text)["response"]
        if response["uid"] != json.loads(body)["request"]["uid"]:
            raise CheckFailed("the answer is for another request")
        patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
        return Verdict(
            allowed=response["allowed"],
            reason=response.get("status", {}).get("reason", "")
            or response.get("auditAnnotations", {}).get("decision", ""),
            message=response.get("status", {}).get("message", ""),
            warnings=tuple(response.get("warnings", ())),
            patch=tuple(patch),
            pod=jsonpatch.apply_patch(pod, patch),
        )


@contextmanager
def run_webhook(directory: Path, facts: Path) -> Iterator[Webhook]:
    """Make an authority, start the webhook under it, and end it on the way out."""
    tls = directory / "tls"
    subprocess.run(
        [sys.executable, "-m", "certs", "dev", "--dir", tls, "--name", "localhost"],
        check=True, capture_output=True, timeout=READY_WITHIN_S,
    )  # fmt: skip
    bundle = tls / "ca.crt"
    with (directory / "webhook.log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "webhook", "--listen", "localhost:0",
                "--tls-cert", tls / "tls.crt", "--tls-key", tls / "tls.key", "--facts", facts, "--lame-duck-seconds", "0",
            ],
            stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        yield Webhook(process=process, url=_ready_url(process, directory / "webhook.log"), bundle=bundle)
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _ready_url(process: subprocess.Popen[str], log: Path) -> str:
    """Return the URL of the line that it prints when it is ready."""
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(
        target=lambda: lines.put(process.stdout.readline() if process.stdout else ""), daemon=True
    ).start()
    try:
        line = lines.get(timeout=READY_WITHIN_S)
    except queue.Empty:
        line = ""
    urls = [word for word in line.split() if word.startswith("https://")]
    if not urls:
        raise CheckFailed(f"the webhook did not become ready: {line or log.read_text()[-500:]}")
    return urls[0]
