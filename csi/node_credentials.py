"""Credentials of the node: found for a publish that brings none, and given anew to living daemons when their files change."""

import asyncio
import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Protocol

from csi.hidden_texts import HiddenTexts
from csi.publish_plan import PublishPlan, class_without_credentials, plan_publish
from csi.publish_request import PublishRequest
from csi.records import Record
from csi.secret_files import SecretFiles
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError, shown
from sidemount.model.facts import Facts

_LOOK_S = 2.0
_Class = tuple[str, tuple[str, ...]]


class Renewed(Protocol):
    """Who knows what is published."""

    def with_file_keys(self) -> Iterable[Record]:
        """Return what is published with credentials from files of the node."""
        ...

    async def renew(self, record: Record, secrets: Mapping[str, str]) -> bool:
        """Give a daemon its credentials anew; False if something else is being done there now. Raises VolumeError."""
        ...


class NodeCredentials:
    """Those of one directory."""

    def __init__(self, files: SecretFiles) -> None:
        self._files = files
        self._log = log("csi.node_credentials")
        # What each target was given last, unreadable: the plugin keeps no credential in mind.
        self._given: dict[str, bytes] = {}
        self._salt = os.urandom(32)
        self._faults: dict[_Class, str] = {}
        self._refusals: dict[str, str] = {}

    async def plan(self, request: PublishRequest, path: str, facts: Facts, run_root: str) -> PublishPlan:
        """Plan a publish, with credentials of the node if it brings none and its class has some. Raises VolumeError."""
        wanted = class_without_credentials(request, path, facts) if self._files.is_named else None
        if wanted is None:
            return plan_publish(request, path, facts, run_root)
        keys = wanted.credentials.secret_keys
        # Whatever else is wrong is told first, and without a look at the files.
        plan_publish(request, path, facts, run_root, dict.fromkeys(keys, ""))
        where = f"volume {shown(request.volume_id)}"
        found = await self._files.read(where, wanted.name, keys)
        if found is None and wanted.credentials.required:
            raise self._files.missing(f"{where} needs credentials, and brings none", wanted.name, keys)
        return plan_publish(request, path, facts, run_root, found)

    async def current(self, record: Record) -> HiddenTexts:
        """Return what a published volume is to have now: nothing if it has none of the node, or they cannot be read."""
        if not record.file_keys:
            return HiddenTexts()
        return await self._read((record.spec.driver_class, record.file_keys))

    async def run(self, published: Renewed) -> None:
        """Look for changed files, until cancelled."""
        while self._files.is_named:
            try:
                await self._look(published)
            except Exception:  # the next look may find it better
                self._log.error("credentials_not_looked_at", exc_info=True)
            await asyncio.sleep(_LOOK_S)

    async def _look(self, published: Renewed) -> None:
        by_class: dict[_Class, list[Record]] = {}
        for record in published.with_file_keys():
            by_class.setdefault((record.spec.driver_class, record.file_keys), []).append(record)
        names = {record.name for records in by_class.values() for record in records}
        self._given = {name: digest for name, digest in self._given.items() if name in names}
        self._refusals = {name: fault for name, fault in self._refusals.items() if name in names}
        self._faults = {known: fault for known, fault in self._faults.items() if known in by_class}
        for known, records in by_class.items():
            secrets = await self._read(known)
            if secrets:
                await self._give(published, records, secrets)

    async def _give(self, published: Renewed, records: list[Record], secrets: Mapping[str, str]) -> None:
        digest = self._digest(secrets)
        for record in records:
            if self._given.get(record.name) == digest:
                continue
            try:
                if await published.renew(record, secrets):
                    self._given[record.name] = digest
                    self._refusals.pop(record.name, None)
            except VolumeError as error:
                if self._refusals.get(record.name) != str(error):  # tried again and again, and told once
                    self._log.warning("credentials_not_given", volume=record.volume_id, fault=str(error))
                self._refusals[record.name] = str(error)

    async def _read(self, known: _Class) -> HiddenTexts:
        """Return the files of a class. What is wrong with them is told once; the daemons keep what they have."""
        name, keys = known
        where = f"driver class {shown(name)}"
        found, fault = None, ""
        try:
            found = await self._files.read(where, name, keys)
            if found is None and self._files.is_named:
                fault = str(self._files.missing(where, name, keys))
        except VolumeError as error:
            fault = str(error)
        if fault and self._faults.get(known) != fault:
            self._log.warning("credentials_unread", driver_class=name, fault=fault)
        self._faults[known] = fault
        return found or HiddenTexts()

    def _digest(self, secrets: Mapping[str, str]) -> bytes:
        digest = hashlib.blake2b(key=self._salt)
        for key, value in sorted(secrets.items()):
            for part in (key, value):
                raw = part.encode("utf-8", "surrogateescape")
                digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.digest()
