"""The `sidemount` command on a cluster: as its administrator, or as somebody with few rights."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.kubectl import Json, Kubectl
from e2e.cluster.places import SOURCE

_CALL_S = 180.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed with `-o json`."""
        return json.loads(self.out)


def sidemount_command(api: Kubectl, *arguments: str, kubeconfig: Path | None = None) -> Said:
    """Run the command where kubectl runs. A trace of ours in its errors fails the test."""
    return run_beside(api, [sys.executable, "-m", "sidemount.cli", *arguments], kubeconfig=kubeconfig)


def run_beside(
    api: Kubectl, argv: list[str], *, kubeconfig: Path | None = None, path: Path | None = None
) -> Said:
    """Run any program where kubectl runs; `path` goes before PATH."""
    environment = {**api.environment(), "PYTHONPATH": str(SOURCE)}
    if kubeconfig is not None:
        environment["KUBECONFIG"] = str(kubeconfig)
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [*api.prefix, *argv], capture_output=True, text=True, env=environment, cwd=SOURCE, timeout=_CALL_S
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def findings(said: Said) -> dict[str, list[Json]]:
    """Return what `sidemount doctor -o json` found, by topic."""
    found: dict[str, list[Json]] = {}
    for each in said.document["findings"]:
        found.setdefault(each["topic"], []).append(each)
    return found


def somebody(api: Kubectl, namespace: str, name: str, rules: list[Json], directory: Path) -> Path:
    """Return the kubeconfig of a service account that has these rights in its namespace, and no others."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    where = {"name": name, "namespace": namespace}
    api.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": where, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": where,
            "roleRef": role,
            "subjects": [subject],
        },
    )
    token = api.run("create", "token", name, f"--namespace={namespace}").strip()
    config: Json = json.loads(api.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = directory / f"kubeconfig-{name}"
    path.write_text(json.dumps(config))
    return path
