"""The classes of a cluster: which there are, and which are not in force."""

from collections.abc import Iterator

from sidemount.commands.checks.finding import Finding, Verdict, listed, many
from sidemount.commands.checks.installation import name_of
from sidemount.commands.checks.readings import Reading
from sidemount.host.live_kinds import FUSE_DRIVER_CLASS, read_fact
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import VolumeError
from sidemount.model.keeper_log import told


def read_classes(reading: Reading) -> tuple[dict[str, DriverClass], dict[str, str]]:
    """Return the good classes by name, and the faults of the others."""
    good: dict[str, DriverClass] = {}
    faults: dict[str, str] = {}
    for manifest in reading.objects:
        name = name_of(manifest)
        try:
            fact = read_fact(FUSE_DRIVER_CLASS, manifest)
        except VolumeError as error:
            faults[name] = str(error)
            continue
        if isinstance(fact, DriverClass):
            good[name] = fact
    return good, faults


def check_classes(reading: Reading) -> Iterator[Finding]:
    """Look at every class."""
    if doubt := reading.doubt("classes"):
        yield doubt
        return
    good, faults = read_classes(reading)
    if not good and not faults:
        yield Finding(
            topic="classes",
            verdict=Verdict.WARN,
            found="none",
            meaning="every pod that asks for a volume is refused",
            way_out="kubectl apply -k manifests/classes, after a look at what it allows",
        )
        return
    on = sorted(name for name, known in good.items() if known.deliveries)
    off = sorted(set(good) - set(on))
    found = listed(on) or "none in force"
    yield Finding(
        topic="classes",
        verdict=Verdict.OK if on else Verdict.WARN,
        found=f"{found}; off: {listed(off)}" if off else found,
        meaning="" if on else f"{many(len(good), 'class', 'classes')}, none of which delivers anything",
    )
    for name, fault in sorted(faults.items()):
        yield Finding(
            topic="classes",
            verdict=Verdict.FAIL,
            found=f"{name} is not in force",
            meaning=told(fault),
            way_out=f"kubectl edit fusedriverclass {name}",
        )
