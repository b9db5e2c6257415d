"""Which driver class serves a source: the named one, or the only one whose globs match."""

from sidemount.model.did_you_mean import suggestion
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import PolicyDenied, Reason, UnknownDriverClass, shown
from sidemount.model.facts import Facts, NamespaceFacts
from sidemount.model.source_glob import glob_matches, glob_scheme
from sidemount.model.source_uri import scheme_of, shown_source
from sidemount.model.volume_request import VolumeRequest


def choose_class(request: VolumeRequest, source: str, namespace: NamespaceFacts, facts: Facts) -> DriverClass:
    """Return the class. Raises UnknownDriverClass or PolicyDenied; what the class permits is checked later."""
    if request.driver_class:
        return _named(request, facts)
    classes = facts.driver_classes()
    serving = [classes[name] for name in sorted(classes) if serves(classes[name], source)]
    # Of several, those that this namespace or this volume cannot use at all are no choice. One alone is kept: its own refusal
    # says more.
    usable = [
        c
        for c in serving
        if c.deliveries
        and c.namespaces.matches(namespace.labels)
        and c.provisions is bool(request.provisioned)
    ]
    candidates = usable or serving
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(shown(c.name) for c in candidates)
        raise UnknownDriverClass(
            f"{request.where}: several driver classes serve {shown_source(source)}: {names}",
            reason=Reason.AMBIGUOUS_CLASS,
            hint="name one with class",
        )
    raise _unserved(request, source, facts)


def serves(driver_class: DriverClass, source: str) -> bool:
    """Tell whether a class's globs allow a source."""
    return any(glob_matches(glob, source) for glob in driver_class.sources)


def source_denied(request: VolumeRequest, driver_class: DriverClass, source: str) -> PolicyDenied:
    """Return the refusal of a source that the class's globs do not allow."""
    return PolicyDenied(
        f"{request.where}: driver class {shown(driver_class.name)} does not serve {shown_source(source)}",
        reason=Reason.SOURCE_NOT_PERMITTED,
        hint=f"it serves {', '.join(driver_class.sources) or 'nothing'}",
    )


def _named(request: VolumeRequest, facts: Facts) -> DriverClass:
    found = facts.driver_class(request.driver_class)
    if found is None:
        for fault in facts.faults():
            if fault.where.rpartition(", ")[2] == f"FuseDriverClass {request.driver_class}":
                raise UnknownDriverClass(
                    f"{request.where}: driver class {shown(request.driver_class)} cannot be used: {fault.message}",
                    hint="have an admin correct the FuseDriverClass",
                )
        raise UnknownDriverClass(
            f"{request.where}: there is no driver class {shown(request.driver_class)}",
            hint=suggestion(request.driver_class, facts.driver_classes()),
        )
    return found


def _unserved(request: VolumeRequest, source: str, facts: Facts) -> UnknownDriverClass | PolicyDenied:
    scheme = scheme_of(source)
    of_scheme = [
        c for _, c in sorted(facts.driver_classes().items()) if scheme in {glob_scheme(g) for g in c.sources}
    ]
    if len(of_scheme) == 1:
        return source_denied(request, of_scheme[0], source)
    if of_scheme:
        globs = "; ".join(f"{c.name}: {', '.join(c.sources)}" for c in of_scheme)
        return PolicyDenied(
            f"{request.where}: no driver class serves {shown_source(source)}",
            reason=Reason.SOURCE_NOT_PERMITTED,
            hint=f"served are {globs}",
        )
    known = ", ".join(sorted(facts.driver_classes())) or "none"
    return UnknownDriverClass(
        f"{request.where}: no driver class serves the scheme {shown(scheme)}",
        hint=f"known classes: {known}",
    )
