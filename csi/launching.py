"""Which launcher the settings name, made."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from csi.faults import WrongState
from csi.keeper_link import KeeperLink
from csi.launcher import Launcher
from csi.mount_pod import PodSettings
from csi.process_launcher import ProcessLauncher
from csi.records import Record
from csi.settings import POD, PROCESS, Settings


def check_launcher(settings: Settings, records: Iterable[Record]) -> None:
    """See that one launcher has started everything that is published, and will look after it. Raises WrongState."""
    other = PROCESS if settings.launcher == POD else POD
    targets = sorted(r.target for r in records if (r.launch.pod is not None) == (other == POD))
    if targets:
        raise WrongState(
            f"state {settings.state_dir}: --launcher {settings.launcher} cannot look after what --launcher {other} "
            f"has published: {len(targets)} targets, such as {targets[0]}; they are served on, and nothing was changed",
            hint=f"start it with --launcher {other} until all of them are unpublished",
        )


async def make_launcher(settings: Settings, keeper: KeeperLink, changed: Callable[[str], None]) -> Launcher:
    """Return the launcher. `changed(name)` is called when a daemon has ended. Raises VolumeError."""
    if settings.launcher != POD:
        return ProcessLauncher(settings.state_dir, changed)
    # Only where it is needed: its types take more memory than all of ours.
    from csi.mount_pods import MountPods
    from csi.pod_launcher import PodLauncher
    from sidemount.host.cluster_configuration import load_cluster_configuration

    pods = _pod_settings(settings)
    kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
    configuration = await load_cluster_configuration(kubeconfig)

    return PodLauncher(
        settings.state_dir,
        settings.kubelet_dir,
        pods,
        keeper,
        lambda pod_changed: MountPods(configuration, pods, pod_changed),
        changed,
    )


def _pod_settings(settings: Settings) -> PodSettings:
    return PodSettings(
        node_name=settings.node_id,
        instance=instance_of(settings.node_id, settings.state_dir),
        namespace=settings.mount_namespace,
        namespace_baseline=settings.mount_namespace_baseline,
        image=settings.image,
        image_prefix=settings.image_prefix,
        priority_class=settings.mount_priority_class,
        grace_s=int(settings.mount_grace_s),
    )


def instance_of(node_id: str, state_dir: str) -> str:
    """Return what tells this plugin's pods from those of another one on the same node: the place of its state, even if that is lost."""
    return hashlib.sha256(f"{node_id}\0{state_dir}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
