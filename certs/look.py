"""One look at the cluster: the live configurations and the Secret."""

from dataclasses import dataclass

from certs.live import LiveConfiguration, parse_configuration
from certs.rotate_settings import RotateSettings
from certs.secret import SecretRead, parse_secret
from sidemount.host.cluster import Cluster, Document, Place

_KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was read in one go. `at_s` is when that began, on the monotonic clock."""

    live: tuple[LiveConfiguration, ...]
    secret: SecretRead
    document: Document | None
    at_s: float


async def look_at_cluster(cluster: Cluster, settings: RotateSettings, at_s: float) -> Look:
    """Read the configurations, then the Secret. Raises: as the cluster; what cannot be read whole is not acted upon."""
    live = []
    for kind in _KINDS:
        for name in settings.configurations:
            document = await cluster.read(configuration_place(kind, name))
            if document is not None:
                live.append(parse_configuration(document, kind, settings.policy.service))
    document = await cluster.read(secret_place(settings.namespace, settings.secret))
    return Look(live=tuple(live), secret=parse_secret(document), document=document, at_s=at_s)


def secret_place(namespace: str, name: str) -> Place:
    """Return where the Secret is."""
    return Place("Secret", f"/api/v1/namespaces/{namespace}/secrets", name, is_secret=True)


def configuration_place(kind: str, name: str) -> Place:
    """Return where a webhook configuration is."""
    return Place(kind, f"/apis/admissionregistration.k8s.io/v1/{_KINDS[kind]}", name)
