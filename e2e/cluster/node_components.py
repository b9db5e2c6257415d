"""A node's programs, their arguments and configuration files. Pure: paths and names in, text and components out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.component import Component, flags
from e2e.cluster.topology import DOMAIN, KUBELET_PORT, NETWORK, PAUSE_IMAGE, Node, Topology

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
_CNI_PROGRAMS = "/usr/lib/cni"


def render_files(
    topology: Topology,
    node: Node,
    config: Path,
    *,
    snapshotter: str,
    lowers_oom_score: bool,
    counts_disk: bool,
) -> dict[str, str]:
    """Return the configuration files of a node by their names beneath its own directory."""
    return {
        "containerd.toml": render_containerd(snapshotter=snapshotter, lowers_oom_score=lowers_oom_score),
        "kubelet.json": _json(kubelet_configuration(topology, node, config, counts_disk=counts_disk)),
        "kube-proxy.json": _json(proxy_configuration(node, config)),
        "cni/10-bridge.conflist": _json(cni_network(node)),
    }


def node_components(
    topology: Topology, node: Node, config: Path, programs: Mapping[str, Path], path: str
) -> tuple[Component, ...]:
    """Return the container runtime, kubelet and the Service proxy of a node. `path` is where they find runc and mount."""
    own = config / node.name
    containerd = Component(
        name="containerd",
        argv=(str(programs["containerd"]), f"--config={own / 'containerd.toml'}"),
        env={"PATH": f"{programs['containerd'].parent}:{path}"},
    )
    kubelet = flags(
        config=own / "kubelet.json",
        kubeconfig=config / f"kubelet-{node.name}.kubeconfig",
        hostname_override=node.name,
        node_ip=node.address,
        root_dir="/var/lib/kubelet",
    )
    return (
        containerd,
        Component(name="kubelet", argv=(str(programs["kubelet"]), *kubelet), env={"PATH": path}),
        Component(
            name="kube-proxy",
            argv=(str(programs["kube-proxy"]), *flags(config=own / "kube-proxy.json")),
            env={"PATH": path},
        ),
    )


def render_containerd(*, snapshotter: str, lowers_oom_score: bool) -> str:
    """Return containerd's configuration.

    A root that may not lower an OOM score (no CAP_SYS_RESOURCE) starts no sandbox unless containerd leaves scores alone.
    Source: https://github.com/containerd/containerd/blob/main/docs/cri/config.md
    """
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {str(not lowers_oom_score).lower()}
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "runc"
  SystemdCgroup = false
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{_CNI_PROGRAMS}"]
  conf_dir = "/etc/cni/net.d"
"""


def kubelet_configuration(
    topology: Topology, node: Node, config: Path, *, counts_disk: bool
) -> dict[str, Any]:
    """Return kubelet's configuration: it evicts, collects and reserves nothing, for the disk and memory are the machine's.

    `counts_disk`: it can say how much room there is. Without it there is no summary of statistics either.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(config / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "address": node.address,
        "port": KUBELET_PORT,
        "tlsCertFile": str(config / f"kubelet-{node.name}.crt"),
        "tlsPrivateKeyFile": str(config / f"kubelet-{node.name}.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{topology.cgroup_of(node)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": counts_disk,
        "volumeStatsAggPeriod": "10s",
        "resolvConf": "",
        "clusterDomain": DOMAIN,
        "registerNode": True,
        "serializeImagePulls": False,
        "maxPods": 200,
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
    }


def proxy_configuration(node: Node, config: Path) -> dict[str, Any]:
    """Return kube-proxy's configuration.

    Pods of one bridge answer one another directly: without masquerading, the answer would bypass the Service's translation.
    Conntrack settings are the machine's and not of a network namespace.
    """
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(config / "kube-proxy.kubeconfig")},
        "mode": "iptables",
        "hostnameOverride": node.name,
        "clusterCIDR": NETWORK,
        "iptables": {"masqueradeAll": True, "minSyncPeriod": "0s"},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def cni_network(node: Node) -> dict[str, Any]:
    """Return the pods' network: ports of the node's bridge."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "sidemount", "plugins": [bridge, ports]}


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
