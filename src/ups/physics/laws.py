"""Which laws hold for a task: the one answer that generation, validation, training and roll-outs share."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from ups.later import Tensor
from ups.physics import EQUATIONS
from ups.physics.constraints import Conserved, DivergenceFree, Law, Positive, Within
from ups.types import Domain, Params, TaskSpec


def laws_of(task: TaskSpec, periodic: tuple[bool, ...], params: Params | None = None) -> tuple[Law, ...]:
    """The laws of the equation that a task says it obeys; of a task without one, those that it declares by channel.

    `params`: those of the equation, its defaults where none are given. Under another boundary than
    the task's own only the bounds of single channels remain; in a box with a mask or a wall no divergence is measured.
    """
    if task.equation:
        kind = EQUATIONS[task.equation]
        names = {p.name for p in kind.parameters()}
        laws = kind(**{name: value for name, value in (params or {}).items() if name in names}).laws()
    else:
        laws = _declared(task)
    smooth = all(periodic) and not task.mask  # the divergence is measured by Fourier modes
    laws = tuple(law for law in laws if smooth or not isinstance(law, DivergenceFree))
    return tuple(law for law in laws if periodic == task.periodic or isinstance(law, Within))


def _declared(task: TaskSpec) -> tuple[Law, ...]:
    """The laws that a task declares: conserved and positive channels, and vector fields without divergence."""
    index = {name: i for i, name in enumerate(task.channels)}
    kept = [(name, index[name]) for name in task.conserved if name in index]
    laws: list[Law] = [Conserved(name, itemgetter((..., i)), i) for name, i in kept]
    laws += [Positive(name, index[name]) for name in task.positive if name in index]
    vectors = {f.name: tuple(index[c] for c in f.channels) for f in task.fields}
    laws += [DivergenceFree(name, vectors[name]) for name in task.divergence_free]
    return tuple(laws)


def repairable_laws(task: TaskSpec, periodic: tuple[bool, ...]) -> tuple[Law, ...]:
    """The laws a frame can be repaired to obey: totals of single channels, and bounds."""
    return tuple(
        law
        for law in laws_of(task, periodic)
        if isinstance(law, Within) or (isinstance(law, Conserved) and law.channel >= 0)
    )


def repaired(
    frame: Tensor, laws: Iterable[Law], reference: Tensor, domain: Domain, mask: Tensor | None = None
) -> Tensor:
    """A frame `(B, *S, C)`, or values at points `(B, P, C)` where the laws are bounds, as they repair it."""
    frames = frame.unsqueeze(1)
    for law in laws:
        frames = law.project(frames, reference, domain, mask)
    return frames.squeeze(1)
