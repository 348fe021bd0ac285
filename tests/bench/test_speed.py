"""`ups bench speed`: what is counted, what is named, and that a table says what was measured; no time is judged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ups.cli.app import main
from ups.types import DataError
from ups_bench import speed
from ups_bench.kernels import kernel_seconds, kind_of, summary
from ups_bench.speed import BARS, PARTS, bench_speed
from ups_bench.speed_case import SIZES, SpeedNumbers, large_case
from ups_bench.speed_large import Demand, fitting
from ups_bench.speed_steps import Reductions, ranks_rows, small
from ups_bench.tables import kernels_table, speed_table
from ups_bench.turns import TurnSpread, in_turn, over
from ups_fleet.supervise.forked_functions import Result

CPU = torch.device("cpu")
GRAPHS = "graphs over a bare loop, speed"


def demand(monkeypatch: pytest.MonkeyPatch, **network: int) -> Demand:
    sizes = dataclasses.replace(SIZES["cpu"], networks={"transformer": network})
    monkeypatch.setitem(SIZES, "cpu", sizes)
    case = large_case("cpu", "transformer")
    return Demand.of(case, case.stage(CPU), CPU)


def test_a_block_costs_the_operations_of_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operations a multiply-add; backwards twice those of forwards, and the scores of attention once more."""
    tokens, width, ratio, samples = 8 * 8, 16, 2, 5
    shallow, deep = (demand(monkeypatch, width=width, depth=depth, heads=2) for depth in (1, 2))
    maps = 3 * 2 * tokens * (3 + 1 + 1 + 2 * ratio) * width**2  # queries, keys, values; gate; way out; MLP
    attention = (2 + 5) * 2 * tokens**2 * width
    condition = 3 * 2 * 6 * width**2
    assert deep.flops_of(samples) - shallow.flops_of(samples) == samples * (maps + attention + condition)


def test_a_batch_fits_by_what_each_more_sample_takes() -> None:
    demand = Demand((10, 18), (100, 130))
    assert [demand.flops_of(n) for n in (1, 2, 4)] == [10, 18, 34]
    assert demand.samples_in(190) == 4


NAMES = {
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::bfloat16_t>>": "attention",
    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(AttentionBackwardKernel)": "attention",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNN": "matrix products",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "matrix products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "matrix products",
    "_backward_weight": "convolutions",
    "_taps": "convolutions",
    "_patch": "convolutions",
    "_patch_back": "convolutions",
    "_patch_weight": "convolutions",
    "_adamw": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(TensorIteratorBase&)>": "copies",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 4, 64, 64>": "copies",
    "Memcpy DtoD (Device -> Device)": "copies",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>": "element-wise, norms",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>": "element-wise, norms",
    "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>>": "element-wise, norms",
    "void at::native::roll_cuda_kernel<float>": "copies",
    "triton_poi_fused__to_copy_add_mul_3": "element-wise, norms",
    "_squares": "element-wise, norms",
    "_residual_squares": "element-wise, norms",
    "_residual_norm_back": "element-wise, norms",
    "_alone_back": "element-wise, norms",
    "_repair_gas": "element-wise, norms",
    "curand_something": "other",
    "aten::addmm": "matrix products",
    "aten::copy_": "copies",
}


def test_kernels_are_known_by_their_names() -> None:
    assert {name: kind_of(name) for name in NAMES} == NAMES


def test_the_time_of_a_step_is_shared_out_among_what_it_does() -> None:
    a = torch.randn(200, 200)
    spent = kernel_seconds(lambda: a @ a, 2, CPU)
    assert spent["aten::mm"] > 0
    found = summary({"aten::mm": 3e-3, "aten::copy_": 1e-3, "aten::bmm": 4e-3})
    assert found["milliseconds"] == pytest.approx(8)
    assert found["shares"] == pytest.approx({"matrix products": 7 / 8, "copies": 1 / 8})
    assert found["longest"][0][0] == "aten::bmm"
    assert summary({}) == {"milliseconds": 0, "shares": {}, "longest": []}


