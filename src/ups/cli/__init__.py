"""The `ups` command."""
