"""Terms of losses and scores; every function maps a batch to one value per sample, `(B,)`."""

from __future__ import annotations

from ups.later import Tensor, torch
from ups.physics.constraints import NOTHING
from ups.physics.laws import broken, laws_of
from ups.physics.weak import WeakForm
from ups.tensors import Window, numeric_params
from ups.types import Domain, TaskSpec

# A square error, beside that of "no change", so small that none smaller is asked for.
EXACT = 1e-9
# The kinds of laws that a loss may have a term of: those of `Law.kind`, and the equation in weak form.
LAWS = ("conserved", "divergence", "positive", "range", "weak")


def square(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean square of each sample, in float32; of `(B, *S, C)` over the cells of `mask (B, *S)`, where one is given."""
    if mask is None:
        return x.float().square().flatten(1).mean(1)
    count = mask.flatten(1).sum(1).clamp_min(1) * x.shape[-1]
    return without(x.float(), mask).square().flatten(1).sum(1) / count


def without(x: Tensor, mask: Tensor | None) -> Tensor:
    """`(B, *S, C)` with zeros in the cells that do not count."""
    return x if mask is None else torch.where(mask.unsqueeze(-1), x, torch.zeros_like(x))


def share(gap: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
    """Square of `gap` over that of the truth: a faint field counts as much as a strong one, as in nRMSE."""
    return square(gap, mask) / square(truth, mask).clamp_min(NOTHING)


def raised(error: Tensor, power: float) -> Tensor:
    """A square error to a power from 0 to 1, with a slope that stays finite where there is no error."""
    return error if power == 1 else (error + EXACT) ** power


def box_of(window: Window) -> Domain:
    """The box of a window, with the grid of its frames."""
    return Domain.box(tuple((0.0, length) for length in window.box), tuple(window.targets.shape[2:-1]), window.periodic)


def lawless(kind: str, predicted: Tensor, truth: Tensor, window: Window, scale: Tensor) -> Tensor:
    """The sum of the penalties of the laws of one kind that hold for a window; 0 where there is none. Frames are in
    units of `scale (C,)`."""
    task, box = window.task, box_of(window)
    laws = [law for law in laws_of(task, window.periodic) if law.kind == kind]
    if not task.equation:  # what a task declares holds in any units of its fields and of its box; ours are of order one
        fields = torch.split_with_sizes(scale, [len(f.channels) for f in task.fields])
        scale = scale / torch.cat([field.max().expand(len(field)) for field in fields])
        longest = max(box.lengths)
        box = Domain.box(tuple((0.0, length / longest) for length in box.lengths), box.shape, box.periodic)
    return broken((predicted * scale).unsqueeze(1), laws, truth * scale, box, window.mask)


def unbalanced(before: Tensor, predicted: Tensor, truth: tuple[Tensor, Tensor], window: Window, step: int) -> Tensor:
    """Mean square residual `(B,)` of the equation's weak form over a step from `before` to `predicted`, in units of
    what "no change" leaves. That of the two frames of `truth` is taken off. 0 where the task has no weak form."""
    form = WeakForm.of(window.task)
    if form is None:
        return predicted.new_zeros(len(predicted))
    params = dict(zip(numeric_params(window.task), window.params.unbind(-1), strict=True))
    return form.remainder(before, predicted, window.inputs, params, window.step(step), box_of(window), truth)


def has_law(kind: str, task: TaskSpec) -> bool:
    """Whether a task has laws of a kind."""
    if kind == "weak":
        return WeakForm.of(task) is not None
    return any(law.kind == kind for law in laws_of(task, task.periodic))
