"""The commands of the workshop."""
