"""Which images the pods of tests run: those of `e2e.cluster`, or with `E2E_IMAGES=registry/prefix` what lies there."""

import os

from e2e.cluster.node_images import BUSYBOX_IMAGE
from e2e.cluster.service_images import service_reference


def busybox() -> str:
    """Return the image with a shell."""
    return _found(BUSYBOX_IMAGE)


def sidemount() -> str:
    """Return the image of the services, which has a Python too."""
    return _found(service_reference())


def _found(reference: str) -> str:
    prefix = os.environ.get("E2E_IMAGES")
    return f"{prefix.rstrip('/')}/{reference.rpartition('/')[2]}" if prefix else reference
