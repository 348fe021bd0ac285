"""What `ups estimate` says before a run, against what the run then takes."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ups import host_memory
from ups.cli.app import main
from ups.config import fingerprint, load
from ups.engine.loop import Trainer
from ups.engine.memory import CodeCost, MemoryCount, fake, gathered, held_memory, training_work
from ups.engine.optim import Optimizer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.jobs.estimate import contention, fits, generation_time
from ups.jobs.estimate import estimate as module
from ups.jobs.estimate.costs import WORKSPACES, Costs, StageCost, costs
from ups.jobs.estimate.estimate import forecast, free_memory
from ups.jobs.estimate.timing import RandomBatches, ceilings
from ups.jobs.recipe import pricing
from ups.run.check import new_simulator
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.run.data.outlines import Outline, outlines
from ups.stages import STAGES
from ups.tensors import Window
from ups.types import ConfigError, UpsError, data_size, duration, short_number

LINE = {"a": {"task": "advection1d", "samples": 20, "resolution": 64, "reduce": {"time": 40}}}
PLANE = {"r": {"task": "reacdiff2d", "samples": 20, "resolution": 32, "reduce": {"time": 25}}}
TINY = {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}}
STEPS = {"steps": 3, "validate_every": 1, "prefetch": 0, "checkpoint_seconds": None}


def settings(data: dict[str, object], model: object = TINY, batch: int = 8, **train: object) -> RunConfig:
    stage = {"batch": batch, "train": {**STEPS, **train}}
    return run_config().model_validate(
        {"data": data, "model": model, "codec": stage, "operator": stage, "device": "cpu"}
    )


COUNTED: dict[str, Costs] = {}


def counted(config: RunConfig) -> Costs:
    """What a run takes on a CPU, counted once for all tests: it takes seconds."""
    key = fingerprint(config)
    if key not in COUNTED:
        COUNTED[key] = costs(config, "cpu")
    return COUNTED[key]


class Real(RandomBatches):
    """Windows of the shapes of a run, validation ones included."""

    def __init__(self, config: RunConfig, sets: list[Outline], stage: str, device: str) -> None:
        part, self.context = config.stage(stage), config.context
        self.sets, self.batch_size, self.device = sets, part.batch, device
        super().__init__([data.window(part.batch, self.context, part.ahead) for data in sets])

    def validation(self, step):  # type: ignore[no-untyped-def]  # noqa: ARG002
        for data in self.sets:
            many, ahead, _ = data.whole(self.batch_size, self.context, "valid", self.device)
            yield data.window(many, self.context, ahead)


def trained(config: RunConfig, stage: str, device: str = "cpu") -> None:
    """A real training of one stage; everything it needs is made here."""
    sets = outlines(config)
    simulator = new_simulator(config, sets).to(device)
    part = config.stage(stage)
    made = STAGES[stage](simulator, part)
    Trainer(part.train, made, Real(config, sets, stage, device), Dist(device=torch.device(device))).fit()


def peak_on_the_cpu(work: Callable[[], None]) -> int:
    """Bytes torch's CPU allocator had given out at the peak, by its own account."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("data", "batch"), [(LINE, 8), pytest.param(PLANE, 32, marks=pytest.mark.slow)])
