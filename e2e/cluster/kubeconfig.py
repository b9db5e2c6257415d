"""Kubeconfig files: the URL, the authority and a token. Rendered as JSON, which is YAML too."""

import base64
import json


def render_kubeconfig(url: str, authority: bytes, user: str, token: str) -> str:
    """Return a kubeconfig of one cluster and one user."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(authority).decode("ascii")}
    return _render(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sidemount", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "sidemount", "context": {"cluster": "sidemount", "user": user}}],
            "current-context": "sidemount",
        }
    )


def _render(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
