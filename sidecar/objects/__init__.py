"""The `objects` filesystem: buckets of object stores as volumes.

`store` is the port to a store, with one implementation for each protocol; everything above it knows no protocol, and nothing
in it knows FUSE but `filesystem`.
"""