def test_one_sample_and_two_tell_roughly_what_a_batch_takes(data: dict[str, object], batch: int) -> None:
    """And what they told of one batch serves for the next."""
    config = settings(data, batch=batch)
    exact, counts = counted(config), dict[Hashable, CodeCost]()
    rough = costs(config, "cpu", sets=outlines(config), rough=counts)
    step, whole = rough.stages[-1].work, exact.stages[-1].work
    assert (rough.parameters, step.flops) == (exact.parameters, whole.flops)
    assert step.moved == pytest.approx(whole.moved, rel=0.1)
    assert step.operations == pytest.approx(whole.operations, rel=0.1)
    assert rough.needed == pytest.approx(exact.needed, rel=0.1)
    again = len(counts)
    costs(settings(data, batch=2 * batch), "cpu", sets=outlines(config), rough=counts)
    assert len(counts) == again


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(settings(LINE), id="1D"),
        pytest.param(
            settings(PLANE, precision="bf16", microbatch=4), id="2D bf16 microbatches", marks=pytest.mark.slow
        ),
        pytest.param(
            settings({**LINE, **PLANE}, {"operator": {"width": 64, "depth": 1, "mixing": "attention"}}),
            id="two tasks",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            settings(LINE, {"operator": {"size": "small"}}, 4, optimizer="muon"),
            id="many weights, muon",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_peak_on_a_cpu_is_what_a_real_training_takes(config: RunConfig) -> None:
    for said in counted(config).stages:
        real = peak_on_the_cpu(lambda name=said.name: trained(config, name))  # type: ignore[misc]
        assert said.peak == pytest.approx(real, rel=0.2), said.name


@pytest.mark.parametrize("shape", [(128, 128), (64, 256), (256, 64)])
def test_what_a_step_of_muon_takes_on_a_cpu_is_counted(shape: tuple[int, int]) -> None:
    module = nn.ModuleList(nn.Linear(*shape, bias=False) for _ in range(4))
    optimizer, yes = Optimizer(module, "muon"), torch.tensor(True)
    for p in module.parameters():
        p.grad = torch.randn_like(p)
    said = held_memory(module, module, TrainConfig(steps=1, optimizer="muon"), "cpu", DistConfig()).step
    assert said == pytest.approx(peak_on_the_cpu(lambda: optimizer.step(yes)), rel=0.08)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, "auto"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_on_a_gpu_is_what_torch_has_allocated(precision: str, graph: object) -> None:
    model = {"operator": {"size": "small"}}
    config = settings({**LINE, **PLANE}, model, 32, precision=precision, graph=graph, steps=12, validate_every=6)
    said = {s.name: s for s in costs(config, "cuda").stages}
    for stage in ("codec", "operator"):
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        trained(config, stage, "cuda:0")
        real = torch.cuda.max_memory_allocated() - before
        spaces = said[stage].memory["CUDA workspaces"] - said["codec"].memory["CUDA workspaces"]  # of earlier stages
        over = said[stage].peak - spaces - real
        assert -0.1 * real <= over <= 0.1 * real + WORKSPACES[0], stage  # one more than a graph needs may be counted


@pytest.mark.slow
def test_the_process_grows_by_the_peak_where_it_is_large() -> None:
    code = (
        f"import re, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_estimate as t\n"
        # Not ru_maxrss: a child begins with that of the process it was forked from.
        "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "t.trained(t.settings(t.LINE), 'operator'); before = peak()\n"
        "t.trained(t.settings(t.PLANE, {'operator': {'size': 'small'}}, 128), 'operator'); print(peak() - before)\n"
    )
    said = costs(settings(PLANE, {"operator": {"size": "small"}}, 128), "cpu").stages[1]
    assert said.peak > 5e8
    # With a fixed threshold glibc gives back what is freed; by default it keeps some of it, by machine more or less.
    fixed, usual = (0.8 * said.peak, 1.2 * said.peak), (0.75 * said.reserved, 1.1 * said.reserved)
    for environment, (least, most) in (({"MALLOC_MMAP_THRESHOLD_": "65536"}, fixed), ({}, usual)):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert least <= int(run.stdout) <= most


def test_parameters_are_counted_exactly() -> None:
    config = settings(LINE)
    said = counted(config).parameters
    built = new_simulator(config, outlines(config))
    assert said["total"] == sum(p.numel() for p in built.parameters()) == said["codec"] + said["operator"]
    for network in ("codec", "operator"):
        assert said[network] == sum(n for name, n in said.items() if name.startswith(f"{network}."))


def test_flops_of_two_linear_layers_are_those_of_the_textbook() -> None:
    batch, cells, inner, outer = 6, 64, 32, 5
    (data,) = outlines(settings(LINE))
    with fake("cpu"):
        net = nn.Sequential(nn.Linear(1, inner, bias=False), nn.Linear(inner, outer, bias=False))

        def loss(window: Window) -> dict[str, torch.Tensor]:
            return {"a": net(window.state).square().mean()}

        whole = training_work(loss, data.window(batch, 1, 1), "cpu", TrainConfig(steps=1))
        split = training_work(loss, data.window(batch, 1, 1), "cpu", TrainConfig(steps=1), microbatch=2)
    # Forward, gradient by weight, and gradient by input (not for the first layer's), two operations each.
    first, second = batch * cells * inner, batch * cells * inner * outer
    assert whole.flops == 2 * (2 * first + 3 * second) == split.flops


def test_flops_of_attention_are_those_of_the_textbook() -> None:
    samples, heads, tokens, width = 2, 4, 64, 16
    with MemoryCount("cpu") as count:
        q, k, v = (torch.randn(samples, heads, tokens, width, requires_grad=True) for _ in range(3))
        nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()
    product = 2 * samples * heads * tokens**2 * width  # two in the forward, five in the backward, scores anew
    assert count.flops == (2 + 5) * product


def test_a_ledger_counts_what_lives_and_only_what_is_new() -> None:
    old = torch.zeros(1024)
    with MemoryCount("cpu") as count:
        a = old.view(2, 512) + 1
        b = a.t()
        assert count.live == 4096
        del a
        assert count.live == 4096
        del b
        assert count.live == 0
        old.add_(1)
    assert count.peak == 4096


@pytest.mark.slow
def test_less_at_once_takes_less_memory() -> None:
    model = {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 3, "heads": 2}}

    known = costs(settings(LINE, model, 32), "cpu")

    def peak(**train: object) -> StageCost:
        return costs(settings(LINE, model, 32, **train), "cpu", known=known).stages[1]

    whole = known.stages[1]
    parts, half, again = peak(microbatch=8), peak(precision="bf16"), peak(activations="recompute")
    for less in (parts, half, again):
        assert less.memory["activations"] < 0.8 * whole.memory["activations"]
        assert sum(less.memory.values()) < sum(whole.memory.values())
    assert again.work.flops > 1.1 * whole.work.flops
    assert parts.work.flops == pytest.approx(whole.work.flops, rel=0.01)  # weights are made ready for each part


