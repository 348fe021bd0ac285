"""What is known of runs from their folders alone: state, errors, curves, comparisons; no torch."""
