"""The plugin's process: its services, its keeper, its launcher, from start to end."""

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable

from csi import identity, node
from csi.boundary import Method
from csi.identity import IdentityService
from csi.keeper_link import KeeperLink
from csi.node import NodeService
from csi.orphans import reap_orphans
from csi.process_launcher import ProcessLauncher
from csi.publications import Publications
from csi.publish_steps import Observe
from csi.records import RecordStore
from csi.server import Server
from csi.settings import Settings
from csi.targets import Targets
from sidemount.host.facts_directory import FactsDirectory
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, OperationPending

LOCK_FILE = "plugin.lock"
_LOCK_WAIT_S = 15.0
_FACTS_LOOK_S = 0.5
_STATE_MODE = 0o711  # daemons of other users reach their own directories


class NodePlugin:
    """Identity and node service on one socket."""

    def __init__(self, settings: Settings, observe: Observe = lambda point: None) -> None:
        self._settings = settings
        self._observe = observe
        self._end = asyncio.Event()
        self._facts = FactsDirectory(settings.facts)
        self._log = log("csi")

    def end(self) -> None:
        """Begin to end: what is under way is finished, and every mount stays."""
        self._end.set()

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve until `end`. Raises VolumeError if it cannot begin."""
        settings = self._settings
        lock = await asyncio.to_thread(_lock_state, settings.state_dir)
        try:
            keeper = KeeperLink(
                settings.state_dir,
                check_s=settings.stats_timeout_s,
                status_changed=lambda name: publications.changed(name),
            )
            launcher = ProcessLauncher(settings.state_dir, lambda name: publications.changed(name))
            publications = Publications(
                RecordStore(f"{settings.state_dir}/targets"),
                Targets(settings.target_roots),
                keeper,
                launcher,
                mount_timeout_s=settings.mount_timeout_s,
                observe=self._observe,
            )
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGCHLD, lambda: reap_orphans({*launcher.children, keeper.pid or 0})
            )
            server = Server(settings.endpoint, self._services(publications, keeper))
            await server.start()
            try:
                keeper.start()
                announce(f"listening on unix://{settings.endpoint}")
                await self._look_at_facts()
                await publications.reconcile()
                await self._until_end()
            finally:
                began = time.monotonic()
                await server.stop(settings.grace_s)
                await publications.close(max(1.0, settings.grace_s - (time.monotonic() - began)))
                await launcher.close()
                await keeper.stop()
        finally:
            os.close(lock)

    def _services(self, publications: Publications, keeper: KeeperLink) -> dict[str, dict[str, Method]]:
        identity_service = IdentityService(lambda: publications.is_ready and keeper.is_up)
        node_service = NodeService(
            self._settings.node_id, publications, self._facts.facts, f"{self._settings.state_dir}/run"
        )
        return {
            identity.SERVICE: identity_service.methods(),
            node.SERVICE: node_service.methods(),
        }

    async def _until_end(self) -> None:
        while not self._end.is_set():
            await self._look_at_facts()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), _FACTS_LOOK_S)

    async def _look_at_facts(self) -> None:
        try:
            if await asyncio.to_thread(self._facts.refresh):
                faults = [f"{fault.where}: {fault.message}" for fault in self._facts.facts().faults()]
                self._log.info("facts_changed", faults=faults)
        except Exception as error:  # the last good facts go on to hold
            self._log.error("facts_unread", fault=repr(error))


def _lock_state(state_dir: str) -> int:
    """Return the descriptor of the state's lock, made with the directory. A plugin that ends is waited for. Raises VolumeError."""
    try:
        os.makedirs(state_dir, mode=_STATE_MODE, exist_ok=True)
        path = f"{state_dir}/{LOCK_FILE}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFailure(f"state {state_dir}: {error.strerror}", errno=error.errno or 0) from error
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise OperationPending(
                    f"another plugin runs on the state {state_dir}", hint="end it first"
                ) from None
        time.sleep(0.02)
