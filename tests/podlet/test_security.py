"""Who a container's process is and what it may do."""

import pytest

from e2e.podlet.client import Podlet, RunningPod
from tests.podlet.conftest import MakeNode
from tests.podlet.pods import Json, container, mount, pod

pytestmark = pytest.mark.root
FACTS = ("CapBnd", "CapEff", "NoNewPrivs", "Seccomp")
DEFAULT_CAPS = 0x00000000A80425FB
NONE = 0


def _status(running: RunningPod, name: str = "app") -> dict[str, int]:
    lines = running.exec(name, ["cat", "/proc/1/status"]).stdout.splitlines()
    return {
        k: int(v, 16)
        for k, v in (line.split(":\t") for line in lines if line.startswith(FACTS))
        if k in FACTS
    }


def _says(running: RunningPod, script: str, name: str = "app") -> str:
    done = running.exec(name, ["sh", "-c", script])
    return done.stdout + done.stderr


class Run:
    """Runs one app container until it is ready."""

    def __init__(self, node: Podlet) -> None:
        self.node = node

    def __call__(self, context: Json) -> RunningPod:
        running = self.node.run(pod(container("app", securityContext=context)))
        running.wait_ready(20)
        return running


@pytest.fixture
def run(node: Podlet) -> Run:
    """Return a way to run one app container with a security context."""
    return Run(node)


def test_root_has_containerds_default_capabilities_and_no_more(run: Run) -> None:
    running = run({})
    assert _status(running) == {"CapBnd": DEFAULT_CAPS, "CapEff": DEFAULT_CAPS, "NoNewPrivs": 0, "Seccomp": 0}
    assert "denied" in _says(running, "mount -t tmpfs x /tmp")
    assert "can't open" in _says(running, "cat < /dev/fuse")
    assert "not permitted" in _says(running, "mknod /tmp/fuse c 10 229 && cat /tmp/fuse"), (
        "the device cgroup forbids it"
    )
    assert "Read-only" in _says(running, "echo 1 > /proc/sys/kernel/hostname")
    running.delete()


def test_capabilities_are_added_and_dropped_for_root_alone(make_node: MakeNode) -> None:
    changed = {"capabilities": {"drop": ["ALL"], "add": ["CHOWN", "CAP_FOWNER"]}}
    root = container("root", securityContext=changed)
    user = container("user", securityContext={**changed, "runAsUser": 1000})
    running = make_node().run(pod(root, user))
    running.wait_ready(20)
    assert (_status(running, "root")["CapBnd"], _status(running, "root")["CapEff"]) == (0b1001, 0b1001)
    # In Kubernetes a user that is not root gets added capabilities in its bounding set only.
    assert (_status(running, "user")["CapBnd"], _status(running, "user")["CapEff"]) == (0b1001, NONE)
    running.delete()


def test_a_privileged_container_may_mount_and_sees_the_machines_devices(run: Run) -> None:
    running = run({"privileged": True})
    assert _says(running, "mount -t tmpfs x /tmp && ls -l /dev/fuse").startswith("crw")
    assert _status(running)["Seccomp"] == 0
    running.delete()


def test_runtime_default_and_no_new_privileges_confine(node: Podlet) -> None:
    context = {"seccompProfile": {"type": "RuntimeDefault"}, "allowPrivilegeEscalation": False}
    running = node.run(pod(container("app", securityContext=context), container("free")))
    running.wait_ready(20)
    facts = _status(running)
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == (1, 2)
    assert "Seccomp:\t2\n" in _says(running, "cat /proc/self/status"), (
        "exec is confined like the first process"
    )
    # A user namespace needs no capability: seccomp alone forbids it.
    assert "not permitted" in _says(running, "unshare -U true")
    assert _says(running, "unshare -U true", "free") == ""
    running.delete()


