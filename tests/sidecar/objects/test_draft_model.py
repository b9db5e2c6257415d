"""Random operations on a draft, its store failing at random before or after it has done what it was asked, against plain bytes."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from sidecar.objects.draft import Draft
from sidecar.objects.writing import Drafts
from sidemount.stores.store import FaultKind, StoreFault
from tests.sidecar.objects.draft_places import PART, MuchStore, make_drafts, wait_until

KINDS = (FaultKind.TIMEOUT, FaultKind.RESET, FaultKind.SERVER, FaultKind.THROTTLED)
CALLS = ("put", "complete", "begin_upload", "put_part", "copy_part", "get", "tag_of", "abort")


class Story:
    """One draft's life."""

    def __init__(self, place: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.place = place
        self.store = MuchStore()
        self.staging = self.dice.choice((0, 0, 20 * PART))
        self.content = bytearray()
        self.unsure = False
        if self.dice.random() < 0.5:
            self.content += self.dice.randbytes(self.dice.choice((0, 10, PART, 9 * PART)))
            self.store.put("a", [bytes(self.content)])
        self.committed = bytes(self.content) if "a" in self.store.stored() else None
        self.drafts = self.open()
        if self.staging and self.committed is not None and self.dice.random() < 0.5:
            self.draft = self.drafts.edit(7, "a", self.store.head("a"))
        else:
            self.content.clear()
            self.draft = self.drafts.create(7, "a", exclusive=self.committed is None and seed % 2 == 0)

    def open(self) -> Drafts:
        """Return drafts as another process would have them."""
        return make_drafts(self.store, self.place, staging_bytes=self.staging, uploading=2)

    def fail(self) -> None:
        """Have the store fail once or twice."""
        call = self.dice.choice(CALLS)
        number = errno.ETIMEDOUT if self.dice.random() < 0.5 else errno.EIO
        kind = self.dice.choice(KINDS)
        where = self.store.faults if self.dice.random() < 0.5 else self.store.late
        where.setdefault(call, []).append(StoreFault(number, kind, f"{call} fails"))

    def step(self) -> None:
        """Do one thing."""
        dice = self.dice
        what = dice.random()
        if what < 0.12:
            self.fail()
        elif what < 0.5:
            self.write(len(self.content))
        elif what < 0.62:
            self.write(dice.randrange(len(self.content) + 2 * PART))
        elif what < 0.7:
            self.resize()
        elif what < 0.8:
            self.read()
        elif what < 0.9:
            self.commit()
        elif what < 0.95:
            self.succeed()
        else:
            assert self.drafts.create(7, "a", exclusive=False) is self.draft
            self.content.clear()

    def expect(self, error: OSError, *allowed: int) -> None:
        """Fail if an error is none of those."""
        if error.errno not in allowed:
            raise error

    def write(self, offset: int) -> None:
        more = self.dice.randbytes(self.dice.choice((1, 100, PART, 3 * PART)))
        if self.dice.random() < 0.1 and offset < len(self.content):
            more = bytes(self.content[offset : offset + len(more)])  # what the kernel sends again
        try:
            written = self.draft.write(offset, more)
        except OSError as error:
            allowed = [errno.EIO, errno.ETIMEDOUT]
            if offset != len(self.content):
                allowed += [errno.EOPNOTSUPP] + [errno.EFBIG] * bool(self.staging)
            self.expect(error, *allowed)
        else:
            self.content += bytes(max(offset - len(self.content), 0))
            self.content[offset : offset + written] = more[:written]

    def resize(self) -> None:
        size = self.dice.choice((0, len(self.content), self.dice.randrange(len(self.content) + PART)))
        try:
            self.draft.set_size(size)
        except OSError as error:
            self.expect(error, *() if size in (0, len(self.content)) else (errno.EOPNOTSUPP, errno.EFBIG))
        else:
            self.content[:] = self.content[:size] + bytes(max(size - len(self.content), 0))

    def read(self) -> None:
        offset, size = self.dice.randrange(len(self.content) + 10), self.dice.choice((1, 100, 5 * PART))
        try:
            found = self.draft.read(offset, size)
        except OSError as error:
            self.expect(error, errno.EOPNOTSUPP, errno.EIO, errno.ETIMEDOUT)
        else:
            assert bytes(found) == self.content[offset : offset + size]

    def commit(self) -> None:
        before = self.store.content("a") if "a" in self.store.stored() else None
        try:
            info = self.draft.commit()
        except OSError as error:
            self.expect(error, errno.EIO, errno.ETIMEDOUT)
            now = self.store.content("a") if "a" in self.store.stored() else None
            assert now in (before, bytes(self.content))
        else:
            assert info.size == len(self.content)
            assert self.store.content("a") == self.content

    def succeed(self) -> None:
        """Have another process go on."""
        self.drafts.close()
        settle(self.draft)
        self.drafts = self.open()
        [self.draft] = self.drafts.resume()
        assert self.draft.size == len(self.content)

    def end(self) -> None:
        self.store.faults.clear()
        self.store.late.clear()
        for _ in range(2):  # what has failed in the background is told once
            try:
                self.draft.commit()
            except StoreFault:
                continue
            break
        self.draft.commit()
        assert self.store.content("a") == self.content
        self.drafts.forget(7)
        wait_until(lambda: os.listdir(self.place) == ["uploads"])
        wait_until(lambda: self.store.unfinished() <= self.store_doubts())
        self.drafts.close()

    def store_doubts(self) -> int:
        """Return how many uploads there may be whose beginning nobody was told of."""
        return self.drafts.statistics()["uploads_to_give_up"]


def settle(draft: Draft) -> None:
    """Wait until nothing of a process that is to be succeeded is on its way."""
    with draft.body.lock:
        draft._parts.wait()


@pytest.mark.parametrize("seeds", [range(0, 120), pytest.param(range(1000, 4000), marks=pytest.mark.slow)])
def test_random_operations_on_a_store_that_fails(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        place = tmp_path / str(seed)
        story = Story(place, seed)
        try:
            for _ in range(story.dice.randrange(40)):
                story.step()
            story.end()
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
        shutil.rmtree(place)
