"""Stage `codec`: frames to tokens and back, so well that the operator's error and not this one is what remains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ups.models import Codec
from ups.tensors import LatentState, Losses, Window


@dataclass(frozen=True)
class CodecLoss:
    """Weights of the codec's losses."""

    # Decoding what was encoded gives the frame back, at every cell (UPT's inverse decoding).
    reconstruction: float = 1.0
    # Encoding what was decoded gives the tokens back (UPT's inverse encoding).
    tokens: float = 0.1


class CodecStage:
    """Trains a codec on single frames. The loss is the mean square error over the mean square of the deviation."""

    name = "codec"

    def __init__(self, codec: Codec, weights: CodecLoss | None = None) -> None:
        self.module, self.weights = codec, weights or CodecLoss()

    def loss(self, window: Window) -> Losses:
        """Terms over the last frame of the context."""
        codec, task, frame = self.module, window.task, window.state
        scale = codec.statistics_of(task).std
        state = codec.encode(frame, task, window.periodic)
        back = codec.decode(state, task, tuple(frame.shape[1:-1]))
        terms = {"reconstruction": self.weights.reconstruction * ((back - frame) / scale).square().mean()}
        if self.weights.tokens:
            again = codec.encode(back, task, window.periodic)
            size = state.z.detach().square().mean() + 1e-6
            terms["tokens"] = self.weights.tokens * (again.z - state.z.detach()).square().mean() / size
        return terms

    def reconstructed(self, window: Window) -> torch.Tensor:
        """Every frame of `window.targets` through the codec, `(B, T, *S, C)`."""
        frames = window.targets
        state = self.module.encode(frames.flatten(0, 1), window.task, window.periodic)
        back = self.module.decode(LatentState(state.z, window.periodic), window.task, tuple(frames.shape[2:-1]))
        return back.reshape(frames.shape)

    def evaluate(self, windows: Iterable[Window]) -> dict[str, float]:
        """nRMSE of the reconstruction per task, in physical units; the score is the worst task's."""
        found: dict[str, list[float]] = {}
        for window in windows:
            few = dataclasses.replace(window, targets=window.targets[:, ::8])
            gap = (self.reconstructed(few) - few.targets).flatten(2, -2).square().mean(2).sqrt()
            size = few.targets.flatten(2, -2).square().mean(2).sqrt().clamp_min(1e-12)
            found.setdefault(window.task.name, []).append(float((gap / size).mean()))
        scores = {f"{name} reconstruction": sum(v) / len(v) for name, v in found.items()}
        return {**scores, "score": max(scores.values())}
