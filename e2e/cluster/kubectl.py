"""kubectl as a Python object: of a cluster of ours through its network namespace, or of whichever cluster KUBECONFIG names."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterFault

Json = dict[str, Any]
_CALL_S = 60.0
_TOLD = 4000


class KubectlFailed(ClusterFault):
    """kubectl said no. `reason` is what it said."""

    def __init__(self, arguments: Sequence[str], reason: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`prefix` goes before the program."""

    kubeconfig: Path
    prefix: tuple[str, ...] = ()
    program: str = "kubectl"

    def argv(self, *arguments: str) -> list[str]:
        """Return the whole command."""
        return [*self.prefix, self.program, *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment of the command."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *arguments: str, text: str | None = None, timeout_s: float = _CALL_S) -> str:
        """Return what it printed. Raises KubectlFailed."""
        try:
            done = subprocess.run(
                self.argv(*arguments),
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                env=self.environment(),
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise KubectlFailed(arguments, f"no end after {timeout_s:g} s") from None
        if done.returncode:
            told = (
                done.stderr.strip() or done.stdout.strip()[-_TOLD:]
            )  # `diff` says it all on standard output
            raise KubectlFailed(arguments, told or f"exit status {done.returncode}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str = "") -> Json | None:
        """Return an object; None when there is none."""
        return self._maybe("get", kind, name, *_in(namespace))

    def items(self, kind: str, namespace: str = "", selector: str = "") -> list[Json]:
        """Return all objects of a kind, of one namespace or of all."""
        where = _in(namespace) if namespace else ("--all-namespaces",)
        chosen = (f"--selector={selector}",) if selector else ()
        found = self._maybe("get", kind, *where, *chosen) or {}
        return list(found.get("items", ()))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        self.run("apply", "-f", "-", text=_list(objects))

    def create(self, *objects: Mapping[str, Any]) -> Json:
        """Create objects and return the last as the API server has it. A refusal's text is in the error."""
        created: Json = json.loads(self.run("create", "-o", "json", "-f", "-", text=_list(objects)))
        return dict(created["items"][-1]) if created.get("kind") == "List" else created

    def delete(self, kind: str, name: str, namespace: str = "", *arguments: str) -> None:
        """Delete an object without waiting for its end. One that is not there is deleted already."""
        self.run("delete", kind, name, *_in(namespace), "--ignore-not-found", "--wait=false", *arguments)

    def _maybe(self, *arguments: str) -> Json | None:
        printed = self.run(*arguments, "--ignore-not-found", "-o", "json")
        return json.loads(printed) if printed.strip() else None


def _in(namespace: str) -> tuple[str, ...]:
    return (f"--namespace={namespace}",) if namespace else ()


def _list(objects: Sequence[Mapping[str, Any]]) -> str:
    if len(objects) == 1:
        return json.dumps(objects[0])
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
