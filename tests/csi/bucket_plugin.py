"""A running controller whose pool is a prefix of a store: a directory's, or a server's."""

from dataclasses import dataclass
from pathlib import Path

from tests.csi.controlled import Controlled
from tests.host.mount_node import eventually

BUCKET_CLASS = """
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {{name: {name}}}
spec:
  deliveries: [csi]
  sources: ["{source}"]
  namespaces: {{}}
  filesystem: objects
  provisions: true
  {more}
  resources: {{limits: {{memory: 512Mi}}}}
"""
_OPTIONS = """uid: 0
  capabilities: [DAC_OVERRIDE]
  options: {attributeTimeout: {type: duration, max: 1h, default: 0s}, fileMode: {type: string}}"""


@dataclass
class InBucket(Controlled):
    """A plugin with a pool at `source`, "" for one of the scheme file. `more` goes into its class."""

    source: str = ""
    more: str = _OPTIONS

    @property
    def pool_name(self) -> str:
        """The pool's source."""
        return self.source or f"file://{self.pool}/deep"

    def offer(self, name: str, pool: Path) -> None:
        """Add a class that provisions from the pool."""
        text = BUCKET_CLASS.format(name=name, source=self.pool_name, more=self.more)
        (self.node.work / "facts" / f"{name}.yaml").write_text(text)

    def held(self) -> list[str]:
        """Return the keys in a pool of the scheme file."""
        root = self.pool / "deep"
        found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        return sorted(key for key in found if key != ".sidemount/pool" and not key.startswith(".store/"))

    def in_pool(self) -> list[str]:
        """Return everything in the pool but what is there for ever; what is on its way out is waited for."""
        gone = ".sidemount/gone/"
        eventually(lambda: not any(key.startswith(gone) for key in self.held()), what="removed", timeout_s=20)
        return self.held()
