"""Checks, before any work, what a run will be; refuses one that could not come to its end."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from ups.engine.optim import HIDDEN, matrices
from ups.models.config import FORECASTER
from ups.models.inherit import same_networks
from ups.models.simulator import Simulator, assemble
from ups.physics.symmetries import turns_of
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.run.data.outlines import Outline, outlines
from ups.run.judging.gates_check import champion_folder, require_measurable
from ups.run.load import load, part_kinds
from ups.stages import STAGES
from ups.tensors import NOT_TOLD, told_apart
from ups.types import ConfigError, counted


def parts_of(config: RunConfig, parent: Simulator | None) -> list[str]:
    """The parts of a run's simulator, in the order in which they are built: those that its plan makes or needs, and
    those of the simulator that it goes on from."""
    names = {*config.parts, *(parent.parts if parent is not None else ())}
    return [name for name in part_kinds() if name in names]


def new_simulator(
    config: RunConfig,
    sets: Sequence[Outline | DataSet],
    parent: Simulator | None = None,
    empty: Collection[str] = (),
) -> Simulator:
    """A simulator with fresh weights on the current device; the parts named in `empty` have shapes and no memory."""
    kinds, shapes = part_kinds(), {data.task.name: data.resolved for data in sets}
    configs = {name: config.model.part(name) for name in parts_of(config, parent)}
    tasks = [data.task for data in sets]
    simulator = assemble(tasks, configs, config.model.simulator, shapes, config.seed, empty, kinds)
    simulator.learn_corners({data.task.name: data.corner for data in sets})
    return simulator


def check(config: RunConfig, begun: bool = False, asking: bool = True) -> list[Outline]:
    """The data sets of a run as they will be; refused in a sentence where it could not be trained or judged to its end.
    One that was `begun` goes on though a part of its judgement cannot be had, which its report says then. Unless
    `asking`, what the user must say of the data is not asked for.

    Nothing is made: files are opened for their headers, and the networks are built as shapes without memory.
    """
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    if config.cache.use and config.cache.folder:
        _makeable(Path(config.cache.folder))
    sets = outlines(config)
    known = {data.task.name: data.task for data in sets}
    for data in (data for data in sets if data.question and asking and not begun):
        raise ConfigError(f"{data.task.name}: {data.question}.")
    _gates(config, sets)
    _other_parameters(config, sets)
    if not begun:
        _finer_grids(config, sets)
    if config.mix.weights and set(config.mix.weights) != set(known):
        odd = min(set(config.mix.weights) ^ set(known))
        raise ConfigError(f"mix.weights needs a number for each task of the data and no other; look at {odd}.")
    for name, stage in config.stages.items():
        if not any(stage.learns(data.task) for data in sets):
            raise ConfigError(
                f"stage {name} learns none of {', '.join(known)}; leave it out of plan, or add data that it learns "
                "(docs/howto-steady.md)."
            )
        for task in (task for task in config.stage(name).batches if task not in known):
            raise ConfigError(f"{name}.batches names {task}, which no data set holds; they hold {', '.join(known)}.")
    _long_enough(config, sets)
    _images_there(config, sets)
    parent = load(config.start_from) if config.start_from is not None else None
    _inherited(config, parent)
    if parent is not None and FORECASTER not in {stage.makes for stage in config.stages.values()}:
        for name in (data.task.name for data in sets if data.task.name not in parent.codec.tasks):
            raise ConfigError(
                f"{config.start_from} has never seen {name}, and the plan trains no '{FORECASTER}' on it; add its "
                f"stage to the plan, or leave {name} out."
            )
    network = new_simulator(config, sets, parent, part_kinds())
    for name, stage in config.stages.items():
        if config.stage(name).train.optimizer == "muon" and not matrices(network.parts[stage.makes]):
            raise ConfigError(
                f"{name}.train.optimizer is muon, but no weight of the part '{stage.makes}' is a matrix of {HIDDEN} or "
                "more a side; use adamw, or a wider network."
            )
    if parent is not None:
        same_networks(network, parent)
    return sets


def _other_parameters(config: RunConfig, sets: Sequence[Outline]) -> None:
    """An equation makes the data at other parameters that the config asks for."""
    known = {data.task.name: data.task for data in sets}
    for task, wanted in config.evaluation.unseen.items():
        if task not in known:
            raise ConfigError(f"evaluation.unseen names {task}, which no data set holds; they hold {', '.join(known)}.")
        if wanted and not known[task].equation:
            raise ConfigError(
                f"evaluation.unseen names {task}, which obeys no built-in equation, so no such data can be made; hold "
                "values out of its files with split.hold_out."
            )


def _finer_grids(config: RunConfig, sets: Sequence[Outline]) -> None:
    """Data on finer grids are there, or an equation makes them."""
    for factor in config.evaluation.zero_shot:
        if not any(data.task.equation or data.has_finer(factor) for data in sets):
            known = ", ".join(data.task.name for data in sets)
            raise ConfigError(
                f"evaluation.zero_shot asks for {factor} times as many cells along each axis, but no file of {known} "
                f"has so many, and there is no built-in equation to make such data; leave {factor} out, or train on "
                "fewer cells with reduce.space."
            )


def _gates(config: RunConfig, sets: Sequence[Outline]) -> None:
    """Every gate can be decided."""
    require_measurable(config.bounds, [(data.task, data.periodic) for data in sets])
    if config.champion is not None:
        tasks = load(champion_folder(config.champion, Path(config.out) / config.name).folder).codec.tasks
        if not any(data.task.name in tasks for data in sets):
            raise ConfigError(
                f"gates.champion: {config.champion} knows {', '.join(tasks)} and no task of this run; name another, "
                "or leave it out."
            )


def _inherited(config: RunConfig, parent: Simulator | None) -> None:
    """Every part that the plan needs and does not make is one of the simulator to start from."""
    made = {stage.makes for stage in config.stages.values()}
    for name in config.parts:
        if name not in made and (parent is None or name not in parent.parts):
            raise ConfigError(f"the plan makes no part '{name}', and {config.start_from} has none; add its stage.")
    for stage in (kind for kind in STAGES.values() if parent is not None and kind.makes in parent.parts):
        changed = [part for part in (*stage.needs, *stage.also_uses) if part in made]
        if changed and stage.makes not in made:
            raise ConfigError(
                f"the plan trains the part '{changed[-1]}' anew, and '{stage.makes}' of {config.start_from} has learnt "
                f"to work with the old one; add stage {stage.name} to the plan, after it."
            )


def _makeable(folder: Path) -> None:
    """Caches are made when the codec has been trained: too late to learn that there is no place for them."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cache.folder is {folder}, but nothing can be written in {there}; name another folder.")


