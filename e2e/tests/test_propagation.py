"""Mounts that one container makes and another sees: what sidecar delivery stands on."""

from e2e.cluster.waiting import wait_for
from e2e.tests.pods import Namespace, pod, shell

_MOUNT = "mkdir -p /mounts/view && mount -t tmpfs one /mounts/view && echo one >/mounts/view/file && touch /tmp/mounted"
_STACK = "mount -t tmpfs two /mounts/view && echo two >/mounts/view/file"
_UNMOUNT = "umount /mounts/view; umount /mounts/view; :"


def test_a_running_pod_sees_what_a_privileged_sidecar_mounts_and_stacks(namespace: Namespace) -> None:
    """Bidirectional in an emptyDir of medium Memory, HostToContainer with a subPath in the application."""
    sidecar = shell(
        "keeper",
        _MOUNT,
        restartPolicy="Always",
        securityContext={"privileged": True},
        startupProbe={
            "exec": {"command": ["test", "-e", "/tmp/mounted"]},
            "periodSeconds": 1,
            "failureThreshold": 60,
        },
        volumeMounts=[{"name": "mounts", "mountPath": "/mounts", "mountPropagation": "Bidirectional"}],
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", _UNMOUNT]}}},
    )
    seen = {"name": "mounts", "mountPath": "/data", "subPath": "view", "mountPropagation": "HostToContainer"}
    app = shell("app", securityContext={"runAsUser": 1000}, volumeMounts=[seen])
    volume = {"name": "mounts", "emptyDir": {"medium": "Memory"}}
    namespace.run(pod("pair", app, initContainers=[sidecar], volumes=[volume]))
    assert namespace.exec("pair", "app", "cat", "/data/file") == "one\n"
    namespace.exec("pair", "keeper", "sh", "-c", _STACK)
    assert wait_for(lambda: namespace.exec("pair", "app", "cat", "/data/file") == "two\n", 30)
    namespace.delete("pair")
