"""docs/howto-add-a-stage.md, followed to the letter in a copy of the house: its stage is a stage like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pages_of import house_after, python, require_house_rules
from ups.models.artifact import read, replace_part, strangers

PAGE, CONFIG = "docs/howto-add-a-stage.md", "configs/bias.yaml"
TINY = """
--data.fronts.samples 12 --data.fronts.resolution 16 --data.fronts.frames 5 --data.fronts.reduce.time 1
--model.codec.dim 4 --model.operator.width 16 --model.operator.depth 1 --model.operator.heads 2
--codec.batch 4 --codec.train.steps 2 --codec.train.validate_every 0
--operator.batch 4 --operator.train.steps 2 --operator.train.validate_every 0
--bias.batch 4 --bias.train.steps 6 --bias.train.validate_every 3 --bias.train.checkpoint_steps 2 --bias.train.lr 0.1
--device cpu
"""
RUN = ("-m", "ups", "run", CONFIG, *TINY.split())
# A request to stop when the bias has taken four steps of six: the stages before it take two.
STOPPED = {"UPS_FAULTS": json.dumps([{"kind": "term", "rank": 0, "phase": "forward", "step": 4}])}

# One process for all commands that need none of their own.
COMMANDS = """
import sys
from ups.cli.app import main

for line in sys.stdin.read().splitlines():
    try:
        main(line.split())
    except SystemExit as ended:
        print("EXIT", ended.code, flush=True)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house with the stage added as the page says, and a finished run of it on two ranks."""
    place = house_after(PAGE, tmp_path_factory.mktemp("house"))
    python(place, *RUN, "--ranks", "2", "--dist.launcher", "forked")
    return place


def artifact(house: Path, out: str = "runs", name: str = "bias") -> Path:
    return house / out / name / "artifacts" / "simulator.safetensors"


def test_it_is_trained_on_two_ranks_and_stands_in_everything_a_run_leaves(house: Path) -> None:
    run = house / "runs" / "bias"
    stages = json.loads((run / "stages.json").read_text())
    assert [(name, row["steps"]) for name, row in stages.items()] == [("codec", 2), ("operator", 2), ("bias", 6)]
    weights = load_file(artifact(house))
    assert weights["bias.shift.reacdiff1d"].abs().item() > 0, "it has learnt something"
    header = read(artifact(house))[0]["parts"]["bias"]
    assert (header["needs"], header["provenance"]["stage"]) == (["codec", "operator"], "bias")
    page = (run / "report.html").read_text()
    costs = page[page.rindex("Cost of each stage") : page.rindex("Where the time went")]
    assert "<td>bias</td>" in costs.replace(" ", "").replace("\n", "")
    assert "bias: steps" in page
    records = json.loads((run / "results.json").read_text())
    assert {r["protocol"] for r in records if r["metric"] == "steps-drawn"} == {"codec", "operator", "bias"}
    assert "bias/validation/score" in (run / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_interrupted_and_resumed_it_has_the_bits_of_the_straight_run(house: Path) -> None:
    ranks = ("--ranks", "2", "--dist.launcher", "forked", "--out", "stopped")
    python(house, *RUN, *ranks, env=STOPPED, code=15)
    assert not artifact(house, "stopped").exists()
    assert list((house / "stopped" / "bias" / "checkpoints" / "bias").glob("step-*")), "it was stopped in the bias"
    python(house, *RUN, *ranks, "--resume")
    assert artifact(house, "stopped").read_bytes() == artifact(house).read_bytes()


@pytest.mark.slow
def test_sharded_ranks_learn_what_replicated_ones_do(house: Path) -> None:
    python(house, *RUN, "--ranks", "2", "--dist.launcher", "forked", "--dist.strategy", "fsdp", "--out", "sharded")
    assert artifact(house, "sharded").read_bytes() == artifact(house).read_bytes()


@pytest.mark.slow  # 20 s, and the one above has the same stage in a whole run
def test_alone_on_top_of_another_run_it_leaves_every_other_bit_and_mistakes_are_one_sentence(house: Path) -> None:
    tiny = " ".join(TINY.split())
    run = f"run {CONFIG} {tiny} --here"
    lines = (
        f"{run} --plan [codec,operator] --name other",
        f"{run} --plan [bias] --start_from runs/other --name with",
        f"estimate {CONFIG} {tiny} --plan [codec] --start_from runs/other",
        f"estimate {CONFIG} {tiny}",
        f"run {CONFIG} --plan [codec,operator,bais]",
        f"run {CONFIG} --plan [bias,codec,operator]",
        "config schema",
    )
    output = python(house, "-c", COMMANDS, given="\n".join(lines))
    parts = output.split("EXIT ")
    assert [part[0] for part in parts[1:]] == ["0", "0", "2", "0", "2", "2", "0"], output[-3000:]
    columns = [line.split() for part in parts[2:4] for line in part.splitlines() if "bias" in line or "codec" in line]
    assert ["codec", "operator", "bias"] in columns
    assert "'operator' of runs/other has learnt to work with the old one; add stage operator to the plan" in output
    assert "there is no stage 'bais'; did you mean 'bias'?" in output
    assert "stage bias needs the part 'codec'; put stage codec before it in plan" in output
    assert "What every number begins at, in deviations of its channel." in parts[6]
    before, after = load_file(artifact(house, name="other")), load_file(artifact(house, name="with"))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [name for name in after.keys() - before.keys() if "shift" in name] == ["bias.shift.reacdiff1d"]
    mixed = replace_part(artifact(house), "bias", artifact(house, name="with"), house / "mixed.safetensors")
    assert torch.equal(load_file(mixed)["bias.shift.reacdiff1d"], after["bias.shift.reacdiff1d"])
    assert len(strangers(read(mixed)[0]["parts"])) == 2, "it was trained beside another codec and another operator"


DOCTOR = """
import sys
from ups.config import file_and_flags, load
from ups_fleet.doctor.model_checks import model_checks
from ups.run.config import run_config

if __name__ == "__main__":
    for line in model_checks(load(run_config(), *file_and_flags(tuple(sys.argv[1:]))), stages=("bias",)):
        print(line.name, line.state.value, line.found, sep=" | ")
"""
CHECKS = ["bias, one process", "bias, ddp × 2", "bias, fsdp × 2"]


@pytest.mark.slow
def test_ranks_compute_what_one_process_does(house: Path) -> None:
    rows = [line.split(" | ") for line in python(house, "-c", DOCTOR, CONFIG, *TINY.split()).splitlines()]
    assert [(row[0], row[1]) for row in rows if len(row) == 3] == [(name, "good") for name in CHECKS], rows


def test_it_is_built_as_the_rest_of_the_house(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_house_rules(PAGE, house, monkeypatch)


@pytest.mark.slow
def test_the_doctor_has_its_lines(house: Path) -> None:
    python(house, "-m", "ups", "doctor", CONFIG, *TINY.split(), "--json", "doctor.json", "--folder", "runs")
    checks = json.loads((house / "doctor.json").read_text())["checks"]
    assert [(c["name"], c["state"]) for c in checks if c["name"].startswith("bias")] == [(n, "good") for n in CHECKS]
