"""Run by a test in a mount namespace: a source with another filesystem mounted inside."""

import os
import subprocess
import sys
from pathlib import Path

from tests.sidecar.directory.harness import mounted, outcome


def main(scratch: Path, source: Path) -> None:
    """Check that both are served and never taken for each other."""
    for name in ("one", "two"):
        (source / name).mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(source / name)], check=True)
        # The first files of two new tmpfs have the same inode numbers.
        (source / name / "f").write_text(name)
        os.link(source / name / "f", source / name / "g")
    assert (source / "one/f").stat().st_ino == (source / "two/f").stat().st_ino
    with mounted(scratch, source) as volume:
        root = volume.path
        assert (root / "one/f").read_text() == "one"
        assert (root / "two/f").read_text() == "two"
        assert (root / "one/f").stat().st_ino == (root / "one/g").stat().st_ino
        assert (root / "one/f").stat().st_ino != (root / "two/f").stat().st_ino
        assert {entry.inode() for entry in os.scandir(root / "one")} == {(root / "one/f").stat().st_ino}
        assert outcome(os.rename, root / "one/f", root / "two/h") == "EXDEV"
        assert outcome(os.link, root / "one/f", root / "h") == "EXDEV"
        (root / "one/new").write_text("written")
        assert (source / "one/new").read_text() == "written"
        assert outcome(os.rmdir, root / "two") == "EBUSY"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
