"""The Versity S3 gateway over a directory: keys are files of it, and users a file that it reads at each request."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.servers.process import LOOPBACK, answers, free_port, start
from e2e.servers.s3_place import REGION, S3Place
from e2e.servers.tools import VERSITYGW, go_program

_ROOT_ACCESS, _ROOT_SECRET = "sidemount-root", "sidemount-root-secret"


@dataclass(frozen=True, slots=True)
class Versity:
    """A running gateway."""

    place: S3Place
    directory: Path

    def set_users(self, secrets: Mapping[str, str]) -> None:
        """Let these access keys in, each with its secret, and no others but the root's."""
        accounts = {
            access: {
                "access": access,
                "secret": secret,
                "role": "admin",
                "userID": 0,
                "groupID": 0,
                "projectID": 0,
            }
            for access, secret in secrets.items()
        }
        made = self.directory / "users" / ".users.json"
        made.write_text(json.dumps({"accessAccounts": accounts}))
        made.rename(made.with_name("users.json"))


@contextmanager
def versity(directory: Path, bucket: str = "bucket") -> Iterator[Versity]:
    """Run it with a bucket. Raises ServerFault, MachineLacks, ClusterFault."""
    program = go_program(VERSITYGW)
    for name in (f"data/{bucket}", "users"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    ports: list[int] = []

    def plan() -> tuple[Sequence[str], Callable[[], bool]]:
        port = free_port()
        ports[:] = [port]
        argv = [str(program), f"--port={LOOPBACK}:{port}", f"--region={REGION}", "--quiet", "--keep-alive"]
        argv += [f"--iam-dir={directory}/users", "--iam-cache-disable", "--health=/healthy"]
        return [*argv, "posix", f"{directory}/data"], lambda: answers(port, "/healthy", below=300)

    environment = {
        "PATH": os.defpath,
        "ROOT_ACCESS_KEY_ID": _ROOT_ACCESS,
        "ROOT_SECRET_ACCESS_KEY": _ROOT_SECRET,
    }
    server = start(plan, directory / "versitygw.log", environment)
    try:
        place = S3Place(
            endpoint=f"http://{LOOPBACK}:{ports[0]}",
            bucket=bucket,
            access_key=_ROOT_ACCESS,
            secret_key=_ROOT_SECRET,
        )
        yield Versity(place, directory)
    finally:
        server.stop()
