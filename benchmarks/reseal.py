"""After keys of configs have changed: gives entries of the ledger today's recipe, where a row still trains as it did.

    python benchmarks/reseal.py look > before.jsonl   # in a checkout of before the change
    python benchmarks/reseal.py look > after.jsonl    # in one of after it
    python benchmarks/reseal.py seal before.jsonl after.jsonl

`look` runs each row on little data with a small network on a CPU, for three steps of each stage. Where the recipe has
become another and all tensors of the simulator, what is said of its data, its errors and the frames of its rollouts are
the same to the bit, `seal` gives the entries by the old recipe the new one and seals them again. All others stay as
they are, and tables say of them that their settings are older.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ups.config import load
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.datasets import open_sets
from ups.run.data.generate import equations_of
from ups.run.load import load as load_simulator
from ups.run.run import run_alone
from ups.run.start import Start
from ups_bench.ledger import LEDGER, read, sealed, text_of
from ups_bench.rows import BenchRow, known_rows

STEPS = 3  # of training, and of rollouts
SAMPLES = 10
TOKENS = {1: 8, 2: 4}  # along an axis, by how many there are; of 4 × 2 or more cells
FRAMES = 14  # that are trained and judged on, of which rows are given ten or fewer


def small(row: BenchRow, out: Path) -> RunConfig:
    """A row on little data, with a small network and few steps of each stage; all else is as its file says."""
    own = row.config
    changes: dict[str, Any] = {"out": str(out), "name": row.name.replace("/", "-"), "seed": 0, "device": "cpu"}
    changes |= {f"model.operator.{key}": value for key, value in {"width": 16, "depth": 2, "heads": 2}.items()}
    changes |= {"evaluation.zero_shot": [], "evaluation.horizon": None, "evaluation.samples": 2}
    for label, data in own.data.items():
        equation = equations_of(data.generation())[0]
        cells = 4 * TOKENS[equation.task.ndim] * data.store.space * data.reduce.space
        changes |= {f"data.{label}.samples": SAMPLES, f"data.{label}.resolution": cells, f"data.{label}.device": "cpu"}
        saved = len(equation.times()[: data.frames])
        few = min(saved, FRAMES * data.store.time * data.reduce.time)
        changes |= {f"data.{label}.frames": few} if saved > 1 else {}
    for name in own.plan:
        changes |= {f"{name}.train.seconds": None, f"{name}.train.steps": STEPS, f"{name}.train.precision": "fp32"}
        changes |= {f"{name}.batch": 4, **({f"{name}.batches": {}} if own.stage(name).batches else {})}
    return load(run_config(), row.path, changes)


def seen(row: BenchRow, out: Path) -> dict[str, str]:
    """Digests of what a small run of a row learns, says of its data and errors, and answers."""
    config, screen = small(row, out), Screen.silent()
    folder, report = run_alone(config, screen, Start(overwrite=True))
    simulator = load_simulator(folder.folder)
    errors = [result for result in json.loads(folder.results.read_text()) if result["metric"] == "nrmse"]
    errors = [[each[key] for key in ("task", "split", "predictor", "value", "low", "high")] for each in errors]
    facts = [[fact.samples, fact.grid, fact.frames, fact.params] for fact in report.data]
    with ExitStack() as stack, torch.no_grad():
        sets = open_sets(config.data, folder.cache("data"), screen.following, stack)
        windows = [
            part.window(range(len(part)), [0] * len(part), config.looks_back(data.task), 1)
            for data in sets
            for part in data.parts("test")
        ]
        frames = {f"{i}": simulator.simulate(window, STEPS) for i, window in enumerate(windows)}
    return {
        "weights": tensors(simulator.state_dict()),
        "frames": tensors(frames),
        "data": text(facts),
        "errors": text(errors),
    }


def tensors(named: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(named.items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def text(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def look(out: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """What small runs of rows of the current checkout show."""
    for name, row in known_rows().items():
        if name in names or not names:
            yield {"row": name, "recipe": row.recipe, **seen(row, out)}


def seal(before: Path, after: Path) -> None:
    """Seals the entries again of each row that `look` has found the same before and after, and says so of each."""
    was, now = ({row["row"]: row for row in map(json.loads, path.read_text().splitlines())} for path in (before, after))
    recipes: dict[tuple[str, str], str] = {}
    for name, old in was.items():
        new = now[name]
        differ = [key for key in old if key not in ("row", "recipe") and old[key] != new[key]]
        if not differ:
            recipes[name, old["recipe"]] = new["recipe"]
        words = f"other {' and '.join(differ)}" if differ else f"weights {new['weights']}, frames {new['frames']}"
        print(f"{name}: {old['recipe']} → {new['recipe']}: {words}")
    entries = read(LEDGER)
    changed = [e for e in entries if recipes.get((e.row, e.recipe), e.recipe) != e.recipe]
    again = {id(e): sealed({**vars(e), "recipe": recipes[e.row, e.recipe]}) for e in changed}
    LEDGER.write_text(text_of([again.get(id(e), e) for e in entries]))
    print(f"{len(changed)} of {len(entries)} entries have been sealed again")


if __name__ == "__main__":
    if sys.argv[1] == "look":
        for line in look(Path("runs/reseal"), sys.argv[2:]):
            print(json.dumps(line), flush=True)
    else:
        seal(Path(sys.argv[2]), Path(sys.argv[3]))
