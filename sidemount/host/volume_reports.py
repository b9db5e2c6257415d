"""What a daemon that serves tells its keeper."""

import os
import time
from dataclasses import replace

from sidemount.host.foreign_descriptors import let_go
from sidemount.host.handover import (
    Answer,
    Bye,
    Condition,
    GiveUp,
    Heartbeat,
    Holds,
    Keep,
    Lend,
    Message,
    Numbers,
    Offer,
    Ready,
    Register,
    Registered,
    Registers,
    Stopping,
    Successor,
    Unregister,
    Wanted,
)
from sidemount.host.pidfd import is_pidfd
from sidemount.host.session import Event, Phase
from sidemount.host.volume_daemon import Daemon
from sidemount.host.volume_interruptions import Interruptions
from sidemount.host.volume_numbers import VolumeNumbers
from sidemount.host.volume_state import VolumeState
from sidemount.host.volume_upkeep import Upkeep
from sidemount.model.errors import HostFailure


class Reports:
    """Takes the reports of one volume's daemon."""

    def __init__(
        self, state: VolumeState, upkeep: Upkeep, interruptions: Interruptions, numbers: VolumeNumbers
    ) -> None:
        self._state = state
        self._upkeep = upkeep
        self._interruptions = interruptions
        self._numbers = numbers

    def take(self, daemon: Daemon, message: Message, descriptor: int | None) -> None:
        """Take a report, and its descriptor, which is ours to close."""
        match message:
            case Successor() if descriptor is not None:
                self._on_successor(daemon, message, descriptor)
                return
            case Keep() if descriptor is not None:
                if not self._state.legacy.keep(message.key, descriptor):
                    self._state.heard.warning("descriptor_not_kept", key=message.key)
                return
            case Register() if descriptor is not None:
                backing = self._state.backings.register(descriptor)
                daemon.tell(Registered(number=message.number, backing=backing))
        if descriptor is not None:
            let_go(descriptor)
        match message:
            case Heartbeat():
                daemon.watchdog.beat(time.monotonic(), message)
            case Condition():
                self._on_condition(daemon, message)
            case Ready():
                # A client that mounts by itself is ready when its mount is there, whatever anyone says.
                if self._state.spec.descriptor and message.generation == self._state.session.generation:
                    self._state.post(Event.READY)
                    self._interruptions.ready(self._state.session, message.generation)
            case Stopping():
                daemon.was_told_to_end = True
                self._state.post(Event.STOPPING)
            case Answer():
                daemon.has_answered = True
                daemon.was_told_to_end = daemon.was_told_to_end or message.told_to_end
            case Lend():
                self._on_lend(daemon)
            case Offer():
                daemon.tell(Wanted())
            case Numbers():
                self._numbers.take(message)
            case Holds() if self._state.backings.are_offered:
                self._state.backings.settle(message.backings)
                daemon.tell(Registers())
            case Unregister():
                self._state.backings.unregister(message.backing)
            case Register():
                pass
            case Bye():
                self._on_bye(daemon, message)
            case GiveUp():
                self._state.post(Event.CONDITION, able=False)
                self._state.post(Event.GONE, fault=message.detail)
            case _:
                self._state.heard.warning("message_ignored", kind=type(message).__name__)

    def _on_successor(self, daemon: Daemon, message: Successor, pidfd: int) -> None:
        generation = message.generation
        if not is_pidfd(pidfd):  # to poll a file is to ask whoever serves it, who may be the sender
            let_go(pidfd)
            self._state.heard.warning("bad_successor", generation=generation)
            return
        if generation < self._state.session.generation:
            os.close(pidfd)
            self._state.heard.warning("message_ignored", kind="Successor", generation=generation)
            return
        if generation > self._state.session.generation:
            self._state.heard.info("daemon_succeeded_itself", generation=generation)
            self._state.session = replace(self._state.session, generation=generation)
            self._interruptions.succeeded(self._state.session, daemon)
        daemon.succeed(generation, pidfd)
        self._upkeep.note_successor()

    def _on_condition(self, daemon: Daemon, message: Condition) -> None:
        legacy = self._state.legacy
        if message.abnormal and message.abnormal != legacy.abnormal:
            self._state.heard.warning("daemon_abnormal", what=message.abnormal)
        elif legacy.abnormal and not message.abnormal:
            self._state.heard.info("daemon_recovered", was=legacy.abnormal)
        legacy.state_id = message.state
        legacy.abnormal = message.abnormal
        legacy.is_served = message.serving
        if not message.serving:
            daemon.at_rest()
        is_able = message.takeover and daemon.peer.pidfd is not None
        self._state.post(Event.CONDITION, able=is_able)

    def _on_lend(self, daemon: Daemon) -> None:
        """Nothing depends on it while we live, so a node that cannot is no fault of the volume's."""
        if not self._state.spec.filesystem:
            return
        try:
            mount_points = self._state.places.lend()
        except (HostFailure, OSError) as error:
            self._state.heard.info("mount_points_not_lent", fault=str(error))
            return
        if mount_points is not None:
            daemon.lend(mount_points)
            os.close(mount_points)

    def _on_bye(self, daemon: Daemon, bye: Bye) -> None:
        daemon.said_bye = True
        if bye.clean:
            self._state.heard.info("daemon_flushed")
        else:
            self._state.heard.error(
                "flush_failed", consequence="data written last may not have reached the store"
            )
        if self._state.session.phase is Phase.FLUSHING:
            self._state.post(Event.GONE)
