"""Decides which laws hold for a task; generation, validation, training and rollouts all ask here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from ups.lazy_imports import Tensor
from ups.physics import EQUATIONS
from ups.physics.constraints import Conserved, JointRepair, Law, Positive
from ups.physics.divergence import DivergenceFree
from ups.types import ConfigError, Grid, Params, TaskSpec

Guard = bool | tuple[str, ...]


def laws_of(task: TaskSpec, periodic: tuple[bool, ...], params: Params | None = None) -> tuple[Law, ...]:
    """The laws of the equation that a task says it obeys; of a task without one, those that it declares by channel.

    They stand in the order in which a frame is repaired: none breaks what one before it has mended. `params`: those of
    the equation, its defaults where none are given. Under another boundary than the task's own only the fixed bounds
    of single channels remain; in a box with a mask nothing is said of the divergence nor of the range at the start.
    """
    if task.equation and task.domain == "grid":
        kind = EQUATIONS[task.equation]
        names = {p.name for p in kind.parameters()}
        laws = kind(**{name: value for name, value in (params or {}).items() if name in names}).laws()
    else:
        laws = _declared(task)
    if periodic != task.periodic:  # something may flow in or out, so no total is kept
        return tuple(law.at_points() or law for law in laws if law.any_boundary)
    # Around a mask neither divergence nor inflow is known; the one frame of a steady task has none before it to keep.
    return tuple(law for law in laws if (law.around_masks or not task.mask) and not (law.of_change and task.steady))


def _declared(task: TaskSpec) -> tuple[Law, ...]:
    """The laws that a task declares: vector fields without divergence, conserved and positive channels. No two have one
    name: the total of a channel that is positive too is called so."""
    index = {name: i for i, name in enumerate(task.channels)}
    vectors = {f.name: tuple(index[c] for c in f.channels) for f in task.fields}
    laws: list[Law] = [DivergenceFree(name, vectors[name]) for name in task.divergence_free]
    totals = [name for name in task.conserved if name in index]
    called = {name: f"{name} total" if name in task.positive else name for name in totals}
    laws += [Conserved(called[name], itemgetter((..., index[name])), index[name]) for name in totals]
    laws += [Positive(n, index[n], keeps_total=n in totals) for n in task.positive if n in index]
    return tuple(laws)


def names_of(law: Law) -> tuple[str, ...]:
    """What a law may be called: its name, the first word of that (momentum, of every axis), or its kind."""
    return (law.name, law.name.split()[0], law.kind)


def guarding(task: TaskSpec, periodic: tuple[bool, ...], guard: Guard = True) -> tuple[Law, ...]:
    """The laws that frames of a task are repaired by: all, none, or those that `guard` names."""
    laws = laws_of(task, periodic) if guard is not False else ()
    return laws if guard is True else tuple(law for law in laws if set(guard or ()) & set(names_of(law)))


def check_guard(tasks: Sequence[TaskSpec], guard: Guard) -> None:
    """A ConfigError for a name that no law of any task has."""
    if isinstance(guard, bool):
        return
    known = dict.fromkeys(n for t in tasks for law in laws_of(t, t.periodic) for n in names_of(law))
    for name in guard:
        if name not in known:
            has = f"their laws are {', '.join(known)}" if known else "they have no laws"
            who = ", ".join(t.name for t in tasks)
            raise ConfigError(f"model.simulator.guard names '{name}', which no task here ({who}) has; {has}.")


def repaired(
    frame: Tensor,
    laws: Sequence[Law],
    reference: Tensor,
    grid: Grid,
    mask: Tensor | None = None,
    aims: Sequence[Tensor] | None = None,
) -> Tensor:
    """A frame `(B, *S, C)`, or values at points `(B, P, C)` where the laws are bounds, as they repair it, with float64
    between one law and the next. `aims` are those of their repairs (`aims_of`), where they are known."""
    if not laws:
        return frame
    repairs, frames = repairs_of(laws), frame.unsqueeze(1)
    if isinstance(repairs[0], Law):  # one repair of all has none after it, and computes in float64 by itself
        frames = frames.double()
    for repair, aim in zip(repairs, aims or aims_of(laws, reference, grid, mask), strict=True):
        frames = repair.restore(frames, aim, grid, mask)
    return frames.squeeze(1).to(frame.dtype)


def repairs_of(laws: Sequence[Law]) -> Sequence[Law | JointRepair]:
    """What repairs a frame, in this order: the laws, or what repairs them all together, where none is left out."""
    joint = laws[0].together if laws else None
    whole = joint is not None and joint.laws == len(laws) and all(law.together == joint for law in laws)
    return (joint,) if joint is not None and whole else laws


def aims_of(laws: Sequence[Law], reference: Tensor, grid: Grid, mask: Tensor | None = None) -> list[Tensor]:
    """What each of the repairs of laws aims at, given a reference."""
    return [repair.aim(reference, grid, mask) for repair in repairs_of(laws)]


def broken(frames: Tensor, laws: Iterable[Law], reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
    """How much frames `(B, T, *S, C)` break laws, `(B,)`: the sum of their penalties; 0 where there is none."""
    total = frames.new_zeros(len(frames))
    for law in laws:
        total = total + law.penalty(frames, reference, grid, mask).to(total.dtype)
    return total