def test_works_take_turns_and_are_compared_round_by_round() -> None:
    order: list[str] = []
    turns: list[Any] = [("a", lambda: order.append("a")), ("b", None), ("c", lambda: order.append("c"))]
    times = in_turn(turns, 2, CPU, lambda: order.append("|"))
    assert "".join(order) == "|c||a" + "|a||c" + "|c||a"
    assert {name: len(each) for name, each in times.items()} == {"a": 2, "b": 0, "c": 2}, "the first warms up"
    order.clear()
    times = in_turn(turns[:2], 2, CPU, lambda: order.append("|"), block=3)
    assert "".join(order) == "||aaa" + "|aaa|" + "||aaa"
    assert {name: len(each) for name, each in times.items()} == {"a": 4, "b": 0}, "nor does the first of a block count"
    assert over([2.0, 30.0, 4.0], [1.0, 10.0, 4.0]) == TurnSpread(2.0, 1.0, 3.0)


def test_the_time_of_reductions_is_taken_off_the_rounds_that_were_watched() -> None:
    calls: list[int] = []
    learner = SimpleNamespace(reduce=lambda: calls.append(1))
    watch = Reductions(SimpleNamespace(dist=SimpleNamespace(device=CPU), learner=learner))  # type: ignore[arg-type]
    learner.reduce()
    watch.watched(learner.reduce)()
    assert len(calls) == 2
    assert len(watch.each) == 1
    watch.each = [9.0, 1.0, 2.0]
    assert watch.without([4.0, 4.0]) == [3.0, 2.0]


def test_ranks_are_compared_with_two_that_never_speak_before_the_reduction_and_with_one_alone_after_it() -> None:
    times = {"alone": [1.0], "apart": [1.25], "as graphs": [4.0], "as graphs, without the reduction": [2.0]}
    found = SpeedNumbers()
    ranks_rows(found, {**times, "kernel by kernel": [8.0], "kernel by kernel, without the reduction": [6.0]})
    assert [row["ratio"] for row in found.rows] == [0.8, 0.625, 0.25, 2.0]
    assert found.rows[1]["name"] in BARS


def test_on_a_gpu_the_batch_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = large_case("cpu", "unet")
    stage = case.stage(CPU)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    needs, fits = Demand((1, 2), (10**9, 2 * 10**9)), {}
    for gigabytes in (1, 3, 9):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, n=gigabytes: (n * 10**9, 0))  # noqa: ARG005
        fits[gigabytes] = fitting(case, stage, needs, torch.device("cuda"))
    assert fits == {1: 1, 3: 2, 9: 4}, "four are wanted, and a fifth of the memory is left alone"


def test_without_a_gpu_a_small_step_is_timed_and_graphs_say_why_not() -> None:
    found = small("cpu")
    rows = {row["name"]: row for row in found.rows}
    plain = rows["Trainer over a bare loop, step time"]
    assert 0 < plain["low"] <= plain["ratio"] <= plain["high"]
    assert rows[GRAPHS] == {"name": GRAPHS, "why": "a CUDA graph needs a CUDA device"}
    assert sum(found.kernels["small"]["shares"].values()) == pytest.approx(1)
    assert {"one rank, bare loop", "one rank, kernel by kernel"} == found.rates.keys()


def answer(name: str, ratio: float) -> SpeedNumbers:
    found = SpeedNumbers(
        kernels={name: {"milliseconds": 2.5, "shares": {"copies": 0.25, "other": 0.75}, "longest": []}}
    )
    found.row(GRAPHS, TurnSpread(ratio, ratio - 0.1, ratio + 0.1), "seen")
    found.missing("of another kind", "there is none here")
    found.rates["alone"] = "12 steps/s"
    return found


def ended(changes: dict[str, Result]) -> Callable[..., list[Result]]:
    """Jobs that end at once; those named in `changes` otherwise than well."""

    def run(function: Any, world: int, device: str, *_: Any, seconds: float) -> list[Result]:
        assert device == "cpu"
        assert seconds > 0
        well = Result(answer(function.__name__, 4.0), 0)
        return [changes.get(function.__name__, well)] * world

    return run


