"""Stage `codec`: learns frames to tokens and back, so well that what remains is the operator's error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ups.engine.train import TrainConfig
from ups.eval.nrmse import validation_nrmse
from ups.lazy_imports import Tensor, torch
from ups.models.config import CodecConfig
from ups.stages.stage import Stage, StageConfig
from ups.stages.terms import square
from ups.tensors import Losses, Window

if TYPE_CHECKING:
    from ups.models import Codec

# Tokens of a normalised field have a mean square near 1; fields much fainter than this count no more than it.
FAINT = 1e-3


@dataclass(frozen=True)
class CodecLoss:
    """Weights of the codec's losses."""

    reconstruction: float = 1.0
    """Weight of the error of a frame that was encoded and decoded, at every cell (UPT's inverse decoding)."""
    tokens: float = 0.1
    """Weight of the error of tokens that were decoded and encoded again (UPT's inverse encoding)."""


class CodecStageConfig(StageConfig):
    """Stage codec."""

    train: TrainConfig = Field(default_factory=lambda: TrainConfig(steps=200, lr=1e-3, ema=0.99, validate_first=True))
    """Budget and optimizer."""
    loss: CodecLoss = Field(default_factory=CodecLoss)
    """Weights of the losses."""


class CodecStage(Stage):
    """Trains a codec on single frames. The loss is the mean square error over the mean square of the deviation."""

    name: ClassVar[str] = "codec"
    makes: ClassVar[str] = "codec"
    Config: ClassVar[type[StageConfig]] = CodecStageConfig
    PartConfig: ClassVar[type] = CodecConfig
    config: CodecStageConfig
    module: Codec

    @staticmethod
    def part() -> type[Codec]:
        from ups.models.codec import Codec

        return Codec

    def loss(self, window: Window) -> Losses:
        """Terms over the last frame of the context; over the solution where the task is steady."""
        codec, task, weights = self.module, window.task, self.config.loss
        frame = window.targets[:, 0] if task.steady else window.state
        scale = codec.statistics_of(task).scale
        state = codec.encode(frame, task, window.grid)
        back, mask = codec.decode(state, task, tuple(frame.shape[1:-1])), window.mask
        terms = {"reconstruction": weights.reconstruction * square((back - frame) / scale, window.weights).mean()}
        if weights.tokens:
            if mask is not None:  # frames hold there what they were filled with, whatever was decoded
                back = torch.where(mask.unsqueeze(-1), back, frame)
            again, tokens = codec.encode(back, task, window.grid).z, state.z.detach()
            terms["tokens"] = weights.tokens * (square(again - tokens) / (square(tokens) + FAINT)).mean()
        return terms

    def reconstructed(self, window: Window) -> Tensor:
        """Every frame of `window.targets` through the codec, `(B, T, *S, C)`."""
        frames = window.targets
        state = self.module.encode(frames.flatten(0, 1), window.task, window.grid)
        back = self.module.decode(state, window.task, tuple(frames.shape[2:-1]))
        return back.reshape(frames.shape)

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the reconstruction of every eighth frame, in physical units, per sample `(B,)`."""
        few = dataclasses.replace(window, targets=window.targets[:, ::8])
        with torch.no_grad():
            usual = self.module.statistics_of(window.task).scale
            errors = validation_nrmse(self.reconstructed(few), few.targets, usual, window.task, few.weights)
            return {f"{window.task.name} reconstruction": errors}

    def score(self, means: Mapping[str, float]) -> float:
        """The worst task's."""
        return max(means.values())
