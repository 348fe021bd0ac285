"""Sweeps: many runs of one config with different settings, side by side, in one folder."""
