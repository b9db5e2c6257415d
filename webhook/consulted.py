"""Consulted: facts that note what a decision read of them, so that it can be kept as long as just these stay the same.

It also tells which of the answers may only be late: an object made a moment ago must not be refused because of that.
"""

from collections.abc import Mapping

from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import Reason
from sidemount.model.facts import ClaimFacts, ClusterFacts, Facts, NamespaceFacts, SourceFault, VolumeFacts
from sidemount.model.namespace_limits import LimitRangeFacts, QuotaBounds
from webhook.gate import is_enabled
from webhook.outcome import Doubt, Outcome

Question = tuple[str, ...]
"""Method of Facts, and its arguments."""

Reads = tuple[tuple[Question, object], ...]


class Consulted:
    """Implements Facts on top of others, noting each answer. For one decision."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._answers: dict[Question, object] = {}

    @property
    def reads(self) -> Reads:
        """Every question with its answer, in order."""
        return tuple(self._answers.items())

    def driver_class(self, name: str) -> DriverClass | None:
        """Return the class of that name."""
        answer = self._facts.driver_class(name)
        self._answers["driver_class", name] = answer
        return answer

    def driver_classes(self) -> Mapping[str, DriverClass]:
        """Return every class by name."""
        answer = self._facts.driver_classes()
        self._answers["driver_classes",] = answer
        return answer

    def namespace(self, name: str) -> NamespaceFacts | None:
        """Return the namespace of that name."""
        answer = self._facts.namespace(name)
        self._answers["namespace", name] = answer
        return answer

    def volume(self, name: str) -> VolumeFacts | None:
        """Return the PersistentVolume of that name."""
        answer = self._facts.volume(name)
        self._answers["volume", name] = answer
        return answer

    def volumes_by_handle(self, driver: str, handle: str) -> tuple[VolumeFacts, ...]:
        """Return every PersistentVolume of that driver and handle."""
        answer = self._facts.volumes_by_handle(driver, handle)
        self._answers["volumes_by_handle", driver, handle] = answer
        return answer

    def volumes_of(self, driver: str) -> tuple[VolumeFacts, ...]:
        """Return every PersistentVolume of a driver."""
        answer = self._facts.volumes_of(driver)
        self._answers["volumes_of", driver] = answer
        return answer

    def claim(self, namespace: str, name: str) -> ClaimFacts | None:
        """Return the claim of that namespace and name."""
        answer = self._facts.claim(namespace, name)
        self._answers["claim", namespace, name] = answer
        return answer

    def provisioner(self, storage_class: str) -> str:
        """Return the driver that makes the volumes of a StorageClass."""
        answer = self._facts.provisioner(storage_class)
        self._answers["provisioner", storage_class] = answer
        return answer

    def limit_ranges(self, namespace: str) -> tuple[LimitRangeFacts, ...]:
        """Return every LimitRange of a namespace."""
        answer = self._facts.limit_ranges(namespace)
        self._answers["limit_ranges", namespace] = answer
        return answer

    def quotas(self, namespace: str) -> tuple[QuotaBounds, ...]:
        """Return what every ResourceQuota of a namespace allows."""
        answer = self._facts.quotas(namespace)
        self._answers["quotas", namespace] = answer
        return answer

    def has_room(self, namespace: str, quota: str, resource: str, amount: str) -> bool:
        """Tell whether a quota leaves so much more: the one answer that the use of a quota may change."""
        answer = self._facts.has_room(namespace, quota, resource, amount)
        self._answers["has_room", namespace, quota, resource, amount] = answer
        return answer

    def cluster(self) -> ClusterFacts:
        """Return what is known of the cluster."""
        answer = self._facts.cluster()
        self._answers["cluster",] = answer
        return answer

    def faults(self) -> tuple[SourceFault, ...]:
        """Return everything in the source that could not be used."""
        answer = self._facts.faults()
        self._answers["faults",] = answer
        return answer

    def generation(self) -> int:
        """Return the number of the facts; a decision does not depend on it."""
        return self._facts.generation()


def still_holds(reads: Reads, facts: Facts) -> bool:
    """Say whether these facts give the same answers, and so the same decision."""
    for question, known in reads:
        now = getattr(facts, question[0])(*question[1:])
        if now is not known and now != known:
            return False
    return True


def doubts_of(reads: Reads, outcome: Outcome) -> tuple[Doubt, ...]:
    """Return what a fresh look could change of an outcome, most general first.

    Whatever it is, what is not known at all is doubted; of a refusal, also what is known to stand in the way.
    """
    is_refused = not outcome.allowed
    found = [doubt for question, answer in reads if (doubt := _doubt(question, answer, is_refused))]
    if is_refused:
        found += [doubt for question, answer in reads for doubt in _limits_in_doubt(question, answer)]
    if is_refused and outcome.reason in _BY_SOURCE and not any(d.kind == _CLASS for d in found):
        found.append(Doubt(_CLASS))
    return tuple(found)


def _doubt(question: Question, answer: object, is_refused: bool) -> Doubt | None:
    match question:
        case ("namespace", name):
            if answer is None or (
                is_refused and isinstance(answer, NamespaceFacts) and not is_enabled(answer)
            ):
                return Doubt("Namespace", "", name)
        case ("driver_class", name) if answer is None:
            return Doubt(_CLASS, "", name)
        case ("claim", namespace, name):
            if answer is None or (is_refused and isinstance(answer, ClaimFacts) and not answer.volume):
                return Doubt("PersistentVolumeClaim", namespace, name)
        case ("volume", name) if answer is None:
            return Doubt("PersistentVolume", "", name)
        case ("volumes_by_handle", _, _) if answer == ():
            return Doubt("PersistentVolume")
    return None


def _limits_in_doubt(question: Question, answer: object) -> list[Doubt]:
    """A limit that refuses may have been raised, or be gone, a moment ago."""
    match question:
        case ("limit_ranges", namespace) if isinstance(answer, tuple):
            return [Doubt("LimitRange", namespace, limit.name) for limit in answer]
        case ("quotas", namespace) if isinstance(answer, tuple):
            return [Doubt("ResourceQuota", namespace, quota.name) for quota in answer]
    return []


_CLASS = "FuseDriverClass"
_BY_SOURCE = frozenset({Reason.UNKNOWN_CLASS, Reason.SOURCE_NOT_PERMITTED})
