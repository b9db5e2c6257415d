"""Run by a test in a mount namespace: a volume whose source is itself a mount of ours, which is killed and comes back."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.sidecar.directory.harness import mounted, outcome

_DEADLINE_S = 20.0


def main(inner: Path, outer: Path, store: Path) -> None:
    """Kill the source under the volume, then mount it again."""
    with mounted(inner, store, "--visible") as source:
        served = inner / "mountpoint"
        with mounted(outer, served, "--visible", allowed=["store_failed"]) as volume:
            assert (volume.path / "f").read_text() == "content"
            source.process.send_signal(signal.SIGKILL)
            source.process.wait()
            time.sleep(1.2)
            assert outcome((volume.path / "f").read_text) == "ENOTCONN"
            subprocess.run(["umount", "-l", str(served)], check=True)
            with mounted(inner, store, "--visible"):
                deadline = time.monotonic() + _DEADLINE_S
                while outcome((volume.path / "f").read_text) != "content":
                    assert time.monotonic() < deadline, outcome((volume.path / "f").read_text)
                    time.sleep(0.1)
                (volume.path / "g").write_text("written afterwards")
                assert (store / "g").read_text() == "written afterwards"
        source.process.poll = lambda: None  # type: ignore[method-assign]  # its death was meant


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
