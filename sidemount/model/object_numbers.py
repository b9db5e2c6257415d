"""What a bucket's volume counts: the names that are known, what each is for Prometheus, and how increments are made of reports.

A daemon is not believed: what is not in the table here is passed over, and numbers are whole, not negative and bounded. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

NAMES_MAX = 256
NAME_MAX = 64
NUMBER_MAX = (1 << 63) - 1
_TOTAL_MAX = 1 << 53  # what Prometheus' floats hold exactly
_PREFIX = "sidemount_objects_"
_FAULTS = (
    *("missing", "denied", "credentials", "exists", "changed", "conflict", "range", "request", "throttled"),
    *("server", "timeout", "reset", "name", "tls", "truncated", "checksum", "answer", "unsupported"),
    "too_large",
)
_HIDDEN = (
    *("empty_component", "dot_component", "long_component", "nul", "file_and_prefix", "marker_content"),
    "not_utf8",
)


class Nature(Enum):
    """What may be made of a number. `COUNTED` only grows while a process lives, and begins at 0; `PRESENT` is what there is now."""

    COUNTED = "counter"
    PRESENT = "gauge"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `label` is "" or what its series differ in; `series` is from each label's value to a daemon's name for it."""

    name: str
    text: str
    nature: Nature
    label: str
    series: Mapping[str, str]


def _one(name: str, source: str, nature: Nature, text: str) -> Family:
    return Family(f"{_PREFIX}{name}", text, nature, "", {"": source})


def _each(name: str, label: str, series: Mapping[str, str], nature: Nature, text: str) -> Family:
    return Family(f"{_PREFIX}{name}", text, nature, label, series)


def _places(ending: str) -> dict[str, str]:
    return {"memory": f"read_memory_{ending}", "volume": f"read_volume_{ending}"}


_C, _P = Nature.COUNTED, Nature.PRESENT
FAMILIES = (
    _one("store_requests", "store_requests", _C, "Requests to the store, those that were repeated too."),
    _one("store_retries", "store_retries", _C, "Requests that repeated one that had failed."),
    _one("store_received_bytes", "store_received_bytes", _C, "Bytes of bodies that came from the store."),
    _one("store_sent_bytes", "store_sent_bytes", _C, "Bytes of bodies that went to the store."),
    _each(
        "store_faults",
        "kind",
        {kind: f"store_faults_{kind}" for kind in _FAULTS},
        _C,
        "Requests that failed, whether they were repeated or not.",
    ),
    _each(
        "faults",
        "kind",
        {kind: f"fault_{kind}" for kind in _FAULTS},
        _C,
        "Operations of applications that failed for good.",
    ),
    _each(
        "hidden_keys",
        "kind",
        {**{kind: f"hidden_{kind}" for kind in _HIDDEN}, "unreadable": "store_unreadable_keys"},
        _C,
        "Times a key was met that no path can name, so is not shown.",
    ),
    _one("cache_hits", "read_hits", _C, "Reads that memory answered at once."),
    _one("cache_hit_bytes", "read_hit_bytes", _C, "Bytes that memory answered at once."),
    _one("cache_misses", "read_misses", _C, "Reads that memory could not answer at once."),
    _one("exact_reads", "read_exact_reads", _C, "Reads answered by a request for just that range."),
    _one("whole_files", "read_whole_files", _C, "Files fetched whole because they were read here and there."),
    _one("whole_file_bytes", "read_whole_files_bytes", _C, "Bytes of those files."),
    _one(
        "next_files",
        "ahead_files",
        _C,
        "Files fetched before they were opened, because those before them were.",
    ),
    _one("next_file_bytes", "ahead_bytes", _C, "Bytes of those files."),
    _one("next_file_hits", "ahead_hits", _C, "Those of them that were opened afterwards."),
    _one(
        "next_files_unused",
        "ahead_unused",
        _C,
        "Those of them that were given up before anybody opened them.",
    ),
    _one("next_file_unused_bytes", "ahead_unused_bytes", _C, "Bytes of those that were given up."),
    _one("stale_reads", "read_stale", _C, "Reads of a version that the store has no more."),
    _one("block_reads", "read_store_reads", _C, "Ranges of content fetched from the store."),
    _one("block_read_bytes", "read_store_bytes", _C, "Bytes of content fetched from the store."),
    _one(
        "read_ahead_unused_bytes",
        "read_read_ahead_unused_bytes",
        _C,
        "Bytes fetched before anybody asked and given up before anybody had.",
    ),
    _each("cache_evictions", "place", _places("evicted"), _C, "Blocks given up for others."),
    _one("cache_volume_read_bytes", "read_volume_read_bytes", _C, "Bytes read from the cache volume."),
    _one("cache_volume_written_bytes", "read_volume_written_bytes", _C, "Bytes written to the cache volume."),
    _one("cache_volume_dropped", "read_volume_dropped", _C, "Blocks that the cache volume was too slow for."),
    _one("cache_volume_faults", "read_volume_faults", _C, "Failures of the cache volume."),
    _each("cache_bytes", "place", _places("bytes"), _P, "What the caches hold."),
    _each("cache_bound_bytes", "place", _places("bound_bytes"), _P, "What the caches may hold."),
    _one("prefetched_objects", "read_prefetch_objects", _P, "Objects that were prefetched."),
    _one(
        "prefetch_wanted_objects",
        "read_prefetch_objects_total",
        _P,
        "Objects to be prefetched, as far as known.",
    ),
    _one("prefetched_bytes", "read_prefetch_bytes", _P, "Bytes that were prefetched."),
    _one(
        "prefetch_wanted_bytes", "read_prefetch_bytes_total", _P, "Bytes to be prefetched, as far as known."
    ),
    _one("prefetch_errors", "read_prefetch_errors", _C, "Blocks and listings whose prefetch failed."),
    _one("drafts", "write_drafts", _P, "Files that are being written."),
    _one("uncommitted_files", "write_abandoned", _P, "Closed files whose commit failed and is tried again."),
    _one(
        "uncommitted_bytes",
        "write_uncommitted_bytes",
        _P,
        "Bytes of files that are not in the store as they are.",
    ),
    _one("staged_bytes", "write_staged_bytes", _P, "Bytes of files that are written at random, on disk."),
    _one("upload_waiting_bytes", "write_waiting_bytes", _P, "Bytes of parts that wait for their upload."),
    _one("commits", "write_commits", _C, "Files committed to the store."),
    _one(
        "commit_failures",
        "write_commit_faults",
        _C,
        "Commits that failed; the application was told, or they are tried again.",
    ),
    _one("commit_retries", "write_commits_retried", _C, "Commits of closed files that were tried again."),
    _one("lost_files", "write_files_lost", _C, "Files given up for good before they were in the store."),
    _one("uploaded_parts", "write_parts_uploaded", _C, "Parts of files uploaded."),
    _one("copied_parts", "write_parts_copied", _C, "Parts of files that the store copied by itself."),
    _one("upload_failures", "write_upload_faults", _C, "Uploads of parts that failed."),
    _one(
        "uploads_to_give_up",
        "write_uploads_to_give_up",
        _P,
        "Uploads without a file that are still to be ended.",
    ),
    _one("uploads_given_up", "write_uploads_given_up", _C, "Uploads begun and ended without a file."),
)
NATURES: Mapping[str, Nature] = {
    source: family.nature for family in FAMILIES for source in family.series.values()
}


