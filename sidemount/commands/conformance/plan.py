"""What is mounted to check a class: one spec a stand, as a pod's request would give it. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidemount.model.class_choice import serves
from sidemount.model.client_command import client_command
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import InvalidRequest, PolicyDenied, Reason, shown
from sidemount.model.mountspec import MountSpec, OptionValue, decode_spec, encode_spec
from sidemount.model.options import check_options, parse_mount_options
from sidemount.model.source_uri import shown_source, source_fault, source_parts

VOLUME = "check"
NO_SUCH_OPTION = "--sidemount-no-such-option"
WRONG_CREDENTIAL = "sidemount-wrong-credential"
_HUNG_AFTER_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A class, and what it is tried with. `secrets`: key → content. `mark` is of this run alone."""

    driver_class: DriverClass
    source: str
    options: tuple[str, ...] = ()
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    is_source_read_only: bool = False
    timeout_s: float = 30.0
    writable: tuple[str, ...] = ()
    own_tmp: bool = False
    is_quick: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """One mount of a check, and what its daemon is started with. The directories are its own; `secrets` go into one of them."""

    name: str
    spec: MountSpec
    source_dir: str
    secrets: Mapping[str, str] = dataclasses.field(repr=False)

    def to_json(self) -> dict[str, object]:
        """Return it for the process inside."""
        return {**dataclasses.asdict(self), "spec": encode_spec(self.spec), "secrets": dict(self.secrets)}

    @classmethod
    def from_json(cls, raw: dict[str, object]) -> "Stand":
        """Return what `to_json` has rendered."""
        return cls(**{**raw, "spec": decode_spec(str(raw["spec"]))})  # type: ignore[arg-type] # our own rendering


def stand_dir(base: str, name: str, kind: str) -> str:
    """Return a stand's directory for `secrets` or `cache`."""
    return f"{base}/{name}/{kind}"


def plan_stands(case: Case, base: str) -> dict[str, Stand]:
    """Return every stand by its name. Raises VolumeError for a source or options that the class does not allow."""
    known = case.driver_class
    where = f"driver class {shown(known.name)}"
    why = source_fault(case.source)
    if why:
        raise InvalidRequest(f"{where}: --source {why}")
    options = check_options(known.options, parse_mount_options(case.options, known.options, where), where)
    writable = _Planner(case, options, base, where)
    stands = {
        "main": writable.stand("main"),
        "second": writable.stand("second", read_only=True),
        "hung": writable.stand("hung", hung_after_s=_HUNG_AFTER_S),
        "contrary": writable.stand("contrary", descriptor=not known.abilities.descriptor),
    }
    if known.credentials.required and not case.secrets:
        raise PolicyDenied(
            f"{where} needs credentials and none are given",
            reason=Reason.CREDENTIALS_REQUIRED,
            hint=f"give --secrets DIR with the files {', '.join(known.credentials.secret_keys)}",
        )
    if known.command:
        stands["wrong-option"] = writable.stand("wrong-option", more=(NO_SUCH_OPTION,))
    missing = missing_source(case)
    if missing:
        stands["missing-source"] = writable.stand("missing-source", source=missing)
    if case.secrets:
        wrong = dict.fromkeys(case.secrets, WRONG_CREDENTIAL)
        stands["wrong-credentials"] = writable.stand("wrong-credentials", secrets=wrong)
    return stands


def missing_source(case: Case) -> str:
    """Return a source like the case's that names nothing, "" if the class would not allow one, or its command takes none."""
    known = case.driver_class
    if known.command and not any("${source" in part for part in known.command):
        return ""
    scheme, _, _ = case.source.partition("://")
    parts = source_parts(case.source)
    last = f"sidemount-missing-{case.mark}"
    head, slash, _ = parts["path"].rstrip("/").rpartition("/")
    if slash:
        found = f"{scheme}://{parts['user']}{parts['host']}{parts['port']}{head}/{last}"
    else:
        found = f"{scheme}://{parts['user']}{last}{parts['port']}"
    found += "/" if parts["path"].endswith("/") else ""
    return found if serves(known, found) else ""


class _Planner:
    def __init__(self, case: Case, options: Sequence[tuple[str, OptionValue]], base: str, where: str) -> None:
        self._case = case
        self._options = tuple(options)
        self._base = base
        self._where = where

    def stand(
        self,
        name: str,
        *,
        source: str = "",
        read_only: bool = False,
        descriptor: bool | None = None,
        hung_after_s: int | None = None,
        more: tuple[str, ...] = (),
        secrets: Mapping[str, str] | None = None,
    ) -> Stand:
        known, source = self._case.driver_class, source or self._case.source
        if not serves(known, source):
            raise PolicyDenied(
                f"{self._where} does not serve {shown_source(source)}",
                reason=Reason.NOT_IN_CLASS,
                hint=f"its sources are {', '.join(known.sources) or 'none'}; name one of them with --source",
            )
        takes_descriptor = known.abilities.descriptor if descriptor is None else descriptor
        command = client_command(
            known,
            source=source,
            options=self._options,
            read_only=read_only,
            where=self._where,
            secrets=stand_dir(self._base, name, "secrets"),
            cache=stand_dir(self._base, name, "cache"),
        )
        spec = MountSpec(
            volume=VOLUME,
            driver_class=known.name,
            source=source,
            filesystem=known.filesystem,
            command=(*command, *more),
            read_only=read_only,
            options=self._options,
            descriptor=takes_descriptor,
            takeover=known.abilities.takeover and takes_descriptor,
            uid=known.uid if takes_descriptor else 0,
            hung_after_s=hung_after_s or known.hung_after_s,
        )
        return Stand(
            name=name,
            spec=spec,
            source_dir=source_parts(source)["path"] if source.startswith("dir://") else "",
            secrets=self._case.secrets if secrets is None else secrets,
        )