def test_a_part_that_fails_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "speed.json", list[str]()
    monkeypatch.setattr(speed, "run_ranks", ended({"validation": Result(exitcode=1, error="RuntimeError: no room")}))
    assert bench_speed(None, "cpu", 100, path, "abc", said.append) == 1
    assert "validation: not measured: RuntimeError: no room" in said
    numbers = json.loads(path.read_text())
    assert list(numbers["parts"]) == list(PARTS)
    assert numbers["parts"]["validation"]["failures"] == [{"what": "validation", "why": "RuntimeError: no room"}]
    assert all(not part["failures"] for name, part in numbers["parts"].items() if name != "validation")
    assert numbers["parts"]["small"]["provenance"]["commit"] == "abc"
    monkeypatch.setattr(speed, "run_ranks", ended({}))
    assert bench_speed(["validation"], "cpu", 100, path, "def", said.append) == 0
    again = json.loads(path.read_text())["parts"]
    assert again["validation"]["failures"] == []
    assert again["small"] == numbers["parts"]["small"], "other parts stay as they were measured"


def test_what_has_not_had_its_turn_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(speed, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(speed, "run_ranks", ended({}))
    said: list[str] = []
    assert bench_speed(["small", "compiled"], "cpu", 140, None, None, said.append) == 1
    assert "small, 100 s" in said
    assert "unet, compiled: not measured: its turn came when --seconds were over" in said


def test_the_tables_say_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "speed.json"
    assert speed_table(path).startswith("Not measured yet: `ups bench speed --device cuda")
    assert kernels_table(path) == "Not measured yet.\n"
    monkeypatch.setattr(speed, "run_ranks", ended({"validation": Result(exitcode=-9, answered=False)}))
    bench_speed(["small", "validation"], "cpu", 100, path, None, str)
    table = speed_table(path)
    assert f"| {GRAPHS} | **4.000** | 3.900 – 4.100 | ≥ 5 | seen |" in table, "what misses its bar is bold"
    assert "| of another kind | not measured | – | – | there is none here |" in table
    assert "| validation | not measured | – | – | ended by SIGKILL, perhaps for want of memory |" in table
    assert "alone: 12 steps/s" in table
    assert "| small | 2.5 | 25% | 75% |" in kernels_table(path)
    numbers = json.loads(path.read_text())
    numbers["parts"]["small"]["rows"][0]["ratio"] = 6.0
    path.write_text(json.dumps(numbers))
    assert "| 6.000 |" in speed_table(path)
    for broken in ("{}", '{"parts": {"small": {}}, "bars": {}}', "nothing"):
        path.write_text(broken)
        for table_of in (speed_table, kernels_table):
            with pytest.raises(DataError, match=r"speed\.json: is not what `ups bench speed"):
                table_of(path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--part", "ranks", "--part", "disk"], "there is no part 'disk'; the parts are small, protections"),
        (["--seconds", "0"], "--seconds 0 is no time to measure in"),
        (["--device", "cuda:99"], "device is 'cuda:99'"),
        (["--device", "cpu", "--json", "{file}"], "holds no parts of `ups bench speed`"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"ratios": []}')
    with pytest.raises(SystemExit) as end:
        main(["bench", "speed", *(word.format(file=file) for word in words)])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_every_part_runs_on_a_processor_and_measures_what_has_a_bar(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    parts = [name for name in PARTS if name != "compiled"]
    said: list[str] = []
    assert bench_speed(parts, "cpu", 300, path, None, said.append) == 0, said
    measured = json.loads(path.read_text())["parts"]
    names = {row["name"] for part in measured.values() for row in part["rows"]}
    assert {name for name in BARS if "compiled" not in name} <= names
    assert set(measured["large"]["kernels"]) == {"transformer", "unet"}
    speed_table(path)
    kernels_table(path)
