"""The Universal Physics Stack: trajectories of a physical system become a fast, trustworthy neural simulator."""

__version__ = "0.1.0"
