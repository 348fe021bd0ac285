"""The stages that a config plans: their order, their settings, and a stage object by name."""

from __future__ import annotations

from ups.jobs.run import STAGES
from ups.jobs.settings import RunConfig, StageConfig
from ups.models import Simulator
from ups.stages import CodecStage, OperatorStage


def plan_of(config: RunConfig) -> tuple[str, ...]:  # noqa: ARG001
    """The names of the stages, in the order in which they are learnt."""
    return tuple(STAGES)


def settings_of(config: RunConfig, stage: str) -> StageConfig:
    """How a stage is trained."""
    return STAGES[stage].settings(config)


def make_stage(config: RunConfig, stage: str, simulator: Simulator) -> CodecStage | OperatorStage:
    """A stage around a simulator."""
    return STAGES[stage].make(simulator, config)
