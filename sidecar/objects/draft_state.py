"""What is known of one draft, as its log says: the same records change it while it lives and when a successor reads them.

Each byte below `size` is in one place: in a part that was uploaded and is kept nowhere else (`gone`); else in the spool, if `local`
has it; else, below `base_end`, in the object that the draft began from. Bytes past `base_end` are in the spool or gone.
What is appended makes no record: the spool's length tells.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from sidecar.objects.draft_log import Record
from sidecar.objects.draft_ranges import Ranges
from sidecar.objects.upload_layout import Layout, Span
from sidemount.stores.store import ObjectInfo, Part

FORMAT = 1  # of the log, and of the rule of `upload_layout` that it goes by: another one's logs cannot be gone on with
_MOST_ATTEMPTS = 16
_FAR = 1 << 63


@dataclass(slots=True)
class Upload:
    """An upload that was begun, or is to be: then it has no id yet. `at` is when, in ns."""

    layout: Layout
    tag: str
    at: int
    id: str = ""
    parts: dict[int, Part] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Attempt:
    """A commit whose outcome is not known (yet), of `made` bytes. `size`: how many of them are the draft's still; `is_current`: all are."""

    tag: str
    made: int
    size: int
    is_current: bool


@dataclass(slots=True)
class DraftState:
    """One draft. `is_lost`: the last commit failed for good. `is_changed`: written to since the last commit. `is_new`: the store has not heard that it was made or emptied."""

    node_id: int
    key: str
    part_bytes: int
    largest_part: int
    nonce: str
    is_exclusive: bool = False
    is_edit: bool = False
    base: ObjectInfo | None = None
    base_end: int = 0
    size: int = 0
    local: Ranges = field(default_factory=Ranges)
    is_changed: bool = False
    is_new: bool = False
    changes: int = 0
    upload: Upload | None = None
    attempts: list[Attempt] = field(default_factory=list)
    is_discarded: bool = False
    is_dropped: bool = False
    is_lost: bool = False
    abandoned_s: float = 0.0

    @property
    def is_pending(self) -> bool:
        """Whether the store lacks something."""
        return (self.is_changed or self.is_new) and not self.is_discarded

    @property
    def uses_base(self) -> bool:
        """Whether some of the content is the base object's."""
        return not self.local.covers(0, self.base_end)

    @property
    def tag(self) -> str:
        """What tells this content, as it is now, from any other."""
        return f"{self.nonce}-{self.changes}"

    def layout(self, copy_least: int) -> Layout:
        """Return the upload's layout, or what it would be. `copy_least`: the least that can be copied as a part, 0 if nothing can."""
        if self.upload is not None:
            return self.upload.layout
        first = next(iter(self.local), (self.base_end, 0))[0]
        clean = min(first, self.base_end)
        prefix = clean if copy_least and clean >= copy_least else 0
        return Layout(self.part_bytes, prefix, self.largest_part)

    def gone_within(self, start: int, end: int) -> Iterator[Span]:
        """Yield the parts of a range that are uploaded and kept nowhere else."""
        if self.upload is not None and self.upload.gone:
            yield from (one for one in self.upload.layout.spans(start, end) if one.number in self.upload.gone)

    def appended(self, end: int) -> None:
        """Have bytes at the end that were not there."""
        self.local.add(self.size, end)
        self.size = end

    def settle(self, length: int) -> None:
        """Be as long as the spool is, once all records were applied."""
        self._cut(length)
        self.size = length
        self.local.add(self.base_end, length)
        self._forget_gone()

    def apply(self, record: Record) -> None:
        """Change as a record says."""
        getattr(self, f"_on_{record['t']}")(record)

    def _on_node(self, record: Record) -> None:
        self.node_id = record["node"]
        self.abandoned_s = 0.0

    def _on_moved(self, record: Record) -> None:
        self.key = record["key"]
        self.base = _info(record["base"])
        self.attempts.clear()

    def _on_changed(self, record: Record) -> None:
        self.is_changed = True
        self._differ()

    def _on_local(self, record: Record) -> None:
        self.local.add(record["from"], record["to"])

    def _on_size(self, record: Record) -> None:
        self._cut(record["to"])
        self.size = record["to"]
        if self.base_end < self.size:
            self.local.add(self.base_end, self.size)
            self._forget_gone()

    def _on_emptied(self, record: Record) -> None:
        """Begin anew: what is written now replaces the object as a whole."""
        self._cut(0)
        self.size = 0
        self.is_edit = False
        self.is_exclusive = record["exclusive"]
        self.is_changed, self.is_new, self.is_lost = False, True, False
        self.upload = None
        self._differ()

    def _on_uploading(self, record: Record) -> None:
        layout = Layout(self.part_bytes, record["prefix"], self.largest_part)
        self.upload = Upload(layout, record["tag"], record["at"])

    def _on_upload(self, record: Record) -> None:
        if self.upload is not None:
            self.upload.id = record["id"]

    def _on_part(self, record: Record) -> None:
        if self.upload is not None:
            self.upload.parts[record["part"][0]] = Part(*record["part"])

    def _on_dirty(self, record: Record) -> None:
        if self.upload is not None:
            self.upload.parts.pop(record["number"], None)

    def _on_gone(self, record: Record) -> None:
        if self.upload is not None:
            self.upload.gone.add(record["number"])
            _, start, end = self.upload.layout.span(record["number"])
            self.local.remove(start, end)

    def _on_committing(self, record: Record) -> None:
        self.attempts.append(Attempt(record["tag"], record["size"], record["size"], is_current=True))
        del self.attempts[:-_MOST_ATTEMPTS]

    def _on_committed(self, record: Record) -> None:
        self.base = _info(record["base"])
        assert self.base is not None
        self.base_end = self.size = self.base.size
        self.local = Ranges((start, end) for start, end in record["kept"])
        self.upload = None
        self.attempts.clear()
        self.is_changed = self.is_new = self.is_exclusive = self.is_lost = False

    def _on_adopted(self, record: Record) -> None:
        """The object is what this draft was at an earlier attempt: go on from there."""
        self.local.add(self.base_end, record["end"])
        self._forget_gone()
        self.base = _info(record["base"])
        self.base_end = record["end"]
        if self.upload is not None and self.upload.tag == record["tag"]:
            self.upload = None
        self.attempts.clear()
        self.is_edit = self.is_edit or self.is_exclusive
        self.is_exclusive = self.is_new = self.is_lost = False

    def _on_discarded(self, record: Record) -> None:
        self.is_discarded = True

    def _on_abandoned(self, record: Record) -> None:
        self.abandoned_s = record["at"]

    def _on_lost(self, record: Record) -> None:
        self.is_lost = True

    def _on_dropped(self, record: Record) -> None:
        self.is_dropped = True

    def _differ(self) -> None:
        self.changes += 1
        for attempt in self.attempts:
            attempt.is_current = False

    def _cut(self, size: int) -> None:
        self.base_end = min(self.base_end, size)
        self.local.remove(size, _FAR)
        for attempt in self.attempts:
            attempt.size = min(attempt.size, size)
        upload = self.upload
        if upload is not None:
            for number, part in [*upload.parts.items()]:
                if upload.layout.span(number).start + part.size > size:
                    del upload.parts[number]
            upload.gone = {number for number in upload.gone if upload.layout.span(number).end <= size}

    def _forget_gone(self) -> None:
        if self.upload is not None:
            for number in self.upload.gone:
                _, start, end = self.upload.layout.span(number)
                self.local.remove(start, end)

    def snapshot(self) -> Record:
        """Return one record that says all of it."""
        upload = self.upload
        return {
            "t": "draft",
            "format": FORMAT,
            "node": self.node_id,
            "key": self.key,
            "part_bytes": self.part_bytes,
            "largest_part": self.largest_part,
            "nonce": self.nonce,
            "exclusive": self.is_exclusive,
            "edit": self.is_edit,
            "base": self.base,
            "base_end": self.base_end,
            "local": [*self.local.within(0, self.base_end)],
            "changed": self.is_changed,
            "new": self.is_new,
            "changes": self.changes,
            "upload": upload
            and {
                "prefix": upload.layout.prefix,
                "tag": upload.tag,
                "at": upload.at,
                "id": upload.id,
                "parts": [*upload.parts.values()],
                "gone": [*upload.gone],
            },
            "attempts": [(one.tag, one.made, one.size, one.is_current) for one in self.attempts],
            "discarded": self.is_discarded,
            "dropped": self.is_dropped,
            "lost": self.is_lost,
            "abandoned": self.abandoned_s,
        }


