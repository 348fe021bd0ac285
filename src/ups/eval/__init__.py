"""How good a predictor is: rollouts in physical space, errors with intervals, baselines, the report."""

from ups.eval.metrics import MODES, Errors, Metric, measure, paired
from ups.eval.rollout import (
    PROTOCOLS,
    EvalProtocol,
    Evaluation,
    Predictor,
    evaluate,
    persistence,
    protocol,
    reconstruct,
)

__all__ = [
    "MODES",
    "PROTOCOLS",
    "Errors",
    "EvalProtocol",
    "Evaluation",
    "Metric",
    "Predictor",
    "evaluate",
    "measure",
    "paired",
    "persistence",
    "protocol",
    "reconstruct",
]
