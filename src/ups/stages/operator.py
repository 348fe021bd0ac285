"""Stage `operator`: tokens advance by one frame, judged on decoded fields, over one step or a few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ups.models import Codec, Condition, LatentOperator, Simulator
from ups.physics import EQUATIONS
from ups.physics.constraints import Conserved
from ups.tensors import LatentState, Losses, Window


@dataclass(frozen=True)
class OperatorLoss:
    """Weights of the operator's losses; 0 leaves a term out."""

    # Mean square error of the decoded frame over that of "no change": 1 is persistence, whatever the task.
    increment: float = 1.0
    # Mean square error of the predicted tokens, over that of "no change"; cheap, for it needs no decoding.
    latent: float = 0.0
    # Error of the real Fourier amplitudes of the decoded frame along its axes, weighted towards high wavenumbers.
    spectral: float = 0.0
    # Drift of what the equation conserves.
    conserved: float = 0.0
    # Mean square error on the outermost cells of bounded axes.
    boundary: float = 0.0
    # Noise added to the tokens of the context, in their own deviations: steadies long rollouts.
    noise: float = 0.0


class OperatorStage:
    """Trains a latent operator behind a frozen codec, over as many steps as the windows have targets."""

    name = "operator"

    def __init__(self, simulator: Simulator, weights: OperatorLoss | None = None) -> None:
        self.simulator, self.weights = simulator, weights or OperatorLoss()
        self.module: nn.Module = self.operator
        self.codec.requires_grad_(False)

    @property
    def codec(self) -> Codec:
        return self.simulator.codec

    @property
    def operator(self) -> LatentOperator:
        return self.simulator.operator

    def loss(self, window: Window) -> Losses:
        """Terms averaged over the steps of the unroll."""
        w, task = self.weights, window.task
        condition = condition_of(window)
        with torch.no_grad():
            z = self.simulator.encode_context(window.context, task, window.periodic)
            wanted = self._encoded(window) if w.latent else window.targets[:, :0]
        if w.noise:
            z = z + w.noise * torch.randn_like(z) * z.detach().std()
        last, totals = z[:, -1], dict.fromkeys(self._terms(), torch.zeros((), device=z.device))
        previous = window.state
        for i in range(window.targets.shape[1]):
            z_next = self.operator(z, condition)
            if w.latent:
                totals["latent"] = totals["latent"] + w.latent * _share(z_next, wanted[:, i], last)
                last = wanted[:, i]
            if self._needs_frames():
                truth = window.targets[:, i]
                found = self.codec.decode(LatentState(z_next, window.periodic), task, tuple(truth.shape[1:-1]))
                for name, value in self._physical(found, truth, previous, window).items():
                    totals[name] = totals[name] + value
                previous = truth
            z = torch.cat((z[:, 1:], z_next.unsqueeze(1)), 1)
        return {name: value / window.targets.shape[1] for name, value in totals.items()}

    def _terms(self) -> list[str]:
        w = self.weights
        return [n for n in ("increment", "latent", "spectral", "conserved", "boundary") if getattr(w, n)]

    def _needs_frames(self) -> bool:
        return any(name != "latent" for name in self._terms())

    def _encoded(self, window: Window) -> Tensor:
        frames = window.targets
        state = self.codec.encode(frames.flatten(0, 1), window.task, window.periodic)
        return torch.unflatten(state.z, 0, frames.shape[:2])

    def _physical(self, found: Tensor, truth: Tensor, previous: Tensor, window: Window) -> dict[str, Tensor]:
        w, scale = self.weights, self.codec.statistics_of(window.task).std
        found, truth, previous = found.float() / scale, truth / scale, previous / scale
        terms: dict[str, Tensor] = {}
        if w.increment:
            terms["increment"] = w.increment * _share(found, truth, previous)
        axes = tuple(range(1, 1 + window.task.ndim))
        if w.spectral:
            gap = torch.fft.rfftn(found - truth, dim=axes, norm="ortho").abs()
            size = torch.fft.rfftn(truth, dim=axes, norm="ortho").abs()
            terms["spectral"] = w.spectral * (gap / (size + size.mean())).square().mean()
        if w.conserved:
            terms["conserved"] = w.conserved * self._drift(found * scale, truth * scale, window)
        if w.boundary:
            terms["boundary"] = w.boundary * _edges(found - truth, window.periodic)
        return terms

    def _drift(self, found: Tensor, truth: Tensor, window: Window) -> Tensor:
        """Mean square gap between the integrals of predicted and true frames, over their size."""
        laws = EQUATIONS[window.task.name]().laws() if window.task.name in EQUATIONS else ()
        total = found.new_zeros(())
        axes = tuple(range(1, 1 + window.task.ndim))
        for law in laws:
            if isinstance(law, Conserved):
                q, p = law.density(found), law.density(truth)
                total = total + ((q - p).mean(axes) / p.abs().mean(axes).clamp_min(1e-6)).square().mean()
        return total

    @torch.no_grad()
    def evaluate(self, windows: Iterable[Window]) -> dict[str, float]:
        """nRMSE of whole rollouts per task, in physical units; the score is the geometric mean over tasks."""
        found: dict[str, list[Tensor]] = {}
        for window in windows:
            steps = window.targets.shape[1]
            rollout = self.simulator.simulate(window.context, steps, condition_of(window))
            gap = (rollout - window.targets).flatten(2, -2).square().mean(2).sqrt()
            size = window.targets.flatten(2, -2).square().mean(2).sqrt().clamp_min(1e-12)
            found.setdefault(window.task.name, []).append((gap / size).mean((1, 2)).nan_to_num(1e6))
        scores = {f"{name} nRMSE": float(torch.cat(v).mean()) for name, v in found.items()}
        logs = torch.tensor(list(scores.values())).clamp_min(1e-12).log()
        return {**scores, "score": float(logs.mean().exp())}


def condition_of(window: Window) -> Condition:
    """What drives the steps of a window."""
    return Condition(window.params, window.dt, window.periodic, window.task.name)


def _share(found: Tensor, truth: Tensor, previous: Tensor) -> Tensor:
    """Square error over square change, each sample weighted by the inverse of its size: 0 is perfect, 1 "no change".

    The weight makes a faint field count as much as a strong one, as nRMSE does.
    """
    axes = tuple(range(1, truth.ndim))
    weight = 1 / truth.square().mean(axes).clamp_min(1e-6)
    error, change = (found.float() - truth).square().mean(axes), (truth - previous).square().mean(axes)
    return (weight * error).mean() / (weight * change).mean().clamp_min(1e-12)


def _edges(gap: Tensor, periodic: tuple[bool, ...]) -> Tensor:
    """Mean square of `(B, *S, C)` on the first and last cells of bounded axes; 0 where all axes wrap."""
    total = gap.new_zeros(())
    for axis, wraps in enumerate(periodic, start=1):
        if not wraps:
            ends = torch.stack([gap.select(axis, 0), gap.select(axis, gap.shape[axis] - 1)])
            total = total + ends.square().mean()
    return total
