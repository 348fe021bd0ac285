"""What is learnt, one file a stage; a stage is added by its file and its place in this list."""

from __future__ import annotations

from ups.stages.codec import CodecStage
from ups.stages.operator import OperatorStage
from ups.stages.stage import Stage, StageConfig

__all__ = ["STAGES", "CodecStage", "OperatorStage", "Stage", "StageConfig"]

# In the order in which the weights of their parts are drawn.
STAGES: dict[str, type[Stage]] = {stage.name: stage for stage in (CodecStage, OperatorStage)}
