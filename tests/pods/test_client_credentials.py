"""A client that wants its credentials in a file of its own form, and in its environment: made in memory, for it alone (S4-09)."""

import base64
import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.clients.images import memo_image
from e2e.podlet.client import RunningPod
from tests.pods.application import call, sh
from tests.pods.conftest import MakeStage
from tests.pods.manifests import NAMESPACE, Json, driver_class, mount, pod, shell
from tests.pods.stage import READY_S

pytestmark = [pytest.mark.root, pytest.mark.fuse]
KEY, ID = "canary-4ffa0c51-do-not-tell", "AKID-of-the-canary"
PASSWD = f"{ID}:{KEY}"
MEMO = driver_class(
    "memo",
    {
        "deliveries": ["sidecar"],
        "sources": ["memo://**"],
        "namespaces": {},
        "image": "memo",
        "command": ["memo", "${mountpoint}", "${files}/passwd", "${source.host}"],
        "credentials": {
            "secretKeys": ["id", "key"],
            "required": True,
            "files": {"passwd": "${id}:${key}"},
            "environment": {"MEMO_KEY": "${key}", "MEMO_CONFIG": "${files}/passwd"},
        },
        "abilities": {"descriptor": True},
    },
)


def _secret(**keys: str) -> Json:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "desk", "namespace": NAMESPACE},
        "data": data,
    }


def test_the_client_alone_has_what_is_made_of_its_credentials(make_stage: MakeStage) -> None:
    stage = make_stage(
        classes=(MEMO,), objects=(_secret(id=ID, key=KEY),), more_images={"memo": memo_image()}
    )
    app = shell("app", volumeMounts=[mount("note", "/note")])
    running = stage.run(pod({"note": "memo://buy-milk?secret=desk"}, app))
    assert sh(running, "app", "cat /note/memo.txt /note/length") == f"buy-milk\n{len(PASSWD)}\n"
    made = "seen = [(open(f'{at}/{n}').read(), oct(os.stat(f'{at}/{n}').st_mode), os.stat(f'{at}/{n}').st_uid) for at, _, names in os.walk('/run/sidemount') for n in names if n == 'passwd']"
    assert call(running, "sidemount-note", made) == [[PASSWD, "0o100600", 65532]]
    with_key = {comm for comm, environ in _processes(running, "environ").items() if KEY in environ}
    assert with_key == {"memo"}
    assert not [comm for comm, argv in _processes(running, "cmdline").items() if KEY in argv or ID in argv]
    told = "".join(running.logs(name) for name in running.status().containers)
    assert KEY not in told
    assert "memo: signed in with ***" in told


def test_a_key_that_is_missing_is_told_by_the_container(make_stage: MakeStage) -> None:
    wrong = _secret(id=ID, key="two\nlines")
    stage = make_stage(classes=(MEMO,), objects=(wrong,), more_images={"memo": memo_image()})
    running = stage.start(
        pod({"note": "memo://buy-milk?secret=desk"}, shell("app", volumeMounts=[mount("note", "/note")]))
    )
    said = _wait_for_words(running)
    assert 'credential "key" holds a line break' in said[-1]
    assert "two" not in "".join(said)
    running.delete(deadline_s=READY_S)


def _wait_for_words(running: RunningPod) -> list[str]:
    """Return what the client's starter has said, once it has ended."""
    until = time.monotonic() + READY_S
    while "client_ended" not in (said := running.logs("sidemount-note")):
        assert time.monotonic() < until, said
        time.sleep(0.1)
    events = [json.loads(line) for line in said.splitlines()]
    return [event["line"] for event in events if event["event"] == "client_output"]


def _processes(running: RunningPod, name: str) -> dict[str, str]:
    """Return a file of every process of the pod, by the process's name."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and f"/pod{running.uid}/" in (entry / "cgroup").read_text():
                found[(entry / "comm").read_text().strip()] = (entry / name).read_text(errors="replace")
    assert "memo" in found, found.keys()
    return found
