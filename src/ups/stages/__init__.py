"""What is learnt, stage by stage; each is a small object without loop, device or rank."""

from ups.stages.codec import CodecStage
from ups.stages.operator import OperatorStage

__all__ = ["CodecStage", "OperatorStage"]
