"""Descriptors that others have sent: what they are, and how they go."""

import os
import socket

import pytest

from sidemount.host.foreign_descriptors import is_fuse_device, is_socket, let_go
from sidemount.model.errors import HostFailure
from tests.host.mount_node import eventually


def is_open(descriptor: int) -> bool:
    """Tell whether a descriptor is open."""
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


@pytest.mark.fuse
def test_what_a_descriptor_is_is_told_by_the_kernel() -> None:
    device, null, directory = (os.open(path, os.O_RDONLY) for path in ("/dev/fuse", "/dev/null", "/"))
    ours, theirs = socket.socketpair()
    process = os.pidfd_open(os.getpid())
    descriptors = (device, null, directory, ours.fileno(), process)
    assert [is_fuse_device(descriptor) for descriptor in descriptors] == [True, False, False, False, False]
    assert [is_socket(descriptor) for descriptor in descriptors] == [False, False, False, True, False]
    for descriptor in (device, null, directory, process):
        os.close(descriptor)
    ours.close()
    theirs.close()
    with pytest.raises(HostFailure):
        is_socket(1 << 20)


def test_many_are_closed_and_a_child_of_ours_closes_its_own() -> None:
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(500)]
    for descriptor in descriptors[:250]:
        let_go(descriptor)
    child = os.fork()
    if child == 0:
        try:
            let_go(descriptors[-1])
            eventually(lambda: not is_open(descriptors[-1]))
            os._exit(0)
        finally:
            os._exit(1)
    for descriptor in descriptors[250:]:
        let_go(descriptor)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    eventually(lambda: not any(map(is_open, descriptors)))
