"""Running the node's own tools: bounded even when one hangs where no signal reaches it."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended; exit code None means it was killed at its deadline."""

    exit_code: int | None
    stdout: str
    stderr: str

    @property
    def fault(self) -> str:
        """Return why it failed, or nothing."""
        if self.exit_code == 0:
            return ""
        return self.stderr.strip() or f"exit status {self.exit_code}"


def run_command(argv: Sequence[str], timeout_s: float) -> Completed:
    """Run a command without input. Raises OSError when there is no such program."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        errors="surrogateescape",
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # Not waited for: on a hung filesystem it ends when that does.
        process.kill()
        return Completed(
            exit_code=None, stdout="", stderr=f"{' '.join(argv)}: no answer within {timeout_s:g} s"
        )
    return Completed(exit_code=process.returncode, stdout=out, stderr=err)
