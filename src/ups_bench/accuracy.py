"""`ups bench accuracy`: rows of the table, carried out as `ups run` does it and entered into the ledger."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ups.config import Config, fingerprint
from ups.eval.baselines import require as require_baselines
from ups.eval.results import ResultRecord, read_results
from ups.files import no_room
from ups.lazy_imports import torch
from ups.physics import EQUATIONS
from ups.provenance import code
from ups.run.check import check
from ups.run.config import RunConfig
from ups.run.data.datasets import open_sets
from ups.run.data.generate import name_of
from ups.run.data.outlines import outlines
from ups.run.data.params import files_of
from ups.run.load import config_of
from ups.run.start import Start
from ups.rundir import RunDir
from ups.types import OURS, ConfigError, DataError, UpsError, counted
from ups.verdict import FINISHED, Ending, classify
from ups_bench import ledger
from ups_bench.beyond import OVER_GRID, OVER_NEIGHBOURS, scores_beyond
from ups_bench.rows import BenchRow, RowBudget, check_budget
from ups_fleet.running.supervised import supervise

Say = Callable[[str], None]
Way = Literal["begin", "resume", "overwrite"]
# Carries out the run of a config, in a folder that is new or holds it; how it ended.
Carry = Callable[[RunConfig, Way], Ending]
STOPPED = (Ending.PREEMPTED, Ending.INTERRUPTED)  # by somebody who wants no further run
SAMPLED = "sampled:"
SPARE = 2**30  # bytes of the disk for checkpoints, logs and reports


def carry_out(config: RunConfig, way: Way) -> Ending:
    """As `ups run` does it: in processes that are watched and started again."""
    began = time.time()  # what came before is not the run's
    start = Start(resume=way == "resume", overwrite=way == "overwrite", began=began)
    return supervise(config, start, command="ups_fleet.cli.worker", last=True)


@dataclass(frozen=True)
class AccuracyRequest:
    """What is asked of `ups bench accuracy`: which rows, how, and where runs and entries go. `commit` is that of the
    program where no repository says it; `keep_data`: not deleted once a row is measured; `note`: of every entry."""

    rows: Sequence[BenchRow]
    budget: RowBudget
    seeds: int = 1
    ledger: Path = ledger.LEDGER
    out: Path = Path("runs/bench")
    overwrite: bool = False
    keep_data: bool = False
    commit: str | None = None
    note: str = ""


def bench_accuracy(request: AccuracyRequest, say: Say, carry: Carry = carry_out) -> Ending:
    """Measure the rows one after the other, each with its seeds; an entry is written as soon as its run is judged. A
    row that fails does not keep the others from being measured; how the first of them failed."""
    check_budget(request.budget, request.seeds)
    require_baselines(request.budget.baselines)
    ledger.read(request.ledger)  # a damaged one is known before hours are spent
    for row in request.rows:
        row.steps_of(request.budget)  # a row that cannot be trained so is known before hours are spent
        require_gpu(row, request.budget, say)
    endings: dict[str, Ending] = {}
    for row in request.rows:
        name, ending = _measured(row, request, say, carry)
        if ending not in FINISHED:
            endings[name] = ending
        if ending in STOPPED:
            break
    if endings:
        say(f"not measured: {'; '.join(f'{name} ({ending.name})' for name, ending in endings.items())}.")
    return next(iter(endings.values()), Ending.SUCCESS)


def _measured(row: BenchRow, request: AccuracyRequest, say: Say, carry: Carry) -> tuple[str, Ending]:
    """All seeds of a row, up to the first that fails: the run that was the last, and how it ended."""
    places: list[RunDir] = []
    ending, name = Ending.SUCCESS, row.name
    for seed in range(request.budget.seed, request.budget.seed + request.seeds):
        name = f"{row.name}, seed {seed}"
        try:
            run = Measurement(row, replace(request.budget, seed=seed), request, say, carry)
            place, ending = run.carried_out(places)
        except UpsError as error:
            say(str(error))
            ending = classify(error).ending
        if ending not in FINISHED:
            break
        places.append(place)
    if not request.keep_data:
        for place in places:
            shutil.rmtree(place.cache("data"), ignore_errors=True)
    return name, ending


@dataclass
class Measurement:
    """One run of a row, carried out and entered."""

    row: BenchRow
    budget: RowBudget
    request: AccuracyRequest
    say: Say
    carry: Carry
    config: RunConfig = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.row.run(self.budget, self.request.out)

    def carried_out(self, before: Sequence[RunDir]) -> tuple[RunDir, Ending]:
        """The folder of the run, and how it ended; `before` are those of the same data that have been made."""
        if before:
            self.config = self.config.model_copy(update={"data_from": str(before[0].folder)})
        place = RunDir(Path(self.config.out) / self.config.name)
        way: Way = "begin" if place.known() is None else "overwrite" if self.request.overwrite else "resume"
        if way == "resume" and place.is_of(self.config) and place.ended() in FINISHED:
            self.say(f"{place.folder}: is measured already, and taken as it is (--overwrite measures it again).")
            self._enter(place, source="")
            return place, Ending.SUCCESS
        if way != "resume":
            require_room(self.config)
        ending = self.carry(self.config, way)
        if ending in FINISHED:
            self._enter(place, code()["source of ups"])
        return place, ending

    def _enter(self, place: RunDir, source: str) -> None:
        commit = {"commit": self.request.commit} if self.request.commit else {}
        entry = entry_of(place, self.row, self.budget, {"source": source, "note": self.request.note, **commit})
        new = ledger.append(self.request.ledger, [entry])
        self.say(f"{sentence(entry)} {self.request.ledger}{'' if new else ' has it already'}.")


def entry_of(place: RunDir, row: BenchRow, budget: RowBudget, facts: Mapping[str, Any]) -> ledger.LedgerEntry:
    """What the folder of a finished run says of a row, as an entry."""
    records, environment = read_results(place.results), place.read(place.environment)
    config = config_of(place)
    test = [r for r in records if (r.split, r.mode, r.axis) == ("test", "strict", "")]
    ours = [r for r in test if r.predictor == OURS and r.metric == "nrmse"]
    if not ours:
        raise DataError(f"{place.results}: holds no error of the simulator on its test part; --overwrite the run.")
    git = environment.get("git") or {}
    stages = place.read(place.stages)
    further = scores_beyond(place, config, records) if row.beyond else []
    return ledger.sealed(
        {
            "row": row.name,
            "kind": row.kind(budget),
            "run": environment["run"],
            "seed": config.seed,
            "minutes": row.minutes_of(budget),
            "protocol": ours[0].protocol,
            "recipe": row.recipe,
            "config": fingerprint(config),
            "commit": git.get("commit"),
            "changed": git.get("changed"),
            "started": environment["started"],
            "command": environment["command"],
            "hardware": hardware_of(environment["device"], ours[0].device),
            "device": ours[0].device,
            "cores": environment["cores"],
            "versions": environment["versions"],
            "data": data_of(config, place),
            "stages": {name: stage_of(s) for name, s in stages.items()},
            "predictors": {r.predictor: _picked(r, ledger.LedgerTraining) for r in test},
            "numbers": [*(_picked(r, ledger.Score) for r in test), *further],
            "phases": place.read(place.phases),
            "published": row.published.model_dump(),
            **budget.variant.facts,
            "by_steps": isinstance(budget.steps, int),
            "start_from": None if config.start_from is None else Path(config.start_from).name,
            **facts,
        }
    )


def data_of(config: RunConfig, place: RunDir) -> list[dict[str, Any]]:
    """The data sets of a run: what they are, and the digests that it recorded of their files; those of large files,
    of which only samples are hashed, begin with `SAMPLED`."""
    files = place.read(place.data).get("files", {})
    digests = {Path(name).name: str(row.get("sha256") or SAMPLED + row["sampled"]) for name, row in files.items()}
    sets = outlines(config)
    names = names_by_task(config) if len(sets) > 1 else {}

    def own(task: str) -> dict[str, str]:
        """All but the files of other tasks: also splits, and the simulator that the run started from."""
        others = {name for other, of_it in names.items() for name in of_it if other != task}
        return {name: digest for name, digest in digests.items() if name not in others - names.get(task, set())}

    return [
        {"task": o.task.name, **o.counts, "grid": o.shape, "frames": o.frames, "sha256": own(o.task.name)} for o in sets
    ]


def names_by_task(config: RunConfig) -> dict[str, set[str]]:
    """The names of the data files of each task: of those that are there, and of those that the run makes, or made."""
    names: dict[str, set[str]] = {}
    with ExitStack() as stack:
        there = {name: data for name, data in config.data.items() if data.there}
        for data in open_sets(there, Path(), lambda progress: None, stack):  # noqa: ARG005  (nothing is made)
            paths = [path for entry in data.entries for path in entry.source.files()]
            names[data.task.name] = {path.name for path in paths}
    for made in (data for data in config.data.values() if not data.there):
        generation = made.generation()
        for params in files_of(generation.params):
            equation = params.equation(EQUATIONS[generation.task])
            grid = generation.store.grid(equation.grid(generation.resolution or equation.task.resolution))
            names.setdefault(made.definition.name, set()).add(name_of(generation, params, equation, grid))
    return names


def stage_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What stages.json says of a stage that an entry keeps."""
    drawn = {row["task"]: row["steps"] / row["of"] for row in outcome.get("drawn", ()) if row["of"]}
    facts = {"steps": outcome["steps"], "seconds": outcome["seconds"], "validation": outcome["score"]}
    return {**facts, "drawn": drawn if len(drawn) > 1 else {}}


