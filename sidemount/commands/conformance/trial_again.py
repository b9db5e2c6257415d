"""The second stand: the same source read-only, with a view of a sub-path; and what the first one's end has left in the store."""

import os
from collections.abc import Iterator
from pathlib import Path

from sidemount.commands.conformance.children import Refused, ask
from sidemount.commands.conformance.finding import CannotTry, Finding, NotAsDeclared
from sidemount.commands.conformance.running import Running
from sidemount.commands.conformance.scene import Scene, found, untried
from sidemount.commands.conformance.trial_serving import CONTENT, INNER, LAST, expect_refusal
from sidemount.host import mount_api
from sidemount.model.names import view_name

CHECKS = ("kept", "sub-path", "read-only")
_MS_REMOUNT = 0x20
_ANSWER_S = 10.0


def try_again(scene: Scene, *, has_written: bool) -> Iterator[Finding]:
    """Yield the findings of the second stand."""
    sub_path = f"{scene.directory}/{INNER}" if has_written else ""
    with scene.stand("second", sub_path) as stand:
        why = stand.wait_live(scene.timeout_s)
        if why:
            yield found(
                "kept", lambda: _fail(f"a second, read-only mount of the same source does not come up: {why}")
            )
            yield from untried(CHECKS[1:], "not reached")
            return
        yield found("kept", lambda: _kept(scene, stand, has_written=has_written))
        yield found("sub-path", lambda: _sub_path(scene, stand, sub_path))
        yield found("read-only", lambda: _read_only(scene, stand))


def _fail(why: str) -> str:
    raise NotAsDeclared(why)


def _kept(scene: Scene, stand: Running, *, has_written: bool) -> str:
    if not has_written:
        raise CannotTry("nothing was written")
    here = f"{stand.root}/{scene.directory}"
    scene.until(
        lambda: ask(lambda: Path(f"{here}/whole").read_bytes() == CONTENT, within_s=_ANSWER_S),
        "what was written and fsynced is in the store",
    )
    scene.until(
        lambda: ask(lambda: Path(f"{here}/last").read_bytes() == LAST, within_s=_ANSWER_S),
        "what was written just before the end is in the store",
    )
    return "another mount reads what was written, up to the last write before the end"


def _sub_path(scene: Scene, stand: Running, sub_path: str) -> str:
    if not sub_path:
        raise CannotTry("there is no directory of the check's own")
    place = stand.place(view_name(stand.stand.spec.volume, sub_path, False))
    size = ask(lambda: len(Path(f"{place}/whole").read_bytes()), within_s=scene.timeout_s)
    if size != len(CONTENT):
        raise NotAsDeclared(f"the view of a sub-path shows {size} bytes of a file of {len(CONTENT)}")
    return "a view of a directory shows that directory"


def _read_only(scene: Scene, stand: Running) -> str:
    """`enforced` means that the client refuses by itself: the kernel's own refusal is taken away, here where nobody else sees it."""
    ask(lambda: os.listdir(stand.root), within_s=scene.timeout_s)  # or a refusal would tell nothing
    expect_refusal(f"{stand.root}/{scene.directory}-refused", scene)
    mount_api.mount("", stand.root, "", _MS_REMOUNT)
    try:
        ask(lambda: _write(f"{stand.root}/{scene.directory}-refused"), within_s=scene.timeout_s)
    except Refused as error:
        if scene.read_only == "enforced":
            return f"the mount refuses a write, and so does the client by itself ({error})"
        return "the mount refuses a write; the client does, too"
    ask(lambda: os.unlink(f"{stand.root}/{scene.directory}-refused"), within_s=scene.timeout_s)
    if scene.read_only == "enforced":
        raise NotAsDeclared(
            "declares readOnly: enforced, but the client takes a write when only the mount forbids it: "
            "give it its own switch in readOnlyArguments, or set abilities.readOnly to mount"
        )
    return "the mount refuses a write"


def _write(path: str) -> int:
    with open(path, "xb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    return 1
