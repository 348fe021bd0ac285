"""A memory of runs: their state, errors and curves, read from what lies in their folders; no torch."""