def _picked(record: ResultRecord, kind: type[Config]) -> dict[str, Any]:
    """What a record says of the keys of a part of an entry."""
    return {name: getattr(record, name) for name in kind.model_fields}


def sentence(entry: ledger.LedgerEntry) -> str:
    """What an entry says, in a line."""
    ours, fno, best = entry.score(), entry.score("fno"), entry.published.retuned
    assert ours is not None
    tasks = len(entry.scores())
    span = f"{ours.low:.3g} – {ours.high:.3g}" if tasks == 1 else f"mean of {tasks} tasks"
    words = f"{entry.row}, seed {entry.seed}: nRMSE {ours.value:.3g} ({span})"
    if entry.trajectories is not None:
        words += f" from {counted(entry.trajectories, 'trajectory')}"
        words += f" and the simulator of {entry.start_from}" if entry.start_from is not None else ""
    words += f" in {entry.precision}" if entry.precision is not None else ""
    cost = entry.predictors[OURS]
    words += f" after {cost.seconds:.0f} s, {counted(cost.steps, 'step')}"
    if fno is not None:
        theirs = entry.predictors["fno"]
        words += f"; FNO {fno.value:.3g} after {theirs.seconds:.0f} s, {counted(theirs.steps, 'step')}"
        words += f" ({theirs.params} parameters beside our {cost.params})"
    for s in entry.numbers:
        if s.predictor == OURS and s.metric in (OVER_GRID, OVER_NEIGHBOURS):
            words += f"; {s.task}, {s.split}: {s.value:.2f} times {s.metric.removeprefix('nrmse over ')}"
        elif s.predictor == OURS and s.metric.endswith("x bounded"):
            words += f"; {s.task}, {s.metric.partition('x')[0]} times as long: {100 * s.value:.3g} % stay bounded"
    return words + (f"; re-tuned FNO {best:.3g}." if best is not None else ".")


