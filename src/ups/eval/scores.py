"""SCORES: the numbers by which a simulator is told to be good, one table for all that measures, shows or bounds one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoreKind:
    """A number over all judged trajectories; its name in results.json and in gates is its key in `SCORES`.

    Args:
        title: What it is called in tables.
        meaning: What it is, in a phrase.
    """

    title: str
    meaning: str


SCORES: dict[str, ScoreKind] = {
    "nrmse": ScoreKind("nRMSE (95 % interval)", "the mean over trajectories, which decides"),
    "nrmse-median": ScoreKind("median", "the nRMSE that half of the trajectories do not exceed"),
    "vrmse": ScoreKind("VRMSE", "the mean of The Well's error, over the truth's standard deviation in space"),
    "vrmse-median": ScoreKind("VRMSE, median", "the VRMSE that half of the trajectories do not exceed"),
    "one-step-nrmse": ScoreKind("one step", "the mean nRMSE of the first predicted frame"),
    "nrmse-over-persistence": ScoreKind("ours / persistence", "the mean nRMSE over that of persistence"),
    "diverged": ScoreKind("diverged", "the share of rollouts that left the truth for good"),
}
HEADLINE = ("nrmse", "nrmse-median", "vrmse")  # beside each other wherever errors are shown
