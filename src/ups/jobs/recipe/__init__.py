"""What `ups init` and `ups.fit` find out about data, and the config that follows from it."""
