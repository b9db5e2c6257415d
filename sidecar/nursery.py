"""Daemons for the node service, without the time that a Python program takes to begin: forked from here, where all is loaded.

Runs no filesystem and knows no volume. What is forked becomes a daemon as if it had been executed: its own session, group, log,
rights, arguments. It lives on when the nursery ends; the nursery ends with the node service.
"""

import gc
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from sidecar import daemon
from sidecar.daemon_runtime import load_pyfuse3
from sidemount.host import command_line, logs, process_attributes, rights
from sidemount.host import nursery_words as words
from sidemount.host.descriptor_passing import receive_with_descriptors
from sidemount.host.own_descriptors import close_all_but
from sidemount.model.errors import BadMessage, HostFailure

_NOT_STARTED = 3
_LOG_PLACES = (1, 2)


def main(arguments: list[str]) -> int:
    """Serve the inherited line, arguments[0], to its end. The second one only makes room."""
    log = logs.configure("nursery")
    line = socket.socket(fileno=int(arguments[0]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    process_attributes.die_with_parent()
    os.chdir("/")
    _load()
    log.info("loaded")
    Nursery(line).serve()
    return 0


def _load() -> None:
    """Import what daemons import, and leave it in pages that forked processes share."""
    load_pyfuse3("poll")
    from sidecar import (  # noqa: F401  # only now: what they import is prepared above
        filesystems,
        spare,
        zygote,
        zygote_spec,
    )

    gc.collect()
    gc.freeze()


class Nursery:
    """One line, and the daemons that were forked for it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._children: set[int] = set()
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> None:
        """Return when nobody is at the line's other end any more."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._say(words.written(words.READY))
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            state = ready.get(self._line.fileno(), 0)
            if state & (select.POLLHUP | select.POLLERR):
                return  # an order of somebody who is gone is nobody's
            if state and not self._obey():
                return

    def _obey(self) -> bool:
        datagram, descriptors, _ = receive_with_descriptors(self._line, words.MESSAGE_MAX, 1)
        if not datagram:
            return False
        try:
            say, order = words.read(datagram)
            if say != words.START or len(descriptors) != 1:
                raise BadMessage(f"{say} is no order")
            self._start(order, descriptors[0])
        except BadMessage as error:
            logs.log("nursery").error("bad_order", fault=str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _start(self, order: dict[str, Any], output: int) -> None:
        try:
            if len("".join(order["arguments"]).encode()) + len(order["arguments"]) > command_line.room():
                raise HostFailure("the arguments are too long")
            pid = os.fork()
        except (OSError, HostFailure) as error:
            self._say(words.written(words.REFUSED, id=order["id"], fault=str(error)))
            return
        if pid == 0:
            _become_daemon(order, output, self._line)
        self._children.add(pid)
        process = os.pidfd_open(pid)  # nobody else could have taken it off the table
        try:
            socket.send_fds(self._line, [words.written(words.STARTED, id=order["id"], pid=pid)], [process])
        except OSError:
            return  # the line has ended, which the next look shows
        finally:
            os.close(process)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                self._say(words.written(words.ENDED, pid=pid, code=code))

    def _say(self, datagram: bytes) -> None:
        try:
            self._line.send(datagram)
        except OSError:
            return


def _become_daemon(order: dict[str, Any], output: int, line: socket.socket) -> NoReturn:
    """Go on as a daemon, in the forked process. Whatever happens, nothing of the nursery goes on here."""
    code = _NOT_STARTED
    try:
        code = _run(order, output, line)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            os.write(2, f"the daemon could not begin: {error}\n".encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(order: dict[str, Any], output: int, line: socket.socket) -> int:
    gc.disable()
    os.setsid()
    for place in _LOG_PLACES:
        os.dup2(output, place)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command_line.show_arguments(order["arguments"])
    # From here on it can be found, by whoever starts the node service next.
    with open(order["pid_file"], "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    if _is_hung_up(line):
        return _NOT_STARTED  # who has ordered it was gone before: nobody may have looked in time
    if order["group"]:
        with open(f"{order['group']}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    close_all_but({0, *_LOG_PLACES})
    if not order["unconfined"]:
        rights.become(order["uid"], order["capabilities"])
    gc.unfreeze()
    gc.enable()
    # As `python -m sidecar` does for the same program.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    arguments = order["arguments"]
    sys.argv = list(arguments)
    return daemon.main(arguments[arguments.index("daemon") + 1 :])


def _is_hung_up(line: socket.socket) -> bool:
    poll = select.poll()
    poll.register(line, 0)
    return bool(poll.poll(0))
