"""Runs one Pod manifest with an OCI runtime as a kubelet would. No scheduling, no API server, no image registry.

What a kubelet, containerd or the API server does to a pod on its node belongs here, as far as tests of mounts
need it; anything else a manifest asks for is refused by name. Where podlet differs from a node, it must not be
the kinder one. Known differences:

- the end of a container is noticed at once; a kubelet needs up to a second;
- a cgroup v1 machine kills a whole container that is out of memory, as kubelet arranges on v2 only;
- RuntimeDefault is a list of what is forbidden; runtimes have a list of what is allowed;
- crun drops nosuid and nodev when a bind's source is a FUSE mount itself; runc keeps them;
- a second deletion does not shorten the grace of the first; a dead sandbox is not made anew;
- probes are exec probes; the pod's network has nothing but its loopback; the service-account token is a fake.
"""
