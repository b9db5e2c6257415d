"""The node's keeper: a process of its own that mounts volumes at their targets and holds their descriptors.

It is the sidecar's keeper with targets that come and go. It does no gRPC, needs no Kubernetes and forks freely, which a process with
gRPC's threads must not. When the plugin ends it ends, too, and leaves every mount to the daemons and to its successor.
Standard library only.
"""

import contextlib
import fcntl
import os
import signal
import socket
import time
from functools import partial
from typing import Any

from csi import keeper_words as words
from csi.kept_volume import KeptVolume, Status
from csi.sweep import sweep_work
from sidemount.host import process_attributes
from sidemount.host.fusectl import FuseControl
from sidemount.host.jobs import Job, Jobs, Message, Outcome, Room, Work
from sidemount.host.limits import Limits
from sidemount.host.logs import EventLog, log
from sidemount.host.loop import Loop, Timer
from sidemount.host.mount_table import OwnedBy, detach_layers
from sidemount.host.own_descriptors import raise_descriptor_limit
from sidemount.host.session import Phase
from sidemount.host.volume_interruptions import Interrupted
from sidemount.host.volume_places import VolumePlaces
from sidemount.host.volume_state import Surroundings
from sidemount.model.errors import BadMessage, HostFailure, OperationPending, VolumeError
from sidemount.model.mountspec import decode_spec
from sidemount.model.names import client_place
from sidemount.model.object_numbers import Report

LOCK_FILE = "keeper.lock"
_STAGING_DIR = ".staging"
_LOCK_WAIT_S = 10.0
_TELL_S = 1.0
_DROP_MOST_S = 35.0  # more than any way takes that a volume can end by itself
_CHILDREN_MAX = 256  # a node has more volumes than a pod
_OOM_SCORE = "-999"  # -1000 would make a limit of the whole pod a hang


def run_keeper(state_dir: str, line: socket.socket, *, check_s: float) -> None:
    """Keep volumes as told over `line` until its end. Raises VolumeError if it cannot begin."""
    process_attributes.forbid_inspection()
    process_attributes.die_with_parent()
    raise_descriptor_limit()  # every volume takes eight
    os.umask(0o022)
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the plugin's end is ours; before it we are needed
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)
    journal = log("csi.keeper")
    lock = _lock(f"{state_dir}/{LOCK_FILE}")
    loop = Loop(on_error=lambda error: journal.error("unexpected_error", fault=repr(error)))
    try:
        loop.on_signals((signal.SIGCHLD,), lambda number: None)  # waking up is all
        NodeKeeper(state_dir, line, loop, journal, check_s=check_s).start()
        loop.run()
    finally:
        os.close(lock)
        loop.close()


