"""Whether this machine, and a config's own model on it, can train on several ranks; and if not, what to do about it."""
