"""Pods of every shape with volumes, all of them at once on the node: what their containers see, and that the node is left as it was."""

import json
import secrets
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import OPEN, in_namespace, unchanged
from e2e.tests.deployment import Installation
from e2e.tests.images import busybox
from e2e.tests.pods import Namespace, mounted, pod, restarts, shell, task, with_volumes
from e2e.tests.sources import Source, Sources
from sidemount.model.names import UNPRIVILEGED_UID

_DATA = mounted("books", "/data")
_FILES = {"shelf/one": b"whale\n", "shelf/two": b"fish\n"}
_USER = {"runAsUser": 1000, "runAsGroup": 3000, "runAsNonRoot": True}
_DEBUGGED_S = 180.0
_REACH = """
for at in /proc/[0-9]*; do
  tr '\\0' ' ' <$at/cmdline 2>/dev/null | grep -q '^python3.* sidecar' || continue
  echo seen
  ls $at/fd/ >/dev/null 2>&1 && echo descriptors
  ls $at/root/ >/dev/null 2>&1 && echo files
  cat $at/environ >/dev/null 2>&1 && echo settings
done
:
"""


@pytest.fixture(scope="module")
def books(sources: Sources) -> Iterator[Source]:
    """A source of several pods, which no pod of these may change."""
    made = sources.make(_FILES)
    before = made.state()
    yield made
    assert made.state() == before, "a source was changed"
    made.remove()


@pytest.fixture(scope="module")
def notes(sources: Sources) -> Iterator[Source]:
    """A source of the group 2000, which pods write to."""
    made = sources.make({"kept": b"kept\n"}, mode=0o2770, owner=2000)
    yield made
    state = made.state()
    assert state["kept"].split()[:2] == ["100644", "0:0"], "an owner or a mode was changed"
    assert state["."].split()[1] == "2000:2000"
    made.remove()


@pytest.fixture(scope="module")
def crowd(
    installation: Installation,
    own_cluster: RunningCluster | None,
    sources: Sources,
    books: Source,
    notes: Source,
) -> Iterator[Namespace]:
    """A namespace with a pod of each shape; whoever looks at one waits for it."""
    installation.ensure()
    name = f"shapes-{secrets.token_hex(3)}"
    with unchanged(own_cluster):
        for namespace in in_namespace(installation.api, name, OPEN, sources.node):
            for each in _shapes(books.uri, notes.uri):
                namespace.create(each)
            yield namespace


def _shapes(books: str, notes: str) -> Iterator[Json]:
    app = shell("app", "cat /data/shelf/one", volumeMounts=[_DATA])
    one = {"books": books}
    first = task(
        "first",
        "cat /data/shelf/one && echo first >/notes/first",
        volumeMounts=[_DATA, mounted("notes", "/notes")],
    )
    second = shell("app", "cat /notes/first", volumeMounts=[_DATA, mounted("notes", "/notes")])
    yield with_volumes(pod("init", second, initContainers=[first]), {**one, "notes": notes})
    views = [
        _DATA,
        mounted("books", "/shelf", subPath="shelf"),
        mounted("notes", "/notes"),
        mounted("notes", "/seen", readOnly=True),
    ]
    yield with_volumes(
        pod("views", shell("app", volumeMounts=views)), {"books": f"{books}?readOnly=true", "notes": notes}
    )
    writes = shell("app", "echo mine >/notes/mine", volumeMounts=[mounted("notes", "/notes")])
    yield with_volumes(pod("group", writes, securityContext={**_USER, "fsGroup": 2000}), {"notes": notes})
    yield with_volumes(pod("user", app, securityContext=_USER), one)
    yield with_volumes(
        pod("together", app, shareProcessNamespace=True, securityContext={"runAsUser": UNPRIVILEGED_UID}), one
    )
    yield with_volumes(
        pod(
            "bounded",
            app,
            resources={
                "requests": {"cpu": "250m", "memory": "256Mi"},
                "limits": {"cpu": "2", "memory": "1Gi"},
            },
        ),
        one,
    )
    yield with_volumes(pod("host", app, hostNetwork=True), one)
    without = with_volumes(pod("without", shell("app", "ls -A /data", volumeMounts=[_DATA])), one)
    without["metadata"]["annotations"]["sidemount.io/inject"] = "false"
    yield without


@pytest.mark.parametrize("name", ["user", "together", "bounded", "host"])
def test_a_pod_reads_its_volume_whatever_else_it_is(crowd: Namespace, name: str) -> None:
    found = crowd.ready(name)
    crowd.printed(name, "app", "whale\n")
    assert set(restarts(found).values()) == {0}


def test_an_init_container_has_the_volume_before_the_application(crowd: Namespace) -> None:
    crowd.ready("init")
    crowd.printed("init", "first", "whale\n")
    crowd.printed("init", "app", "first\n")