class NodeKeeper:
    """All volumes of a node, each independent of the others."""

    def __init__(
        self, state_dir: str, line: socket.socket, loop: Loop, journal: EventLog, *, check_s: float
    ) -> None:
        self._run_dir = f"{state_dir}/run"
        self._line = line
        self._loop = loop
        self._journal = journal
        self._check_s = check_s
        self._volumes: dict[str, KeptVolume] = {}
        self._dropping: dict[str, Timer] = {}  # until they are given up
        self._closed: list[KeptVolume] = []  # whose children may not have ended yet
        self._unsent: list[bytes] = []
        self._around = Surroundings(
            loop=loop,
            limits=Limits(),
            control=_open_control(journal),
            room=Room(_CHILDREN_MAX),
            staging=f"{state_dir}/{_STAGING_DIR}",
        )
        self._sweeps = Jobs(loop, self._around.room)

    def start(self) -> None:
        """Listen to the plugin."""
        self._line.setblocking(False)
        self._loop.watch(self._line, self._read)
        self._retell()

    # The line ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            datagram = self._line.recv(words.MESSAGE_MAX)
        except BlockingIOError:
            return
        except OSError:
            datagram = b""
        if not datagram:
            self._journal.info("plugin_gone", volumes=len(self._volumes))
            self._loop.stop()
            return
        try:
            self._obey(*words.read(datagram))
        except BadMessage as error:
            self._journal.error("bad_order", fault=str(error))

    def _obey(self, say: str, order: dict[str, Any]) -> None:
        match say:
            case words.KEEP:
                self._keep(order)
            case words.LISTEN:
                self._listen(order["name"], order["run_dir"], order["id"])
            case words.DROP:
                self._drop(order["name"])
            case words.CHECK:
                self._check(order["name"], order["id"])
            case words.DETACH:
                self._detach(order["target"], order["id"])
            case words.SWEEP:
                self._sweep(order["directory"], order["place"], order["mount"], order["id"])
            case _:
                raise BadMessage(f"{say} is no order")

    def _send(self, datagram: bytes) -> None:
        self._unsent.append(datagram)
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._line.send(self._unsent[0])
            except BlockingIOError:  # the plugin is behind; it gets the rest at the next tick
                return
            except OSError:
                self._unsent.clear()
                return
            self._unsent.pop(0)

    def reap(self) -> None:
        """Take the children of volumes that are gone off the process table."""
        self._closed = [volume for volume in self._closed if not volume.is_reaped()]
        self._sweeps.reap()

    def _retell(self) -> None:
        """What changes without an event (a daemon's own condition, a container called hung) is told within a second."""
        self._flush()
        self.reap()
        for volume in self._volumes.values():
            volume.tell()
        self._loop.call_later(_TELL_S, self._retell)

    # Orders ------------------------------------------------------------------------------------------

    def _keep(self, order: dict[str, Any]) -> None:
        name, home = order["name"], f"{self._run_dir}/{order['name']}"
        if name in self._volumes:
            self._volumes[name].tell()
            return
        try:
            spec = decode_spec(order["spec"])
            places = VolumePlaces.at_target(spec, order["target"], f"{home}/{client_place(name)}")
            volume = KeptVolume(
                spec,
                places,
                home,
                order["source"],
                self._around,
                partial(self._finished, name),
                partial(self._changed, name),
                partial(self._counted, name),
                self._check_s,
                directory=order["directory"],
            )
        except (VolumeError, OSError) as error:
            self._journal.error("cannot_keep", volume=name, fault=str(error))
            self._changed(name, (Phase.DETACHED.value, str(error), "", "", 0, "", Interrupted()))
            return
        self._volumes[name] = volume
        if order["run_dir"]:
            try:
                volume.listen(order["run_dir"])
            except OSError as error:  # its pod is gone; whoever knows of another one tells
                self._journal.warning("cannot_listen", volume=name, fault=str(error))
        volume.start()
        volume.tell()

    def _listen(self, name: str, run_dir: str, number: int) -> None:
        """Wait for the daemons of a volume elsewhere: in its own directory of ours if nowhere else."""
        volume = self._volumes.get(name)
        if volume is None:
            self._answer(number, Outcome(fault="it is not kept"), None)
            return
        try:
            volume.listen(run_dir or f"{self._run_dir}/{name}")
        except OSError as error:
            self._answer(number, Outcome(fault=f"{run_dir}: {error.strerror}", errno=error.errno or 0), None)
            return
        self._answer(number, Outcome(), None)

    def _drop(self, name: str) -> None:
        volume = self._volumes.get(name)
        if volume is None:
            self._send(words.written(words.DROPPED, name=name))
        elif name not in self._dropping:
            give_up = partial(self._give_up, name, volume)
            self._dropping[name] = self._loop.call_later(_DROP_MOST_S, give_up)
            volume.drop()

    def _give_up(self, name: str, volume: KeptVolume) -> None:
        """Let a volume go that does not end: something has failed on its way that nobody has thought of."""
        if self._volumes.get(name) is volume:
            self._journal.error("drop_given_up", volume=name, after_s=_DROP_MOST_S)
            volume.give_up()
            self._forget(name)

    def _finished(self, name: str) -> None:
        # Not within the volume's own callback: what it has begun there has to come to its end.
        self._loop.call_later(0.0, partial(self._forget, name))

    def _forget(self, name: str) -> None:
        volume = self._volumes.pop(name, None)
        patience = self._dropping.pop(name, None)
        if patience is not None:
            patience.cancel()
        if volume is None:
            return
        try:
            volume.close()
            self._closed.append(volume)
            volume.state.places.detach_all()
        except (HostFailure, OSError) as error:
            # Whoever waits looks at what is left by himself.
            self._journal.error("detach_failed", volume=name, fault=str(error))
        self._send(words.written(words.DROPPED, name=name))

    def _changed(self, name: str, status: Status) -> None:
        phase, fault, abnormal, hung, generation, lacks, interrupted = status
        self._send(
            words.written(
                words.STATUS,
                name=name,
                phase=phase,
                fault=fault[:2048],
                abnormal=abnormal[:2048],
                hung=hung[:2048],
                generation=generation,
                lacks=lacks[:2048],
                takeovers=interrupted.takeovers,
                remounts=interrupted.remounts,
                pause_ms=interrupted.pause_ms,
                cause=interrupted.cause[:2048],
            )
        )

    def _counted(self, name: str, report: Report) -> None:
        # Whoever is behind misses some, and learns all of it from the next one.
        if not self._unsent:
            self._send(
                words.written(words.NUMBERS, name=name, process=report.process, numbers=dict(report.numbers))
            )

    def _check(self, name: str, number: int) -> None:
        volume = self._volumes.get(name)
        if volume is None:
            self._answer(number, Outcome(fault="it is not kept"), None)
        else:
            volume.check(partial(self._answer, number))

    def _detach(self, target: str, number: int) -> None:
        """Take away every layer of ours. Nothing that anybody still keeps may be named here."""
        try:
            detach_layers(target, OwnedBy(any_fuse=False))
        except (HostFailure, OSError) as error:
            self._answer(number, Outcome(fault=str(error), errno=error.errno or 0), None)
            return
        self._answer(number, Outcome(), None)

    def _sweep(self, directory: str, place: str, mount: int, number: int) -> None:
        """Take away what a pod has left, if it is dead. Looking may hang."""
        found: dict[str, int] = {}

        def on_message(message: Message, descriptor: int | None, job: Job) -> None:
            found.update(message["found"])

        work = Work(
            run=sweep_work(directory, place, mount),
            on_message=on_message,
            on_end=lambda outcome: self._answer(number, outcome, found),
            deadline_s=self._check_s,
        )
        if self._sweeps.start(place, work) is None:
            self._answer(number, Outcome(fault="an earlier look has not ended", is_late=True), None)

    def _answer(self, number: int, outcome: Outcome, found: dict[str, int] | None) -> None:
        self._send(
            words.written(
                words.ANSWER,
                id=number,
                fault=outcome.fault[:2048],
                errno=outcome.errno,
                late=outcome.is_late,
                found=found,
            )
        )


def _lock(path: str) -> int:
    """Return the descriptor of the held lock: two keepers of one state would detach each other's mounts. Raises VolumeError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFailure(f"{path}: {error.strerror}", errno=error.errno or 0) from error
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise OperationPending(f"another keeper holds {path}") from None
        time.sleep(0.02)


def _open_control(journal: EventLog) -> FuseControl | None:
    try:
        return FuseControl()
    except (HostFailure, OSError) as error:
        journal.warning("no_fuse_control", fault=str(error))
        return None
