"""Runs submitted through SkyPilot."""