def _images_there(config: RunConfig, sets: Sequence[Outline]) -> None:
    """Where images are to be trained on, there are some."""
    imaged = [data for data in sets if config.model.simulator.images_in("train", data.task.name)]
    if imaged and not any(data.mirrored or turns_of(data.task, data.grid) for data in imaged):
        names = ", ".join(data.task.name for data in imaged)
        raise ConfigError(
            f"model.simulator.symmetry asks for images to train on, and of {names} there are none: the equation is not "
            "said (`task: {equation: …}`), knows a direction, or lacks a parameter or an input of the data; or files "
            "hold only every n-th cell between walls (store.space); write off or rollout."
        )


def _where_short(config: RunConfig) -> str:
    """What a trajectory without frames enough may be a piece of."""
    return " in a part of its time" if any(entry.split.time for entry in config.data.values()) else ""


def _longer(config: RunConfig, less: bool) -> str:
    """What makes trajectories long enough, in words; `less` context or unroll where more than the least is asked for.
    What no data set of the config leaves out is not spoken of."""
    ways = ["reduce time less"] if any(entry.reduce.time > 1 for entry in config.data.values()) else []
    ways += ["ask for less context or unroll"] if less else []
    cut = any(entry.split.time for entry in config.data.values())
    return ", or ".join([*ways, "give longer trajectories" + (", or several of them" if cut else "")])


def _long_enough(config: RunConfig, sets: Sequence[Outline]) -> None:
    for data in sets:
        if not told_apart(data.task):
            raise ConfigError(f"{data.task.name}: {NOT_TOLD}")
        # Judged are the frames after the context, also of a task that is learnt from fewer.
        needed = {(config.context, 1)}.union((config.looks_back(data.task), config.stage(s).ahead) for s in config.plan)
        for back, ahead in sorted(needed):
            if data.frames < back + ahead and not data.task.steady:
                raise ConfigError(
                    f"{data.task.name}: has {counted(data.frames, 'frame')}{_where_short(config)}, too few for "
                    f"{counted(back, 'frame')} of context and {ahead} after them; "
                    f"{_longer(config, less=back + ahead > 2)}."
                )
        given = config.evaluation.given or 0
        if data.frames <= given and not data.task.steady:
            raise ConfigError(
                f"{data.task.name}: has {counted(data.frames, 'frame')}, all of them among the {given} of "
                "evaluation.given: none is left to be judged; give fewer."
            )
