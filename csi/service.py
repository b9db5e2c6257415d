"""The plugin's process: its services, its keeper, its launcher, from start to end."""

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

from csi import identity, node
from csi.boundary import Method
from csi.cleaning import keep_clean
from csi.controller_part import ControllerPart
from csi.facts_source import facts_source
from csi.identity import IdentityService
from csi.keeper_link import KeeperLink
from csi.launching import check_launcher, make_launcher
from csi.metrics import Observation
from csi.metrics_node import NodeMetrics
from csi.node import NodeService
from csi.node_credentials import NodeCredentials
from csi.orphans import reap_orphans
from csi.publications import Publications
from csi.publish_steps import Observe
from csi.records import RecordStore
from csi.registration import Registration
from csi.secret_files import SecretFiles
from csi.server import Server
from csi.settings import ALL, POD, Settings
from csi.targets import Targets
from sidemount.host.object_exposition import ObjectCounts
from sidemount.model.errors import HostFailure, OperationPending

LOCK_FILE = "plugin.lock"
_LOCK_WAIT_S = 15.0
_THREADS = 32  # more than there are cores: most of them wait for a disk, or for the end of a process
_STATE_MODE = 0o711  # daemons of other users reach their own directories


class NodePlugin:
    """Identity and node service on one socket, and the controller service too if the role is `all`."""

    def __init__(self, settings: Settings, observe: Observe = lambda point: None) -> None:
        self._settings = settings
        self._observe = observe
        self._end = asyncio.Event()
        self._facts = facts_source(settings.facts, settings.kubeconfig, with_volumes=settings.role == ALL)
        self._credentials = NodeCredentials(SecretFiles(settings.secrets_dir))
        self._seen = Observation(settings, self._facts, lambda: self._is_ready())
        self._is_ready: Callable[[], bool] = lambda: False
        self._controller: ControllerPart | None = None
        self._registration: Registration | None = None
        if settings.registration_dir:
            seen = settings.registration_endpoint or settings.endpoint
            self._registration = Registration(settings.registration_dir, seen)

    def end(self) -> None:
        """Begin to end: what is under way is finished, and every mount stays."""
        self._end.set()

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve until `end`. Raises VolumeError if it cannot begin."""
        settings = self._settings
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        lock = await asyncio.to_thread(_lock_state, settings.state_dir)
        try:
            store = RecordStore(f"{settings.state_dir}/targets")
            check_launcher(settings, await asyncio.to_thread(store.load))
            await self._facts.start()
            if settings.role == ALL:
                self._controller = ControllerPart(settings, self._facts.facts, self._observe)
            objects = ObjectCounts(self._seen.tally.label)
            self._seen.add(objects.collect)
            keeper = KeeperLink(
                settings.state_dir,
                check_s=settings.stats_timeout_s,
                status_changed=lambda name: publications.changed(name),
                objects=objects,
            )
            launcher = await make_launcher(settings, keeper, lambda name: publications.changed(name))
            publications = Publications(
                store,
                Targets(settings.target_roots),
                keeper,
                launcher,
                mount_timeout_s=settings.mount_timeout_s,
                news=self._seen.news,
                observe=self._observe,
            )
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGCHLD, lambda: reap_orphans({*launcher.children, keeper.pid or 0})
            )
            tally, events = self._seen.tally, self._seen.events
            shown = NodeMetrics(publications, keeper, launcher, self._registration, tally, events)
            self._seen.add(shown.collect)
            if self._controller is not None:
                self._seen.add(self._controller.metrics.collect)
            server = Server(settings.endpoint, self._services(publications, keeper), self._seen.calls)
            await server.start()
            try:
                keeper.start()
                announce(f"listening on unix://{settings.endpoint}")
                cleaning = keep_clean(settings, keeper, publications, self._seen.tally.leftover_detached)
                async with _beside(self._facts.run()), _beside(cleaning), _beside(self._seen.run()):
                    if self._controller is not None:
                        self._controller.start()
                    await publications.reconcile()
                    launcher.settle(publications.names)
                    async with _beside(self._credentials.run(publications)):
                        await self._until_end()
            finally:
                began = time.monotonic()
                await server.stop(settings.grace_s)
                if self._controller is not None:
                    await self._controller.close(max(1.0, settings.grace_s / 2 - (time.monotonic() - began)))
                await publications.close(max(1.0, settings.grace_s - (time.monotonic() - began)))
                await launcher.close()
                await keeper.stop()
        finally:
            os.close(lock)

    def _services(self, publications: Publications, keeper: KeeperLink) -> dict[str, dict[str, Method]]:
        controller = self._controller
        self._is_ready = lambda: (
            publications.is_ready and keeper.is_up and (controller is None or controller.is_ready)
        )
        identity_service = IdentityService(self._is_ready)
        # A mount pod has our own paths.
        run_root = "" if self._settings.launcher == POD else f"{self._settings.state_dir}/run"
        node_service = NodeService(
            self._settings.node_id,
            publications,
            self._facts.facts,
            run_root,
            self._credentials,
            self._seen.news,
        )
        return {
            identity.SERVICE: identity_service.methods(),
            node.SERVICE: node_service.methods(),
            **({} if controller is None else controller.services()),
        }

    async def _until_end(self) -> None:
        """Be known to kubelet as long as calls are taken, if that is asked for."""
        registration = self._registration
        if registration is None:
            await self._end.wait()
            return
        async with _beside(registration.run()):
            await self._end.wait()
        await registration.stop()


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have something run meanwhile that does not end by itself."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


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
