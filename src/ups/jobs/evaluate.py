"""A finished run judged again: on its own parts, or on data, grids and parameters that it has never seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ups.data import Source
from ups.data.duplicates import Ends, ends_of
from ups.data.reduction import Reduction, thinning
from ups.data.splits import PARTS
from ups.data.trajectories import Trajectories, alike
from ups.definition import Definition
from ups.engine.ranks.dist import device_of
from ups.eval.baselines import BASELINES, require
from ups.eval.gates import decide
from ups.eval.report import Report
from ups.eval.results import Cost, DataFact
from ups.jobs.relative_paths import found_config
from ups.models import Simulator, artifact
from ups.progress import Screen
from ups.run.config import RunConfig
from ups.run.data.data_identity import Identity, files_of
from ups.run.data.datasets import DataSet, as_known, fetch_data, open_sets, version_of
from ups.run.data.fitting import definitions_of, each_spaced, fitting, open_for, predicted_in
from ups.run.judging.champion import Champion
from ups.run.judging.eval_sets import EvalSet, Maker, by_length, cells_of, outside_of, strange_of
from ups.run.judging.judge import Judge, cost_of, judged
from ups.run.judging.seen_in_training import WARNING, are_of_training, seen_in, used_by
from ups.run.load import config_of
from ups.run.load import load as load_simulator
from ups.run.training import with_training
from ups.rundir import RunDir
from ups.types import ConfigError, DataError, counted


@dataclass(frozen=True)
class Question:
    """What a run is judged on again; by default its own test part.

    `file` is judged whole (or its first `samples`), with `params` in the place of what it says. Without a file,
    `resolution` and `params` are those of trajectories that are taken from the run's data or made.
    """

    file: Path | None = None
    task: str | None = None
    split: str = "test"
    resolution: tuple[int, ...] = ()
    params: Mapping[str, float | str] = field(default_factory=dict)
    baselines: tuple[str, ...] | None = None
    samples: int | None = None
    out: Path | None = None
    device: str = "auto"


def evaluate_run(run: Path, question: Question, screen: Screen) -> tuple[Path, Report]:
    """Judge the simulator of a run, write results.json and report.html, and return their folder and the report.

    What its config names by a relative path is found as `found_config` says.
    """
    folder = RunDir.at(run)
    folder.require_own_files()
    config = config_of(folder)
    if not config.data:
        raise DataError(f"{folder.config}: names no data, so it is not what the run was trained with; put that back.")
    try:
        config = found_config(config)
    except DataError:
        if question.file is None or question.baselines:  # else nothing but the file is needed
            raise
    simulator = load_simulator(run, question.device)
    _check(config, simulator, question)
    out = question.out or _place(folder, config, question)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: is a file, and the report needs a folder; choose another --out.")
    device = device_of(question.device)
    cost = _cost(folder, simulator, str(device))
    own = out == folder.folder
    champion = Champion.at(config.champion) if own and config.champion else None
    champion = champion if champion is not None and champion.simulator else None  # it may be gone
    judge = Judge(config, simulator, cost, device, screen, _baselines(config, question), champion)
    judge.warnings.extend(artifact.strangers(simulator.origins))
    with ExitStack() as stack:
        session = Session(folder, config, judge, question, stack)
        report = session.on_file(question.file) if question.file else session.on_own_data()
    if not question.file:
        with suppress(OSError):  # the run's folder may be one to read from alone
            session.identity.settle_exams()
    if own:  # its gates stay on its page, and so do the times of its training
        known = champion.gates(report.per_trajectory()) if champion is not None else ()
        report = report.with_gates(decide(config.bounds, report.numbers, known))
        report = with_training(report, folder, config, simulator)
    try:
        report.write(out)
    except OSError as error:
        cause = f"cannot be written ({error.strerror or error})"
        raise DataError(f"{error.filename or out}: {cause}; choose another --out.") from None
    return out, report


@dataclass
class Session:
    """One question to one run; what it opens stays open until `stack` closes."""

    folder: RunDir
    config: RunConfig
    judge: Judge
    question: Question
    stack: ExitStack

    def __post_init__(self) -> None:
        self.identity = Identity(self.folder, self.judge.screen.say, self.config.home)

    def on_own_data(self) -> Report:
        """One part of the run's data, or trajectories on another grid or at other parameters."""
        question = self.question
        self.identity.require_unchanged("exams")
        chosen = self._open(question.task)
        if not (question.resolution or question.params or question.samples):
            return judged(self.judge, chosen, self.folder, question.split)
        if len(chosen) > 1:
            names = ", ".join(d.task.name for d in chosen)
            raise ConfigError(f"the run knows {names}, and this is asked of one task; say which with --task.")
        data = chosen[0]
        place = self.folder.cache("beyond")
        maker = Maker(self.config, data, self.judge.simulator, place, self.judge.screen, self.stack)
        cells = shape_of(question.resolution, data.shape, data.task.name)
        if question.params:
            exam, *beyond = [maker.at_parameters(question.params, cells, question.samples)]
        else:
            groups = maker.by_fineness(cells)
            exam, *beyond = (maker.at_resolution(cells, question.split, group, question.samples) for group in groups)
        parts = (exam.part, *exam.more)
        if are_of_training(parts, data.entries):
            self.judge.warnings.append(WARNING)
        fact = _fact(parts, exam.split)
        return self._report(exam, data, fact, f"on {exam.split}", beyond)

    def on_file(self, path: Path) -> Report:
        """All trajectories of a file that this run may never have seen; where it has, that is said."""
        question, simulator = self.question, self.judge.simulator
        trained = definitions_of(self.folder.folder, simulator)
        read = open_for(simulator, path, question.task, trained, self.judge.warnings.append)
        stored = self.stack.enter_context(read)
        self.judge.warnings += predicted_in(stored)
        source = fitting(simulator, stored, question.params, 1, self.judge.warnings.append)
        spec = simulator.codec.task(source.task)
        data = self._known(spec.name)
        step = simulator.ranges()[spec.name]["dt"][0]
        ids = source.ids[: question.samples]
        main = alike(source, ids, Reduction())[0].grid.shape
        cells = shape_of(question.resolution, main, spec.name)
        thin = thinning(main, cells)
        if thin is None:
            stored_cells, wanted = cells_of(main), cells_of(cells)
            raise ConfigError(f"{path}: has {stored_cells}, of which {wanted} cannot be picked; choose others.")
        parts = [part.sound() for part in each_spaced(source, ids, step, data, thin)]
        split, seen = self._seen(parts, data)
        label = f"{split}, {cells_of(cells)}"
        (exam, *beyond), notes = by_length(parts, label, self.judge.protocol.context)
        outside = (*outside_of(simulator, parts, beside=0.0), *strange_of(simulator, parts))
        exam = replace(exam, outside=(*outside, *seen, *self._box(source, data)))
        self.judge.warnings += notes
        on = f"on {path.name} ({label})"
        return self._report(exam, data, _fact(parts, split), on, beyond)

    def _open(self, task: str | None) -> list[DataSet]:
        """The run's data, of one task or of all; an entry that does not say its task is opened to see.

        DataError where they are not those that it was trained on.
        """
        if task is None:
            self.identity.require_unchanged("files")
        chosen = {k: d for k, d in self.config.data.items() if task is None or Definition.of(d.task).name in ("", task)}
        fetch_data(chosen, self.judge.screen.following)
        place, following = self.folder.cache("data"), self.judge.screen.following
        sets = open_sets(chosen, place, following, self.stack, simulator=self.config.model.simulator)
        with suppress(OSError):
            self.identity.settle(files_of(self.config, sets), whole=chosen == self.config.data)
        sets = as_known(sets, self.judge.simulator.codec.tasks)
        return [data for data in sets if task in (None, data.task.name)]

    def _known(self, name: str) -> DataSet | None:
        """The run's own data of a task, where they are still there or a baseline is to be trained on them."""
        own = [d for d in self.config.data.values() if Definition.of(d.task).name in ("", name)]
        here = self.folder.cache("data").is_dir() or any(d.there for d in own)
        if not here and not self.question.baselines:
            return None
        try:
            return next(iter(self._open(name)), None)
        except DataError:
            if self.question.baselines:
                raise
            return None

    def _seen(self, parts: Sequence[Trajectories], data: DataSet | None) -> tuple[str, tuple[str, ...]]:
        """The name of the split of a file, and what there is to say of trajectories that the run was trained on."""
        if data is None:
            return "file", ("The run's own data are gone, so nobody knows whether it was trained on this file.",)
        theirs = [each for part in parts for each in ends_of(part.source, set(part.ids))]
        seen = seen_in(theirs, used_by(data.entries))

        def count(group: Sequence[Ends]) -> str:
            return ("all" if len(group) == len(theirs) else f"{len(group)} of {len(theirs)}") + " trajectories"

        sentences = []
        if seen.copies:
            words = f"The run was trained or validated on {count(seen.copies)} of this file: it is NOT unseen."
            sentences.append(words)
        if seen.pieces:
            sentences.append(
                f"{count(seen.pieces).capitalize()} begin or end with the first or last frame of one that was trained "
                "or validated on: they are pieces of the same simulations and NOT unseen."
            )
        if seen.onward:
            sentences.append(
                f"{count(seen.onward).capitalize()} begin where one that was trained or validated on ends: they are "
                "the future of what was seen, and no other simulations."
            )
        if seen.same_start:
            sentences.append(
                f"{count(seen.same_start).capitalize()} begin with the first frame of one that was trained or "
                "validated on, and go on otherwise: their parameters or inputs are new, their initial states are NOT "
                "unseen."
            )
        if not sentences:
            return "unseen file", ()
        if len(seen.same_start) == len(theirs):
            return "file from initial states SEEN IN TRAINING", tuple(sentences)
        partly = "" if len(seen.copies) + len(seen.pieces) == len(theirs) else "partly "
        return f"file {partly}SEEN IN TRAINING", tuple(sentences)

    @staticmethod
    def _box(source: Source, data: DataSet | None) -> tuple[str, ...]:
        if data is None:
            return ()
        own = data.first.source.grid
        if all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(source.grid.lengths, own.lengths, strict=True)):
            return ()
        here, there = (_ends(source.task.axes, grid.bounds) for grid in (source.grid, own))
        return (f"The box of this file is {here}; training knew {there}.",)

    def _report(
        self, exam: EvalSet, data: DataSet | None, fact: DataFact, on: str, beyond: Sequence[EvalSet] = ()
    ) -> Report:
        result = self.judge.task(exam, data, beyond)
        return self.judge.report(f"{self.config.name}: {exam.split}", [result], [fact], on=on)


