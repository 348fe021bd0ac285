"""Simulator: the Python API in kind, guards, and an artifact that survives and refuses."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_simulators import GRIDS, awaken, condition, frames, simulator, window

from ups.engine.preemption import Preempted
from ups.models import Simulator, SimulatorConfig, artifact
from ups.models.header import task_from
from ups.models.questions import parameters, strange, walls_of
from ups.models.stepping import Stepping
from ups.physics import TASKS
from ups.physics.laws import guarding
from ups.types import ConfigError, DataError, Param

NU = {"nu": 1.0}


def burgers(**operator: object) -> Simulator:
    sim = simulator("burgers1d", **operator)
    sim.operator.fit_ranges("burgers1d", torch.tensor([0.1]), torch.tensor([2.0]))
    awaken(sim)
    with torch.no_grad():
        sim.operator.head.weight *= 0.1
    return sim


def test_a_printed_simulator_is_a_few_lines_that_say_what_it_is() -> None:
    sim = burgers()
    sim.origins["operator"] = {"provenance": {"stage": "operator", "steps": 9, "score": 0.01234}}
    sim.fit_dt("burgers1d", 0.05, 0.1)
    weights = sum(p.numel() for p in sim.parameters())
    size = f"{weights / 1000:.1f} k weights ({4 * weights // 1000} kB)"
    assert (
        str(sim)
        == repr(sim)
        == (
            "Simulator of burgers1d: u on 32 cells of x; nu 0.1 to 2; steps of 0.05 to 0.1\n"
            f"  Parts: codec, operator (validation error 0.0123); {size} on cpu.\n"
            '  Ask: sim.rollout(u0, steps=100, params={"nu": 1.05})'
        )
    )
    many = str(simulator())
    assert len(many.splitlines()) == 7
    assert "reacdiff2d: activator, inhibitor on 16 x 24 cells of x, y; steps of 0.05" in many
    assert "and cfd2d, cfd3d" in many
    assert "; nothing says that it was trained." in many
    assert ', task="' in many.splitlines()[-1]
    assert "x, y, driven by permeability; beta 1; steady" in str(simulator("darcy2d", shapes={"darcy2d": (16, 16)})), (
        "what is given is said"
    )


def test_the_card_of_a_simulator_is_json_and_says_where_it_is_at_home() -> None:
    sim = burgers()
    sim.origins["operator"] = {"provenance": {"score": 0.01}}
    card = json.loads(json.dumps(sim.card()))
    (task,) = card["tasks"]
    assert (task["shape"], task["box"], task["context"]) == ([32], [[0.0, 1.0]], sim.looks_back("burgers1d"))
    assert [task["params"][0][word] for word in ("name", "lo", "hi")] == ["nu", pytest.approx(0.1), 2.0]
    assert card["parts"]["operator"]["validation_error"] == 0.01


def test_an_untrained_simulator_is_persistence() -> None:
    sim = simulator("reacdiff2d")
    x = frames("reacdiff2d")
    out = sim.simulate(window(x, condition("reacdiff2d")), 3)
    assert (out - x).abs().max() < 1e-4


def test_answers_have_the_kind_and_rank_of_what_was_given() -> None:
    sim = burgers()
    u = frames("burgers1d", batch=3)[:, 0]
    full = sim.rollout(u, 4, NU)
    assert isinstance(full, torch.Tensor)
    assert full.shape == (3, 4, 32, 1)
    one = sim.rollout(u[0].double().numpy(), 4, NU)
    assert isinstance(one, np.ndarray)
    assert one.dtype == np.float64
    assert one.shape == (4, 32, 1)
    flat = sim.rollout(u[0, :, 0].numpy(), 4, NU)
    assert flat.shape == (4, 32)
    assert flat.dtype == np.float32
    np.testing.assert_allclose(flat, full[0, ..., 0].numpy(), atol=1e-5)
    np.testing.assert_allclose(one[..., 0], flat, atol=1e-5)


def test_xarray_in_gives_xarray_out_with_times_and_coordinates() -> None:
    xarray = pytest.importorskip("xarray")
    sim = burgers()
    x = (np.arange(32) + 0.5) / 32
    given = xarray.DataArray(np.sin(2 * np.pi * x), dims=("x",), coords={"x": x})
    out = sim.rollout(given, 3, NU)
    assert out.dims == ("time", "x")
    np.testing.assert_allclose(out.coords["time"], 0.01 * np.arange(1, 4), rtol=1e-5)
    np.testing.assert_allclose(out.values, sim.rollout(given.values, 3, NU))


def test_the_first_frame_stands_for_those_that_are_missing_and_only_the_last_ones_count() -> None:
    sim = burgers(context=3)
    u = frames("burgers1d", context=5)
    short = sim.rollout(u[:, 4:], 2, NU)
    assert torch.equal(short, sim.rollout(u[:, 4:].expand(-1, 3, -1, -1), 2, NU))
    assert torch.equal(sim.rollout(u, 2, NU), sim.rollout(u[:, 2:], 2, NU))


def test_points_in_physical_coordinates_agree_with_the_grid_at_its_cells() -> None:
    sim = burgers()
    sim.config = SimulatorConfig(guard=False)
    u = frames("burgers1d")[:, 0]
    x = ((torch.arange(32) + 0.5) / 32).reshape(-1, 1)
    on_grid, at_points = sim.rollout(u, 3, NU), sim.rollout(u, 3, NU, points=x)
    assert torch.allclose(on_grid, at_points, atol=1e-4)
    assert torch.allclose(sim.rollout(u, 3, NU, points=x + 1), at_points, atol=1e-3)


def test_a_rollout_is_steps_one_after_the_other_and_independent_of_the_batch() -> None:
    sim = burgers(context=2)
    u, asked = frames("burgers1d", context=2), condition("burgers1d")
    out = sim.simulate(window(u, asked), 3)
    alone = sim.simulate(window(u[:1], condition("burgers1d", batch=1)), 3)
    assert torch.allclose(alone, out[:1], atol=1e-5)


def test_the_guard_keeps_totals_and_signs() -> None:
    sim = burgers()
    u = frames("burgers1d")[:, 0]
    assert torch.allclose(sim.rollout(u, 5, NU).mean((2, 3)), u.mean((1, 2)).unsqueeze(1).expand(-1, 5), atol=1e-5)
    sim.config = SimulatorConfig(guard=False)
    assert not torch.allclose(sim.rollout(u, 5, NU)[:, -1].mean((1, 2)), u.mean((1, 2)), atol=1e-4)
    gas = simulator("cfd2d")
    awaken(gas.operator)
    out = gas.simulate(window(frames("cfd2d").abs(), condition("cfd2d")), 2)
    assert out[..., :2].min() >= 0


def test_totals_are_not_forced_under_another_boundary_and_facts_serve_unknown_equations() -> None:
    gas = TASKS["cfd2d"]
    all_laws = ["mass", "density", "momentum x", "momentum y", "energy", "pressure"]
    assert [law.name for law in guarding(gas, (True, True))] == all_laws
    assert [law.name for law in guarding(gas, (False, False))] == ["density", "pressure"]
    own = dataclasses.replace(TASKS["burgers1d"], name="mine", equation="", conserved=("u", "energy"), positive=("u",))
    laws = guarding(own, (True,))
    assert [type(law).__name__ for law in laws] == ["Conserved", "Positive"]


def test_a_rollout_at_a_resolution_not_trained_follows_that_of_the_trained_one() -> None:
    sim = burgers()
    sim.config = SimulatorConfig(guard=("mass",))  # values that are clipped are other waves on another grid
    at = {n: (torch.arange(n) + 0.5) / n for n in (32, 64)}
    u = {n: torch.sin(2 * torch.pi * x).unsqueeze(-1) for n, x in at.items()}
    fine, coarse = sim.rollout(u[64], 3, NU), sim.rollout(u[32], 3, NU)
    assert fine.shape == (3, 64, 1)
    spectra = [torch.fft.rfft(f[..., 0], dim=1, norm="forward")[:, :15] for f in (fine, coarse)]
    shift = torch.exp(2j * torch.pi * torch.arange(15) * (1 / 64 - 1 / 128))
    assert (spectra[0] * 1 - spectra[1] * shift.conj()).abs().max() < 1e-4


def test_a_parameter_outside_the_trained_range_warns_and_an_unknown_or_missing_one_is_refused() -> None:
    sim = burgers()
    u = frames("burgers1d")[:, 0]
    with pytest.warns(UserWarning, match="nu = 5 lies outside the trained range 0.1 to 2"):
        sim.rollout(u, 1, {"nu": 5.0})
    with pytest.warns(UserWarning, match="dt"):
        sim.rollout(u, 1, NU, dt=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.rollout(u, 1, {"nu": [0.1, 2.0]})
        sim.rollout(u, 1, np.array([[0.5]]))
    with pytest.raises(ConfigError, match="no parameter 'mu'"):
        sim.rollout(u, 1, {"mu": 1.0})
    with pytest.raises(ConfigError, match="needs the parameter nu"):
        sim.rollout(u, 1)
    with pytest.raises(ConfigError, match="3 values for 2 samples"):
        sim.rollout(u, 1, {"nu": [1.0, 1.0, 1.0]})


GAS = Param("gas", "air", "", choices=("air", "argon"), encoded=True)
OF_GAS = dataclasses.replace(TASKS["burgers1d"], parameters=(GAS,))
SEEN = {"gas": (0.0, 1.0)}


@pytest.mark.parametrize(
    "words",
    [
        ["argon", "air"],
        np.array(["argon", "air"]),
        np.array([b"argon", b"air"]),
        np.array(["argon", "air"], object),
        torch.tensor([1, 0]),
        [1, 0.0],
    ],
)
def test_words_are_their_places_in_any_kind_of_array(words: object) -> None:
    assert parameters({"gas": words}, OF_GAS, SEEN, 2, []).tolist() == [[1.0], [0.0]]
    assert parameters({"gas": np.asarray(words)[0]}, OF_GAS, SEEN, 2, []).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("word", ["neon", 0.5, 7, [0, -1], np.array(["air", "neon"]), ["air", 1]])
def test_what_is_no_word_of_a_parameter_is_refused_with_those_that_are(word: object) -> None:
    with pytest.raises(ConfigError, match=r"burgers1d was not trained on gas = '[\w.-]+'; it knows air, argon\."):
        parameters({"gas": word}, OF_GAS, SEEN, 2, [])
    with pytest.raises(ConfigError, match="needs the parameter gas, one of air, argon; give"):
        parameters({}, OF_GAS, SEEN, 2, [])


def test_a_field_that_never_varied_stays_what_it_was_and_another_value_warns() -> None:
    sim = burgers()
    sim.codec.fit_statistics("burgers1d", torch.tensor([300.1]), torch.zeros(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(sim.rollout(np.full(32, 300.1, "f4"), 2, NU), np.full((2, 32), 300.1, "f4"))
    with pytest.warns(UserWarning, match=r"u was 300.1 everywhere in training, and is so in the answer"):
        sim.rollout(np.full(32, 301.0), 1, NU)


def test_states_far_from_all_that_training_saw_warn_and_cells_that_do_not_count_do_not() -> None:
    sim, spec = burgers(), TASKS["burgers1d"]
    sim.codec.fit_statistics("burgers1d", torch.tensor([5.0]), torch.tensor([2.0]))
    with pytest.warns(
        UserWarning, match=r"burgers1d: u is 50 deviations away from its mean in training; the answer is a"
    ):
        sim.rollout(np.full(32, 105.0), 1, NU)
    given, mask = torch.full((1, 1, 32, 1), 6.0), torch.ones(1, 32, dtype=torch.bool)
    given[0, 0, 3], mask[0, 3] = 1e9, False
    statistics = sim.codec.statistics_of(spec)
    assert strange(given, statistics, spec.channels, spec.name, mask) == []
    assert len(strange(given, statistics, spec.channels, spec.name)) == 1
    given[0, 0, 3], mask[0, 1:] = torch.nan, False
    given[0, 0, 0] = 105.0
    assert "u is 50 deviations" in strange(given, statistics, spec.channels, spec.name, mask)[0], (
        "over the one cell that counts"
    )


def test_inputs_unlike_those_of_training_warn_where_they_are_constant_and_where_they_vary() -> None:
    sim = darcy()
    sim.operator.fit_inputs("darcy2d", torch.tensor([0.5]), torch.tensor([0.1]))
    usual = np.full((16, 16), 0.6, "f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.solve(usual)
    name = sim.codec.task("darcy2d").given[0]
    with pytest.warns(
        UserWarning, match=rf"darcy2d: {name} is 1e\+03 deviations away .*; the answer is a guess"
    ) as said:
        sim.solve(100.5 + 0 * usual)
    assert [Path(warning.filename).name for warning in said] == ["test_simulator.py"]
    sim.operator.fit_inputs("darcy2d", torch.tensor([9.75]), torch.tensor([0.0]))
    with pytest.warns(UserWarning, match=rf"{name} was 9.75 everywhere in training, and nothing is known of other"):
        sim.solve(usual)
    with pytest.raises(ConfigError, match="the input of darcy2d is a dict; give one array"):
        sim.solve({name: usual})


def test_a_rollout_that_is_not_finite_warns_once_with_its_first_step_and_how_many_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim, u, answer = burgers(), frames("burgers1d", batch=3)[:, 0], torch.zeros(3, 5, 32, 1)
    answer[0, 2:, 4], answer[2, 3, 0] = torch.nan, torch.inf
    monkeypatch.setattr(sim, "simulate", lambda *_: answer)
    with pytest.warns(UserWarning, match=r"answer to 2 of 3 samples is not finite, first at step 3; give") as said:
        sim.rollout(u, 5, NU)
    assert [Path(warning.filename).name for warning in said] == ["test_simulator.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer[:, 2:] = 90.0
        sim.rollout(u, 5, NU)


def test_a_gas_with_negative_density_and_inputs_beyond_all_numbers_warn() -> None:
    gas = simulator("cfd2d")
    awaken(gas)
    with pytest.warns(UserWarning, match=r"cfd2d: the answer to 2 of 2 samples is not finite, first at step 1"):
        assert gas.rollout(-frames("cfd2d")[:, 0].abs(), 2).isnan().any()
    with pytest.warns(UserWarning, match=r"darcy2d: the answer to 1 of 2 samples is not finite; give values like"):
        darcy().solve(
            np.array([1.0, 1e38], "f4")[:, None, None, None] * np.linspace(-3, 3, 256, dtype="f4").reshape(16, 16, 1)
        )


def test_parameters_outside_the_trained_range_are_said_in_sentences_for_a_report() -> None:
    sim = burgers()
    sim.fit_dt("burgers1d", 0.05, 0.05)
    assert sim.outside({"nu": [0.1, 2.0]}, "burgers1d", dt=0.05) == []
    assert sim.outside(torch.tensor([[0.5], [0.7]])) == []
    said = sim.outside(torch.tensor([[0.5], [7.0]]), dt=0.1)
    assert [sentence.split(";")[0] for sentence in said] == [
        "burgers1d: nu = 7 lies outside the trained range 0.1 to 2",
        "burgers1d: dt = 0.1 lies outside the trained range 0.05 to 0.05",
    ]
    assert simulator("diffsorp1d").outside(torch.zeros(4, 0)) == []


def darcy() -> Simulator:
    sim = simulator("darcy2d", shapes={"darcy2d": (16, 16)})
    awaken(sim)
    sim.config = SimulatorConfig(guard=False)
    return sim


def test_a_steady_task_is_solved_from_its_inputs_alone_in_kind(tmp_path: Path) -> None:
    sim = darcy()
    a = torch.rand(3, 16, 16, 1, generator=torch.Generator().manual_seed(0))
    many = sim.solve(a)
    assert many.shape == (3, 16, 16, 1)
    one = sim.solve(a[0, ..., 0].double().numpy())
    assert one.shape == (16, 16)
    assert one.dtype == np.float64
    np.testing.assert_allclose(one, many[0, ..., 0].numpy(), atol=1e-4)
    assert sim.solve(a, points=[[0.5, 0.5], [0.1, 0.9]]).shape == (3, 2, 1)
    assert sim.dt.tolist() == [[1.0, 1.0]]
    sim.fit_dt("darcy2d", 0.0, 0.0)
    assert sim.dt.tolist() == [[1.0, 1.0]]
    sim.operator.fit_inputs("darcy2d", torch.tensor([0.3]), torch.tensor([0.2]))
    again = Simulator.load(sim.save(tmp_path))
    assert torch.equal(again.solve(a), sim.solve(a))
    for wrong, match in ((None, "driven by permeability"), (a[0, 0, :, 0], "not"), (a * float("inf"), "not finite")):
        with pytest.raises(ConfigError, match=match):
            sim.solve(wrong)


def test_a_steady_answer_in_xarray_has_the_places_of_its_input_and_the_channel_of_the_task() -> None:
    xarray = pytest.importorskip("xarray")
    x = (np.arange(16) + 0.5) / 16
    flat = xarray.DataArray(np.ones((16, 16)), dims=("x", "y"), coords={"x": x, "y": x})
    named = flat.expand_dims(channel=["permeability"], axis=-1)
    sim = darcy()
    assert sim.solve(flat).dims == ("x", "y")
    found = sim.solve(named)
    assert found.dims == ("x", "y", "channel")
    assert set(found.coords) == {"x", "y", "channel"}
    assert found.coords["channel"].values.tolist() == ["pressure"]


def test_requests_that_make_no_sense_are_refused_in_a_sentence() -> None:
    sim = burgers()
    u = frames("burgers1d")[:, 0]
    with pytest.raises(ConfigError, match="not trained on 'ks1d'"):
        sim.rollout(u, 1, NU, task="ks1d")
    with pytest.raises(ConfigError, match="at least one step"):
        sim.rollout(u, 0, NU)
    with pytest.raises(ConfigError, match="channels u"):
        sim.rollout(torch.zeros(2, 32, 3), 1, NU)
    with pytest.raises(ConfigError, match="not finite"):
        sim.rollout(u * float("nan"), 1, NU)
    with pytest.raises(ConfigError, match="say which"):
        simulator().rollout(u, 1)
    with pytest.raises(ConfigError, match="outside the box"):
        simulator("diffsorp1d").rollout(torch.zeros(32), 1, {}, points=[[2.0]])


def test_an_artifact_gives_the_same_bits_in_another_process(tmp_path: Path) -> None:
    sim = burgers(core="unet", mixing="attention", context=2)
    sim.fit_dt("burgers1d", 0.05, 0.05)
    sim.codec.fit_statistics("burgers1d", torch.tensor([0.3]), torch.tensor([1.7]))
    u = frames("burgers1d", context=2)
    # A processor without bf16 loses oneDNN for good when anyone multiplies in it: neither process has it here.
    with torch.backends.mkldnn.flags(enabled=False):
        out = sim.rollout(u, 3, NU)
    path = sim.save(tmp_path / "run", {"commit": "abc"})
    assert path == tmp_path / "run" / "simulator.safetensors"
    again = Simulator.load(tmp_path / "run")
    assert again.tasks == sim.tasks
    assert again.provenance == {"commit": "abc"}
    assert again.ranges() == sim.ranges()
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(again.rollout(u, 3, NU), out)
    np.save(tmp_path / "u.npy", u.numpy())
    code = (
        "import sys, numpy as np, torch; from ups.models import Simulator; torch.set_num_threads(int(sys.argv[2]));"
        "torch.backends.mkldnn.set_flags(False);"
        "d = sys.argv[1]; s = Simulator.load(d + '/run');"
        "np.save(d + '/out.npy', s.rollout(np.load(d + '/u.npy'), 3, {'nu': 1.0}))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(torch.get_num_threads())], check=True)
    assert np.array_equal(np.load(tmp_path / "out.npy"), out.numpy())


def test_every_task_survives_being_saved(tmp_path: Path) -> None:
    for name, task in TASKS.items():
        assert task_from(json.loads(json.dumps(dataclasses.asdict(task)))) == task, name
    sim = simulator()
    assert Simulator.load(sim.save(tmp_path / "all.safetensors")).codec.shapes == {n: GRIDS[n] for n in GRIDS}


def test_damaged_foreign_and_newer_artifacts_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = burgers()
    path = sim.save(tmp_path / "whole.safetensors")
    whole = path.read_bytes()

    def refused(content: bytes, match: str) -> None:
        bad = tmp_path / "bad.safetensors"
        bad.write_bytes(content)
        with pytest.raises(DataError, match=match):
            Simulator.load(bad)

    refused(whole[: len(whole) // 2], "cut short")
    refused(whole[:5], "cut short")
    refused(b'{"a": 1}', "no simulator")
    refused(whole[:-8] + bytes(8), "damaged")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    refused((tmp_path / "other.safetensors").read_bytes(), "no simulator of this project")
    with pytest.raises(DataError, match="no such simulator"):
        Simulator.load(tmp_path / "nothing")
    header, tensors = artifact.read(path)
    fresh = {k: v for k, v in header.items() if k not in ("format", "version", "digest")}
    artifact.write(path, fresh, {k: v for k, v in tensors.items() if "head" not in k})
    with pytest.raises(DataError, match="not of the model"):
        Simulator.load(path)
    here = artifact.VERSION
    for version, remedy in ((here - 1, "train it again"), (here + 1, "update the program")):
        with monkeypatch.context() as other:
            other.setattr(artifact, "VERSION", version)
            artifact.write(path, fresh, tensors)
        with pytest.raises(DataError, match=f"version {version}, and this program reads {here}; {remedy}"):
            Simulator.load(path)


def test_a_request_to_stop_while_an_artifact_is_loaded_is_no_damage_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = simulator().save(tmp_path)

    def stopped(*_: object, **__: object) -> None:
        raise Preempted("stopped by SIGTERM")

    monkeypatch.setattr("ups.models.simulator.check_shapes", stopped)
    with pytest.raises(Preempted):
        Simulator.load(path)


def test_a_rollout_leaves_the_mode_of_the_simulator_alone() -> None:
    sim = burgers().train()
    sim.rollout(frames("burgers1d")[:, 0], 1, NU)
    assert sim.training


def test_steps_may_each_have_a_length_of_their_own() -> None:
    sim = burgers()
    sim.fit_dt("burgers1d", 0.01, 0.04)
    u = np.sin(2 * np.pi * np.arange(32) / 32)
    each = sim.rollout(u, 3, {"nu": 0.5}, dt=[0.01, 0.04, 0.02])
    given = torch.tensor(u, dtype=torch.float32).reshape(1, 1, 32, 1)
    steppings = [Stepping(sim, window(given, condition("burgers1d", 1, dt=dt))) for dt in (0.01, 0.04, 0.02)]
    with torch.no_grad():
        z = steppings[0].start()
        for frame, stepping in zip(each, steppings, strict=True):
            z, one = stepping.step(z, 0)
            np.testing.assert_allclose(frame, one[0, :, 0], atol=1e-5)
    assert np.array_equal(sim.rollout(u, 3, NU, dt=[0.04] * 3), sim.rollout(u, 3, NU, dt=0.04))
    with pytest.raises(ConfigError, match="one finite number above 0, or 3, one per step"):
        sim.rollout(u, 3, NU, dt=[0.01, 0.02])
    xarray = pytest.importorskip("xarray")
    given = xarray.DataArray(u, dims=("x",))
    np.testing.assert_allclose(sim.rollout(given, 3, NU, dt=[0.01, 0.04, 0.02]).coords["time"], [0.01, 0.05, 0.07])


@pytest.mark.parametrize("boundary", ["periodic", ["periodic", "periodic"], np.array(["periodic"]), 0])
def test_a_boundary_is_the_same_however_it_is_said(boundary: object) -> None:
    assert walls_of(None, TASKS["cfd1d"], {"boundary": boundary}) == (True,)


@pytest.mark.parametrize("boundary", [["periodic", "trans"], "walls", 7, []])
def test_samples_of_one_question_share_a_boundary_that_there_is(boundary: object) -> None:
    with pytest.raises(ConfigError, match=r"boundary is .* must be one of periodic, trans, the same for all samples"):
        walls_of(None, TASKS["cfd1d"], {"boundary": boundary})


@pytest.mark.parametrize(
    ("said", "wraps"),
    [(["y"], (False, True)), ("x", (True, False)), ([], (False, False)), (("y", "x"), (True, True))],
)
def test_axes_that_wrap_may_be_said_by_name(said: object, wraps: tuple[bool, ...]) -> None:
    assert walls_of(said, TASKS["cfd2d"], {}) == wraps
    assert walls_of(list(wraps), TASKS["cfd2d"], {}) == wraps
    with pytest.raises(ConfigError, match=r"periodic is \['z'\], but must be names of axes \(x, y\), or True"):
        walls_of(["z"], TASKS["cfd2d"], {})
