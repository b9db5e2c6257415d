"""The keeper: mounts every volume of a pod, holds the descriptors, outlives the daemons, and leaves nothing mounted.

Standard library only, no network, no credentials, no memory to speak of.
"""

import contextlib
import fcntl
import os
import signal
import stat
import time
from dataclasses import dataclass, field

from sidemount.host import process_attributes, syscalls
from sidemount.host.disposable import start_child
from sidemount.host.fusectl import FuseControl
from sidemount.host.jobs import Room
from sidemount.host.limits import Limits
from sidemount.host.logs import EventLog, log
from sidemount.host.loop import Loop, Timer
from sidemount.host.mount_table import is_shared, read_mount_table
from sidemount.host.pod_end import Meaning, decide
from sidemount.host.readiness import wait_readable
from sidemount.host.session import Event
from sidemount.host.volume_keeper import VolumeKeeper
from sidemount.host.volume_places import VolumePlaces, prepare_mounts_dir
from sidemount.host.volume_state import Surroundings
from sidemount.host.volume_upkeep import DEAD_ERRNOS
from sidemount.host.volume_work import inspect_work
from sidemount.model.errors import HostFailure, OperationPending, VolumeError
from sidemount.model.mountspec import KeeperConfig, KeeperMount
from sidemount.model.names import mount_source

_LOCK_FILE = "keeper.lock"
_STAGING_DIR = ".staging"
_LOCK_WAIT_S = 1.0
_LEFTOVER_WAIT_S = 2.0
_WEIGH_AGAIN_S = 0.02
_OOM_SCORE = "-999"  # -1000 would make the container's own limit a hang


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """What a keeper is started with. `run_dir` has one directory a volume; `pod_uid` marks its mounts, "" if unknown."""

    config: KeeperConfig
    mounts_dir: str
    run_dir: str
    pod_uid: str = ""
    limits: Limits = field(default_factory=Limits)


def run_keeper(settings: KeeperSettings) -> int:
    """Keep the volumes until SIGINT, or a SIGTERM that ends the pod; return the exit code: 0 if nothing of ours is mounted any more.

    A SIGTERM that ends this keeper alone leaves everything to the next one, as its death would; the code is 0 then, too.
    Raises VolumeError if it cannot begin; what is dead of an earlier keeper's mounts is detached then.
    """
    process_attributes.forbid_inspection()
    os.umask(0o022)
    journal = log("keeper")
    loop = Loop()
    lock = _lock(settings.run_dir)
    try:
        return _keep(settings, loop, journal)
    finally:
        os.close(lock)
        loop.close()


def _keep(settings: KeeperSettings, loop: Loop, journal: EventLog) -> int:
    keeper: Keeper | None = None

    def on_signal(number: int) -> None:
        if number == signal.SIGCHLD:
            return  # waking up is all: children are reaped at the next tick
        if keeper is not None:
            keeper.told_to_end(signal.Signals(number))

    loop.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGCHLD), on_signal)
    run_dir = os.path.realpath(settings.run_dir)
    mounts_dir = prepare_mounts_dir(settings.mounts_dir)
    os.chdir("/")
    places = [VolumePlaces(mounts_dir, mount) for mount in settings.config.mounts]
    try:
        keeper = Keeper(settings, run_dir, places, loop, journal)
    except (VolumeError, OSError) as error:
        _detach_what_is_dead(places, settings.config.mounts, journal)
        if isinstance(error, OSError):
            raise HostFailure(f"cannot start: {error}", errno=error.errno or 0) from error
        raise
    if not is_shared(read_mount_table(), mounts_dir):
        journal.warning(
            "mounts_not_shared",
            place=mounts_dir,
            consequence="other containers see none of the mounts; the volume needs mountPropagation: Bidirectional",
        )
    _lower_oom_score(journal)
    keeper.start()
    process_attributes.give_back_memory()
    loop.run()
    return keeper.end()