def test_shards_hold_their_share_of_the_weights() -> None:
    alone = settings(LINE)
    four = alone.model_copy(update={"dist": dataclasses.replace(alone.dist, ranks=4, strategy="fsdp")})
    known = counted(alone)
    kept = "average and best copy"
    one, part = known.stages[1].memory[kept], costs(four, "cpu", known=known).stages[1].memory[kept]
    assert part == pytest.approx(one / 4, rel=0.1)


class Blocks(nn.Sequential):
    def shard_units(self) -> list[nn.Module]:
        return list(self)[1:]


@pytest.mark.parametrize("microbatch", [4, 2])
def test_blocks_gathered_as_bf16_leave_no_copies_of_their_weights_in_memory(microbatch: int) -> None:
    (data,) = outlines(settings(LINE))
    train, width, works, held = TrainConfig(steps=1, precision="bf16"), 256, [], []
    with fake("cpu"):
        net = Blocks(nn.Linear(1, width), *(nn.Linear(width, width, bias=False) for _ in range(3)))

        def loss(window: Window) -> dict[str, torch.Tensor]:
            return {"a": net(window.state[:, :2]).square().mean()}

        for gather in ("fp32", "bf16"):
            ranks = DistConfig(ranks=4, strategy="fsdp", gather=gather)  # type: ignore[arg-type]
            with gathered(net, train, ranks):
                works.append(training_work(loss, data.window(4, 1, 1), "cpu", train, microbatch))
            held.append(held_memory(net, net, train, "cpu", ranks))
            assert {p.dtype for p in net.parameters()} == {torch.float32}
            net.zero_grad(set_to_none=True)
    block = 4 * width**2
    # Autocast makes a copy of every matrix, which the backward needs; in the end all gradients are there in float32.
    assert works[0].saved - works[1].saved == pytest.approx(3 * block / 2, rel=0.01)
    assert 3 * block < works[1].peak <= works[0].peak
    assert held[0].weights - held[1].weights == 1.5 * block
    assert held[0].gradients == held[1].gradients
    assert works[0].flops == works[1].flops


def test_sizes_on_disk_are_those_of_the_files(tmp_path: Path) -> None:
    config = settings(LINE)
    said = counted(config).disk
    keys = set(GenerateConfig.model_fields)
    made = GenerateConfig.model_validate({**config.data["a"].model_dump(include=keys), "device": "cpu"})
    (file,) = generate(made, tmp_path, lambda _: None)
    assert said["data"] == pytest.approx(file.stat().st_size, rel=0.1)
    saved = new_simulator(config, outlines(config)).save(tmp_path / "x.safetensors")
    assert said["artifact"] == pytest.approx(saved.stat().st_size, rel=0.2)
    (read,) = outlines(
        config.model_copy(update={"data": {"a": config.data["a"].model_copy(update={"file": str(file)})}})
    )
    assert dataclasses.replace(read, disk=0, made=True) == dataclasses.replace(outlines(config)[0], disk=0)