def known_numbers(found: Mapping[str, object]) -> dict[str, int]:
    """Return what of a report is known and possible; the rest is passed over: a newer daemon counts more."""
    return {
        name: value
        for name, value in found.items()
        if name in NATURES and type(value) is int and 0 <= value <= NUMBER_MAX
    }


@dataclass(frozen=True, slots=True)
class Report:
    """What one process of a volume's daemon has counted since it began. `process` tells it from those before and after it."""

    process: int
    numbers: Mapping[str, int]


@dataclass(slots=True)
class ObjectTotals:
    """Adds up what the volumes of one label count, over all their processes.

    Of a process that is met for the first time nothing is counted: a process reports when it has just begun, and for whoever has
    just begun himself, what it had counted before was shown by his predecessor. Without that, a restart would look like a burst.
    """

    counted: Counter[str] = field(default_factory=Counter)
    _present: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _last: dict[str, Report] = field(default_factory=dict)

    def take(self, volume: str, report: Report, *, is_counted: bool = True) -> None:
        """Take a volume's report. Not `is_counted`: it was counted by somebody else, and only what follows is news."""
        before = self._last.get(volume)
        self._last[volume] = report
        self._present[volume] = {
            name: value for name, value in report.numbers.items() if NATURES.get(name) is Nature.PRESENT
        }
        if before is None or before.process != report.process or not is_counted:
            return
        for name, value in report.numbers.items():
            if NATURES.get(name) is Nature.COUNTED:
                # One process's number never falls: what does is a lie, and counts as nothing.
                grown = max(0, value - before.numbers.get(name, 0))
                # Beyond what a float holds it begins anew, which Prometheus takes for a restart: nobody stops it for others.
                self.counted[name] = (self.counted[name] + grown) % _TOTAL_MAX

    def forget(self, volume: str) -> None:
        """Know nothing of a volume any more; what it has counted stays."""
        self._present.pop(volume, None)
        self._last.pop(volume, None)

    def volumes(self) -> Iterator[str]:
        """Yield the volumes of which something is known."""
        yield from self._last

    def value(self, family: Family, source: str) -> int:
        """Return the sum of a series."""
        if family.nature is Nature.COUNTED:
            return self.counted[source]
        return min(_TOTAL_MAX, sum(numbers.get(source, 0) for numbers in self._present.values()))
