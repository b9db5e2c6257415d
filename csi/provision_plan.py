"""CreateRequest + classes + pools → VolumePlan: which class serves the volume, where it lies, what is promised. Pure.

Nothing of a request reaches a mount but what the class's own allowlist takes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from csi.faults import BeyondRange
from csi.pool_sources import is_bucket, source_in
from csi.provision_request import CreateRequest
from csi.publish_request import COMPONENT_MAX_BYTES, MAP_MAX_BYTES
from csi.volume_state import Content, VolumeState
from sidemount.model.did_you_mean import suggestion
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import (
    InvalidRequest,
    PolicyDenied,
    PublishConflict,
    Reason,
    UnknownDriverClass,
    shown,
)
from sidemount.model.facts import Facts
from sidemount.model.options import check_options, parse_mount_options
from sidemount.model.provisioned import pool_source
from sidemount.model.sub_path import sub_path_fault
from sidemount.model.volume_request import Delivery

CLASS = "class"
SOURCE = "source"
SUB_PATH = "subPath"
VOLUME = "volume"
ENFORCE = "enforceCapacity"
MODE = "directoryMode"
_OWN = (CLASS, SOURCE, SUB_PATH, ENFORCE, MODE)
_OWN_IN_BUCKETS = (CLASS, SOURCE, SUB_PATH, ENFORCE)  # the mode is an option there
PLACE_OPTIONS = ("endpoint", "region", "pathStyle")
"""Options that say where a bucket is. A pool's are its class's: the controller has to find there what nodes mount."""
_DEFAULT_MODE = 0o777  # a pod of any user may write; a class of its own narrows it
_MODE = re.compile(r"0?[0-7]{3,4}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePlan:
    """A volume to make. `limit_bytes` 0: it may fill the pool. `mode` is its directory's. `source_pool` has its content."""

    id: str
    name: str
    pool: str
    capacity_bytes: int
    limit_bytes: int
    parameters: Mapping[str, str]
    context: Mapping[str, str]
    sub_path: str
    mode: int
    content: Content | None
    source_pool: str = ""

    def state(self, created_ns: int) -> VolumeState:
        """Return what is remembered of it."""
        return VolumeState(
            id=self.id,
            name=self.name,
            pool=self.pool,
            capacity_bytes=self.capacity_bytes,
            limit_bytes=self.limit_bytes,
            parameters=self.parameters,
            context=self.context,
            content=self.content,
            created_ns=created_ns,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A class and the pool it is to serve from."""

    driver_class: DriverClass
    pool: str


def plan_volume(request: CreateRequest, facts: Facts, pools: Sequence[str]) -> VolumePlan:
    """Decide what a CreateVolume comes to. Raises VolumeError."""
    where = f"parameters of volume {shown(request.name)}"
    place = _only(choose_places(request.parameters, facts, pools, where), where)
    options = options_of(request.parameters, place, where)
    check_place_flags(request.flags, place, f"mount_flags of volume {shown(request.name)}")
    sub_path = request.parameters.get(SUB_PATH, "")
    fault = sub_path_fault(sub_path)
    if not fault and any(len(part.encode()) > COMPONENT_MAX_BYTES for part in sub_path.split("/")):
        fault = f"has a component of more than {COMPONENT_MAX_BYTES} bytes"
    if fault:
        raise InvalidRequest(f"{where}: {SUB_PATH} {shown(sub_path)} {fault}")
    capacity = request.capacity.wanted_bytes
    is_enforced = _is_enforced(request.parameters, place.pool, where)
    context = {
        CLASS: place.driver_class.name,
        SOURCE: source_in(place.driver_class, place.pool),
        VOLUME: request.id,
        **({SUB_PATH: sub_path} if sub_path else {}),
        **options,
    }
    if sum(len(key.encode()) + len(value.encode()) for key, value in context.items()) > MAP_MAX_BYTES:
        raise InvalidRequest(f"{where} are longer than {MAP_MAX_BYTES} bytes")
    return VolumePlan(
        id=request.id,
        name=request.name,
        pool=place.pool,
        capacity_bytes=capacity,
        limit_bytes=capacity if is_enforced else 0,
        parameters=request.parameters,
        context=context,
        sub_path=sub_path,
        mode=_mode(request.parameters, where),
        content=request.content,
    )


def choose_places(
    parameters: Mapping[str, str], facts: Facts, pools: Sequence[str], where: str
) -> tuple[Place, ...]:
    """Return every class and pool that go together and with what is named, at least one. Raises VolumeError."""
    classes = {name: found for name, found in facts.driver_classes().items() if found.provisions}
    wanted = _pool_of(parameters, pools, where)
    if CLASS in parameters:
        classes = {parameters[CLASS]: _named(parameters[CLASS], facts, where)}
    places = [
        Place(found, pool)
        for found in classes.values()
        for pool in ([wanted] if wanted else pools)
        if source_in(found, pool)
    ]
    if not places:
        raise _no_place(classes, [wanted] if wanted else pools, where)
    return tuple(places)


def check_place_flags(flags: Iterable[str], place: Place, where: str) -> None:
    """See that the class takes every mount option in that pool (S4-12). Raises InvalidRequest."""
    entries = tuple(flags)
    check_flags(entries, place.driver_class, where)
    _check_place_options((entry.partition("=")[0] for entry in entries), place, where)


def check_flags(flags: Iterable[str], driver_class: DriverClass, where: str) -> None:
    """See that the class takes every mount option (S4-12). Raises InvalidRequest."""
    entries = [flag for flag in flags if flag != "ro" or "ro" in driver_class.options]
    check_options(driver_class.options, parse_mount_options(entries, driver_class.options, where), where)


def check_content_fits(content: Content, size_bytes: int, capacity_bytes: int) -> None:
    """See that a volume is not smaller than what it is made from (S4-16). Raises BeyondRange."""
    if capacity_bytes and capacity_bytes < size_bytes:
        raise BeyondRange(
            f"{content.kind.value} {shown(content.id)} holds {size_bytes} bytes, more than the {capacity_bytes} asked for",
            hint="ask for a larger volume",
        )


def check_same(request: CreateRequest, found: VolumeState) -> None:
    """See that a volume of the same name is the one that is asked for. Raises PublishConflict naming what differs."""
    differs = ""
    if found.name != request.name:
        differs = f"its name is {shown(found.name)}"
    elif not request.capacity.holds(found.capacity_bytes):
        differs = f"it has {found.capacity_bytes} bytes"
    elif dict(found.parameters) != dict(request.parameters):
        differs = "it has other parameters"
    elif found.content != request.content:
        content = found.content
        differs = (
            "it was made empty" if content is None else f"it is made from {content.kind.value} {content.id}"
        )
    if differs:
        raise PublishConflict(
            f"volume {shown(request.name)} is there already, and {differs}", hint="ask with another name"
        )


def _only(places: Sequence[Place], where: str) -> Place:
    if len(places) == 1:
        return places[0]
    choices = ", ".join(
        f"{CLASS} {place.driver_class.name} with {SOURCE} {pool_source(place.pool)}" for place in places
    )
    raise InvalidRequest(
        f"{where}: there are several classes or pools: {choices}", hint=f"name {CLASS} and {SOURCE}"
    )


def _pool_of(parameters: Mapping[str, str], pools: Sequence[str], where: str) -> str:
    """Return the pool that is named, "" if none is."""
    source = parameters.get(SOURCE)
    if source is None:
        return ""
    choices = ", ".join(pool_source(pool) for pool in pools)
    for pool in pools:
        if source.rstrip("/") == pool_source(pool):
            return pool
    raise InvalidRequest(
        f"{where}: {SOURCE} {shown(source)} is no pool of this controller", hint=f"it has {choices}"
    )


def _named(name: str, facts: Facts, where: str) -> DriverClass:
    found = facts.driver_class(name)
    if found is None:
        raise UnknownDriverClass(
            f"{where}: there is no driver class {shown(name)}", hint=suggestion(name, facts.driver_classes())
        )
    if not found.provisions:
        raise PolicyDenied(
            f"{where}: driver class {shown(name)} provisions no volumes",
            reason=Reason.NOT_IN_CLASS,
            hint="ask the admin for a class with provisions: true",
        )
    if Delivery.CSI not in found.deliveries:
        raise PolicyDenied(
            f"{where}: driver class {shown(name)} does not offer delivery csi", reason=Reason.NOT_IN_CLASS
        )
    return found


def _no_place(classes: Mapping[str, DriverClass], pools: Sequence[str], where: str) -> PolicyDenied:
    told = ", ".join(pool_source(pool) for pool in pools)
    if not pools:
        return PolicyDenied(
            f"{where}: this controller has no pool to make volumes in",
            reason=Reason.SOURCE_NOT_PERMITTED,
            hint="start it with --pool",
        )
    if not classes:
        return PolicyDenied(
            f"{where}: no driver class provisions volumes",
            reason=Reason.SOURCE_NOT_PERMITTED,
            hint="have an admin make a FuseDriverClass with provisions: true whose sources hold the pool",
        )
    served = "; ".join(f"{name}: {', '.join(found.sources) or 'nothing'}" for name, found in classes.items())
    return PolicyDenied(
        f"{where}: no driver class that provisions volumes serves {told}",
        reason=Reason.SOURCE_NOT_PERMITTED,
        hint=f"served are {served}",
    )


def options_of(parameters: Mapping[str, str], place: Place, where: str) -> dict[str, str]:
    """Return the options of the class among the parameters, as they were written. Raises InvalidRequest for any other key."""
    own = _OWN_IN_BUCKETS if is_bucket(place.pool) else _OWN
    options = place.driver_class.options
    given = {key: value for key, value in parameters.items() if key not in own}
    for key in given:
        if key not in options:
            known = (*own, *options)
            raise InvalidRequest(
                f"{where}: {shown(key)} is not known",
                reason=Reason.INVALID_OPTION,
                hint=suggestion(key, known) or f"known are {', '.join(known)}",
            )
    check_options(options, given.items(), where)
    _check_place_options(given, place, where)
    return given


def _check_place_options(names: Iterable[str], place: Place, where: str) -> None:
    for name in names:
        if is_bucket(place.pool) and name in PLACE_OPTIONS:
            raise InvalidRequest(
                f"{where}: {shown(name)} is the class's, which says where the pool is",
                reason=Reason.INVALID_OPTION,
                hint=f"leave it out; have the admin give it a default in class {place.driver_class.name}",
            )


def _is_enforced(parameters: Mapping[str, str], pool: str, where: str) -> bool:
    """Tell whether the size is a limit. A bucket has none that all mounts of a volume could keep."""
    text = parameters.get(ENFORCE, "false" if is_bucket(pool) else "true")
    if text not in ("true", "false"):
        raise InvalidRequest(f"{where}: {ENFORCE} {shown(text)} is not a boolean", hint="write true or false")
    if text == "true" and is_bucket(pool):
        raise InvalidRequest(
            f"{where}: {ENFORCE} true cannot be kept in pool {pool}: a bucket's volume has no limit",
            hint="leave it out: the size is only told; or use a pool that is a directory",
        )
    return text == "true"


def _mode(parameters: Mapping[str, str], where: str) -> int:
    text = parameters.get(MODE)
    if text is None:
        return _DEFAULT_MODE
    if not _MODE.match(text):
        raise InvalidRequest(
            f"{where}: {MODE} {shown(text)} is no mode of a directory",
            hint="write octal digits, such as 0770",
        )
    return int(text, 8)