def test_a_run_that_does_not_fit_is_told_the_largest_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(LINE, batch=8)
    found = counted(config)

    def in_parts(microbatch: int) -> Costs:
        """Half of it does not depend on the microbatch."""
        stage = dataclasses.replace(found.stages[-1], reserved=found.needed * (8 + microbatch) // 16)
        return dataclasses.replace(found, evaluation=0, resident=0, stages=(stage,))

    def once(_: RunConfig, __: str, microbatch: int | None = None, ___: Costs | None = None) -> Costs:
        return in_parts(microbatch) if microbatch else found

    monkeypatch.setattr(module, "costs", once)
    whole, one = found.needed, in_parts(1).needed
    monkeypatch.setattr(module, "free_memory", lambda device: (whole + one) // 2 + 1000)  # noqa: ARG005
    monkeypatch.setattr(module, "resident", lambda: 1000)
    monkeypatch.setattr(module, "making_seconds", lambda data: 0.0)  # noqa: ARG005  (what it times takes seconds)
    said = forecast(config)
    assert said.microbatch
    assert 2 <= said.microbatch < 8
    assert in_parts(said.microbatch).needed <= (whole + one) // 2
    assert f"train.microbatch {said.microbatch}" in said.lines()[-1]
    assert module._largest(config, "cpu", 1000, found) == 0


def test_times_come_from_real_steps_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "costs", lambda *_: counted(settings(LINE)))  # the same of any number of steps
    found = forecast(settings(LINE, steps=7), measure=True, price=2.0)
    assert found.measured
    assert found.times["operator"].steps == 7
    assert found.times["operator"].seconds >= 7 * found.times["operator"].step > 0
    assert found.seconds is not None
    assert found.evaluation is not None
    trained = sum(t.seconds for t in found.times.values())
    assert found.seconds == pytest.approx(found.making + trained + found.evaluation)
    assert found.making > 0
    assert any("of it making the data" in line for line in found.lines())
    assert any(line.strip().startswith("not counted: start of the processes, calibration") for line in found.lines())
    assert found.money == pytest.approx(2.0 * found.seconds / 3600)
    assert found.program > 50e6, "Python with torch"
    assert found.fits
    few = dataclasses.replace(found, free=found.costs.needed + found.program)
    assert (few.fits, dataclasses.replace(few, processes=2).fits) == (True, False)
    busy = dataclasses.replace(found, busy=0.3)
    assert any("30% of the time its steps waited for a processor" in line for line in busy.lines())
    quiet = dataclasses.replace(found, busy=0.02, taken={})
    assert not any("not to be trusted" in line for line in quiet.lines())
    budget = forecast(settings(LINE, steps=None, seconds=100.0, validate_every=0))
    assert budget.times["operator"].seconds == pytest.approx(100, rel=0.05), "and a validation"
    reach = ceilings(torch.device("cpu"), bf16=False)
    assert 1e8 < reach.flops < 1e14
    assert 1e8 < reach.bytes < 1e13


def test_a_search_is_among_what_is_not_counted_where_a_part_judges_draws() -> None:
    plan = ["codec", "operator", "residual"]
    configs = [run_config().model_validate({"data": LINE, "plan": stages}) for stages in (plan, [*plan, "critic"])]
    searches = [[what for what in module.uncounted(config) if "search" in what] for config in configs]
    assert searches[0] == []
    assert searches[1][0].startswith("searches of ")


def test_the_command_needs_no_data_and_writes_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(settings(LINE).model_dump(mode="json")))
    monkeypatch.chdir(tmp_path)
    known = counted(settings(LINE))

    def of_batches(config: RunConfig, *_: object, **__: object) -> Costs:
        batches = {stage.name: config.stage(stage.name).batch for stage in known.stages}
        rows = (dataclasses.replace(s, batch=batches[s.name], microbatch=batches[s.name]) for s in known.stages)
        return dataclasses.replace(known, stages=tuple(rows))

    with monkeypatch.context() as patch:
        patch.setattr(module, "costs", of_batches)
        with pytest.raises(SystemExit) as ended:
            main(["estimate", "c.yaml", "--operator.batch", "4"])
    assert ended.value.code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["c.yaml"]
    out = capsys.readouterr().out.splitlines()
    assert re.match(
        r"fits: \S+ [MG]B of memory: \S+ \w?B of tensors at the peak and about \S+ [MG]B of program", out[-1]
    )
    assert any(line.split()[:1] == ["activations"] for line in out)
    assert any(line.split()[-2:] == ["4", "(4)"] for line in out)
    with pytest.raises(SystemExit):
        main(["estimate", "c.yaml", "--device", "cuda", "--json", "e.json"])
    said = json.loads((tmp_path / "e.json").read_text())
    assert said["costs"]["device"] == "cuda"
    assert said["costs"]["stages"]["codec"]["memory"]["weights"] > 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"data.a.reduce.time": 300}, "too few"),
        ({"data.a.resolution": 6}, "too small for patches"),
        ({"data.a.reduce.space": 3}, "divi"),
        ({"data.a.file": "nowhere.h5"}, "nowhere.h5"),
        ({"model.operator.widht": 3}, "width"),
    ],
)
def test_a_bad_config_is_one_sentence(tmp_path: Path, change: dict[str, object], word: str) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(settings(LINE).model_dump(mode="json")))
    with pytest.raises(UpsError, match=word) as raised:
        forecast(load(run_config(), tmp_path / "c.yaml", change))
    assert "\n" not in str(raised.value)


