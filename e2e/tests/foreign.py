"""A cluster that KUBECONFIG names: what the run needs to know of it, and which tests are left out there."""

import os
import shutil
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl

LEFT_OUT = "left out: it looks into the node or ends components, and KUBECONFIG names a cluster that is not ours to touch"
INSTALLED = "Sidemount is on the cluster that KUBECONFIG names, and these tests install it and take it away: remove it first (docs/install.md)"
# Who asks for one of these has a cluster of this machine, and does things to it.
_OUR_OWN = frozenset({"cluster", "server", "places"})


def is_named() -> bool:
    """Tell whether the run is on somebody else's cluster."""
    return bool(os.environ.get("KUBECONFIG"))


def fault() -> str:
    """Return why the run cannot be on that cluster, "" if it can."""
    if not os.environ.get("E2E_IMAGES"):
        return "with KUBECONFIG, E2E_IMAGES=registry/prefix must say where busybox:1 and the image of `make images` were pushed to"
    if shutil.which("kubectl") is None:
        return "with KUBECONFIG, kubectl must be on the PATH"
    return ""


def kubectl() -> Kubectl:
    """Return kubectl for it."""
    return Kubectl(Path(os.environ["KUBECONFIG"]))


def needs_our_own(item: pytest.Item) -> bool:
    """Tell whether a test needs the inside of a node of ours."""
    return not _OUR_OWN.isdisjoint(getattr(item, "fixturenames", ()))
