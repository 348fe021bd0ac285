"""The workshop: starts, watches, sends and reads runs; what a run is and does, the instrument (`ups`) knows."""
