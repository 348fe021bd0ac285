"""Runs one case: disturbs a run as the case says, resumes it if it was stopped, and checks what was promised."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ups.config import load
from ups.engine.faults import VARIABLE
from ups.lab import disturbances
from ups.lab.case import BATCH, SAVED, STEPS, Case, for_all_stages, key
from ups.lab.rank_hooks import RECORDS, install
from ups.run.config import RunConfig, run_config
from ups.run.supervised import supervise
from ups.rundir import RunDir, StartDir
from ups.supervise.job import NESTED, Start
from ups.supervise.launchers.forked import ForkLauncher, fork
from ups.supervise.launchers.launcher import read_pids
from ups.supervise.proc import alive
from ups.types import UpsError
from ups.verdict import Ending, read_json

CONFIG: dict[str, Any] = {
    "name": "run",
    "device": "cpu",
    "model.codec.dim": 3,
    "model.operator.width": 16,
    "model.operator.depth": 2,
    "model.operator.heads": 2,
    "dist.vote_timeout": 60.0,
    "limits.echo": 1.0,
    "limits.teardown": 5.0,
    **{key(stage, "train.steps"): steps for stage, steps in STEPS.items()},
    **{key(stage, "train.checkpoint_steps"): every for stage, every in SAVED.items()},
    **for_all_stages("batch", BATCH),
    **for_all_stages("train.validate_every", 3),
    **for_all_stages("train.log_every", 1),
    **for_all_stages("train.drift_every", 2),
}


def limits(pace: float) -> dict[str, float]:
    """Time limits for a run that takes `pace` seconds undisturbed: short, and never too short."""
    wait = max(4.0, 2 * pace)
    short = dict.fromkeys(("first", "phase"), wait)
    long = dict.fromkeys(("save", "validation", "judge", "grace"), 2 * wait)
    return {"floor": wait / 2, **short, **long, "start": 10 + 4 * wait, "idle": 10 + 4 * wait}


@dataclass
class CaseResult:
    """How a case went. `broken`: promises that were not kept, in words; `hung`: it did not end in time."""

    case: dict[str, Any]
    endings: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    hung: bool = False
    starved: bool = False
    false_success: bool = False
    starts: int = 0
    lost: int = 0  # steps that had to be made again
    missing: int = 0  # samples that the undisturbed run has trained on and this one has not
    duplicated: int = 0  # and the other way round
    repeated: bool = False  # the machine was too busy at first: ranks that were well stood still over their limits
    equal: bool = False  # the artifact is that of the undisturbed run, to the bit
    detection: float | None = None
    recovery: float | None = None
    seconds: float = 0.0


def run_case(case: Case, folder: Path, data: Path, reference: Path | None, pace: float) -> dict[str, Any]:
    """Run a case in `folder`; `reference` is the folder of the undisturbed run, which took `pace` seconds.

    Where there is none this is the undisturbed run itself.
    """
    began = time.monotonic()
    for name in (*NESTED, "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"):
        os.environ.pop(name, None)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # forked ranks cannot use one
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    run, result = RunDir(folder / "run"), CaseResult(asdict(case))
    config, limit = configured(case, folder, data, case.world, pace), 30 + 20 * pace
    with disturbances.unmounted_after(run):
        first = _command(config, case, folder, limit, resume=False)
        result.endings.append(first)
        verdict = read_json(run.verdict)
        result.starts = len(verdict.get("attempts", ()))
        if first not in ("SUCCESS", "HUNG"):
            if case.setting.startswith("disk"):
                disturbances.mend_disk(run)
            rest = configured(case, folder, data, case.onto or case.world, pace)
            result.endings.append(_command(rest, None, folder, limit, resume=run.config.exists()))
    result.hung = result.endings[-1] == "HUNG"
    _judge(case, result, verdict, run, folder)
    if reference is not None:
        _compare(case, result, run, RunDir(reference / "run"))
    result.seconds = time.monotonic() - began
    result.starved = bool(result.broken) and _starved(case, run)
    if not result.broken and reference is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return asdict(result)


def _starved(case: Case, run: RunDir) -> bool:
    """Whether a rank stood still that nothing had been done to."""
    still = any(path.read_text().strip() for path in run.logs.glob("*/stack-*"))
    return still and not any(fault.kind in ("stop", "hang", "grip") for fault in case.faults)


def configured(case: Case, folder: Path, data: Path, world: int, pace: float) -> RunConfig:
    strategy = {"single": "ddp"}.get(case.strategy, case.strategy)
    changes = {**CONFIG, **{f"limits.{name}": value for name, value in limits(pace).items()}}
    changes |= {"out": str(folder), "dist.ranks": world, "dist.strategy": strategy, **case.changes}
    return load(run_config(), None, {**changes, "data.a.task": "burgers1d", "data.a.file": str(data)})


def _command(config: RunConfig, case: Case | None, folder: Path, limit: float, resume: bool) -> str:
    """`ups run` in a process of its own; how it ended, or KILLED, or HUNG."""
    process = fork(lambda: _be_command(config, case, folder, resume))
    end = time.monotonic() + limit
    while (code := process.poll()) is None and time.monotonic() < end:
        time.sleep(0.01)
    if code is None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return "HUNG"
    if code == -signal.SIGKILL:
        _await_death(process.pid)
    return "KILLED" if code < 0 else Ending(code).name if code in Ending._value2member_map_ else str(code)


def _be_command(config: RunConfig, case: Case | None, folder: Path, resume: bool) -> None:
    output = os.open(folder / "console.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    before: Callable[[Start], None] = lambda start: None  # noqa: ARG005, E731
    if case is not None:
        os.environ[VARIABLE] = json.dumps([asdict(fault) for fault in case.faults])
        before = disturbances.before_start(case, RunDir(folder / "run"))
        disturbances.before_run(case, config, RunDir(folder / "run"))
    try:
        ending = supervise(config, command="ups.cli.worker", resume=resume, launcher=ForkLauncher(install, before))
    except UpsError as error:
        print(f"ups: {error}", file=sys.stderr)
        ending = Ending.USER
    raise SystemExit(int(ending))


def _await_death(supervisor: int) -> None:
    """Ranks must not outlive their supervisor."""
    ranks = [pid for owner, files in StartDir.all() if owner == supervisor for pid in read_pids(files).values()]
    end = time.monotonic() + 3
    while time.monotonic() < end and any(map(alive, ranks)):
        time.sleep(0.02)
    if left := [pid for pid in ranks if alive(pid)]:
        print(f"processes {left} outlived their supervisor {supervisor}.", file=sys.stderr, flush=True)
        raise RuntimeError(f"processes {left} outlived their supervisor")


def _judge(case: Case, result: CaseResult, verdict: Mapping[str, Any], run: RunDir, folder: Path) -> None:
    """Note which promises about the ends of the commands were broken."""
    broken = result.broken
    first, attempts = result.endings[0], verdict.get("attempts", [])
    if result.hung:
        broken.append("it did not end in time")
    if first not in case.endings:
        broken.append(f"it ended with {first}, not {' or '.join(case.endings)}: {verdict.get('cause', '')}")
    if first != "SUCCESS" and result.endings[-1] != "SUCCESS":
        again = read_json(run.verdict)
        broken.append(f"going on ended with {result.endings[-1]}: {again.get('cause', '')}")
    if case.starts is not None and first in case.endings and result.starts != case.starts:
        struck = first == "SUCCESS" and "PREEMPTED" in case.endings
        if not struck:
            broken.append(f"the ranks were started {result.starts} times, not {case.starts}")
    failed = attempts[0] if attempts else {}
    if case.first and failed.get("verdict") not in case.first:
        broken.append(f"the first start ended as {failed.get('verdict')}, not {' or '.join(case.first)}")
    if case.named is not None and failed.get("rank") != case.named:
        broken.append(f"rank {failed.get('rank')} was named, and it was {case.named}: {failed.get('cause')}")
    if case.phase and failed.get("phase") != case.phase:
        broken.append(f"phase {failed.get('phase')} was named, and it was {case.phase}")
    if case.said:
        output = (folder / "console.log").read_text() + "".join(p.read_text() for p in run.logs.glob("*/rank-*.log"))
        if case.said not in output:
            broken.append(f"nobody said '{case.said}'")
    if len(attempts) > 1 or first != "SUCCESS":
        result.detection = failed.get("detection")
    stages = read_json(run.stages)
    if case.skipped is not None and sum(s["skipped"] for s in stages.values()) != case.skipped:
        broken.append(f"{ {n: s['skipped'] for n, s in stages.items()} } steps were skipped, not {case.skipped}")


def _compare(case: Case, result: CaseResult, run: RunDir, reference: RunDir) -> None:
    """Note where the artifact or the samples differ from those of the undisturbed run."""
    ours, theirs = run.artifact("simulator"), reference.artifact("simulator")
    with contextlib.suppress(OSError):
        result.equal = _equal(ours, theirs, whole=not case.told)
    if case.bits and not result.equal:
        result.broken.append("its artifact is not that of the undisturbed run")
        result.false_success = result.endings[-1] == "SUCCESS"
    far = _distance(ours, theirs) if case.close and ours.exists() else 0.0
    if far > 1e-4:
        result.broken.append(f"its weights differ from the undisturbed run's by {far:.1e} of their size")
    samples = trained_on(run)
    for step, ids in trained_on(reference).items():
        mine = samples.get(step, [])
        result.missing += len(set(ids) - set(mine))
        result.duplicated += len(mine) - len(set(mine) & set(ids))
    if result.missing or result.duplicated:
        result.broken.append(f"{result.missing} samples are missing and {result.duplicated} are too many")
    result.lost, result.recovery = _again(run)
    if result.lost > 2 * max(SAVED.values()) and len(case.faults) == 1 and case.family not in ("F11", "F16"):
        result.broken.append(f"{result.lost} steps had to be made again")


def _equal(one: Path, other: Path, whole: bool) -> bool:
    """The same weights to the bit; as a `whole`, every byte of the files, which also say what they were made with."""
    from safetensors.torch import load_file

    if whole:
        return one.read_bytes() == other.read_bytes()
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def _distance(one: Path, other: Path) -> float:
    from safetensors.torch import load_file

    a, b = load_file(one), load_file(other)
    # Adam takes a step of its own where a gradient is only rounding: what is still nearly zero has no size of its own.
    sizes = {name: float(value.double().norm()) + 0.03 for name, value in b.items() if value.is_floating_point()}
    return max(float((a[name] - b[name]).double().norm()) / size for name, size in sizes.items())


def records(run: RunDir) -> list[tuple[int, dict[str, Any]]]:
    """Every line that ranks have written of what they trained on, each with the number of the start."""
    lines = []
    for path in sorted((run.folder / RECORDS).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                lines.append((int(path.stem.partition("-")[0]), json.loads(line)))
    return lines


def trained_on(run: RunDir) -> dict[tuple[str, int], list[int]]:
    """The samples of every step (stage, number), over all ranks, in the last start that made it."""
    steps: dict[tuple[str, int], tuple[int, list[int]]] = {}
    for start, line in records(run):
        step = (line["stage"], line["step"])
        if start > steps.get(step, (0, []))[0]:
            steps[step] = (start, [])
        steps[step][1].extend(line["ids"])
    return {step: ids for step, (_, ids) in steps.items()}


def _again(run: RunDir) -> tuple[int, float | None]:
    """Most steps that a start made again after the one before it, and the longest time from step to step between."""
    offsets, before = {}, 0
    for stage, steps in STEPS.items():
        offsets[stage], before = before, before + steps
    starts: dict[int, list[tuple[int, float]]] = {}
    for start, line in records(run):
        starts.setdefault(start, []).append((offsets[line["stage"]] + line["step"], line["time"]))
    order = [starts[n] for n in sorted(starts)]
    pairs = list(itertools.pairwise(order))
    lost = max((max(s for s, _ in a) - min(s for s, _ in b) for a, b in pairs), default=0)
    gaps = [min(t for _, t in b) - max(t for _, t in a) for a, b in pairs]
    return max(lost, 0), max(gaps, default=None)
