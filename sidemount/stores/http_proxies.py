"""Proxies as the environment names them: HTTPS_PROXY, HTTP_PROXY, NO_PROXY. What `urllib.request` knows, less the 2 MiB of its import."""

from collections.abc import Mapping

from sidemount.stores.http_message import Endpoint, parse_endpoint


def proxy_of(endpoint: Endpoint, environment: Mapping[str, str]) -> Endpoint | None:
    """Return the proxy for a server, None if it is asked directly. ValueError if the environment names something else."""
    url = _value(environment, "https_proxy" if endpoint.is_tls else "http_proxy")
    if not url or _is_exempt(endpoint, _value(environment, "no_proxy")):
        return None
    return parse_endpoint(url if "://" in url else f"http://{url}")[0]


def _is_exempt(endpoint: Endpoint, exempt: str) -> bool:
    for name in exempt.lower().split(","):
        name = name.strip().lstrip(".")
        if name == "*":
            return True
        if name in (endpoint.host, endpoint.authority) or (name and endpoint.host.endswith(f".{name}")):
            return True
    return False


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper(), "")
