"""What follows training: calibration, judgement, gates, and the conclusion of a run."""
