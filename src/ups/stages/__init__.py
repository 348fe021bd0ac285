"""What is learnt, one file a stage; a stage is added by its file and its line in BUILT_IN."""

from __future__ import annotations

from ups.plugins import Table
from ups.stages.codec import CodecStage
from ups.stages.consistency import ConsistencyStage
from ups.stages.critic import CriticStage
from ups.stages.operator import OperatorStage
from ups.stages.residual import ResidualStage
from ups.stages.stage import Stage, StageConfig
from ups.stages.steady import SteadyStage

__all__ = [
    "STAGES",
    "CodecStage",
    "ConsistencyStage",
    "CriticStage",
    "OperatorStage",
    "ResidualStage",
    "Stage",
    "StageConfig",
    "SteadyStage",
]

# In the order in which the weights of their parts are drawn: a new one goes last, and no weight of the others changes.
BUILT_IN: dict[str, type[Stage]] = {
    "codec": CodecStage,
    "operator": OperatorStage,
    "residual": ResidualStage,
    "consistency": ConsistencyStage,
    "critic": CriticStage,
    "steady": SteadyStage,
}
STAGES: Table[type[Stage]] = Table("stages", BUILT_IN)
