"""What a dead daemon leaves with the keeper for whoever continues its connection."""

from sidemount.host.foreign_descriptors import is_socket, let_go
from sidemount.host.handover import Kept
from sidemount.host.volume_gate import Peer

_DESCRIPTORS_MAX = 8


class Legacy:
    """Of one connection: the id of its state, a few descriptors, and what the daemon has said of itself.

    `abnormal`: "" if all is well. `is_served`: False while the daemon waits before it tries once more.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self.state_id = ""
        self.abnormal = ""
        self.is_served = True

    def __len__(self) -> int:
        return len(self._descriptors)

    def keep(self, key: int, descriptor: int) -> bool:
        """Take a descriptor over, instead of the key's earlier one; False, and closed, if there are too many or it is no socket.

        Every child of the keeper's closes its copy of it, and must not have to wait for that.
        """
        if not is_socket(descriptor):
            let_go(descriptor)
            return False
        earlier = self._descriptors.pop(key, None)
        if earlier is not None:
            let_go(earlier)
        if len(self._descriptors) >= _DESCRIPTORS_MAX:
            let_go(descriptor)
            return False
        self._descriptors[key] = descriptor
        return True

    def give(self, peer: Peer) -> bool:
        """Send a copy of every descriptor to a successor; False if it cannot be told."""
        return all(peer.send(Kept(key=key), descriptor) for key, descriptor in self._descriptors.items())

    def clear(self) -> None:
        """Let everything go: the connection is over."""
        while self._descriptors:
            let_go(self._descriptors.popitem()[1])
        self.state_id = ""
        self.abnormal = ""
        self.is_served = True
