"""Options of a MountSpec as the settings of a built-in filesystem."""

from collections.abc import Callable, Mapping
from typing import Any

from sidemount.model.errors import Faults, InvalidRequest, Reason, VolumeError
from sidemount.model.mountspec import MountSpec, OptionValue

Options = Mapping[str, tuple[str, Callable[[OptionValue], Any]]]
"""Option of a class → field of the settings and parser of the canonical value (durations arrive in seconds, sizes in bytes).

A parser raises ValueError with the reason.
"""


def parse_options(spec: MountSpec, options: Options) -> dict[str, Any]:
    """Return values by field. Raises InvalidRequest, or Faults for several wrong options."""
    values: dict[str, Any] = {}
    faults: list[VolumeError] = []
    for name, value in spec.options:
        option = options.get(name)
        if option is None:
            known = ", ".join(sorted(options))
            faults.append(_fault(spec, name, "is not one of this filesystem's", f"known options: {known}"))
            continue
        field, parse = option
        try:
            values[field] = parse(value)
        except ValueError as error:
            faults.append(_fault(spec, name, f"is {value!r}, {error}"))
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise Faults(tuple(faults))
    return values


def _fault(spec: MountSpec, name: str, why: str, hint: str = "") -> InvalidRequest:
    message = f"volume {spec.volume}: option {name} {why}"
    return InvalidRequest(message, reason=Reason.INVALID_OPTION, hint=hint)
