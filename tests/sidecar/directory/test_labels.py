"""SELinux labels of a source, asked for by a kernel that has no SELinux: any other kernel answers by itself."""

import errno
import os
from pathlib import Path

import pytest

from sidecar.directory.store import Store
from sidecar.protocol_filesystem import ROOT
from tests.sidecar.directory.core import make_filesystem, run
from tests.sidecar.directory.harness import outcome

LABEL = b"security.selinux"


def store_with(labels: dict[str, bytes], number: int = errno.ENODATA) -> type[Store]:
    """Return a store in which files have labels, "" being the root. `number` is the errno for the others."""

    class Labelled(Store):
        def getxattr(self, fd: int, name: bytes) -> bytes:
            path = os.readlink(f"/proc/self/fd/{fd}")
            label = labels.get("" if fd == self.root else os.path.basename(path))
            if label is None or name != LABEL:
                raise OSError(number, os.strerror(number))
            return label

    return Labelled


@pytest.mark.parametrize(
    ("labels", "of", "answer"),
    [
        pytest.param({}, b"f", "ENOTSUP", id="none-anywhere-so-nobody-need-ask-again"),
        pytest.param({"": b"root_t"}, b"f", "ENODATA", id="none-here-but-elsewhere"),
        pytest.param({"f": b"file_t"}, b"f", b"file_t", id="an-unlabelled-root-hides-no-label"),
        pytest.param({"": b"root_t", "f": b"file_t"}, b"f", b"file_t", id="all-labelled"),
    ],
)
def test_labels_that_are_there_are_told(
    tmp_path: Path, labels: dict[str, bytes], of: bytes, answer: object
) -> None:
    (tmp_path / "f").touch()
    filesystem = make_filesystem(tmp_path, store=store_with(labels))
    node = run(filesystem.lookup(ROOT, of)).node
    assert outcome(run, filesystem.getxattr(node, LABEL)) == answer
    assert outcome(run, filesystem.getxattr(node, b"user.other")) == "ENODATA"
    filesystem.descriptors.discard(ROOT)


def test_a_store_that_fails_is_not_taken_for_unlabelled(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    filesystem = make_filesystem(tmp_path, store=store_with({}, errno.EACCES))
    node = run(filesystem.lookup(ROOT, b"f")).node
    assert outcome(run, filesystem.getxattr(node, LABEL)) == "EACCES"
    filesystem.descriptors.discard(ROOT)
