"""A real Kubernetes cluster on this machine: control plane, kubelet and container runtime in namespaces of their own.

What builds, starts, reaches and ends it belongs here; what is tested on it is in `e2e.tests`. Nothing of it may outlive its
first process, and nothing of it may change the machine: every mount, address, process and kernel setting is the node's own.
"""
