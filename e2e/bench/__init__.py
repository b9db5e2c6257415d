"""Benchmarks: each figure with its peer, measured in turns in one run. They report; they never fail."""