def test_questions_that_have_no_answer_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="names no data"):
        forecast(run_config()(device="cpu"))
    with pytest.raises(ConfigError, match="--price"):
        forecast(settings(LINE), price=-1)
    with pytest.raises(SystemExit) as ended:
        main(["estimate"])
    assert ended.value.code == 2
    assert "no config was named" in capsys.readouterr().err


def test_numbers_are_written_for_people() -> None:
    assert [data_size(n) for n in (12, 1234, 5.6e6, 999.6e6, 7.8e9)] == ["12 B", "1.23 kB", "5.6 MB", "1 GB", "7.8 GB"]
    assert short_number(350_608) == "351 k"
    assert [duration(s) for s in (2e-5, 0.012, 45, 600, 9000, 3e6)] == [
        "20 µs", "12 ms", "45 s", "10 min", "2.5 h", "34.7 days",
    ]  # fmt: skip
    assert [duration(s, digits=2) for s in (0, 8.31, 119, 601, 3e6)] == ["0 s", "8.3 s", "119 s", "10 min", "35 days"]


def test_its_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom ups.cli.app import app\napp(['estimate', '--help'], result_action='return_value')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


def test_two_microbatches_stand_for_all_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    rows = Window.rows
    monkeypatch.setattr(Window, "rows", lambda self, first, last: cut.append(first) or rows(self, first, last))
    costs(settings(LINE, batch=100_000), "cpu", microbatch=1, known=counted(settings(LINE)))
    assert set(cut) == {0, 1}


def test_the_making_of_data_is_judged_from_a_few_of_their_samples() -> None:
    """A start of 1 s and 0.5 s a sample, or 10 s of a solution of which the first share took 2 s more."""
    assert generation_time.extrapolated([(2, 2.0), (8, 5.0)], 100) == pytest.approx(1 + 0.5 * 100)
    assert generation_time.extrapolated([(2, 4.0)], 100) == pytest.approx(200.0)
    readings = [(k / 10, 2.0 + k) for k in range(1, 4)]
    assert generation_time.whole_of(readings) == pytest.approx(12.0)


def test_files_that_are_there_take_no_time_to_make(tmp_path: Path) -> None:
    config = settings(LINE)
    (path,) = generate(config.data["a"].generation(), tmp_path, lambda progress: None)  # noqa: ARG005
    assert generation_time.making_seconds(config.data) > 0
    assert generation_time.making_seconds(settings({"a": {"file": str(path)}}).data) == 0.0


def test_a_process_knows_what_it_had_to_wait_for_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had a processor in 7 of 10 nanoseconds in which it wanted one has been disturbed."""
    monkeypatch.setattr(contention, "_machine", lambda: (0.0, 0.0))
    readings = iter([(100.0, 0.0), (170.0, 30.0)])
    monkeypatch.setattr(contention, "_scheduled", lambda: next(readings))
    assert contention.Contention().share() == pytest.approx(0.3)


def test_contention_is_read_from_this_system() -> None:
    gauge = contention.Contention()
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    assert 0.0 <= gauge.share() <= 1.0
    assert contention._scheduled()[0] > 0


def test_the_limit_of_a_container_holds_for_estimates_and_for_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"memory.max": "1000000", "memory.current": "300000", "memory.stat": "inactive_file 100000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host_memory, "_around", lambda pid: [(tmp_path, host_memory.VERSION_2)])  # noqa: ARG005
    assert free_memory(torch.device("cpu")) == 800000
    assert fits.free_memory is free_memory is pricing.free_memory, "`ups run`, `ups estimate` and `ups init` agree"


@pytest.mark.parametrize(("every", "count"), [(0.3, 4), (0.34, 3), (0.5, 2), (1.0, 1), (0, 1), (300, 4)])
def test_a_budget_in_seconds_and_one_in_as_many_steps_have_as_many_validations(every: float, count: int) -> None:
    stage, roof = SimpleNamespace(checking=None, work=SimpleNamespace(flops=1)), SimpleNamespace(seconds=lambda _: 100)
    for budget in ({"seconds": 1000.0}, {"steps": 1000}, {"steps": 10**6, "seconds": 1000.0}):
        train = TrainConfig(validate_every=every, **budget)  # type: ignore[arg-type]
        time = module._by_the_clock(stage, train, 1.0, 1.0, roof)  # type: ignore[arg-type]
        assert (time.steps, time.seconds) == (1000, 1000 + 100 * count)
