"""Object-store servers on loopback, for tests and benchmarks: real ones from package registries, and a proxy that makes faults.

Each is a context manager with its data in a directory that it is given; it ends with the block, and with the process that began it,
however that dies. What is built or installed for them lies under `build/servers`. `python -m e2e.servers build` does all of that ahead.
"""
