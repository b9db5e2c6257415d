"""Credentials that lie on the node, for callers that send none: `DIR/CLASS/KEY`, as kubelet mounts Secrets.

Links inside DIR are followed, for kubelet swaps `..data`; nothing leads out of it. What is read is of one moment, never waits for
a pipe, and never goes into a message.
"""

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from csi.faults import WrongState
from csi.hidden_texts import HiddenTexts
from csi.publish_request import SECRETS_MAX_BYTES
from sidemount.host.openat2 import look_beneath
from sidemount.host.regular_file import Signature, look_at, read_regular
from sidemount.model.errors import HostFailure, InvalidRequest, NotReady, VolumeError, shown

_FLAG = "--secrets-dir"
_WITHIN_S = 5.0
_ATTEMPTS = 8
_REASONS: Mapping[int, str] = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "is no directory",
    errno.EXDEV: "leads out of it by a link",
    errno.ELOOP: "is a link without end",
}


@dataclass(frozen=True, slots=True, repr=False)
class _Found:
    signature: Signature
    content: bytes


@dataclass(slots=True, repr=False)
class _Outcome:
    found: HiddenTexts | None = None
    fault: Exception | None = None


class SecretFiles:
    """The directory that the operator names; "" has nothing."""

    def __init__(self, directory: str, within_s: float = _WITHIN_S) -> None:
        """`within_s`: how long its filesystem may take to answer."""
        self._directory = directory
        self._within_s = within_s
        self._is_hanging = False

    @property
    def is_named(self) -> bool:
        """Tell whether there is one."""
        return bool(self._directory)

    async def read(self, where: str, driver_class: str, keys: Sequence[str]) -> HiddenTexts | None:
        """Return the credentials of a class, None if it has no directory. `where` begins the message.

        Raises WrongState if they are not as they should be, HostFailure if they cannot be read, NotReady if they do not answer.
        """
        if not self._directory:
            return None
        late = NotReady(f"{where}: {_FLAG} {self._directory} does not answer", hint="try again")
        if self._is_hanging:
            raise late
        try:
            return await self._aside(lambda: self._read(where, driver_class, keys))
        except TimeoutError:
            raise late from None

    def missing(self, where: str, driver_class: str, keys: Sequence[str]) -> WrongState:
        """Return the refusal for a class that has no directory, and needs one."""
        return WrongState(
            f"{where}: {_FLAG} {self._directory} has no directory {shown(driver_class)}",
            hint=f"put {', '.join(keys)} there as files, or send them as secrets",
        )

    async def _aside(self, work: Callable[[], HiddenTexts | None]) -> HiddenTexts | None:
        """Do it in a thread of its own, not one of the few that everybody else needs. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[HiddenTexts | None] = loop.create_future()
        outcome = _Outcome()

        def give() -> None:
            self._is_hanging = False
            if answer.done():
                return
            if outcome.fault is None:
                answer.set_result(outcome.found)
            else:
                answer.set_exception(outcome.fault)

        def run() -> None:
            try:
                outcome.found = work()
            except Exception as error:  # it is the caller's
                outcome.fault = error
            with contextlib.suppress(RuntimeError):  # the plugin has ended meanwhile
                loop.call_soon_threadsafe(give)  # no arguments: a loop that is debugged shows them

        threading.Thread(target=run, name="secret-files", daemon=True).start()
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            if answer.done():
                return answer.result()
            self._is_hanging = True
            raise
        finally:
            answer.cancel()

    def _read(self, where: str, driver_class: str, keys: Sequence[str]) -> HiddenTexts | None:
        try:
            root = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._fault(where, self._directory, error.errno or 0) from error
        try:
            try:
                os.close(look_beneath(root, driver_class, driver_class))
            except HostFailure as error:
                if error.errno == errno.ENOENT:
                    return None
                raise self._fault(where, f"{self._directory}/{driver_class}", error.errno) from error
            return self._read_keys(where, root, driver_class, keys)
        finally:
            os.close(root)

    def _read_keys(self, where: str, root: int, driver_class: str, keys: Sequence[str]) -> HiddenTexts:
        """Return the files' content. Kubelet replaces all files of a Secret at once: none is taken of before, another of after."""
        for attempt in range(_ATTEMPTS):
            is_last = attempt == _ATTEMPTS - 1
            try:
                read = {key: self._read_one(where, root, f"{driver_class}/{key}") for key in keys}
            except VolumeError:
                if is_last or not self._is_changing(root, driver_class, keys):
                    raise
                continue
            if all(_signature(root, f"{driver_class}/{key}") == read[key].signature for key in keys):
                size = sum(len(entry.content) for entry in read.values())
                if size > SECRETS_MAX_BYTES:
                    place = f"{self._directory}/{driver_class}"
                    raise self._refused(where, place, f"holds more than {SECRETS_MAX_BYTES} bytes")
                return HiddenTexts(
                    {key: entry.content.decode("utf-8", "surrogateescape") for key, entry in read.items()}
                )
        raise NotReady(
            f"{where}: {_FLAG}: {self._directory}/{driver_class} is being changed all the time",
            hint="try again",
        )

    def _is_changing(self, root: int, driver_class: str, keys: Sequence[str]) -> bool:
        """Tell whether a second look finds what a first one did not, or something else."""
        paths = [f"{driver_class}/{key}" for key in keys]
        first = [_signature(root, path) for path in paths]
        return None not in first or first != [_signature(root, path) for path in paths]

    def _read_one(self, where: str, root: int, path: str) -> _Found:
        place = f"{self._directory}/{path}"
        try:
            opened = look_beneath(root, path, path)
        except HostFailure as error:
            raise self._fault(where, place, error.errno) from error
        try:
            # Whatever is no file is not even opened: that alone can wait, or do something.
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise self._refused(where, place, "is not a regular file")
            signature, content = read_regular(Path(f"/proc/self/fd/{opened}"), max_bytes=SECRETS_MAX_BYTES)
        except InvalidRequest as error:
            raise self._refused(where, place, error.message) from error
        except HostFailure as error:
            raise HostFailure(
                f"{where}: {_FLAG}: {place} {error.message}", errno=error.errno, hint="see to its permissions"
            ) from error
        finally:
            os.close(opened)
        return _Found(signature, content)

    def _fault(self, where: str, place: str, number: int) -> VolumeError:
        reason = _REASONS.get(number)
        if reason is None:
            return HostFailure(
                f"{where}: {_FLAG}: {place} cannot be opened: {os.strerror(number)}", errno=number
            )
        return self._refused(where, place, reason)

    def _refused(self, where: str, place: str, reason: str) -> WrongState:
        return WrongState(
            f"{where}: {_FLAG}: {place} {reason}",
            hint=f"a class's credentials are the files {self._directory}/CLASS/KEY, one for each of its secretKeys",
        )


def _signature(root: int, path: str) -> Signature | None:
    """Return the signature of what a path leads to, None if it leads to nothing."""
    try:
        opened = look_beneath(root, path, path)
    except HostFailure:
        return None
    try:
        return look_at(Path(f"/proc/self/fd/{opened}"))
    finally:
        os.close(opened)
