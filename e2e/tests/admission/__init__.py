"""What admission says, on a real API server without a node: the manifests as they are, and a webhook that is a process of its own.

No pod runs here. What needs one is a test of `e2e.tests`.
"""
