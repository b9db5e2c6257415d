"""End-to-end harnesses and suites: real runtimes, real kernels, real clusters."""