def _ends(axes: Sequence[str], bounds: Sequence[tuple[float, float]]) -> str:
    """A box in words."""
    return ", ".join(f"{axis} from {low:g} to {high:g}" for axis, (low, high) in zip(axes, bounds, strict=False))


def shape_of(resolution: Sequence[int], like: tuple[int, ...], task: str) -> tuple[int, ...]:
    """The grid asked for: `like` by default; one number is for the first axis, and the others follow in proportion."""
    if not resolution:
        return like
    cells = tuple(resolution)
    if len(cells) == 1 and len(like) > 1:
        scaled = [n * cells[0] / like[0] for n in like]
        if any(n != int(n) for n in scaled):
            raise ConfigError(f"{cells[0]} cells along the first axis of {cells_of(like)} fit no grid; name all axes.")
        cells = tuple(int(n) for n in scaled)
    if len(cells) != len(like) or min(cells) < 2:
        raise ConfigError(
            f"{task} has {counted(len(like), 'axis')}, so --resolution is {counted(len(like), 'number')} of at least 2."
        )
    return cells


def _check(config: RunConfig, simulator: Simulator, question: Question) -> None:
    """What is wrong with a question is said before any data are read."""
    if question.split not in PARTS:
        raise ConfigError(f"there is no split '{question.split}'; choose {', '.join(PARTS)}.")
    if question.file is not None and question.split != "test":
        raise ConfigError("a file is judged whole; leave --split out, or leave --file out.")
    if question.samples is not None and question.samples < 2:
        raise ConfigError(f"an error needs at least 2 samples for its interval, not {question.samples}.")
    require(question.baselines or ())
    if question.file is None:
        if question.task is not None and question.task not in simulator.codec.tasks:
            known = ", ".join(simulator.codec.tasks)
            raise ConfigError(f"the run was not trained on '{question.task}'; it knows {known}.")
        for name in (Definition.of(data.task).name for data in config.data.values()):
            if name:
                simulator.codec.task(name)


