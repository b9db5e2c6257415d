"""Launcher `process`: every daemon a process of the node, in a session and a control group of its own. It outlives the plugin.

For one node, for tests, and for callers that are no Kubernetes. What identifies a daemon is the file that it writes itself before
it becomes one, checked against the process of that number: the plugin may die at any moment in between.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from csi import cgroups
from csi.credentials import check_credentials, renew_credentials, write_credentials
from csi.daemon_places import DaemonPlaces
from csi.dying_groups import DyingGroups
from csi.event_subject import PodRef
from csi.keeper_link import module_environment
from csi.last_words import read_last_words
from csi.launcher import Census, Ended
from csi.nursery import Birth, Nursery
from csi.records import Record
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, NotReady
from sidemount.model.names import client_place

_AGAIN_FIRST_S = 0.1
_AGAIN_MOST_S = 30.0
_STEADY_S = 10.0
_LEAVE_S = 1.0  # its keeper has waited for its flush already
_TERM_S = 2.0
_KILL_S = 10.0
_LOG_LOOK_S = 30.0
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ")
# Writes its number and joins its group before it becomes the daemon, so that no daemon is ever without either.
_BECOME = 'set -e; echo $$ >"$1"; [ -z "$2" ] || echo $$ >"$2/cgroup.procs"; shift 2; exec "$@"'


@dataclass(slots=True)
class _Daemon:
    record: Record
    pid: int = 0
    pidfd: int = -1
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    pause_s: float = _AGAIN_FIRST_S
    again: asyncio.TimerHandle | None = None
    starting: "asyncio.Task[None] | None" = None
    ending: "asyncio.Task[None] | None" = None
    ended: Ended | None = None
    deaths: int = 0
    is_wanted: bool = True

    @property
    def state(self) -> str:
        if self.pidfd >= 0:
            return "running"
        return "pausing" if self.again is not None else "starting"


class ProcessLauncher:
    """Starts daemons, watches them, starts them again."""

    def __init__(self, state_dir: str, changed: Callable[[str], None]) -> None:
        """`changed(name)` is called when a daemon has ended. Raises HostFailure."""
        self._state_dir = state_dir
        self._changed = changed
        self._log = log("csi.process_launcher")
        self._daemons: dict[str, _Daemon] = {}
        self._nursery = Nursery(_ENVIRONMENT)
        self._trimmer: asyncio.TimerHandle | None = None
        self._starts = Counter({"nursery": 0, "program": 0})
        self._strangers = 0
        try:
            self._places = DaemonPlaces(state_dir)
            self._groups = cgroups.find_control_groups(self._places.instance())
        except OSError as error:
            raise HostFailure(f"state {state_dir}: {error.strerror}", errno=error.errno or 0) from error
        self._dying: DyingGroups | None = None
        if self._groups is not None:
            self._dying = DyingGroups(self._groups, self._daemons.__contains__)
        else:
            self._log.warning("no_control_groups", consequence="no memory limit holds for daemons")
        self._nursery.start()

    # Launcher ----------------------------------------------------------------------------------------

    async def start(self, record: Record, secrets: Mapping[str, str]) -> None:
        """See that the target's daemon runs. Raises VolumeError."""
        known = self._daemons.get(record.name)
        if known is not None and known.is_wanted:
            return
        daemon = self._daemons[record.name] = _Daemon(record)
        await asyncio.to_thread(self._prepare, record, secrets)
        pid = self._places.living(record.name)
        if pid:
            self._watch(daemon, pid)
        else:
            await self.forget(record.name)
            await self._start(daemon)
        self._trim_later()

    async def refresh(self, record: Record, secrets: Mapping[str, str]) -> None:
        """Write those credentials anew that the daemon has. Raises VolumeError."""
        directory = f"{self._places.run_dir(record.name)}/secrets"
        await asyncio.to_thread(renew_credentials, directory, secrets, record.spec.uid)

    def settle(self, known: Callable[[], Collection[str]]) -> None:
        """Do nothing: what a daemon is found by is written before it is started."""

    async def stop(self, record: Record) -> None:
        """See that it has ended: by itself, as its keeper has told it; else by force."""
        daemon = self._daemons.get(record.name) or _Daemon(record)
        daemon.is_wanted = False
        if daemon.again is not None:
            daemon.again.cancel()
        if daemon.starting is not None:  # what is being started can be ended only when it is there
            await asyncio.wait({daemon.starting})
        if daemon.pidfd < 0:
            pid = self._places.living(record.name)
            if pid:
                self._watch(daemon, pid)
        for number, patience_s in (
            (0, _LEAVE_S),
            (signal.SIGTERM, _TERM_S),
            (signal.SIGKILL, _KILL_S),
        ):
            if number:
                self._signal(daemon, number)
            if await _gone(daemon, patience_s):
                break
        else:
            raise HostFailure(f"volume {record.volume_id}: its daemon {daemon.pid} cannot be killed")
        is_empty = await asyncio.to_thread(self._clear, record)
        self._daemons.pop(record.name, None)
        if not is_empty and self._dying is not None:
            self._dying.add(record.name)

    async def forget(self, name: str) -> None:
        """See that no daemon of a target lives that an earlier state, now lost, has started. Raises NotReady.

        It would come to the keeper's socket in the place of the right one.
        """
        began = time.monotonic()
        while left := await asyncio.to_thread(self._places.strangers, name):
            waited_s = time.monotonic() - began
            if waited_s > _TERM_S + _KILL_S:
                # Another one would only wait beside it, and then another one.
                raise NotReady(
                    f"{name}: an earlier daemon, process {left[0]}, was killed and does not end",
                    hint="it waits for its source, which does not answer; try again when that does",
                )
            if waited_s < _AGAIN_FIRST_S:
                self._strangers += len(left)
                self._log.warning("stranger_ended", volume=name, processes=left)
            number = signal.SIGTERM if waited_s < _TERM_S else signal.SIGKILL
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            await asyncio.sleep(_AGAIN_FIRST_S)

    def ended(self, record: Record) -> Ended | None:
        """Return how it ended last since it was started."""
        daemon = self._daemons.get(record.name)
        return None if daemon is None else daemon.ended

    def deaths(self, record: Record) -> int:
        """Return how often it has ended since it was started."""
        daemon = self._daemons.get(record.name)
        return 0 if daemon is None else daemon.deaths

    def mount_pod(self, record: Record) -> PodRef | None:
        """Return none: daemons are processes."""
        return None

    def census(self) -> Census:
        """Return what there is."""
        states = Counter({"running": 0, "pausing": 0, "starting": 0})
        states.update(daemon.state for daemon in self._daemons.values())
        return Census(
            states=states,
            starts=self._starts,
            orphans=self._strangers,
            is_nursery_ready=self._nursery.is_ready,
        )

    def replace(self, record: Record, why: str) -> None:
        """Kill what stands still: it is started again."""
        daemon = self._daemons.get(record.name)
        if daemon is not None and daemon.pidfd >= 0:
            self._log.warning("daemon_replaced", volume=record.volume_id, pid=daemon.pid, why=why)
            self._signal(daemon, signal.SIGKILL)

    @property
    def children(self) -> set[int]:
        """Return the processes that are waited for here."""
        own = {daemon.process.pid for daemon in self._daemons.values() if daemon.process is not None}
        return own if self._nursery.pid is None else {*own, self._nursery.pid}

    async def close(self) -> None:
        """Start none again; leave those that run."""
        if self._trimmer is not None:
            self._trimmer.cancel()
        for daemon in self._daemons.values():
            daemon.is_wanted = False
            if daemon.again is not None:
                daemon.again.cancel()
            _unwatch(daemon)
        if self._dying is not None:
            self._dying.close()
        await self._nursery.stop()
        if self._groups is not None:
            self._groups.close()

    # Starting ----------------------------------------------------------------------------------------

    def _prepare(self, record: Record, secrets: Mapping[str, str]) -> None:
        run_dir = self._places.run_dir(record.name)
        check_credentials(record.volume_id, secrets, self._state_dir)
        try:
            self._places.make()
            for path in (run_dir, f"{run_dir}/cache", f"{run_dir}/secrets"):
                os.makedirs(path, mode=0o700, exist_ok=True)
                os.chown(path, record.spec.uid, -1, follow_symlinks=False)
            if not record.spec.descriptor:
                os.makedirs(f"{run_dir}/{client_place(record.name)}", mode=0o700, exist_ok=True)
            write_credentials(f"{run_dir}/secrets", secrets, record.spec.uid)
        except OSError as error:
            raise HostFailure(f"state {run_dir}: {error.strerror}", errno=error.errno or 0) from error
        if self._groups is not None:
            self._groups.prepare(record.name, record.launch.memory_bytes)

    async def _start(self, daemon: _Daemon) -> None:
        """Start a daemon, to the end whoever waits. Raises HostFailure."""
        daemon.starting = asyncio.get_running_loop().create_task(self._spawn(daemon))
        try:
            await asyncio.shield(daemon.starting)
        finally:
            if daemon.starting.done():
                daemon.starting = None

    async def _spawn(self, daemon: _Daemon) -> None:
        record = daemon.record
        group = "" if self._groups is None else f"{self._groups.directory}/{record.name}"
        with self._places.open_log(record.name) as output:
            born = await self._nursery.bear(self._birth(record, group), output.fileno())
            if born is not None:
                self._starts["nursery"] += 1
                self._watch(daemon, born.pid, born.pidfd)
            else:
                self._execute(daemon, group, output)
        self._log.info("daemon_started", volume=record.volume_id, target=record.target, pid=daemon.pid)

    def _birth(self, record: Record, group: str) -> Birth:
        return Birth(
            arguments=self._program(record),
            pid_file=self._places.pid_file(record.name),
            group=group,
            uid=record.spec.uid,
            capabilities=record.launch.capabilities,
            is_unconfined=not record.spec.descriptor,
        )

    def _execute(self, daemon: _Daemon, group: str, output: BinaryIO) -> None:
        record = daemon.record
        argv = [
            "sh",
            "-c",
            _BECOME,
            "sidemount",
            self._places.pid_file(record.name),
            group,
            *self._argv(record),
        ]
        known = module_environment()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                env={name: known[name] for name in _ENVIRONMENT if name in known},
            )
        except OSError as error:
            raise HostFailure(f"cannot start a daemon: {error}", errno=error.errno or 0) from error
        daemon.process = process
        self._starts["program"] += 1
        self._watch(daemon, process.pid)

    def _program(self, record: Record) -> list[str]:
        run_dir = self._places.run_dir(record.name)
        argv = [sys.executable, "-m", "sidecar", "daemon", "--run-dir", run_dir]
        argv += ["--secrets", f"{run_dir}/secrets", "--cache", f"{run_dir}/cache"]
        if record.launch.source_dir:
            argv += ["--source", record.launch.source_dir]
        if not record.spec.descriptor:
            argv += ["--mounts-dir", run_dir]
        return argv

    def _argv(self, record: Record) -> list[str]:
        """Return the program behind what takes its rights away."""
        if not record.spec.descriptor:
            return self._program(record)
        kept = ",".join(["-all", *(f"+{name.lower()}" for name in record.launch.capabilities)])
        uid = record.spec.uid
        return [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={uid}",
            "--clear-groups",
            f"--bounding-set={kept}",
            f"--inh-caps={kept}",
            f"--ambient-caps={kept}",
            "--no-new-privs",
            *self._program(record),
        ]

    def _watch(self, daemon: _Daemon, pid: int, pidfd: int = -1) -> None:
        daemon.pidfd = pidfd
        if pidfd < 0:
            # It may have ended, and nobody but us could have taken it off the table.
            with contextlib.suppress(OSError):
                daemon.pidfd = os.pidfd_open(pid)
        daemon.pid = pid
        daemon.started_at = time.monotonic()
        loop = asyncio.get_running_loop()
        if daemon.pidfd >= 0:
            loop.add_reader(daemon.pidfd, self._on_end, daemon)
        else:
            loop.call_soon(self._on_end, daemon)

    def _on_end(self, daemon: _Daemon) -> None:
        _unwatch(daemon)
        daemon.ending = asyncio.get_running_loop().create_task(self._ended(daemon))

    async def _ended(self, daemon: _Daemon) -> None:
        if daemon.process is not None:
            code = daemon.process.wait()
            daemon.process = None
        else:
            code = await self._nursery.code_of(daemon.pid)
        record = daemon.record
        words = read_last_words(self._places.log_file(record.name), self._places.credentials(record.name))
        daemon.ended = Ended(code, words)
        daemon.deaths += daemon.is_wanted
        self._changed(record.name)
        if not daemon.is_wanted:
            return
        if time.monotonic() - daemon.started_at > _STEADY_S:
            daemon.pause_s = _AGAIN_FIRST_S
        self._log.warning(
            "daemon_ended",
            volume=record.volume_id,
            target=record.target,
            code=code,
            fault=words.fault,
            again_s=daemon.pause_s,
        )
        daemon.again = asyncio.get_running_loop().call_later(daemon.pause_s, self._again, daemon)
        daemon.pause_s = min(_AGAIN_MOST_S, daemon.pause_s * 2)

    def _again(self, daemon: _Daemon) -> None:
        daemon.again = None
        if daemon.is_wanted:
            daemon.ending = asyncio.get_running_loop().create_task(self._start_again(daemon))

    async def _start_again(self, daemon: _Daemon) -> None:
        try:
            await self._start(daemon)
        except (HostFailure, OSError) as error:
            self._log.error("daemon_not_started", volume=daemon.record.volume_id, fault=str(error))
            daemon.again = asyncio.get_running_loop().call_later(daemon.pause_s, self._again, daemon)

    # Ending ------------------------------------------------------------------------------------------

    def _signal(self, daemon: _Daemon, number: int) -> None:
        if daemon.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(daemon.pidfd, number)

    def _clear(self, record: Record) -> bool:
        """Take away everything that the daemon had. Its processes are gone, or are killed now; return whether all of them have ended.

        One that waits for a source that does not answer ends when it does: it executes nothing any more, and no unpublish waits for it.
        """
        name = record.name
        is_empty = self._groups is None or cgroups.wait_empty(self._groups, name)
        if self._groups is not None and is_empty:
            self._groups.remove(name)
        try:
            self._places.clear(name)
        except OSError as error:
            raise HostFailure(f"state of {record.volume_id}: {error}", errno=error.errno or 0) from error
        if not is_empty:
            self._log.error(
                "daemon_dying",
                volume=record.volume_id,
                target=record.target,
                why="it was killed, and waits for its source, which does not answer",
            )
        return is_empty

    def _trim_later(self) -> None:
        if self._trimmer is None:
            self._trimmer = asyncio.get_running_loop().call_later(_LOG_LOOK_S, self._trim)

    def _trim(self) -> None:
        """Bound the logs. They are written at their end, wherever that is."""
        self._trimmer = None
        for name in self._daemons:
            self._places.bound_log(name)
        if self._daemons:
            self._trim_later()


def _unwatch(daemon: _Daemon) -> None:
    if daemon.pidfd >= 0:
        asyncio.get_running_loop().remove_reader(daemon.pidfd)
        os.close(daemon.pidfd)
        daemon.pidfd = -1


async def _gone(daemon: _Daemon, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while daemon.pidfd >= 0:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.01)
    return True
