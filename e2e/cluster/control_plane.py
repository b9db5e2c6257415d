"""The control plane's programs and their arguments. Pure: paths and names in, components out."""

from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.component import Component, flags
from e2e.cluster.places import ClusterPlaces
from e2e.cluster.topology import API_PORT, DOMAIN, NETWORK, SERVICES, Topology

_ETCD_URL = "http://127.0.0.1:2379"
_ETCD_PEERS = "http://127.0.0.1:2380"
# An API server alone has nobody who makes the service accounts that this plugin asks for.
_NEEDS_CONTROLLERS = "ServiceAccount"


def api_components(
    topology: Topology, places: ClusterPlaces, programs: Mapping[str, Path], *, alone: bool
) -> tuple[Component, ...]:
    """Return etcd and the API server: all that admission, CRDs and policies need."""
    api_flags = _api_flags(topology, places.config)
    if alone:
        api_flags += flags(disable_admission_plugins=_NEEDS_CONTROLLERS)
    return (
        Component(name="etcd", argv=(str(programs["etcd"]), *_etcd_flags(places))),
        Component(name="kube-apiserver", argv=(str(programs["kube-apiserver"]), *api_flags)),
    )


def controller_components(
    topology: Topology, places: ClusterPlaces, programs: Mapping[str, Path]
) -> tuple[Component, ...]:
    """Return what makes pods of workloads and sends them to nodes. They need the API server to be ready."""
    config = places.config
    managers = flags(
        kubeconfig=config / "kube-controller-manager.kubeconfig",
        authentication_kubeconfig=config / "kube-controller-manager.kubeconfig",
        authorization_kubeconfig=config / "kube-controller-manager.kubeconfig",
        root_ca_file=config / "ca.crt",
        service_account_private_key_file=config / "service-accounts.key",
        cluster_signing_cert_file=config / "ca.crt",
        cluster_signing_key_file=config / "ca.key",
        cluster_cidr=NETWORK,
        service_cluster_ip_range=SERVICES,
        use_service_account_credentials=True,
        allocate_node_cidrs=False,
        leader_elect=False,
        bind_address="127.0.0.1",
        node_monitor_grace_period="50s",
    )
    scheduler = flags(
        kubeconfig=config / "kube-scheduler.kubeconfig",
        authentication_kubeconfig=config / "kube-scheduler.kubeconfig",
        authorization_kubeconfig=config / "kube-scheduler.kubeconfig",
        leader_elect=False,
        bind_address="127.0.0.1",
    )
    return (
        Component(name="kube-controller-manager", argv=(str(programs["kube-controller-manager"]), *managers)),
        Component(name="kube-scheduler", argv=(str(programs["kube-scheduler"]), *scheduler)),
    )


def _etcd_flags(places: ClusterPlaces) -> tuple[str, ...]:
    """Nothing of a test cluster outlives the machine: what is written need not reach the disk."""
    return (
        *flags(
            name="etcd",
            data_dir=places.node / "etcd",
            listen_client_urls=_ETCD_URL,
            advertise_client_urls=_ETCD_URL,
            listen_peer_urls=_ETCD_PEERS,
            initial_advertise_peer_urls=_ETCD_PEERS,
            initial_cluster=f"etcd={_ETCD_PEERS}",
            logger="zap",
            log_outputs="stderr",
            quota_backend_bytes=2 << 30,
        ),
        "--unsafe-no-fsync",
    )


def _api_flags(topology: Topology, config: Path) -> tuple[str, ...]:
    return flags(
        etcd_servers=_ETCD_URL,
        secure_port=API_PORT,
        bind_address="0.0.0.0",
        advertise_address=topology.api_address,
        tls_cert_file=config / "apiserver.crt",
        tls_private_key_file=config / "apiserver.key",
        client_ca_file=config / "ca.crt",
        token_auth_file=config / "tokens.csv",
        requestheader_client_ca_file=config / "ca.crt",
        requestheader_allowed_names="front-proxy",
        requestheader_username_headers="X-Remote-User",
        requestheader_group_headers="X-Remote-Group",
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        allow_privileged=True,
        service_account_key_file=config / "service-accounts.pub",
        service_account_signing_key_file=config / "service-accounts.key",
        service_account_issuer=f"https://kubernetes.default.svc.{DOMAIN}",
        service_cluster_ip_range=SERVICES,
        kubelet_client_certificate=config / "apiserver-kubelet.crt",
        kubelet_client_key=config / "apiserver-kubelet.key",
        kubelet_certificate_authority=config / "ca.crt",
        kubelet_preferred_address_types="InternalIP",
        endpoint_reconciler_type="lease",
        profiling=False,
    )
