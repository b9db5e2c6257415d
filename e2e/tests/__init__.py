"""End to end, on a real cluster: `make e2e`.

Each test has a namespace of its own, and the node is compared with what it was before after each. Sidemount is installed once a
run (`installed`); `ml` is a namespace that is open to it, `source` a directory of the node for a volume to come from.

`E2E_CLUSTER=NAME` uses a cluster of `e2e.cluster` that runs (with the images loaded) and leaves it running, with Sidemount as it
is. Without it one is started for the run and ended with it. `KUBECONFIG` (with `E2E_IMAGES=registry/prefix`) names any other
cluster: what looks at the node or ends components is then left out, and says so.
"""
