"""Which laws hold for a task: the one answer that generation, validation, training and roll-outs share."""

from __future__ import annotations

from operator import itemgetter

from ups.physics import EQUATIONS
from ups.physics.constraints import Conserved, Law, Positive, Within
from ups.types import Params, TaskSpec


def laws_of(task: TaskSpec, periodic: tuple[bool, ...], params: Params | None = None) -> tuple[Law, ...]:
    """The laws of the equation of that name; for a task without one, those that its facts name by channel.

    `params`: those of the equation, its defaults where none are given. Under another boundary than
    the task's own only the bounds of single channels remain.
    """
    if task.name in EQUATIONS:
        laws = EQUATIONS[task.name](**(params or {})).laws()
    else:
        index = {name: i for i, name in enumerate(task.channels)}
        kept = [(name, index[name]) for name in task.conserved if name in index]
        signs = (Positive(name, index[name]) for name in task.positive if name in index)
        laws = (*(Conserved(name, itemgetter((..., i)), i) for name, i in kept), *signs)
    return tuple(law for law in laws if periodic == task.periodic or isinstance(law, Within))


def repairable_laws(task: TaskSpec, periodic: tuple[bool, ...]) -> tuple[Law, ...]:
    """The laws a frame can be repaired to obey: totals of single channels, and bounds."""
    return tuple(
        law
        for law in laws_of(task, periodic)
        if isinstance(law, Within) or (isinstance(law, Conserved) and law.channel >= 0)
    )
