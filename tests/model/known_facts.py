"""Facts in memory, and the classes of `tests/model/classes`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidemount.model.driver_class import DriverClass
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.facts import ClaimFacts, ClusterFacts, NamespaceFacts, SourceFault, VolumeFacts
from sidemount.model.namespace_limits import LimitRangeFacts, QuotaBounds
from sidemount.model.yamltext import parse_documents

CLASSES = Path(__file__).parent / "classes"
ML = NamespaceFacts(name="ml", labels={"team": "ml"})


def class_from_file(name: str) -> DriverClass:
    (manifest,) = parse_documents((CLASSES / f"{name}.yaml").read_text())
    return parse_driver_class(manifest)


@dataclass(frozen=True, kw_only=True)
class KnownFacts:
    """Implements Facts."""

    classes: Mapping[str, DriverClass] = field(default_factory=dict)
    volumes: tuple[VolumeFacts, ...] = ()
    claims: tuple[ClaimFacts, ...] = ()

    def driver_class(self, name: str) -> DriverClass | None:
        return self.classes.get(name)

    def driver_classes(self) -> Mapping[str, DriverClass]:
        return self.classes

    def namespace(self, name: str) -> NamespaceFacts | None:
        return ML if name == ML.name else None

    def volume(self, name: str) -> VolumeFacts | None:
        return next((v for v in self.volumes if v.name == name), None)

    def volumes_by_handle(self, driver: str, handle: str) -> tuple[VolumeFacts, ...]:
        return tuple(v for v in self.volumes if (v.driver, v.handle) == (driver, handle))

    def volumes_of(self, driver: str) -> tuple[VolumeFacts, ...]:
        return tuple(v for v in self.volumes if v.driver == driver)

    def claim(self, namespace: str, name: str) -> ClaimFacts | None:
        return next((c for c in self.claims if (c.namespace, c.name) == (namespace, name)), None)

    def provisioner(self, storage_class: str) -> str:
        return ""

    def limit_ranges(self, namespace: str) -> tuple[LimitRangeFacts, ...]:
        return ()

    def quotas(self, namespace: str) -> tuple[QuotaBounds, ...]:
        return ()

    def has_room(self, namespace: str, quota: str, resource: str, amount: str) -> bool:
        return True

    def cluster(self) -> ClusterFacts:
        return ClusterFacts()

    def faults(self) -> tuple[SourceFault, ...]:
        return ()

    def generation(self) -> int:
        return 1


def all_classes() -> dict[str, DriverClass]:
    classes = [class_from_file(path.stem) for path in sorted(CLASSES.glob("*.yaml"))]
    return {c.name: c for c in classes}
