"""A run: what can be configured, its data, and the object that owns it from its folder to its report."""