class Keeper:
    """All volumes of a pod, each independent of the others."""

    def __init__(
        self,
        settings: KeeperSettings,
        run_dir: str,
        places: list[VolumePlaces],
        loop: Loop,
        journal: EventLog,
    ) -> None:
        """Make the places and sockets of all volumes that can be made. Raises OSError, VolumeError if none can."""
        self._loop = loop
        self._journal = journal
        self._places = places
        self._control = _open_control(journal)
        self._settings = settings
        self._run_dir = run_dir
        self._around = Surroundings(
            loop=loop,
            limits=settings.limits,
            control=self._control,
            room=Room(),
            staging=f"{run_dir}/{_STAGING_DIR}",
        )
        self._volumes: list[VolumeKeeper] = []
        self._unusable: dict[str, str] = {}
        self._limits = settings.limits
        self._make_volumes()
        self._open = len(self._volumes)
        self._told_at = 0.0
        self._weighing: Timer | None = None
        self._is_ending = False
        self._is_leaving = False

    def start(self) -> None:
        """Begin with every volume."""
        self._journal.info("keeper_started", volumes=[v.state.spec.volume for v in self._volumes])
        for volume in self._volumes:
            volume.start()
        self._try_again_later()

    def _make_volumes(self) -> list[VolumeKeeper]:
        """Make those that are not there yet, and return them; one that cannot be made is no reason to serve none."""
        made = []
        there = {volume.state.spec.volume for volume in self._volumes}
        for place, mount in zip(self._places, self._settings.config.mounts, strict=True):
            name = mount.spec.volume
            if name in there:
                continue
            try:
                made.append(self._make_volume(place, mount))
                self._unusable.pop(name, None)
            except (VolumeError, OSError) as error:
                if self._unusable.get(name) != str(error):
                    self._unusable[name] = str(error)
                    self._journal.error("volume_unusable", volume=name, fault=str(error))
                if len(self._unusable) == len(self._places):
                    raise
        self._volumes += made
        return made

    def _make_volume(self, place: VolumePlaces, mount: KeeperMount) -> VolumeKeeper:
        place.prepare()
        return VolumeKeeper(
            mount,
            place,
            _prepare_run_dir(self._run_dir, mount),
            mount_source(self._settings.pod_uid, mount.spec.volume),
            self._around,
            self._finished_one,
        )

    def _try_again_later(self) -> None:
        if self._unusable:
            self._loop.call_later(self._limits.retry_most_s, self._try_again)

    def _try_again(self) -> None:
        if self._is_ending:
            return
        for volume in self._make_volumes():
            self._open += 1
            self._journal.info("volume_usable", volume=volume.state.spec.volume)
            volume.start()
        self._try_again_later()

    def told_to_end(self, number: signal.Signals) -> None:
        """Take a signal. Who sends SIGINT means the end; what SIGTERM means is to be found out, each time anew."""
        if self._is_ending:
            return
        self._journal.info("told_to_end", signal=number.name)
        if self._weighing is not None:
            self._weighing.cancel()
        if number == signal.SIGINT:
            self._terminate()
            return
        self._told_at = time.monotonic()
        for volume in self._volumes:
            volume.ask()
        self._weigh()

    def _weigh(self) -> None:
        """Find out what SIGTERM means. Everything goes on meanwhile."""
        elapsed_s = time.monotonic() - self._told_at
        meaning = decide([volume.witness() for volume in self._volumes], elapsed_s, self._limits)
        if meaning is Meaning.UNKNOWN:
            self._weighing = self._loop.call_later(_WEIGH_AGAIN_S, self._weigh)
            return
        event = "pod_ends" if meaning.is_end else "another_keeper_follows"
        self._journal.info(event, why=meaning.value, elapsed_s=round(elapsed_s, 3))
        if meaning.is_end:
            self._terminate()
        else:
            self._is_leaving = True
            for volume in self._volumes:
                volume.leave()
            self._loop.stop()

    def _terminate(self) -> None:
        """Detach everything, let the daemons flush, and stop the loop when all is done."""
        self._is_ending = True
        if not self._volumes:
            self._loop.stop()
        for volume in self._volumes:
            volume.handle(Event.TERMINATE)

    def end(self) -> int:
        """Close what is open and return the exit code. What another keeper will need stays as a killed one would leave it."""
        if self._is_leaving:
            return 0
        for volume in self._volumes:
            volume.close()
        if self._control is not None:
            self._control.close()
        left = sum(place.detach_all() for place in self._places)
        left_at = [place.anchor for place in self._places if place.layers()]
        self._journal.info("keeper_ended", detached_late=left, left_mounted=left_at)
        return 1 if left_at else 0

    def _finished_one(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._loop.stop()


def _lock(run_dir: str) -> int:
    """Return the descriptor of the held lock: two keepers on one directory would detach each other's mounts.

    A record lock: it ends with this process, and no child of ours can keep it. Raises OperationPending, HostFailure.
    """
    path = f"{run_dir}/{_LOCK_FILE}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise syscalls.failure("open", path, error.errno or 0) from error
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise OperationPending(
                    f"another keeper runs on {run_dir}: it holds {path}",
                    hint="one keeper serves all volumes of a pod; end the other one first",
                ) from None
        time.sleep(0.05)


def _prepare_run_dir(run_dir: str, mount: KeeperMount) -> str:
    """Return the volume's own directory, which its daemon's user owns. Raises HostFailure."""
    path = f"{run_dir}/{mount.spec.volume}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise HostFailure(f"{path} is not a directory")
        os.chown(path, mount.spec.uid, -1, follow_symlinks=False)
        os.chmod(path, 0o700)
    except OSError as error:
        raise syscalls.failure("prepare", path, error.errno or 0) from error
    return path


def _open_control(journal: EventLog) -> FuseControl | None:
    try:
        return FuseControl()
    except (HostFailure, OSError) as error:
        journal.warning(
            "no_fuse_control",
            fault=str(error),
            consequence="a hung connection cannot be aborted by its number",
        )
        return None


def _lower_oom_score(journal: EventLog) -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)
    except OSError as error:
        journal.info("oom_score_kept", fault=str(error))


def _detach_what_is_dead(
    places: list[VolumePlaces], mounts: tuple[KeeperMount, ...], journal: EventLog
) -> None:
    """Before giving up: a dead mount left behind keeps the pod Terminating. A living one still serves its containers."""
    for place, mount in zip(places, mounts, strict=True):
        if mount.spec.descriptor and place.find() is not None and _is_dead(place, mount):
            journal.warning("dead_mount_detached", place=place.anchor, layers=place.detach_all())


def _is_dead(place: VolumePlaces, mount: KeeperMount) -> bool:
    try:
        root = place.open_root()
    except HostFailure:
        return False
    child = start_child(inspect_work(root, mount.spec.volume), keep=(root,))
    try:
        if not wait_readable(child.socket, _LEFTOVER_WAIT_S):
            return False
        received = child.receive()
        return received is not None and received[0].get("errno") in DEAD_ERRNOS
    finally:
        child.abandon()
        os.close(root)
