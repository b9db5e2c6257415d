"""FUSE clients that are not ours, for tests and benchmarks: their sources, and the images that pods name."""