def test_two_volumes_a_part_of_one_and_what_cannot_be_written_to(crowd: Namespace) -> None:
    crowd.ready("views")
    assert _sh(crowd, "views", "cat /shelf/two; ls /shelf") == "fish\none\ntwo\n"
    assert _sh(crowd, "views", "echo x >/notes/written; cat /seen/written") == "x\n"
    for path in ("/seen/written", "/data/shelf/one", "/shelf/one", "/data/new"):
        with pytest.raises(KubectlFailed, match="Read-only file system"):
            _sh(crowd, "views", f"echo y >{path}")


def test_a_group_of_the_pod_s_may_write(crowd: Namespace, notes: Source) -> None:
    """By fsGroup it is of the application's groups; the volume's files keep their owners."""
    crowd.ready("group")
    assert _sh(crowd, "group", "id -u; id -G; cat /notes/mine") == "1000\n3000 2000\nmine\n"
    assert notes.state()["mine"].split()[1] == "1000:2000"


def test_processes_of_ours_are_not_the_application_s_to_reach(crowd: Namespace) -> None:
    """In one process namespace, and of the daemon's own user: seen, and neither descriptors nor files nor settings reached."""
    crowd.ready("together")
    told = _sh(crowd, "together", _REACH).split()
    assert told.count("seen") >= 2, told
    assert set(told) == {"seen"}


def test_who_opts_out_is_left_alone(crowd: Namespace) -> None:
    found = crowd.ready("without")
    assert "initContainers" not in found["spec"]
    assert crowd.logs("without", "app") == ""


def test_exec_and_logs_go_to_the_user_s_container(crowd: Namespace) -> None:
    crowd.ready("user")
    where = f"--namespace={crowd.name}"
    assert crowd.api.run("exec", where, "user", "--", "cat", "/data/shelf/two") == "fish\n"
    crowd.printed("user", "app", "whale\n")
    assert crowd.api.run("logs", where, "user") == "whale\n"


def test_a_pod_can_be_debugged(crowd: Namespace) -> None:
    """From a container beside it, which sees the application's processes and through them its volume."""
    crowd.ready("user")
    _debug(crowd, "user", "debugger", "--target=app", "--profile=sysadmin")
    crowd.printed("user", "debugger", "whale\n")


def test_who_debugs_does_not_reach_behind_the_volumes(
    crowd: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its sockets are refused; the mount points may be looked at."""
    crowd.ready("user")
    custom = tmp_path_factory.mktemp("debug") / "custom.json"
    for mounts in (
        [mounted("sidemount-run", "/run")],
        [mounted("sidemount", "/mounts")],
        [mounted("sidemount", "/mounts", readOnly=True)],
    ):
        custom.write_text(json.dumps({"volumeMounts": mounts}))
        with pytest.raises(KubectlFailed, match=r"\(HandMade\)"):
            _debug(crowd, "user", f"reaches-{secrets.token_hex(2)}", f"--custom={custom}")
    seen = mounted("sidemount", "/mounts", readOnly=True, mountPropagation="HostToContainer")
    custom.write_text(json.dumps({"volumeMounts": [seen]}))
    _debug(crowd, "user", "looks", f"--custom={custom}", script="ls -d /mounts/*/")
    assert wait_for(lambda: crowd.logs("user", "looks").startswith("/mounts/"), _DEBUGGED_S)


def test_no_owner_is_changed_when_kubelet_starts_anew(
    crowd: Namespace, cluster: RunningCluster, notes: Source
) -> None:
    """It sets the group of a pod's volumes when it mounts them, and must not do so through ours."""
    crowd.ready("group")
    before = notes.state()
    cluster.restart("kubelet")
    assert wait_for(lambda: _is_reached(crowd, "group"), _DEBUGGED_S)
    crowd.run(pod("later", shell("app")))  # it has looked after the volumes of those that it found
    _sh(crowd, "group", "echo again >/notes/again")
    after = notes.state()
    assert after.pop("again").split()[1] == "1000:2000"
    assert after == before


def _is_reached(crowd: Namespace, name: str) -> bool:
    try:
        return _sh(crowd, name, "echo reached") == "reached\n"
    except KubectlFailed:
        return False


def _debug(
    crowd: Namespace,
    name: str,
    container: str,
    *arguments: str,
    script: str = "cat /proc/1/root/data/shelf/one",
) -> None:
    """Run a script in an ephemeral container, and wait for its end."""
    where = (
        f"--namespace={crowd.name}",
        f"--image={busybox()}",
        f"--container={container}",
        "--attach=false",
    )
    crowd.api.run("debug", name, *where, *arguments, "--", "sh", "-c", script)

    def has_run(found: Json) -> bool:
        statuses = found["status"].get("ephemeralContainerStatuses", ())
        return any(each["name"] == container and "terminated" in each["state"] for each in statuses)

    crowd.until(name, has_run, "debugged", _DEBUGGED_S)


def _sh(crowd: Namespace, name: str, script: str) -> str:
    return crowd.exec(name, "app", "sh", "-c", script)