def require_gpu(row: BenchRow, budget: RowBudget, say: Say) -> None:
    """ConfigError where a row is for a GPU and there is none; only a remark where another device was asked for."""
    if not row.config.device.startswith("cuda") or has_gpu():
        return
    if budget.device is None:
        raise ConfigError(
            f"{row.name}: is measured on a GPU, and there is none here; on a processor its data alone may take hours "
            "(--device cpu does it all the same, --device cpu --short with a tenth of them)."
        )
    if budget.device.startswith("cuda"):
        raise ConfigError(f"--device is {budget.device}, and there is no GPU here; use cpu.")
    say(f"{row.name}: is for a GPU; on {budget.device} its data may take hours, and minutes teach it less.")


def has_gpu() -> bool:
    """Whether there is a GPU. This process may still fork afterwards."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or torch.cuda.device_count() > 0


def hardware_of(known: str, device: str) -> str:
    """The name of what a run was carried out on; of a GPU that the run's environment does not name, its driver's."""
    if not device.startswith("cuda") or "NVIDIA" in known.upper() or not (tool := shutil.which("nvidia-smi")):
        return known
    words = [tool, "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout.splitlines()
    return answer[0].strip() if answer else known


def require_room(config: RunConfig) -> None:
    """DataError where the disk cannot hold the data of a run."""
    needed = sum(data.disk for data in check(config) if data.made) + SPARE
    folder = next(path for path in (Path(config.out), *Path(config.out).absolute().parents) if path.exists())
    if needed > (free := shutil.disk_usage(folder).free):
        raise DataError(
            f"{config.out}: {config.name} needs {needed / 1e9:.1f} GB of the disk for its data, and only "
            f"{free / 1e9:.1f} GB are free; free some space, or name another --out."
        ) from no_room()
