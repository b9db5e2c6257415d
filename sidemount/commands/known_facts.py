"""The facts that a command works with: a directory of manifests, or the samples that come with the package."""

import sys
from pathlib import Path

from sidemount.commands.output import printable
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.errors import HostFailure
from sidemount.model.facts import Facts

SAMPLES = Path(__file__).parent.parent / "samples"


def load_facts(directory: str) -> Facts:
    """Return the facts of a directory, "" for the samples; what could not be used is said on standard error. Raises HostFailure."""
    path = Path(directory) if directory else SAMPLES
    if not path.is_dir():
        raise HostFailure(f"--facts {directory}: no such directory", hint="name a directory of manifests")
    facts = FactsDirectory(path, settle_s=0).facts()
    for fault in facts.faults():
        print(f"sidemount: {printable(fault.where)}: {printable(fault.message)}", file=sys.stderr)
    return facts
