"""An S3 server in a pod of the test's namespace: its data, and who may ask it, can be changed while it runs."""

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.servers.tools import VERSITYGW, go_program
from e2e.tests.images import busybox
from e2e.tests.pods import Namespace, pod

BUCKET = "bucket"
_SECRET_KEYS = ("access_key_id", "secret_access_key")
_POD, _PORT, _ANSWERS_S = "store", 7070, 60.0
# What is down stays down until the file is gone. Users are read at every request.
_SERVE = f"""
mkdir -p /data/{BUCKET} /users
while :; do
  [ -e /tmp/down ] || /tools/versitygw --port=:{_PORT} --quiet --iam-dir=/users --iam-cache-disable --health=/healthy posix /data
  sleep 0.2
done
"""


def give_secret(namespace: Namespace, access: str, secret: str) -> None:
    """Make the Secret `bucket` in a namespace, or replace it."""
    data = {
        key: base64.b64encode(text.encode()).decode()
        for key, text in zip(_SECRET_KEYS, (access, secret), strict=True)
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": BUCKET, "namespace": namespace.name},
        "data": data,
    }
    namespace.api.run("apply", "-f", "-", text=json.dumps(manifest))


class ObjectStore:
    """One server. `endpoint` is reached by every pod of the cluster."""

    def __init__(self, namespace: Namespace) -> None:
        """Start it, and wait until it answers."""
        self._namespace = namespace
        root = {"ROOT_ACCESS_KEY_ID": "root", "ROOT_SECRET_ACCESS_KEY": secrets.token_hex(16)}
        container: dict[str, Any] = {
            "name": "server",
            "image": busybox(),
            "command": ["sh", "-c", _SERVE],
            "env": [{"name": name, "value": value} for name, value in root.items()],
            "volumeMounts": [
                {"name": "tools", "mountPath": "/tools", "readOnly": True},
                *({"name": name, "mountPath": f"/{name}"} for name in ("data", "users")),
            ],
        }
        volumes: list[Json] = [
            {"name": "tools", "hostPath": {"path": str(go_program(VERSITYGW).parent)}},
            *({"name": name, "emptyDir": {}} for name in ("data", "users")),
        ]
        made = pod(_POD, container, labels={"app": _POD}, volumes=volumes)
        namespace.create(made)
        service = {"selector": {"app": _POD}, "ports": [{"port": _PORT}]}
        found = namespace.create(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _POD}, "spec": service}
        )
        self.endpoint = f"http://{found['spec']['clusterIP']}:{_PORT}"
        namespace.ready(_POD)
        self._wait_until_it_answers()

    def driver_class(self, name: str, deliveries: list[str]) -> Json:
        """Return a class for its bucket, with credentials from a Secret, and for no other server."""
        spec = {
            "deliveries": deliveries,
            "sources": [f"s3://{BUCKET}/**"],
            "namespaces": {},
            "filesystem": "objects",
            "options": {"endpoint": {"type": "enum", "values": [self.endpoint], "default": self.endpoint}},
            "credentials": {"secretKeys": list(_SECRET_KEYS), "required": True},
        }
        return {
            "apiVersion": "sidemount.io/v1alpha1",
            "kind": "FuseDriverClass",
            "metadata": {"name": name},
            "spec": spec,
        }

    def let_in(self, keys: Mapping[str, str]) -> None:
        """Let these access keys in, each with its secret, and nobody else."""
        accounts = {
            access: {"access": access, "secret": secret, "role": "admin", "userID": 0, "groupID": 0, "projectID": 0}
            for access, secret in keys.items()
        }  # fmt: skip
        self._run(
            "cat >/users/.new && mv /users/.new /users/users.json", json.dumps({"accessAccounts": accounts})
        )

    def go_down(self) -> None:
        """End the server. Whoever asks is refused."""
        self._run("touch /tmp/down && killall versitygw")

    def come_back(self) -> None:
        """Start it again."""
        self._run("rm /tmp/down")
        self._wait_until_it_answers()

    def keys(self) -> list[str]:
        """Return the keys of the bucket."""
        listed = self._run(f"cd /data/{BUCKET} && find . -type f ! -path './.sgwtmp/*'")
        return sorted(line.removeprefix("./") for line in listed.splitlines())

    def digest(self, key: str) -> str:
        """Return the SHA-256 of an object, in hex."""
        return self._run(f"sha256sum '/data/{BUCKET}/{key}'").split()[0]

    def unfinished(self) -> str:
        """Return what is left of uploads that never ended."""
        return self._run(f"find /data/{BUCKET}/.sgwtmp -type f 2>/dev/null || true").strip()

    def _wait_until_it_answers(self) -> None:
        ask = f"wget -q -O /dev/null http://127.0.0.1:{_PORT}/healthy && echo yes || true"
        assert wait_for(lambda: self._run(ask).strip() == "yes", _ANSWERS_S), self._namespace.described(_POD)

    def _run(self, script: str, text: str | None = None) -> str:
        return self._namespace.exec(_POD, "server", "sh", "-c", script, text=text)
