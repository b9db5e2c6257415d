"""The conformance test of a class: whether its client does, on this machine, what the class declares.

`check` is the outside: it plans the specs, starts `inside` in namespaces of its own, and reads its findings. `inside` runs the trials, one
module a subject, on stands: a real keeper and a real daemon each. Nothing here contacts a mount but children that may be given up.
"""
