"""Processes on this machine: starting ranks and watching over them from outside."""
