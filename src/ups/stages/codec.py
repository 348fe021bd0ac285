"""Stage `codec`: frames to tokens and back, so well that the operator's error and not this one is what remains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.eval.nrmse import nrmse
from ups.models import Codec
from ups.stages.terms import square
from ups.tensors import LatentState, Losses, Window

# Tokens of a normalised field have a mean square near 1; fields much fainter than this count no more than it.
FAINT = 1e-3


@dataclass(frozen=True)
class CodecLoss:
    """Weights of the codec's losses."""

    # Decoding what was encoded gives the frame back, at every cell (UPT's inverse decoding).
    reconstruction: float = 1.0
    # Encoding what was decoded gives the tokens back (UPT's inverse encoding).
    tokens: float = 0.1


class CodecStage:
    """Trains a codec on single frames. The loss is the mean square error over the mean square of the deviation.

    Every term is a mean over samples of a value that depends on that sample alone.
    """

    name = "codec"

    def __init__(self, codec: Codec, weights: CodecLoss | None = None) -> None:
        self.module, self.weights = codec, weights or CodecLoss()

    def fit(self, window: Window) -> None:
        """Nothing is to be measured: frames are counted in the deviations that the codec already knows."""

    def view(self, window: Window, progress: float) -> Window:  # noqa: ARG002  (the same from first to last)
        return window

    def loss(self, window: Window) -> Losses:
        """Terms over the last frame of the context; over the solution where the task is steady."""
        codec, task = self.module, window.task
        frame = window.targets[:, 0] if task.steady else window.state
        scale = codec.statistics_of(task).std
        state = codec.encode(frame, task, window.periodic)
        back = codec.decode(state, task, tuple(frame.shape[1:-1]))
        terms = {"reconstruction": self.weights.reconstruction * square((back - frame) / scale).mean()}
        if self.weights.tokens:
            again, kept = codec.encode(back, task, window.periodic).z, state.z.detach()
            terms["tokens"] = self.weights.tokens * (square(again - kept) / (square(kept) + FAINT)).mean()
        return terms

    def reconstructed(self, window: Window) -> Tensor:
        """Every frame of `window.targets` through the codec, `(B, T, *S, C)`."""
        frames = window.targets
        state = self.module.encode(frames.flatten(0, 1), window.task, window.periodic)
        back = self.module.decode(LatentState(state.z, window.periodic), window.task, tuple(frames.shape[2:-1]))
        return back.reshape(frames.shape)

    @torch.no_grad()
    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the reconstruction of every eighth frame, in physical units, per sample `(B,)`."""
        few = dataclasses.replace(window, targets=window.targets[:, ::8])
        return {f"{window.task.name} reconstruction": nrmse(self.reconstructed(few), few.targets).mean((1, 2))}

    def score(self, means: Mapping[str, float]) -> float:
        """The worst task's."""
        return max(means.values())
