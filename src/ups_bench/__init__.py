"""Benchmarks: what `ups bench` measures, as ratios to a peer measured in the same run."""
