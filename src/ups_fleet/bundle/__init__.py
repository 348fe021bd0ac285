"""`ups bundle`: all that a machine without a network needs to run this package, but torch, in one folder."""
