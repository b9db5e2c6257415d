"""What of a listing a successor has to know: the last pages that were read of each open directory, in a file each.

The files lie in the state directory, which is memory. That one cannot be written or read costs no more than that entries may be
listed twice when a directory is being listed at the very moment its daemon dies.
"""

import contextlib
import json
import logging
import os
from array import array
from collections.abc import Iterable

from sidecar.objects.listing import OWN, PAGE_AT, Record

_LOG = logging.getLogger(__name__)
_LAST = 3
_BYTES_MAX = 16 << 20


class ListingRecords:
    """The files of one volume. With "" for the directory nothing is kept."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._has_failed = False
        if directory:
            try:
                os.makedirs(directory, mode=0o700, exist_ok=True)
            except OSError as error:
                self._fail(error)

    def save(self, handle: int, records: dict[int, Record], position: int = 0) -> None:
        """Note the last pages of an open directory, and the one that the kernel goes on from: it may have to ask once more."""
        if not self._directory:
            return
        own = [page for page, record in records.items() if record.token == OWN]
        pages = {*sorted(records)[-_LAST:], *own[-1:], position >> PAGE_AT} & records.keys()
        text = json.dumps(
            {page: [records[page].token, records[page].given.tobytes().hex()] for page in sorted(pages)}
        )
        path = self._path(handle)
        try:
            descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(path + ".new", path)
        except OSError as error:
            self._fail(error)

    def load(self, handle: int) -> dict[int, Record]:
        """Return what is noted of an open directory."""
        if not self._directory:
            return {}
        try:
            with open(self._path(handle), encoding="ascii") as file:
                return {
                    int(page): _parse(*entry) for page, entry in json.loads(file.read(_BYTES_MAX)).items()
                }
        except (OSError, ValueError, TypeError):
            return {}

    def drop(self, handle: int) -> None:
        """Forget a directory that is closed."""
        if self._directory:
            with contextlib.suppress(OSError):
                os.unlink(self._path(handle))

    def keep_only(self, handles: Iterable[int]) -> None:
        """Forget all other directories."""
        if not self._directory:
            return
        wanted = {os.path.basename(self._path(handle)) for handle in handles}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                if name not in wanted:
                    os.unlink(os.path.join(self._directory, name))

    def _path(self, handle: int) -> str:
        return os.path.join(self._directory, f"{handle:x}")

    def _fail(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            _LOG.warning("listing_not_noted", extra={"fault": error.strerror})


def _parse(token: str, given: str) -> Record:
    numbers = array("Q")
    numbers.frombytes(bytes.fromhex(given))
    return Record(str(token), numbers)
