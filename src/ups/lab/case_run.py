"""One case: the run is disturbed as it says, goes on if it was stopped, and what is left is compared with the truth."""

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
from ups.jobs.settings import RunConfig
from ups.jobs.supervise import supervise
from ups.lab import disturbances, small_disks
from ups.lab.case import BATCH, SAVED, STEPS, Case
from ups.lab.fork_launcher import Forked
from ups.lab.rank_hooks import RECORDS, install
from ups.supervise.forked import Ended
from ups.supervise.rank_states import state_of
from ups.supervise.job import NESTED, Start
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
    **{f"{stage}.batch": BATCH for stage in STEPS},
    **{f"{stage}.train.steps": steps for stage, steps in STEPS.items()},
    **{f"{stage}.train.checkpoint_steps": every for stage, every in SAVED.items()},
    **{f"{stage}.train.validate_every": 3 for stage in STEPS},
    **{f"{stage}.train.log_every": 1 for stage in STEPS},
    **{f"{stage}.train.drift_every": 2 for stage in STEPS},
}


def limits(pace: float) -> dict[str, float]:
    """Time limits where the undisturbed run takes `pace` seconds in all: short, and never too short."""
    wait = max(4.0, 2 * pace)
    short = dict.fromkeys(("first", "phase"), wait)
    long = dict.fromkeys(("save", "validation", "judge", "grace"), 2 * wait)
    return {"floor": wait / 2, **short, **long, "start": 10 + 4 * wait, "idle": 10 + 4 * wait}


@dataclass
class Found:
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
    repeated: bool = False  # the machine was too busy at first: ranks that were well stood still over their limits
    duplicated: int = 0  # and the other way round
    equal: bool = False  # the artifact is that of the undisturbed run, to the bit
    detection: float | None = None
    recovery: float | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def trial(case: Case, folder: Path, data: Path, reference: Path | None, pace: float) -> dict[str, Any]:
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
    home, found = folder / "run", Found(case.to_dict())
    config, limit = configured(case, folder, data, case.world, pace), 30 + 20 * pace
    with disks.cleared(home):
        first = _command(config, case, folder, limit, resume=False)
        found.endings.append(first)
        verdict = read_json(home / "verdict.json")
        found.starts = len(verdict.get("attempts", ()))
        if first not in ("SUCCESS", "HUNG"):
            if case.setting.startswith("disk"):
                disks.mend(home)
            rest = configured(case, folder, data, case.onto or case.world, pace)
            found.endings.append(_command(rest, None, folder, limit, resume=(home / "config.yaml").exists()))
    found.hung = found.endings[-1] == "HUNG"
    _judge(case, found, verdict, home, folder)
    if reference is not None:
        _compare(case, found, home, reference / "run")
    found.seconds = time.monotonic() - began
    found.starved = bool(found.broken) and _starved(case, home)
    if not found.broken and reference is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return found.to_dict()


def _starved(case: Case, home: Path) -> bool:
    """Whether a rank stood still that nothing had been done to."""
    still = any(path.read_text().strip() for path in home.glob("logs/*/stack-*"))
    return still and not any(fault.kind in ("stop", "hang", "grip") for fault in case.faults)


def configured(case: Case, folder: Path, data: Path, world: int, pace: float) -> RunConfig:
    strategy = {"single": "ddp"}.get(case.strategy, case.strategy)
    changes = {**CONFIG, **{f"limits.{name}": value for name, value in limits(pace).items()}}
    changes |= {"out": str(folder), "dist.ranks": world, "dist.strategy": strategy, **case.changes}
    return load(RunConfig, None, {**changes, "data.a.task": "burgers1d", "data.a.file": str(data)})


