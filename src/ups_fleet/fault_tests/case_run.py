"""Runs one case: disturbs a run as the case says, resumes it if it was stopped, and checks what was promised."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ups.lazy_imports import torch
from ups.parsing import read_json
from ups.run.config import RunConfig
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.rundir import RunDir
from ups.types import counted
from ups_fleet.fault_tests.case import DATA, SAVED, STEPS, CaseDir, CaseResult, FaultCase
from ups_fleet.fault_tests.command import LEFT, configured, left_over, printed, run_command
from ups_fleet.fault_tests.losses import NEAR, largest_gap, losses
from ups_fleet.fault_tests.rank_hooks import RECORDS
from ups_fleet.supervise.job import NESTED
from ups_fleet.supervise.rank_parent import adopt_orphans

TRACEBACK = b"Traceback (most recent call last)"


def made_data(folder: Path) -> Path:
    """The file of a few small trajectories; made where it is not there yet."""
    [path] = generate(GenerateConfig(**DATA), folder, lambda progress: None)  # noqa: ARG005
    return path.resolve()


def run_case(case: FaultCase, folder: Path, data: Path, reference: Path | None, pace: float) -> dict[str, Any]:
    """Run a case in `folder`; `reference` is the folder of the undisturbed run, which took `pace` seconds.

    Where there is none this is the undisturbed run itself.
    """
    began = time.monotonic()
    with contextlib.suppress(PermissionError):  # a Ctrl-C at the lab's terminal is not one at this run's
        os.setsid()
    adopt_orphans()
    torch.set_num_threads(1)  # commands are copies of this process, and would lack its other threads
    for name in (*NESTED, "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    if not str(case.changes.get("device", "cpu")).startswith("cuda"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    place, result = CaseDir(folder, data), CaseResult(case.facts())
    case.around.prepare(place)
    verdict = _commands(case, place, result, pace)
    result.hung = "HUNG" in result.endings
    judge(case, result, verdict, place)
    result.broken += case.around.problems(place)
    if place.beside.exists() and TRACEBACK in place.beside.read_bytes():
        result.broken.append(f"a process of the lab itself has failed: {place.beside}")
    if reference is not None:
        compare(case, result, place, RunDir(reference / "run"))
    result.seconds = time.monotonic() - began
    result.starved = bool(result.broken) and _starved(case, place.run)
    if result.broken and os.path.ismount(place.run.folder):  # what is on it vanishes with this process
        shutil.copytree(place.run.folder, folder / "evidence", symlinks=True, dirs_exist_ok=True)
    return asdict(result)


def _commands(case: FaultCase, place: CaseDir, result: CaseResult, pace: float) -> dict[str, Any]:
    """Run all commands of a case and note how each ended; the verdict of the first."""
    limit = 30 + 20 * pace
    config = configured(case, place, case.world, pace)
    first = _command(config, place, result, limit, resume=False, case=case)
    verdict = read_json(place.run.verdict)
    result.starts = len(verdict.get("attempts", ()))
    if first in ("SUCCESS", "HUNG"):
        return verdict
    case.around.meddle(place)
    rest = configured(case, place, case.onto or case.world, pace)
    if case.refused:
        ending = _command(rest, place, result, limit, resume=True)
        if ending not in case.refused:
            cause = read_json(place.run.verdict).get("cause", "")
            result.broken.append(f"the next command ended with {ending}, not {' or '.join(case.refused)}: {cause}")
        if ending in ("SUCCESS", "HUNG"):
            return verdict
    case.around.mend(place)
    _command(rest, place, result, limit, resume=place.run.config.exists())
    return verdict


def _command(
    config: RunConfig, place: CaseDir, result: CaseResult, limit: float, resume: bool, case: FaultCase | None = None
) -> str:
    """Run one command, note how it ended, and what it did that no command may do."""
    before = place.console.stat().st_size if place.console.exists() else 0
    ending = run_command(config, place, limit, resume, case)
    result.endings.append(ending)
    if left := left_over():
        result.broken.append(f"processes {left} were left {LEFT:.0f} s after a command that ended with {ending}")
    verdict = read_json(place.run.verdict).get("verdict")
    # What is refused before anything is touched leaves the verdict of an earlier command.
    if ending not in ("KILLED", "HUNG", "USER") and verdict is not None and verdict != ending:
        result.broken.append(f"the exit code was that of {ending}, and the verdict is {verdict}")
    output = place.console.read_bytes()[before:] if place.console.exists() else b""
    raised = case is not None and any(fault.kind in ("error", "oom", "full") for fault in case.faults)
    if ending != "CRASH" and not raised and TRACEBACK in output:
        result.broken.append(f"a command that ended with {ending} printed a traceback")
    return ending


def _starved(case: FaultCase, run: RunDir) -> bool:
    """Whether a rank stood still that nothing had been done to."""
    still = any(path.read_text().strip() for path in run.logs.glob("*/stack-*"))
    return still and not any(fault.kind in ("stop", "hang", "grip") for fault in case.faults)


def judge(case: FaultCase, result: CaseResult, verdict: Mapping[str, Any], place: CaseDir) -> None:
    """Note which promises about the ends of the commands were broken."""
    broken, run = result.broken, place.run
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
            broken.append(f"the ranks were started {counted(result.starts, 'time')}, not {case.starts}")
    failed = attempts[0] if attempts else {}
    if case.first and failed.get("verdict") not in case.first:
        broken.append(f"the first start ended as {failed.get('verdict')}, not {' or '.join(case.first)}")
    if case.named is not None and failed.get("rank") != case.named:
        broken.append(f"rank {failed.get('rank')} was named, and it was {case.named}: {failed.get('cause')}")
    if case.phase and failed.get("phase") != case.phase:
        broken.append(f"phase {failed.get('phase')} was named, and it was {case.phase}")
    if case.output and case.output not in printed(place):
        broken.append(f"nobody said '{case.output}'")
    if len(attempts) > 1 or first != "SUCCESS":
        result.detection = failed.get("detection")
    stages = read_json(run.stages)
    if case.skipped is not None and sum(s["skipped"] for s in stages.values()) != case.skipped:
        broken.append(f"{ {n: s['skipped'] for n, s in stages.items()} } steps were skipped, not {case.skipped}")


def compare(case: FaultCase, result: CaseResult, place: CaseDir, reference: RunDir) -> None:
    """Note where the artifact or the samples differ from those of the undisturbed run."""
    run = place.run
    ours, theirs = run.artifact("simulator"), reference.artifact("simulator")
    with contextlib.suppress(OSError):
        # As a whole only where they were made with the same settings, and of the same file.
        alike = not case.reference_settings and case.around.data(place) == place.data
        result.equal = _equal(ours, theirs, whole=alike)
    if case.bits and not result.equal:
        result.broken.append("its artifact is not that of the undisturbed run")
        result.false_success = result.endings[-1] == "SUCCESS"
    if case.close and ours.exists():
        if (far := _distance(ours, theirs)) > 1e-4:
            result.broken.append(f"its weights differ from the undisturbed run's by {far:.1e} of their size")
        near = NEAR[str(case.changes.get("device", "cpu")).partition(":")[0]]
        if (gap := largest_gap(losses(run), losses(reference))) > near:
            result.broken.append(f"its losses or gradients are off the undisturbed run's by {gap:.1e}")
    samples = trained_on(run)
    for step, ids in trained_on(reference).items():
        mine, wanted = Counter(samples.get(step, [])), Counter(ids)  # where an epoch ends, one may come twice
        result.missing += (wanted - mine).total()
        result.duplicated += (mine - wanted).total()
    if result.missing or result.duplicated:
        result.broken.append(f"samples are missing ({result.missing}) or too many ({result.duplicated})")
    result.lost, result.recovery = _again(run)
    if result.lost > 2 * max(SAVED.values()) and len(case.faults) == 1 and case.family not in ("F11", "F16"):
        result.broken.append(f"{counted(result.lost, 'step')} had to be made again")


def _equal(one: Path, other: Path, whole: bool) -> bool:
    """Whether two files hold the same weights to the bit; with `whole`, whether every byte of them is the same."""
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
