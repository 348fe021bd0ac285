"""The fault lab: real runs in real processes, disturbed on purpose, and compared with undisturbed ones."""
