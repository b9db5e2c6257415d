"""Directories of the node for volumes to come from, made and looked at by a pod: the same on any cluster."""

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from e2e.cluster.kubectl import Json
from e2e.tests.images import sidemount
from e2e.tests.pods import Namespace, pod

ROOT = "/srv"
_POD = "sources"
_WAIT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.sigwait({signal.SIGTERM})
"""
_WRITE = """
import base64, json, os, sys
order = json.load(sys.stdin)
os.makedirs(order["at"], exist_ok=True)
others = set(os.listdir(order["at"])) - {name.partition("/")[0] for name in order["files"]}
if others and order["is_new"]:
    raise SystemExit(f"{order['at']} is there and is not of these tests: it holds {', '.join(sorted(others)[:5])}")
for name, text in order["files"].items():
    path = os.path.join(order["at"], name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(base64.b64decode(text))
os.chmod(order["at"], order["mode"])
os.chown(order["at"], order["owner"], order["owner"])
"""
# The last directory above that is kept comes as $0.
_REMOVE = """
rm -rf "$1" || exit 1
above=$(dirname "$1")
while [ "$above" != "$0" ] && rmdir "$above" 2>/dev/null; do above=$(dirname "$above"); done
:
"""
_STATE = """
import hashlib, json, os, sys
found = {}
for at, directories, files in os.walk(sys.argv[1]):
    for name in [*directories, *files, "."]:
        path = os.path.normpath(os.path.join(at, name))
        is_file = os.path.isfile(path) and not os.path.islink(path)
        its = os.lstat(path)
        digest = hashlib.sha256(open(path, "rb").read()).hexdigest() if is_file else ""
        found[os.path.relpath(path, sys.argv[1])] = f"{its.st_mode:o} {its.st_uid}:{its.st_gid} {digest}"
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One directory. `path` is the node's."""

    namespace: Namespace
    path: str

    @property
    def uri(self) -> str:
        """What a volume asks for."""
        return f"dir://{self.path}"

    def write(self, files: Mapping[str, bytes], *, mode: int = 0o755, owner: int = 0) -> None:
        """Write files, with the directories that they are in. `mode` and `owner` are those of the source itself."""
        self._write(files, mode, owner, is_new=False)

    def make(self, files: Mapping[str, bytes], *, mode: int, owner: int) -> None:
        """Make it, with these files. Raises KubectlFailed if it is there with others: a node may be somebody's."""
        self._write(files, mode, owner, is_new=True)

    def _write(self, files: Mapping[str, bytes], mode: int, owner: int, *, is_new: bool) -> None:
        texts = {name: base64.b64encode(content).decode() for name, content in files.items()}
        order = {"at": self.path, "files": texts, "mode": mode, "owner": owner, "is_new": is_new}
        self.namespace.exec(_POD, _POD, "python3", "-S", "-c", _WRITE, text=json.dumps(order))

    def read(self, name: str) -> str:
        """Return a file's text. Raises KubectlFailed."""
        return self._run("cat", f"{self.path}/{name}")

    def state(self) -> dict[str, str]:
        """Return of each file and directory, by its path, the mode, the owners and the hash of what it holds."""
        found: dict[str, str] = json.loads(self._run("python3", "-S", "-c", _STATE, self.path))
        return found

    def digests(self) -> dict[str, str]:
        """Return the hash of every file, by its path."""
        hashes = {name: told.rpartition(" ")[2] for name, told in self.state().items()}
        return {name: digest for name, digest in hashes.items() if digest}

    def remove(self) -> None:
        """Remove it with all that is in it, and the directories above that hold nothing any more."""
        self._run("sh", "-c", _REMOVE, ROOT, self.path)

    def _run(self, *argv: str) -> str:
        return self.namespace.exec(_POD, _POD, *argv)


class Sources:
    """Makes sources, on the node where its pod is."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        on = namespace.api.get("node", namespace.run(_pod())["spec"]["nodeName"])
        assert on is not None
        self.node: str = on["metadata"]["labels"]["kubernetes.io/hostname"]

    def make(
        self, files: Mapping[str, bytes], *, name: str = "", mode: int = 0o755, owner: int = 0
    ) -> Source:
        """Return a directory with these files and no others."""
        source = Source(self._namespace, f"{ROOT}/{name or f'e2e-{secrets.token_hex(4)}'}")
        source.make(files, mode=mode, owner=owner)
        return source


def _pod() -> Json:
    # It is asked by whoever looks, and does nothing of its own.
    app = {
        "name": _POD,
        "image": sidemount(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-S", "-c", _WAIT],
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        "volumeMounts": [{"name": "root", "mountPath": ROOT}],
    }
    volume = {"name": "root", "hostPath": {"path": ROOT, "type": "DirectoryOrCreate"}}
    return pod(_POD, app, volumes=[volume], automountServiceAccountToken=False)
