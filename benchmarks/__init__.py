"""The comparison with peers: `python -m benchmarks`."""
