"""The node's first process: it reaps whatever is orphaned on the node and tells the kubelet how it ended.

Without it a container could never end: crun leaves zombies in a container's process namespace whose parent
is the node's first process, and the kernel ends a namespace only when they are reaped.
"""

import os
import threading


def become_init() -> int:
    """Fork. The parent reaps until the child ends and then ends the node; the child goes on as the kubelet.

    Returns, in the child, the descriptor of a pipe of lines "pid status".
    """
    read_end, write_end = os.pipe()
    kubelet = os.fork()
    if kubelet == 0:
        os.close(write_end)
        return read_end
    os.close(read_end)
    while True:
        pid, status = os.wait()
        if pid == kubelet:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        try:
            os.write(write_end, b"%d %d\n" % (pid, status))
        except BrokenPipeError:
            continue  # the kubelet is about to be reaped too


class Exits:
    """The exit statuses of orphans, containers among them, as init reports them."""

    def __init__(self, reports: int) -> None:
        self._changed = threading.Condition()
        self._statuses: dict[int, int] = {}
        threading.Thread(target=self._read, args=(reports,), name="exits", daemon=True).start()

    def wait(self, pid: int) -> int:
        """Return the wait status of a process once it has ended. Ask once: a number may be used again."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._statuses)
            return self._statuses.pop(pid)

    def _read(self, reports: int) -> None:
        with os.fdopen(reports) as lines:
            for line in lines:
                pid, status = line.split()
                with self._changed:
                    self._statuses[int(pid)] = int(status)
                    self._changed.notify_all()
