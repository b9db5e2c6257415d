"""The filesystem `directory`: a directory of the node, a claim or an NFS export as the store.

Belongs here: the FUSE-free core and its store. Does not: anything that knows pyfuse3 (`sidecar.protocol`).
"""
