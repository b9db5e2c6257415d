"""The arguments that choose a cluster. Apart from what uses them: the Kubernetes client is slow to import."""

import argparse


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them, as kubectl has them."""
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="kubeconfig (default: $KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", default="", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument(
        "--request-timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="bound of each call of the API server (default: 10)",
    )


def _seconds(value: str) -> float:
    seconds = float(value.removesuffix("s"))
    if not 0.1 <= seconds <= 600:
        raise ValueError(value)
    return seconds
