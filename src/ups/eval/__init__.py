"""How good a predictor is: rollouts in physical space, errors with intervals, baselines, the report."""
