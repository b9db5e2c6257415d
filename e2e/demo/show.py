"""The demo from beginning to end."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.demo.admission import Verdict, Webhook, run_webhook
from e2e.demo.library import POEM, FileState, make_library, read_states
from e2e.demo.manifests import NAMESPACE, bystander_pod, reader_pod, stranger_pod, write_facts
from e2e.demo.screen import CheckFailed, Screen
from e2e.images import busybox_image, sidemount_image
from e2e.podlet.client import Podlet, RunningPod
from e2e.podlet.command import Completed
from e2e.podlet.errors import PodletError
from sidemount.commands.output import table
from sidemount.host.mount_table import is_fuse, read_mount_table
from sidemount.model.errors import Unsupported, VolumeError
from webhook.injection_settings import InjectionSettings

READY_WITHIN_S = 60.0
LAST_LINES = 8
CAP_SYS_ADMIN = 21
_FUSE = "fuse.sidemount"


def show(*, keep: bool) -> int:
    """Run it. Returns 0 only if every check held; `keep` leaves the working directory behind. Raises Unsupported."""
    if os.geteuid() != 0:
        raise Unsupported(
            "the demo makes namespaces, mounts and cgroups, which takes root", hint="run: sudo make demo"
        )
    screen = Screen()
    directory = Path(tempfile.mkdtemp(prefix="sidemount-demo-")).resolve()
    try:
        _run(screen, directory)
    except (CheckFailed, PodletError, VolumeError, OSError) as error:
        print(f"\ndemo: failed: {error}\nits files and logs are in {directory}", file=sys.stderr)
        return 1
    if keep:
        screen.say(f"\nfiles and logs: {directory}")
    else:
        shutil.rmtree(directory)
    screen.end()
    return 0


def _run(screen: Screen, directory: Path) -> None:
    library = directory / "library"
    make_library(library)
    before = read_states(library)
    write_facts(directory / "facts", library)
    screen.step("An admin allows one directory, and starts the webhook")
    screen.say((directory / "facts" / "facts.yaml").read_text())
    with run_webhook(directory, directory / "facts") as webhook:
        screen.check(True, f"the webhook serves {webhook.url} under an authority made just now")
        verdict = _ask(screen, webhook, library)
    images = {InjectionSettings().sidecar_image: sidemount_image(), "busybox": busybox_image()}
    with Podlet(directory / "node", images=images, on_event=screen.progress) as node:
        screen.step("The injected pod runs, as a kubelet would run it")
        pod = node.run(verdict.pod)
        try:
            pod.wait_ready(READY_WITHIN_S)
        except PodletError:
            _show_logs(screen, pod)
            raise
        _look(screen, pod, library)
        screen.step("The pod is deleted")
        pod.delete()
        _look_after(screen, node, pod)
    _look_at_source(screen, library, before)
    left = [mount.mount_point for mount in read_mount_table() if mount.mount_point.startswith(str(directory))]
    screen.check(
        not left and not (directory / "node" / "pods" / pod.uid).exists(),
        "this machine has no mount and no directory of it",
        left,
    )


def _ask(screen: Screen, webhook: Webhook, library: Path) -> Verdict:
    screen.step("Three pods are created; the API server asks the webhook about each, over TLS")
    pod = reader_pod(library)
    screen.say(
        "reader's annotation: "
        + json.dumps(
            {"volume.sidemount.io/books": pod["metadata"]["annotations"]["volume.sidemount.io/books"]}
        )
    )
    injected, refused, other = (
        webhook.review(asked, NAMESPACE) for asked in (pod, stranger_pod(), bystander_pod())
    )
    rows = [(name, "allowed" if verdict.allowed else "denied", f"{len(verdict.patch)} operations" if verdict.patch else "unchanged", verdict.reason)
            for name, verdict in (("reader", injected), ("stranger", refused), ("bystander", other))]  # fmt: skip
    screen.say(table(("POD", "ANSWER", "PATCH", "REASON"), rows))
    screen.check(injected.allowed and bool(injected.patch), "reader is allowed, with a patch")
    screen.check(not refused.allowed and not refused.patch, f"stranger is denied: {refused.message}")
    screen.check(other.allowed and not other.patch, "bystander is none of our business: not a byte changed")
    screen.say("\nthe patch for reader:")
    screen.say(
        table(
            ("OP", "PATH", "VALUE"),
            [(op["op"], op["path"], _short(op.get("value"))) for op in injected.patch],
        )
    )
    again = webhook.review(injected.pod, NAMESPACE)
    screen.check(
        again.allowed and not again.patch, "asked about the injected pod, the webhook changes nothing more"
    )
    screen.check(
        webhook.review(injected.pod, NAMESPACE, "/validate").allowed,
        "and validates that the pod carries what it asks for",
    )
    _show_pod(screen, injected.pod)
    return injected


def _short(value: object) -> str:
    if isinstance(value, dict) and "name" in value:
        return f"{value['name']} …" if len(value) > 1 else str(value["name"])
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return ", ".join(_short(item) for item in value)
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 70 else f"{text[:69]}…"


def _show_pod(screen: Screen, pod: dict[str, Any]) -> None:
    rows = []
    for kind, key in (("init", "initContainers"), ("app", "containers")):
        for container in pod["spec"][key]:
            security = container.get("securityContext", {})
            capabilities = security.get("capabilities", {}).get("add", [])
            privilege = "privileged" if security.get("privileged") else ",".join(capabilities) or "none"
            mounts = ", ".join(
                f"{mount['mountPath']}={mount['name']}{'/' + mount['subPath'] if 'subPath' in mount else ''}"
                for mount in container["volumeMounts"]
            )
            rows.append(
                (
                    container["name"],
                    "sidecar" if container.get("restartPolicy") == "Always" else kind,
                    privilege,
                    mounts,
                )
            )
    screen.say("\nreader as it will run:")
    screen.say(table(("CONTAINER", "KIND", "PRIVILEGE", "MOUNTS"), rows))


def _show_logs(screen: Screen, pod: RunningPod) -> None:
    for name, container in pod.status().containers.items():
        if not container.ready:
            screen.say(f"\nlast words of {name}:\n" + "\n".join(pod.logs(name).splitlines()[-LAST_LINES:]))


def _look(screen: Screen, pod: RunningPod, library: Path) -> None:
    screen.step("Inside the containers")
    run = _runner(pod)
    poem = run("reader", "cat", "/books/poem.txt")
    screen.say(f"reader$ cat /books/poem.txt\n{poem.stdout}")
    screen.check(poem.stdout == POEM, "reader reads the library's file through FUSE", poem)
    index = run("reader", "cat", "/notes/index").stdout.split()
    screen.check(
        index == ["incoming", "poem.txt", "shelf"],
        "the init container had listed it before any app started",
        index,
    )
    sums = (
        run("reader", "cat", "/notes/sum").stdout.split()[0],
        run("reader", "md5sum", "/books/shelf/noise.bin").stdout.split()[0],
    )
    screen.check(
        sums[0] == sums[1], "1 MiB of noise has the same sum in the init container and in reader", sums
    )
    denied = run("reader", "sh", "-c", "echo x >/books/poem.txt")
    screen.check(
        denied.exit_code != 0 and "Read-only file system" in denied.stderr,
        "reader cannot write: Read-only file system",
        denied,
    )
    written = run("writer", "sh", "-c", "echo hello >/inbox/note.txt && ls -a /inbox")
    screen.check(
        written.stdout.split() == [".", "..", "note.txt"],
        "writer sees only its sub-path, and writes there",
        written,
    )
    note = library / "incoming" / "note.txt"
    screen.check(
        note.read_text() == "hello\n" and note.stat().st_uid == 1001,
        "the note is in the library on the node, owned by writer's uid 1001",
    )
    seen = run("reader", "cat", "/books/incoming/note.txt")
    screen.check(seen.stdout == "hello\n", "and reader sees it", seen)
    _look_at_privilege(screen, pod)


def _look_at_privilege(screen: Screen, pod: RunningPod) -> None:
    run = _runner(pod)
    for container in ("reader", "writer"):
        mounts = [
            line
            for line in run(container, "cat", "/proc/self/mountinfo").stdout.splitlines()
            if _FUSE in line
        ]
        screen.say(f"{container}$ grep {_FUSE} /proc/self/mountinfo\n" + "\n".join(mounts))
        screen.check(len(mounts) == 1, f"{container} has exactly one mount of ours", mounts)
        status = _status(run(container, "cat", "/proc/self/status").stdout)
        screen.check(
            int(status["CapEff"], 16) == 0 and not int(status["CapPrm"], 16),
            f"{container} has no capability",
            status["CapEff"],
        )
        device = run(container, "ls", "/dev/fuse")
        screen.check(device.exit_code != 0, f"{container} has no /dev/fuse", device)
    daemon = _status(Path(f"/proc/{pod.pid('sidemount-books')}/status").read_text())
    effective = int(daemon["CapEff"], 16)
    screen.check(
        not effective >> CAP_SYS_ADMIN & 1,
        f"the daemon that serves them has no CAP_SYS_ADMIN, only {effective:#x}",
        daemon["CapEff"],
    )


def _status(text: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def _runner(pod: RunningPod) -> Callable[..., Completed]:
    return lambda container, *argv: pod.exec(container, argv)


def _look_after(screen: Screen, node: Podlet, pod: RunningPod) -> None:
    left = [mount.mount_point for mount in node.mounts() if is_fuse(mount)]
    screen.check(not left, "no FUSE mount is left on the node", left)
    leaks = pod.leaks()
    screen.check(not leaks, "no process, mount, cgroup or directory of the pod is left", leaks)


def _look_at_source(screen: Screen, library: Path, before: dict[str, FileState]) -> None:
    after = read_states(library)
    changed = [name for name, state in before.items() if after.get(name) != state]
    screen.check(
        not changed,
        f"all {len(before)} files of the library are what they were: inode, content, owner, mode, time",
        changed,
    )
    screen.check(
        set(after) - set(before) == {"incoming/note.txt"},
        "and writer's note is the only new one",
        sorted(set(after) - set(before)),
    )
