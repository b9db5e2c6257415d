"""Images made from this machine."""

import time
from pathlib import Path

import pytest

from e2e.images import image_size_bytes, sidemount_image
from tests.podlet.conftest import MakeNode
from tests.podlet.pods import pod

pytestmark = pytest.mark.root
RESTRICTED = {
    "runAsUser": 65532,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
IMPORTS = "import pyfuse3, trio, sidecar.protocol, sidemount.host, sys; print(sidecar.__file__, sys.dont_write_bytecode)"


def test_the_projects_image_runs_the_sidecars_imports_unprivileged(make_node: MakeNode) -> None:
    app = {
        "name": "app",
        "image": "ours",
        "command": ["python3", "-c", IMPORTS],
        "securityContext": RESTRICTED,
    }
    running = make_node(images={"ours": sidemount_image()}).run(pod(app, restartPolicy="Never"))
    done = running.wait_done(20)
    assert running.logs("app") == "/app/sidecar/__init__.py True\n"
    assert done.phase == "Succeeded"
    running.delete()


def test_an_image_is_made_once_quickly_and_stays_small(tmp_path: Path) -> None:
    began = time.monotonic()
    made = sidemount_image(tmp_path)
    assert time.monotonic() - began < 20
    assert image_size_bytes(made) < 150e6
    stamp = made.stat().st_ino
    assert sidemount_image(tmp_path).stat().st_ino == stamp
    assert list((made / "rootfs/app/sidemount/__pycache__").glob("*.pyc")), (
        "a read-only root starts from bytecode"
    )