def _command(config: RunConfig, case: Case | None, folder: Path, limit: float, resume: bool) -> str:
    """`ups run` in a process of its own; how it ended, or KILLED, or HUNG."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _be_command(config, case, folder, resume)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL:
                _await_death(pid)
            return "KILLED" if code < 0 else Ending(code).name if code in Ending._value2member_map_ else str(code)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "HUNG"


def _be_command(config: RunConfig, case: Case | None, folder: Path, resume: bool) -> None:
    with Ended() as ended:
        output = os.open(folder / "console.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        before: Callable[[Start], None] = lambda start: None  # noqa: ARG005, E731
        if case is not None:
            os.environ[VARIABLE] = json.dumps([fault.to_dict() for fault in case.faults])
            before = around.before(case, folder / "run")
            around.surround(case, config)
        try:
            ending = supervise(config, command="ups.cli.worker", resume=resume, launcher=Forked(install, before))
        except UpsError as error:
            print(f"ups: {error}", file=sys.stderr)
            ending = Ending.USER
        raise SystemExit(int(ending))
    if ended.code not in Ending._value2member_map_ or ended.code == 1:
        print(ended.told.traceback, file=sys.stderr)
    sys.stderr.flush()
    os._exit(ended.code)


def _await_death(supervisor: int) -> None:
    """Ranks do not outlive their supervisor; those that do are left to be found by the next start."""
    said = [path.read_text() for path in Path("/dev/shm").glob(f"ups-{supervisor}-*/attempt-*/pid-*")]
    ranks = [int(text.split()[0]) for text in said if text]
    end = time.monotonic() + 3
    while time.monotonic() < end and any(state_of(pid) not in ("", "Z") for pid in ranks):
        time.sleep(0.02)
    left = [pid for pid in ranks if state_of(pid) not in ("", "Z")]
    if left:
        print(f"processes {left} outlived their supervisor {supervisor}.", file=sys.stderr, flush=True)
        raise RuntimeError(f"processes {left} outlived their supervisor")


def _judge(case: Case, found: Found, verdict: Mapping[str, Any], home: Path, folder: Path) -> None:
    """What was promised of the ends of the commands."""
    broken = found.broken
    first, attempts = found.endings[0], verdict.get("attempts", [])
    if found.hung:
        broken.append("it did not end in time")
    if first not in case.endings:
        broken.append(f"it ended with {first}, not {' or '.join(case.endings)}: {verdict.get('cause', '')}")
    if first != "SUCCESS" and found.endings[-1] != "SUCCESS":
        again = read_json(home / "verdict.json")
        broken.append(f"going on ended with {found.endings[-1]}: {again.get('cause', '')}")
    if case.starts is not None and first in case.endings and found.starts != case.starts:
        struck = first == "SUCCESS" and "PREEMPTED" in case.endings
        if not struck:
            broken.append(f"the ranks were started {found.starts} times, not {case.starts}")
    failed = attempts[0] if attempts else {}
    if case.first and failed.get("verdict") not in case.first:
        broken.append(f"the first start ended as {failed.get('verdict')}, not {' or '.join(case.first)}")
    if case.named is not None and failed.get("rank") != case.named:
        broken.append(f"rank {failed.get('rank')} was named, and it was {case.named}: {failed.get('cause')}")
    if case.phase and failed.get("phase") != case.phase:
        broken.append(f"phase {failed.get('phase')} was named, and it was {case.phase}")
    if case.said:
        said = (folder / "console.log").read_text() + "".join(p.read_text() for p in home.glob("logs/*/rank-*.log"))
        if case.said not in said:
            broken.append(f"nobody said '{case.said}'")
    if len(attempts) > 1 or first != "SUCCESS":
        found.detection = failed.get("detection")
    stages = read_json(home / "stages.json")
    if case.skipped is not None and sum(s["skipped"] for s in stages.values()) != case.skipped:
        broken.append(f"{ {n: s['skipped'] for n, s in stages.items()} } steps were skipped, not {case.skipped}")


def _compare(case: Case, found: Found, home: Path, reference: Path) -> None:
    """The artifact and the samples of the undisturbed run."""
    artifact = Path("artifacts") / "simulator.safetensors"
    with contextlib.suppress(OSError):
        found.equal = _equal(home / artifact, reference / artifact, whole=not case.told)
    if case.bits and not found.equal:
        found.broken.append("its artifact is not that of the undisturbed run")
        found.false_success = found.endings[-1] == "SUCCESS"
    far = _distance(home / artifact, reference / artifact) if case.close and (home / artifact).exists() else 0.0
    if far > 1e-4:
        found.broken.append(f"its weights differ from the undisturbed run's by {far:.1e} of their size")
    mine, truth = trained_on(home), trained_on(reference)
    for key, ids in truth.items():
        got = mine.get(key, [])
        found.missing += len(set(ids) - set(got))
        found.duplicated += len(got) - len(set(got) & set(ids))
    if found.missing or found.duplicated:
        found.broken.append(f"{found.missing} samples are missing and {found.duplicated} are too many")
    found.lost, found.recovery = _again(home)
    if found.lost > 2 * max(SAVED.values()) and len(case.faults) == 1 and case.family not in ("F11", "F16"):
        found.broken.append(f"{found.lost} steps had to be made again")


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


def records(home: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """Every line that ranks have written of what they trained on: start, rank, line."""
    found = []
    for path in sorted((home / RECORDS).glob("*.jsonl")):
        start, rank = map(int, path.stem.split("-"))
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append((start, rank, json.loads(line)))
    return found


def trained_on(home: Path) -> dict[tuple[str, int], list[int]]:
    """The samples of every step, over all ranks, in the last start that made it."""
    found: dict[tuple[str, int], tuple[int, list[int]]] = {}
    for start, _, line in records(home):
        key = (line["stage"], line["step"])
        if start > found.get(key, (0, []))[0]:
            found[key] = (start, [])
        found[key][1].extend(line["ids"])
    return {key: ids for key, (_, ids) in found.items()}


def _again(home: Path) -> tuple[int, float | None]:
    """Most steps that a start made again after the one before it, and the longest time from step to step between."""
    offsets, before = {}, 0
    for stage, steps in STEPS.items():
        offsets[stage], before = before, before + steps
    starts: dict[int, list[tuple[int, float]]] = {}
    for start, _, line in records(home):
        starts.setdefault(start, []).append((offsets[line["stage"]] + line["step"], line["time"]))
    order = [starts[n] for n in sorted(starts)]
    pairs = list(itertools.pairwise(order))
    lost = max((max(s for s, _ in a) - min(s for s, _ in b) for a, b in pairs), default=0)
    gaps = [min(t for _, t in b) - max(t for _, t in a) for a, b in pairs]
    return max(lost, 0), max(gaps, default=None)
