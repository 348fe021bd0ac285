"""LinearModes: a linear rule for a few modes of the whole field (dynamic mode decomposition), for few trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ups.tensors import Window

RANKS = (4, 16, 64)  # numbers of modes that are tried
SNAPSHOTS = 256  # frames, drawn evenly, that the modes are taken from
BACK = 2  # given frames that are looked at, at most
RIDGE = 1e-8  # of the mean square of the largest mode
SAME = 1e-3  # of a time step, by which it may differ from the trained one
FAINT = 1e-10  # of the largest power of a mode, below which one is round-off


@dataclass(frozen=True)
class LinearModes:
    """The change of the amplitudes of a few modes as a linear function of those in the last frames. What a given frame
    holds besides these modes stays as it is.

    Args:
        mean: The mean frame `(N,)`, all cells and channels in a row.
        size: The standard deviation of each of its channels `(C,)`.
        basis: The modes `(N, r)`.
        rule: What gives the change of the amplitudes `(r, back · r + 1)`.
        dt: The time of the step that it makes.
        shape: Cells along each axis.
    """

    mean: Tensor
    size: Tensor
    basis: Tensor
    rule: Tensor
    dt: float
    shape: tuple[int, ...]

    @property
    def back(self) -> int:
        """Frames that are looked at."""
        return (self.rule.shape[1] - 1) // self.rule.shape[0]

    def knows(self, window: Window) -> bool:
        """Whether a window lies on the grid of training and has its time step."""
        near = bool(((window.dt - self.dt).abs() <= SAME * self.dt).all())
        return near and tuple(window.context.shape[2:-1]) == self.shape

    def predict(self, window: Window, steps: int) -> Tensor:
        """Frames after those of a window, `(B, steps, *S, C)`."""
        here = self.to(window.context.device)
        scaled = here.scaled(window.context[:, -here.back :])
        amplitudes = [*(scaled @ here.basis).unbind(1)]
        amplitudes = [amplitudes[0]] * (here.back - len(amplitudes)) + amplitudes
        rest = scaled[:, -1] - amplitudes[-1] @ here.basis.T
        frames = []
        for _ in range(steps):
            one = torch.ones_like(amplitudes[-1][:, :1])
            change = torch.cat([*amplitudes[-here.back :], one], 1) @ here.rule.T
            amplitudes.append(amplitudes[-1] + change)
            frame = (amplitudes[-1] @ here.basis.T + rest).reshape(len(rest), -1, len(here.size)) * here.size
            frames.append((frame.flatten(1) + here.mean).float().reshape(window.state.shape))
        return torch.stack(frames, 1)

    def to(self, device: torch.device) -> LinearModes:
        """The same on a device."""
        held = {name: getattr(self, name).to(device) for name in ("mean", "size", "basis", "rule")}
        return replace(self, **held)

    def scaled(self, frames: Tensor) -> Tensor:
        """Frames `(…, *S, C)` as rows `(…, N)` less the mean, each channel in its standard deviations."""
        rows = frames.double().flatten(-1 - len(self.shape)) - self.mean
        return (rows.reshape(*rows.shape[:-1], -1, len(self.size)) / self.size).flatten(-2)


def modes_of(windows: Sequence[Window], sizes: Tensor) -> Iterator[LinearModes]:
    """One for each number of modes that the frames of training windows hold; none where they lie on several grids or
    differ in their time steps. `sizes (C,)` are the usual sizes of the channels."""
    first = windows[0]
    shape, dt = tuple(first.context.shape[2:-1]), float(first.dt.flatten()[0])
    blank = torch.zeros(first.state[0].numel(), dtype=torch.float64)
    whole = LinearModes(blank, sizes.double().cpu(), blank[:, None], torch.zeros(1, 2), dt, shape)
    if not all(whole.knows(window) for window in windows):
        return
    rollouts = [torch.cat([w.context, w.targets], 1)[i].cpu() for w in windows for i in range(len(w))]
    frames = torch.cat(rollouts)
    picked = frames[torch.linspace(0, len(frames) - 1, min(SNAPSHOTS, len(frames))).round().long()]
    whole = replace(whole, mean=picked.double().flatten(1).mean(0))
    rows = whole.scaled(picked)
    power, turns = torch.linalg.eigh(rows @ rows.T)
    there = int((power > FAINT * power[-1]).sum())
    basis = (rows.T @ turns[:, -there:] / power[-there:].sqrt()).flip(1)[:, : max(RANKS)] if there else rows.T[:, :0]
    paths = [whole.scaled(rollout) @ basis for rollout in rollouts]
    back = min(BACK, *(window.context.shape[1] for window in windows))
    for rank in dict.fromkeys(min(rank, basis.shape[1]) for rank in RANKS):
        known = [torch.cat([p[k : len(p) - back + k, :rank] for k in range(back)], 1) for p in paths]
        seen = torch.cat([torch.nn.functional.pad(x, (0, 1), value=1.0) for x in known])
        change = torch.cat([p[back:, :rank] - p[back - 1 : -1, :rank] for p in paths])
        if not rank or len(seen) < seen.shape[1]:
            return
        squares = seen.T @ seen
        ridge = RIDGE * squares.diagonal().max() * torch.eye(len(squares), dtype=squares.dtype)
        rule = torch.linalg.solve(squares + ridge, seen.T @ change).T
        yield replace(whole, basis=basis[:, :rank].contiguous(), rule=rule)