def test_users_groups_and_fs_group_are_as_asked(node: Podlet) -> None:
    context = {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000]}
    volumes = [
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    mounts = [mount("disk", "/disk"), mount("memory", "/memory")]
    running = node.run(pod(container("app", volumeMounts=mounts), volumes=volumes, securityContext=context))
    running.wait_ready(20)
    assert _says(running, "id -u; id -g; id -G") == "1000\n2000\n2000 3000 4000\n"
    assert _says(running, "stat -c '%g %a' /disk /memory") == "3000 2777\n3000 2777\n"
    assert _says(running, "df -k /memory | tail -1 | awk '{print $2}'") == "1024\n"
    assert _says(running, "touch /disk/f && stat -c '%u %g' /disk/f") == "1000 3000\n"
    running.delete()


def test_run_as_non_root_refuses_root(node: Podlet) -> None:
    running = node.run(pod(container("app", securityContext={"runAsNonRoot": True})))
    status = running.wait_for(
        lambda s: s.containers["app"].reason == "CreateContainerConfigError", 20, "refused"
    )
    assert status.containers["app"].message == "container has runAsNonRoot and image will run as root"
    running.delete()


def test_a_read_only_root_keeps_volumes_and_the_termination_log_writable(node: Podlet) -> None:
    app = container(
        "app", securityContext={"readOnlyRootFilesystem": True}, volumeMounts=[mount("disk", "/new/place")]
    )
    running = node.run(pod(app, volumes=[{"name": "disk", "emptyDir": {}}]))
    running.wait_ready(20)
    assert "Read-only file system" in _says(running, "touch /x")
    assert _says(running, "touch /new/place/x && echo bye > /dev/termination-log") == ""
    running.kill("app", 15)
    status = running.wait_for(lambda s: s.containers["app"].restart_count == 1 and s.ready, 20, "restarted")
    assert status.containers["app"].last_exit_code == 0
    running.delete()


def test_a_container_out_of_memory_is_killed_whole(node: Podlet) -> None:
    """RECOVERY §11: kubelet sets memory.oom.group, so the first process dies with its child."""
    limited = container("app", "(sleep 0.3; tail /dev/zero) & true", resources={"limits": {"memory": "16Mi"}})
    running = node.run(pod(limited, restartPolicy="Never"))
    done = running.wait_done(20)
    assert (done.containers["app"].reason, done.containers["app"].exit_code) == ("OOMKilled", 137)
    running.delete()


def test_limits_reach_the_containers_own_cgroup(node: Podlet) -> None:
    limits = {"limits": {"memory": "32Mi", "cpu": "500m"}}
    running = node.run(pod(container("app", resources=limits)))
    running.wait_ready(20)
    found = _says(
        running,
        "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us 2>/dev/null || cat memory.max cpu.max",
    )
    assert found.split()[:2] == [str(32 << 20), "50000"]
    running.delete()


def test_pod_namespaces_are_shared_and_process_ids_only_when_asked(make_node: MakeNode) -> None:
    script = "for n in net ipc uts pid mnt; do readlink /proc/self/ns/$n; done"
    for is_shared in (False, True):
        running = make_node().run(pod(container("a"), container("b"), shareProcessNamespace=is_shared))
        running.wait_ready(20)
        a, b = (_says(running, script, name).split() for name in ("a", "b"))
        assert a[:3] == b[:3]
        assert (a[3] == b[3]) is is_shared
        assert a[4] != b[4]
        assert _says(running, "hostname; cat /sys/class/net/lo/operstate", "a").split() == ["pod", "unknown"]
        running.delete()


def test_a_shared_process_namespace_leaves_no_process_of_an_ended_container(node: Podlet) -> None:
    app = container("app", "sleep 3333 & true")
    running = node.run(pod(app, container("other"), shareProcessNamespace=True))
    running.wait_ready(20)
    running.kill("app")
    running.wait_for(lambda s: s.containers["app"].restart_count == 1 and s.ready, 20, "restarted")
    assert len(_says(running, "ps -o args | grep '^sleep 3333'", "other").splitlines()) == 1
    running.delete()
