"""A run copied to a store while it runs, and brought back from there on another machine."""
