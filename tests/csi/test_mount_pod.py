"""The manifest of a mount pod: what is in it, and what never is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from csi.access_modes import AccessMode
from csi.launch_plan import plan_pod
from csi.mount_pod import PodSettings, label_value, namespace_of, render_mount_pod
from csi.mount_pod_status import parse_mount_pod
from csi.records import Record, Stage, decode_record, encode_record
from sidemount.host.last_words import leave_last_words
from sidemount.model.driver_class import Abilities, DriverClass, Resources
from sidemount.model.errors import HostFailure, InvalidRequest, PolicyDenied, Unsupported
from sidemount.model.mountspec import MountSpec
from sidemount.model.selector import LabelSelector
from sidemount.model.volume_request import Delivery

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = PodSettings(
    node_name="node-1.example",
    instance="0123456789abcdef",
    namespace="sidemount-mounts",
    namespace_baseline="sidemount-mounts-baseline",
    image="registry.example/sidemount:1",
    priority_class="sidemount-mounts",
)


def _class(**changes: Any) -> DriverClass:
    given: dict[str, Any] = {
        "name": "files",
        "deliveries": (Delivery.CSI,),
        "sources": ("**",),
        "namespaces": LabelSelector(),
        "filesystem": "directory",
        **changes,
    }
    return DriverClass(**given)


def _record(driver_class: DriverClass, source: str = "dir:///srv/data", **spec: Any) -> Record:
    mount = MountSpec(
        volume="csi-0",
        driver_class=driver_class.name,
        source=source,
        filesystem=driver_class.filesystem,
        command=driver_class.command,
        uid=driver_class.uid,
        **spec,
    )
    return Record(
        volume_id="träum/1",
        target="/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount",
        path="/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount",
        stage=Stage.PUBLISHING,
        mode=AccessMode.MULTI_NODE_MULTI_WRITER,
        arguments="a" * 64,
        spec=mount,
        launch=plan_pod(mount, driver_class, "träum/1"),
    )


CASES = {
    "restricted": _record(
        _class(
            filesystem="",
            image="registry.example/client:2",
            command=("client", "${mountpoint}"),
            image_pull_policy="Always",
            image_pull_secrets=("pull",),
            cache_size="1Gi",
            resources=Resources(limits={"memory": "256Mi"}),
        ),
        "s3://bucket",
    ),
    "baseline": _record(_class(uid=0, capabilities=("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"))),
    "nfs": _record(_class(), "nfs://server:2049/export", read_only=True),
}


@pytest.mark.parametrize("name", CASES)
def test_manifest_is_as_it_was(name: str, request: pytest.FixtureRequest) -> None:
    """S0-11, S0-18, S0-19, S0-25, S0-28: node by affinity, no owner, no token, resources, restartPolicy Always."""
    rendered = yaml.safe_dump(render_mount_pod(CASES[name], SETTINGS), sort_keys=True, allow_unicode=True)
    path = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden"):
        path.write_text(rendered)
    assert rendered == path.read_text()


def test_only_what_restricted_allows_is_in_its_namespace() -> None:
    assert {name: namespace_of(record, SETTINGS) for name, record in CASES.items()} == {
        "restricted": "sidemount-mounts",
        "baseline": "sidemount-mounts-baseline",
        "nfs": "sidemount-mounts-baseline",
    }


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_the_node_is_reached_by_a_path(name: str) -> None:
    manifest = render_mount_pod(CASES[name], SETTINGS)
    spec = manifest["spec"]
    assert "ownerReferences" not in manifest["metadata"]
    assert not any(key.startswith("host") for key in spec)
    assert not any("hostPath" in volume or "secret" in volume for volume in spec["volumes"])
    (container,) = spec["containers"]
    assert "env" not in container
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", CASES)
def test_a_record_makes_the_same_pod_after_a_restart(name: str) -> None:
    """S0-18: a retry finds its own."""
    record = CASES[name]
    again = decode_record(encode_record(record))
    assert render_mount_pod(again, SETTINGS) == render_mount_pod(record, SETTINGS)


def test_another_image_makes_another_digest() -> None:
    record = CASES["baseline"]
    pods = [
        parse_mount_pod(render_mount_pod(record, settings))
        for settings in (SETTINGS, replace(SETTINGS, image="registry.example/sidemount:2"))
    ]
    assert pods[0].digest != pods[1].digest


@pytest.mark.parametrize(
    ("driver_class", "source", "kind", "told"),
    [
        pytest.param(
            _class(filesystem="", image="i", command=("c",), abilities=Abilities(descriptor=False)),
            "x://y",
            PolicyDenied,
            "mounts by itself",
            id="privileged",
        ),
        pytest.param(
            _class(capabilities=("SYS_ADMIN",)), "dir:///d", PolicyDenied, "SYS_ADMIN", id="capability"
        ),
        pytest.param(_class(), "pvc://claim", InvalidRequest, "delivery sidecar", id="claim"),
        pytest.param(_class(), "nfs://server:1234/export", Unsupported, "port 1234", id="nfs-port"),
    ],
)
def test_what_no_mount_pod_can_serve_is_refused_with_the_way_out(
    driver_class: DriverClass, source: str, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        _record(driver_class, source)


@pytest.mark.parametrize("text", ["a", "node-1.example", "x" * 63])
def test_a_name_that_can_be_a_label_is_its_own(text: str) -> None:
    assert label_value(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a.", "x" * 64, "ä", "a b"])
def test_any_other_is_hashed(text: str) -> None:
    assert len(label_value(text)) == 32


@pytest.mark.parametrize(
    "junk", [{}, {"metadata": 1}, {"metadata": {"labels": []}, "status": {"containerStatuses": ["x"]}}]
)
def test_a_pod_of_any_shape_is_read(junk: dict[str, Any]) -> None:
    assert parse_mount_pod(junk).trouble is None


def test_how_a_daemon_ended_is_told_in_its_own_words(tmp_path: Path) -> None:
    """What it has left as its container's last words, as kubelet passes them on."""
    place = tmp_path / "termination-log"
    place.touch()
    leave_last_words(HostFailure("volume v: no such bucket", hint="make it"), str(place))
    ended = {"exitCode": 3, "reason": "Error", "message": place.read_text()}
    status = {"phase": "Running", "containerStatuses": [{"state": {"terminated": ended}}]}
    pod = parse_mount_pod({"metadata": {"name": "p", "namespace": "n"}, "status": status})
    assert pod.trouble is not None
    assert pod.trouble.told == "its mount pod n/p has ended with code 3: volume v: no such bucket"
    assert (pod.trouble.words.hint, pod.trouble.words.is_own) == ("make it", True)


def test_a_daemon_out_of_memory_says_so() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    status = {"phase": "Running", "containerStatuses": [{"state": state, "lastState": {"terminated": ended}}]}
    pod = parse_mount_pod({"metadata": {"name": "p", "namespace": "n"}, "status": status})
    assert pod.trouble is not None
    assert pod.trouble.told == "its mount pod n/p has ended with code 137 (OOMKilled)"