def begun(
    node_id: int,
    key: str,
    base: ObjectInfo | None,
    *,
    part_bytes: int,
    largest_part: int,
    is_exclusive: bool,
) -> DraftState:
    """Return a draft of a new object, or of one that is there."""
    return DraftState(
        node_id,
        key,
        part_bytes,
        largest_part,
        os.urandom(12).hex(),
        is_exclusive=is_exclusive,
        is_edit=base is not None,
        base=base,
        base_end=base.size if base is not None else 0,
        size=base.size if base is not None else 0,
        is_new=base is None,
    )


def replay(records: list[Record], length: int) -> DraftState:
    """Return the draft of a log, whose spool is of that length."""
    state = _parse(records[0])
    for record in records[1:]:
        state.apply(record)
    state.settle(length)
    return state


def _parse(record: Record) -> DraftState:
    upload = record["upload"]
    layout = Layout(record["part_bytes"], upload["prefix"] if upload else 0, record["largest_part"])
    return DraftState(
        record["node"],
        record["key"],
        record["part_bytes"],
        record["largest_part"],
        record["nonce"],
        is_exclusive=record["exclusive"],
        is_edit=record["edit"],
        base=_info(record["base"]),
        base_end=record["base_end"],
        local=Ranges((start, end) for start, end in record["local"]),
        is_changed=record["changed"],
        is_new=record["new"],
        changes=record["changes"],
        upload=Upload(
            layout,
            upload["tag"],
            upload["at"],
            upload["id"],
            {one[0]: Part(*one) for one in upload["parts"]},
            set(upload["gone"]),
        )
        if upload
        else None,
        attempts=[Attempt(*one) for one in record["attempts"]],
        is_discarded=record["discarded"],
        is_dropped=record["dropped"],
        is_lost=record["lost"],
        abandoned_s=record["abandoned"],
    )


def _info(values: list[object] | ObjectInfo | None) -> ObjectInfo | None:
    return None if values is None else ObjectInfo(*values)
