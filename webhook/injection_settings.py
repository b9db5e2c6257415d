"""InjectionSettings: what the operator decides about injected pods. Parsing from the environment is the server's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sidemount.model.daemon_container import DAEMON_LIMITS, DAEMON_REQUESTS
from sidemount.model.names import OWN_NAMESPACE
from webhook.image import Registries

# All of the keeper's memory is requested: what the kernel kills first goes by the request, and the keeper must go last.
KEEPER_REQUESTS = MappingProxyType({"cpu": "10m", "memory": "64Mi"})
KEEPER_LIMITS = MappingProxyType({"cpu": "500m", "memory": "64Mi"})

# Containers of other injectors that redirect or carry the pod's network: ours need it, so they go behind these.
NETWORK_CONTAINERS = frozenset(
    {
        "istio-init",
        "istio-validation",
        "istio-proxy",
        "linkerd-init",
        "linkerd-network-validator",
        "linkerd-proxy",
        "kuma-init",
        "kuma-validation",
        "kuma-sidecar",
        "consul-connect-inject-init",
        "consul-dataplane",
        "osm-init",
        "proxyinit",
        "envoy",
    }
)

# Runtime classes whose pods run in a sandbox with a kernel of its own: no mount of ours can reach into it.
SANDBOXED_RUNTIME_CLASSES = frozenset(
    {
        "gvisor",
        "runsc",
        "kata",
        "kata-clh",
        "kata-dragonball",
        "kata-fc",
        "kata-qemu",
        "kata-qemu-coco-dev",
        "kata-qemu-nvidia-gpu",
        "kata-qemu-sev",
        "kata-qemu-snp",
        "kata-qemu-tdx",
        "kata-vm-isolation",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionSettings:
    """How pods are injected on this cluster.

    `sidecar_image` runs the keeper and the built-in filesystems: the image that is the webhook too. `image_prefix` goes before every image of ours and of
    classes (air-gapped registries). `image_mirrors` are what another webhook may put before them or in place of their registry. `grace_floor_s` is the least termination grace period of an injected pod.
    `probe_failures` startup probes, one a second, must fail before a daemon's container is restarted.
    """

    sidecar_image: str = "ghcr.io/sidemount/sidemount:0.1.0"
    image_prefix: str = ""
    image_mirrors: tuple[str, ...] = ()
    image_pull_policy: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    keeper_requests: Mapping[str, str] = field(default_factory=lambda: KEEPER_REQUESTS)
    keeper_limits: Mapping[str, str] = field(default_factory=lambda: KEEPER_LIMITS)
    daemon_requests: Mapping[str, str] = field(default_factory=lambda: DAEMON_REQUESTS)
    daemon_limits: Mapping[str, str] = field(default_factory=lambda: DAEMON_LIMITS)
    grace_floor_s: int = 10
    probe_failures: int = 120
    probe_timeout_s: int = 5
    sandboxed_runtime_classes: frozenset[str] = SANDBOXED_RUNTIME_CLASSES
    network_containers: frozenset[str] = NETWORK_CONTAINERS
    existing_enabled: bool = True
    own_namespace: str = OWN_NAMESPACE

    @property
    def registries(self) -> Registries:
        """Where images may come from."""
        return Registries(prefix=self.image_prefix, mirrors=self.image_mirrors)