def _cost(folder: RunDir, simulator: Simulator, device: str) -> Cost:
    """What training took, as the run recorded it; −1 steps where it did not."""
    if not folder.stages.is_file():
        return replace(cost_of(simulator, {}, device), steps=int(simulator.provenance.get("steps", -1)))
    recorded = folder.read(folder.stages)
    try:
        spent = {name: (int(facts["steps"]), float(facts["seconds"])) for name, facts in recorded.items()}
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder.stages}: does not say what training took; resume the run to write it.") from None
    return cost_of(simulator, spent, device)


def _place(folder: RunDir, config: RunConfig, question: Question) -> Path:
    """The run's folder if its own report is made again, with nothing missing; else one of its own within it."""
    special = question.file or question.resolution or question.params or question.samples or question.task
    if not special and question.split == "test" and set(config.evaluation.baselines) <= {*_baselines(config, question)}:
        return folder.folder
    name = question.split
    if question.file:  # another file of the same name elsewhere has another name here
        name = f"{question.file.stem}-{hashlib.sha256(os.fsencode(question.file.resolve())).hexdigest()[:6]}"
    words = [name, Path(question.task or "").stem]
    words += ["x".join(map(str, question.resolution)), *(f"{k}{v}" for k, v in question.params.items())]
    return folder.folder / "evaluations" / "-".join(w for w in words if w)


def _baselines(config: RunConfig, question: Question) -> tuple[str, ...]:
    """The baselines that are asked for; else those of the run that need no training."""
    if question.baselines is not None:
        return question.baselines
    return tuple(name for name in config.evaluation.baselines if BASELINES[name].solved)


def _fact(parts: Sequence[Trajectories], samples: str) -> DataFact:
    first, sources = parts[0], [part.source for part in parts]
    names, versions = (dict.fromkeys(words) for words in ((s.path.name for s in sources), map(version_of, sources)))
    params = ", ".join(f"{k} = {v}" for k, v in first.source.params_of(first.rows[0]).items())
    return DataFact(
        task=first.task.name,
        source=", ".join(names),
        version="; ".join(versions),
        samples=f"{sum(map(len, parts))} ({samples})",
        grid=" × ".join(map(str, first.shape)),
        frames=len(first.times),
        params=params if all(source is sources[0] for source in sources) else "",
    )
