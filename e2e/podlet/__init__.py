"""Runs one Pod manifest with an OCI runtime as a kubelet would. No scheduling, no API server."""
