"""The plan that makes a node of fresh namespaces."""

from pathlib import Path

from e2e.cluster.node_setup import MakeDirectory, Run, Step, Write, plan_setup
from e2e.cluster.node_spec import NodeSpec


def _spec(source: str = "/work/clone", cgroup: str = "mine") -> NodeSpec:
    return NodeSpec(
        name="node-0",
        address="10.88.0.1",
        prefix=24,
        hosts="127.0.0.1 localhost\n",
        cgroup=cgroup,
        disk=Path(source) / "node",
        shared=Path(source) / "shared",
        cni=Path(source) / "cni",
        logs=Path(source) / "logs",
        socket=Path(source) / "socket",
        source=Path(source),
        components=(),
    )


def _plan(spec: NodeSpec) -> tuple[Step, ...]:
    trees = (Path("/sys/fs/cgroup/memory"),)
    return plan_setup(spec, has_fuse_control=True, cgroup_trees=trees, boot_id="one")


def _commands(plan: tuple[Step, ...]) -> list[str]:
    return [" ".join(step.argv) for step in plan if isinstance(step, Run)]


def test_every_mount_is_made_before_mounts_are_shared() -> None:
    """A bind of a shared mount is its peer: each volume would be there twice, and busy twice."""
    commands = _commands(_plan(_spec()))
    shared = commands.index("mount --make-rshared /")
    assert [command for command in commands[shared + 1 :] if command.startswith("mount")] == []
    assert "mount --make-private /var/lib/kubelet" in commands[:shared]


def test_nothing_is_written_beneath_the_machine_s_own_directories() -> None:
    """Files in /etc and directories in /var come after their overlays."""
    plan = _plan(_spec())
    for top in ("/etc", "/var"):
        overlaid = next(
            at
            for at, step in enumerate(plan)
            if isinstance(step, Run) and step.argv[2] == "overlay" and step.argv[-1] == top
        )
        for step in plan[:overlaid]:
            if isinstance(step, MakeDirectory | Write):
                assert not step.path.is_relative_to(top)


def test_kernel_settings_are_shown_to_kubelet_and_never_set() -> None:
    plan = _plan(_spec())
    written = [step.path for step in plan if isinstance(step, Write)]
    assert [path for path in written if path.is_relative_to("/proc/sys")] == [
        Path("/proc/sys/net/ipv4/ip_forward")
    ]
    assert any(command.endswith(" /proc/sys/kernel/panic_on_oops") for command in _commands(plan))


def test_a_project_beneath_an_overlay_is_put_back() -> None:
    """What the node writes there has to be seen from outside."""
    commands = _commands(_plan(_spec("/var/lib/ci/clone")))
    kept = commands.index("mount --rbind /var/lib/ci/clone /run/sidemount-cluster/source")
    back = commands.index("mount --rbind /run/sidemount-cluster/source /var/lib/ci/clone")
    overlay = next(at for at, command in enumerate(commands) if command.endswith("overlay /var"))
    assert kept < overlay < back
    assert not [command for command in _commands(_plan(_spec())) if "--rbind" in command]


def test_a_node_without_pods_has_no_cgroup() -> None:
    wanted = MakeDirectory(Path("/sys/fs/cgroup/memory/mine"))
    assert wanted in _plan(_spec())
    assert not [
        step
        for step in _plan(_spec(cgroup=""))
        if isinstance(step, MakeDirectory) and step.path.is_relative_to("/sys")
    ]


def test_every_start_of_a_node_has_its_own_boot_id_and_the_disk_of_all() -> None:
    """By the first kubelet tells a reboot; sources of volumes are the same on all nodes, as on a file server."""
    commands = _commands(_plan(_spec()))
    assert (
        "mount --bind /run/sidemount-cluster/sys/kernel/random/boot_id /proc/sys/kernel/random/boot_id"
        in commands
    )
    assert "mount --bind /work/clone/shared /srv" in commands
    written = {step.path.name: step.text for step in _plan(_spec()) if isinstance(step, Write)}
    assert written["boot_id"] == "one\n"
