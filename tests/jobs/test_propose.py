"""`ups init`: a config for the data at hand that loads, can be estimated and trained, and replaces nothing unasked."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import yaml

from ups.cli.app import main
from ups.config import load
from ups.data import open_source
from ups.data.readers.memory import open_memory
from ups.data.views import Spread
from ups.definition import Definition, definition_from, is_file_name
from ups.engine.memory import CodeCost
from ups.jobs.estimate.timing import Ceilings
from ups.jobs.fit import Data, _looked_at, _proposed, _single, fit
from ups.jobs.inspect import notes, problems
from ups.jobs.recipe import pricing
from ups.jobs.recipe import proposal as module
from ups.jobs.recipe.data_profile import OF_FEW, DataProfile, held_as_they_are, holdings
from ups.jobs.recipe.proposal import propose
from ups.jobs.recipe.signs import ANY_PACE, FAST, SLOW, pace, seamless
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import GenerateConfig, SplitConfig
from ups.run.data.datasets import open_files
from ups.run.data.generate import generate
from ups.run.data.outlines import outlines
from ups.run.start import Start
from ups.types import UNKNOWN, Array, ConfigError, DataError, Dynamics


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a known task, one of arrays that say nothing of themselves, and what they are."""
    place = tmp_path_factory.mktemp("init")
    settings = GenerateConfig(task="advection1d", samples=12, resolution=64, scheme="accurate", params={"beta": 0.4})
    generate(settings, place, lambda progress: None)  # noqa: ARG005
    waves = np.random.default_rng(0).normal(size=(2, 120, 16, 16)).astype(np.float32)
    np.savez(place / "waves.npz", h=waves)
    (place / "waves.yaml").write_text("name: waves\ndims: [sample, time, x, y]\nfields: {h: [h]}\ndt: 0.1\n")
    return place


@pytest.fixture(autouse=True)
def bill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bill of made-up sizes, for a config that could be trained: the true one takes seconds (tests of estimates)."""

    def costs(config: RunConfig, device: str, sets: object, rough: object) -> SimpleNamespace:  # noqa: ARG001
        flops = {"tiny": 10, "small": 100, "base": 1000}[config.model.part("operator").size] * config.stage(
            "operator"
        ).batch
        stage = SimpleNamespace(work=CodeCost(0, 0, flops * 10**9, 0, 0), captured=False)
        return SimpleNamespace(stages=[stage], needed=10**6, parameters={"total": 1000})

    monkeypatch.setattr(pricing, "costs", costs)
    monkeypatch.setattr(pricing, "ceilings", lambda device, bf16: Ceilings(1e12, 1e12, 0.0))  # noqa: ARG005


def written(out: Path, *files: Path, task: str = "", minutes: float = 5.0) -> RunConfig:
    path, remarks = propose(files, task, out, minutes, "cpu", False, lambda sentence: None)  # noqa: ARG005
    assert any(line.startswith("Model: ") for line in remarks)
    return load(run_config(), path)


@pytest.mark.parametrize(("minutes", "size", "rate"), [(5000.0, "small", 4e-3), (5.0, "tiny", 8e-3)])
def test_a_narrower_network_is_trained_at_a_higher_rate(
    folder: Path, tmp_path: Path, minutes: float, size: str, rate: float
) -> None:
    config = written(tmp_path / "config.yaml", *folder.glob("*.hdf5"), minutes=minutes)
    assert config.model.part("operator").size == size
    assert config.operator.train.lr == rate  # type: ignore[attr-defined]


@pytest.mark.parametrize(("text", "file"), [("mine.yam", True), ("a/b", True), ("run.v2", False), ("burgers1d", False)])
def test_a_misspelt_file_is_no_name_of_a_task(text: str, file: bool) -> None:
    assert is_file_name(text) is file


def test_a_config_for_a_file_names_it_and_thins_it(folder: Path, tmp_path: Path) -> None:
    (file,) = folder.glob("*.hdf5")
    config = written(tmp_path / "config.yaml", file)
    (entry,) = config.data.values()
    assert entry.file == str(file)
    assert 201 // (1000 // 12) < entry.reduce.time < 201 // 41, "a dozen slow trajectories"
    assert (
        "# Note: advection1d: every 3rd of 201 frames is used (`reduce` in the config).\n"
        in (tmp_path / "config.yaml").read_text()
    )
    assert config.operator.train.seconds == 300  # type: ignore[attr-defined]
    text = (tmp_path / "config.yaml").read_text()
    assert text.startswith(f"# ups run {tmp_path / 'config.yaml'}\n")
    assert "Memory: about 1 MB of tensors at the peak" in text
    assert "# the highest learning rate" in text or "# lr: the highest learning rate" in text


def test_changes_are_measured_by_the_sample_unless_states_are_uniform_at_first(folder: Path, tmp_path: Path) -> None:
    """Of one uniform frame nobody can see that it is driven, so a step scale of the sample would leave it as it is."""
    driven = np.zeros((6, 20, 16), np.float32)
    driven[:, 1:, :4] = np.linspace(0.1, 1, 19)[:, None]
    np.savez(tmp_path / "driven.npz", h=driven)
    (tmp_path / "driven.yaml").write_text("name: driven\ndims: [sample, time, x]\nfields: {h: [h]}\ndt: 0.1\n")
    profiles = {
        "advection": holdings(list(folder.glob("*.hdf5")), ""),
        "driven": holdings([tmp_path / "driven.npz"], str(tmp_path / "driven.yaml")),
        **{task: holdings([], task) for task in ("burgers1d", "diffsorp1d", "darcy2d")},
    }
    assert {name: sets[0].uneven for name, sets in profiles.items()} == {
        "advection": True,
        "driven": False,
        "burgers1d": True,
        "diffsorp1d": False,
        "darcy2d": True,
    }
    for task, step_scale in (("burgers1d", "sample"), ("diffsorp1d", "task")):
        config = written(tmp_path / f"{task}.yaml", task=task)
        assert (config.model.part("operator").step_scale, config.stage("operator").train.optimizer) == (
            step_scale,
            "muon",
        )


def test_parameters_that_are_seen_to_carry_states_along_are_proposed_to_do_so(tmp_path: Path) -> None:
    """A wind of two parameters in 2D, a third that does nothing; and data whose parameters carry nothing."""
    draw = np.random.default_rng(3)
    x = (np.arange(16) + 0.5) / 16
    u, v, w = draw.uniform(-1, 1, (3, 12))
    bumps = [
        [
            np.exp(np.cos(2 * np.pi * (x[:, None] - a * t)) + np.sin(2 * np.pi * (x[None] - b * t)))
            for t in (0, 0.1, 0.2)
        ]
        for a, b in zip(u, v, strict=True)
    ]
    noise = draw.normal(size=(12, 3, 16, 16))
    text = "dims: [sample, time, x, y]\nfields: {h: [h]}\ndt: 0.1\nperiodic: [x, y]\nbounds: {x: [0, 1], y: [0, 1]}\n"
    named = "datasets: {u: u, v: v, w: w}\n"
    for name, frames in (("windy", bumps), ("noisy", noise)):
        np.savez(tmp_path / f"{name}.npz", h=np.float32(frames), u=u, v=v, w=w)
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\n{text}{named}")
    windy, noisy = (
        written(tmp_path / f"{name}-run.yaml", tmp_path / f"{name}.npz", task=str(tmp_path / f"{name}.yaml"))
        for name in ("windy", "noisy")
    )
    (windy_task,), (noisy_task,) = ([data.task for data in config.data.values()] for config in (windy, noisy))
    assert windy_task == replace(noisy_task, name="windy", advected_by=("u", "v"))
    assert "seen to move states in proportion" in (tmp_path / "windy-run.yaml").read_text()
    for i, frames in enumerate(bumps):  # the same as attributes of a file for each
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["h"] = np.float32(frames)
            file.attrs.update({"u": u[i], "v": v[i], "w": w[i], "g": 9.81})
    (tmp_path / "one.yaml").write_text("name: windy\n" + text.replace("sample, ", ""))
    (sets,) = holdings([tmp_path / f"{i}.h5" for i in range(len(bumps))], str(tmp_path / "one.yaml"))
    assert sets.dynamics.advected_by == ("u", "v")
    notes = "; ".join(sets.notes)
    assert "u, v, w are parameters" in notes
    assert "(g), for it is the same in all files or tells runs apart" in notes


def test_frames_that_hide_what_moves_them_are_proposed_with_the_ones_before(tmp_path: Path) -> None:
    """A string between walls, by its displacement alone and with its velocity; and a reaction that one frame tells."""
    draw = np.random.default_rng(4)
    k, t, x = np.arange(1, 5), 0.05 * np.arange(12), (np.arange(32) + 0.5) / 32
    shapes, phase = np.sin(np.pi * k[:, None] * x), np.pi * k * t[:, None]
    a, b = draw.normal(size=(2, 24, 1, 4)) / k
    u = (a * np.cos(phase) + b * np.sin(phase)) @ shapes
    v = (np.pi * k * (b * np.cos(phase) - a * np.sin(phase))) @ shapes
    decay = u[:, :1] * np.exp(-t[:, None]) / np.sqrt(1 + u[:, :1] ** 2 * (1 - np.exp(-2 * t[:, None])))
    for name, arrays in (("alone", {"u": u}), ("both", {"u": u, "v": v}), ("decay", {"u": decay})):
        np.savez(tmp_path / f"{name}.npz", **{key: np.float32(value) for key, value in arrays.items()})
        fields = ", ".join(f"{key}: [{key}]" for key in arrays)
        text = f"name: {name}\ndims: [sample, time, x]\nfields: {{{fields}}}\ndt: 0.05\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    hidden = {
        name: holdings([tmp_path / f"{name}.npz"], str(tmp_path / f"{name}.yaml"))[0].hidden
        for name in ("alone", "both", "decay")
    }
    assert hidden == {"alone": True, "both": False, "decay": False}
    config = written(tmp_path / "run.yaml", tmp_path / "alone.npz", task=str(tmp_path / "alone.yaml"))
    assert config.model.part("operator").context == 2
    assert "context: frames that are looked back on" in (tmp_path / "run.yaml").read_text()


def test_states_that_become_uniform_and_still_move_are_proposed_to_be_measured_by_their_task(tmp_path: Path) -> None:
    """Bumps that are flattened while their level rises like a logistic curve; and bumps that are flattened, or moved,
    at whatever level."""
    draw = np.random.default_rng(3)
    t, x = 0.1 * np.arange(20)[:, None], np.arange(32) / 32
    height, level, phase = draw.uniform(0.2, 1, (3, 24, 1, 1))
    flat = height * np.exp(-8 * t) * np.sin(2 * np.pi * (x + phase))
    moved = height * np.sin(2 * np.pi * (x - 0.4 * t + phase))
    rising = level / (level + (1 - level) * np.exp(-t))
    kinds = {"reaction": rising + flat, "decay": 50 * level + flat, "waves": 50 * level + moved}
    for name, values in kinds.items():
        np.savez(tmp_path / f"{name}.npz", u=np.float32(values))
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\ndims: [sample, time, x]\nfields: {{u: [u]}}\ndt: 0.1\n")
    found = {n: holdings([tmp_path / f"{n}.npz"], str(tmp_path / f"{n}.yaml"))[0].dynamics for n in kinds}
    assert found == {"reaction": Dynamics(changes_when_uniform=True), "decay": UNKNOWN, "waves": UNKNOWN}
    config = written(tmp_path / "run.yaml", tmp_path / "reaction.npz", task=str(tmp_path / "reaction.yaml"))
    assert config.model.part("operator").step_scale == "sample"
    assert config.data["reaction"].definition.changes_when_uniform
    assert written(tmp_path / "made.yaml", task="reacdiff1d").data["reacdiff1d"].task == "reacdiff1d", (
        "it says so itself"
    )


@pytest.mark.filterwarnings("error")
def test_samples_that_end_without_a_finite_value_are_named_and_change_no_proposal() -> None:
    u = np.random.default_rng(5).normal(size=(24, 12, 16)).cumsum(1)
    blown = u.copy()
    blown[3, 6:] = np.nan
    with Data(u).source() as sound, Data(blown).source() as source:
        (without,), (here,) = held_as_they_are([sound]), held_as_they_are([source])
    assert without.remarks == []
    assert (here.hidden, here.dynamics) == (without.hidden, without.dynamics)
    (words,) = here.remarks
    assert words.startswith("sample 000003 ends without a finite value, and a run refuses such: mend or leave out what")


def test_fit_takes_what_init_proposes_but_for_what_it_is_told() -> None:
    k, t, x = np.arange(1, 5), 0.05 * np.arange(12), (np.arange(32) + 0.5) / 32
    a, b = np.random.default_rng(4).normal(size=(2, 24, 1, 4)) / k
    phase = np.pi * k * t[:, None]
    u = (a * np.cos(phase) + b * np.sin(phase)) @ np.sin(np.pi * k[:, None] * x)
    with Data(u).source() as source:
        told: tuple[dict[str, object], ...] = (
            {},
            {"model.codec.dim": 2},
            {"operator.train.optimizer": "adamw"},
            {"train.optimizer": "adamw"},
        )
        found = [_proposed(held_as_they_are([source]), "cpu", 1.0, settings) for settings in told]
    assert found[0]["model.operator.context"] == 2, "a displacement hides its velocity"
    assert (found[0]["codec.train.steps"], found[0]["operator.train.seconds"]) == (0, 60), "the codec loses nothing"
    assert found[0]["operator.train.lr"] == 8e-3, "that of a tiny network"
    assert not [key for key in found[0] if key.startswith("data")], "every frame is kept"
    assert {"codec.train.steps", "model.codec.patch"}.isdisjoint(found[1]), "a codec that compresses is trained"
    assert (found[1]["codec.train.seconds"], found[1]["operator.train.seconds"]) == (9, 51)
    assert all("operator.train.lr" not in flags for flags in found[2:])


def test_a_field_that_hides_its_rate_is_found_beside_one_that_hides_nothing(tmp_path: Path) -> None:
    """A source that swings in time at a rate of each sample's own, and heat that it drives."""
    draw, x, t = np.random.default_rng(6), (np.arange(24) + 0.5) / 24, 0.02 * np.arange(21)
    heat, source = np.zeros((2, 32, 21, 24))
    for i in range(32):
        rate, phase, place = draw.uniform(3, 12), draw.uniform(0, 6), draw.uniform(0.2, 0.8)
        source[i] = 5 * np.exp(-(((x - place) / 0.1) ** 2)) * np.sin(rate * t[:, None] + phase)
        heat[i, 0] = np.cos(np.pi * x * draw.integers(1, 4)) * draw.normal()
        for step in range(20):
            around = np.pad(heat[i, step], 1, mode="edge")
            heat[i, step + 1] = heat[i, step] + 0.02 * source[i, step] + 0.2 * np.diff(around, 2)
    fields = {"f": {"f": source}, "both": {"u": heat, "f": source}}
    for name, arrays in fields.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        words = ", ".join(f"{key}: [{key}]" for key in arrays)
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\ndims: [sample, time, x]\nfields: {{{words}}}\ndt: 0.02\n"
        )
    found = {name: holdings([tmp_path / f"{name}.npz"], str(tmp_path / f"{name}.yaml"))[0].hidden for name in fields}
    assert found == {"f": True, "both": True}


@pytest.mark.parametrize(
    ("shape", "patch"), [((2,), [1, 2, 2]), ((7,), [2, 2, 2]), ((8,), [4, 2, 2]), ((32, 3), [4, 1, 2])]
)
def test_a_grid_too_small_for_the_usual_patch_is_given_a_smaller_one(
    tmp_path: Path, shape: tuple[int, ...], patch: list[int]
) -> None:
    """Neither `ups init` nor the data can be told of another."""
    u, dims = np.random.default_rng(9).normal(size=(12, 5, *shape)), ("sample", "time", *"xy"[: len(shape)])
    with Data(u, dims).source() as source:
        assert _proposed(held_as_they_are([source]), "cpu", 1.0, {})["model.codec.patch"] == patch
    np.savez(tmp_path / "small.npz", u=u)
    (tmp_path / "small.yaml").write_text(f"name: small\ndims: [{', '.join(dims)}]\nfields: {{u: [u]}}\n")
    config = written(tmp_path / "config.yaml", tmp_path / "small.npz", task=str(tmp_path / "small.yaml"))
    codec = config.model.part("codec")
    assert list(codec.patch) == patch
    build([source.task], codec, OperatorConfig(width=16, heads=2), shapes={source.task.name: shape})


def test_a_section_that_fit_is_given_leaves_the_rest_of_it_as_it_is_proposed() -> None:
    """Whole, it took the time to train for with it."""
    given = {
        "train": {"lr": 1e-3},
        "operator": {"train": {"lr": 1e-3}},
        "model.operator": {"context": 3},
        "mix": {},
    }
    wanted = {"train.lr": 1e-3, "operator.train.lr": 1e-3, "model.operator.context": 3, "mix": {}}
    assert _single(given) == wanted
    assert _single({"start_from": Path("2026-11-19")}) == {"start_from": '"2026-11-19"'}, "a path, not a date"


@pytest.mark.parametrize("what", ["an infinity", "nothing else", "nothing but nan", "nan", "1e300"])
def test_what_is_not_finite_is_left_to_those_who_can_say_so(what: str) -> None:
    u, speed = np.random.default_rng(7).normal(size=(12, 5, 16, 1)), np.linspace(0, 1, 12)
    u[3, 2, 5] = np.inf if what == "an infinity" else 0.0
    u[:] = np.inf if what == "nothing else" else u
    u[:] = np.nan if what == "nothing but nan" else u
    speed[4] = float(what) if what in ("nan", "1e300") else speed[4]  # a parameter
    with warnings.catch_warnings(action="error"), Data(u, params={"c": speed}).source() as source:
        assert "model.operator.context" not in _proposed(held_as_they_are([source]), "cpu", 1.0, {})


def test_fit_goes_on_with_the_networks_of_the_simulator_that_it_starts_from(tmp_path: Path) -> None:
    """They are those that another fit was proposed, and none of the defaults; a task of its own has its own wind."""
    draw, x, t = np.random.default_rng(6), (np.arange(32) + 0.5) / 32, 0.05 * np.arange(5)
    speed, size = np.linspace(-1, 1, 12), draw.normal(size=(12, 1, 1, 3))
    at = x[:, None] - speed[:, None, None, None] * t[:, None, None]
    u = (size * np.sin(2 * np.pi * np.arange(1, 4) * at + size)).sum(-1)
    sources = [Data(u, params={"c": speed}, task=Definition(name, periodic=("x",))).source() for name in ("old", "new")]
    codec, known = CodecConfig(dim=16, patch=(2, 2, 2)), Dynamics(memoryless=True, advected_by=("c",))
    operator = OperatorConfig(width=16, heads=2, context=2, step_scale="sample")
    task = replace(sources[0].task, dynamics=known)
    build([task], codec, operator, shapes={"old": (32,)}).save(tmp_path / "old.safetensors")
    start = {"start_from": str(tmp_path / "old.safetensors")}
    sets = _looked_at(sources, start)
    assert [h.dynamics for h in sets] == [known, Dynamics(advected_by=("c",))]
    model = load(run_config(), None, {"data.a.task": "burgers1d", **_proposed(sets, "cpu", 1.0, start)}).model
    assert (model.part("codec"), model.part("operator")) == (codec, operator)


class Begun(Exception):  # noqa: N818  (no fault)
    """A run that was asked for, with how the states of its tasks go on."""


def test_fit_takes_the_size_that_the_minutes_have_room_for_unless_it_is_told_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4000 steps of 1.6 s, from arrays in memory and from a file."""

    def run(config: RunConfig, *_: object, **__: object) -> None:
        raise Begun(config)

    monkeypatch.setattr("ups.jobs.fit.run_alone", run)
    u = np.sin(np.arange(16) * 0.4 + np.arange(12)[:, None, None] + 0.1 * np.arange(5)[:, None])
    np.savez(tmp_path / "u.npz", u=u)
    task = {"data.data.task": {"name": "u", "dims": ["sample", "time", "x"], "fields": {"u": ["u"]}, "dt": 0.1}}
    asked: tuple[tuple[float, dict[str, object], tuple[object, ...]], ...] = (
        (107, {}, ("small", 4e-3, 8)),
        (106, {}, ("tiny", 8e-3, 8)),
        (107, {"batch": 5}, ("small", 4e-3, 5)),
        (107, {"model.operator.width": 32}, ("tiny", 8e-3, 32)),
        (0.1, {}, ("tiny", 8e-3, 32)),
    )
    for data, more in ((u, {}), (tmp_path / "u.npz", task)):
        for minutes, told, expected in asked:
            with pytest.raises(Begun) as begun:
                fit(data, minutes, "a", tmp_path, "cpu", {**more, **told}, Screen.silent(), Start(overwrite=True))
            (config,) = begun.value.args
            stage = config.stage("operator")
            assert (config.model.part("operator").size, stage.train.lr, stage.batch) == expected
            assert config.tune == ("auto" if minutes > 1 and "model.operator.width" not in told else None)


@pytest.mark.parametrize("says", [None, ()])
def test_fit_hands_on_what_it_saw_of_how_states_go_on_unless_the_user_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: tuple[str, ...] | None
) -> None:
    """From arrays in memory, and from files where they lie."""

    def run(config: RunConfig, *_: object, **__: object) -> None:
        raise Begun([outline.task.dynamics for outline in outlines(config)])

    monkeypatch.setattr("ups.jobs.fit.run_alone", run)
    draw, x, t = np.random.default_rng(6), (np.arange(32) + 0.5) / 32, 0.05 * np.arange(5)
    speed, size = np.linspace(-1, 1, 12), draw.normal(size=(12, 1, 1, 3))
    at = x[:, None] - speed[:, None, None, None] * t[:, None, None]
    u = (size * np.sin(2 * np.pi * np.arange(1, 4) * at + size)).sum(-1)
    task = Definition("wind", dims=("sample", "time", "x"), fields={"u": ("u",)}, periodic=("x",), advected_by=says)
    np.savez(tmp_path / "wind.npz", u=u, c=speed)
    text = replace(task, datasets={"c": "c"}, dt=0.05).text()
    (tmp_path / "wind.yaml").write_text(text)
    for data, keys in (
        (Data(u, params={"c": speed}, task=task), {}),
        (tmp_path / "wind.npz", {"data.data.task": str(tmp_path / "wind.yaml")}),
    ):
        with pytest.raises(Begun) as asked:
            fit(data, 1, "run", tmp_path, "cpu", keys, Screen.silent(), Start(overwrite=True))
        assert asked.value.args[0] == [Dynamics(advected_by=("c",) if says is None else says)]


def test_a_box_that_may_wrap_is_remarked_on_unless_it_is_said_to(tmp_path: Path) -> None:
    """Waves that go round; the same between walls that hold them, or that let them slide; and random numbers."""
    draw, x, t = np.random.default_rng(5), (np.arange(64) + 0.5) / 64, 0.05 * np.arange(6)
    k, phase, size = np.arange(1, 4), draw.uniform(0, 6, (20, 1, 1, 3)), draw.normal(size=(20, 1, 1, 3))
    round_ = (size * np.cos(2 * np.pi * k * (x[:, None] - t[:, None, None]) + phase)).sum(-1)
    rings = size * np.cos(np.pi * k * t[:, None, None] + phase)
    held, slid = ((rings * shape(np.pi * k * x[:, None])).sum(-1) for shape in (np.sin, np.cos))
    kinds = {"round": round_, "held": held, "slid": slid, "noise": draw.normal(size=(20, 6, 64)), "said": round_}
    for name, values in kinds.items():
        file, task = tmp_path / f"{name}.npz", tmp_path / f"{name}.yaml"
        np.savez(file, h=np.float32(values))
        text = f"name: {name}\ndims: [sample, time, x]\nfields: {{h: [h]}}\ndt: 0.05\nbounds: {{x: [0, 1]}}\n"
        task.write_text(text + "periodic: [x]\n" * (name == "said"))
        (holding,) = holdings([file], str(task))
        assert holding.seamless == (("x",) if name == "round" else ()), name
        said = " ".join(note for _, note in notes([file], definition_from(str(task))))
        assert ("write `periodic: [x]` into the task" in said) == (name == "round")
    written(tmp_path / "run.yaml", tmp_path / "round.npz", task=str(tmp_path / "round.yaml"))
    assert "# Note: round: the ends of x fit together" in (tmp_path / "run.yaml").read_text()


def test_of_few_trajectories_more_frames_are_looked_at_to_see_that_a_box_may_wrap() -> None:
    draw, x, t, k = np.random.default_rng(5), (np.arange(44) + 0.5) / 44, 0.06 * np.arange(16), np.arange(1, 4)
    phase, size = draw.uniform(0, 6, (20, 1, 1, 3)), draw.normal(size=(20, 1, 1, 3))  # half of them are not smooth
    values = (size * np.cos(2 * np.pi * k * (x[:, None] - t[:, None, None]) + phase)).sum(-1)
    task = Definition("few", dims=("sample", "time", "x"))
    assert [seamless(open_memory({"values": values[:n]}, task, {})) for n in (2, 6)] == [(), ("x",)]


def test_few_long_trajectories_of_ones_own_are_cut_in_time(folder: Path, tmp_path: Path) -> None:
    config = written(tmp_path / "config.yaml", folder / "waves.npz", task=str(folder / "waves.yaml"))
    (entry,) = config.data.values()
    assert entry.split.time == (0.7, 0.15, 0.15)


@pytest.mark.parametrize(
    ("cells", "every"), [((1000,), 2), ((1024,), 4), ((1021,), 1), ((512, 16), 2), ((512, 4), 1), ((256, 256), 4)]
)
def test_cells_are_left_out_evenly_and_never_of_an_axis_that_has_few(cells: tuple[int, ...], every: int) -> None:
    task = TASKS["burgers1d" if len(cells) == 1 else "cfd2d"]
    assert DataProfile(task, ("a.npz",), (3,), cells, "", uneven=False).thin("cpu") == every


def test_folders_that_divide_a_data_set_are_left_to_do_so(tmp_path: Path) -> None:
    for part, count in (("train", 8), ("val", 3), ("test", 3)):
        (tmp_path / "d" / part).mkdir(parents=True)
        waves = np.random.default_rng(count).normal(size=(count, 6, 16)).astype(np.float32)
        np.savez(tmp_path / "d" / part / "a.npz", h=waves)
    (tmp_path / "a.yaml").write_text("name: a\ndims: [sample, time, x]\nfields: {h: [h]}\ndt: 0.1\n")
    (entry,) = written(tmp_path / "config.yaml", tmp_path / "d", task=str(tmp_path / "a.yaml")).data.values()
    assert entry.split == SplitConfig(), "which is their own where they have one"
    (tmp_path / "d" / "test" / "a.npz").unlink()
    (entry,) = written(tmp_path / "less.yaml", tmp_path / "d", task=str(tmp_path / "a.yaml")).data.values()
    assert entry.split.fractions == OF_FEW, "two of three parts leave nothing to be tested on"


def test_four_axes_of_space_are_refused_by_all_who_open_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", h=np.zeros((6, 5, 4, 4, 4, 4), np.float32))
    task = Definition("phase", dims=("sample", "time", "x", "y", "vx", "vy"), fields={"h": ("h",)})
    with pytest.raises(DataError, match=r"a\.npz: has 4 axes of space, and at most 3 are simulated"):
        open_source(tmp_path / "a.npz", TASKS, task)


def test_the_size_follows_from_the_minutes_and_the_batch_from_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4000 steps of a small network, each twice 8 × 100 thousandths of a second."""
    for seconds, size in ((6410, "small"), (6390, "tiny")):
        config = written(tmp_path / f"{seconds}.yaml", minutes=seconds / 60)
        assert (config.model.part("operator").size, config.stage("operator").batch) == (size, 8)
    monkeypatch.setattr(pricing, "free_memory", lambda device: 10**5)  # noqa: ARG005
    config = written(tmp_path / "full.yaml")
    assert (config.model.part("operator").size, config.stage("operator").batch) == ("tiny", 1)
    assert "It does NOT fit: 1 MB are needed, and 100 kB free" in (tmp_path / "full.yaml").read_text()


@pytest.mark.parametrize("name", ["a #1: b.npz", "{x}.npz", "!t.npz", "r[1].npz", "1e3.npz"])
def test_a_file_is_itself_whatever_its_name_means_to_yaml_or_a_shell(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(folder / "waves.npz", tmp_path / name)
    other = {"r[1].npz": "r1.npz"}.get(name)
    if other is not None:  # which the name would stand for, were it a pattern
        np.savez(tmp_path / other, h=np.zeros((5, 20, 16, 16), np.float32))
    path, _ = propose([tmp_path / name], str(folder / "waves.yaml"), tmp_path / "c.yaml", 1, "cpu", False, str)
    (data,) = load(run_config(), path).data.values()
    with open_files(data.file, data.definition) as source:
        assert (source.path, len(source)) == (tmp_path / name, 2)


def test_the_paths_that_init_writes_are_found_from_any_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(folder)
    path = tmp_path / "configs" / "c.yaml"
    propose([Path("waves.npz")], "waves.yaml", path, 1, "cpu", False, str)
    written_there = yaml.safe_load(path.read_text())["data"]["waves"]
    assert written_there["file"] == os.path.relpath(folder / "waves.npz", path.parent)
    monkeypatch.chdir(tmp_path)
    (entry,) = load(run_config(), Path("configs/c.yaml")).data.values()
    assert Path(entry.paths[0]).samefile(folder / "waves.npz")
    assert entry.definition.name == "waves"


def test_several_files_of_one_task_are_one_data_set(folder: Path) -> None:
    (file,) = folder.glob("*.hdf5")
    (both,) = holdings([file, file], "")
    assert (both.files, both.samples) == ((str(file), str(file)), 24)


def test_bad_files_and_names_are_one_sentence_and_nothing_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "there.yaml").write_text("mine")
    np.savez(tmp_path / "one.npz", h=np.ones((1, 16, 16)))
    (tmp_path / "one.yaml").write_text("name: one\ndims: [sample, x, y]\nfields: {h: [h]}\n")
    np.savez(tmp_path / "first.npz", h=np.random.default_rng(0).normal(size=(6, 1, 16)))
    (tmp_path / "first.yaml").write_text("name: first\ndims: [sample, time, x]\nfields: {h: [h]}\n")
    out = tmp_path / "out.yaml"
    cases = [
        ((tmp_path / "notes.txt", "--out", out), "nor anything else that can be read"),
        ((tmp_path / "nowhere.h5", "--out", out), "there is no such file"),
        (("--task", "burger", "--out", out), "there is no task 'burger'"),
        ((tmp_path / "one.npz", "--task", tmp_path / "one.yaml", "--out", out), "1 steady states cannot be cut"),
        ((tmp_path / "first.npz", "--task", tmp_path / "first.yaml", "--out", out), "give at least two frames"),
        (("--minutes", "-1", "--out", out), "training takes some time"),
        (("--out", tmp_path / "there.yaml"), "is there already; choose another --out, or replace it with --overwrite"),
    ]
    for words, sentence in cases:
        with pytest.raises(SystemExit) as ended:
            main(["init", *map(str, words)])
        error = capsys.readouterr().err
        assert ended.value.code == 2
        assert sentence in error
        assert error.count("\n") == 1
    assert not out.exists()
    assert (tmp_path / "there.yaml").read_text() == "mine"
    assert folder.exists()


def test_every_remark_is_a_comment_and_the_rest_is_yaml(tmp_path: Path) -> None:
    for task in ("darcy2d", "reacdiff2d"):
        written(tmp_path / f"{task}.yaml", task=task)
        plain = yaml.safe_load((tmp_path / f"{task}.yaml").read_text())
        assert plain["data"][task]["task"] == task
    with pytest.raises(ConfigError, match="is there already"):
        written(tmp_path / "darcy2d.yaml", task="darcy2d")
    with pytest.raises(DataError):
        holdings([tmp_path / "darcy2d.yaml"], "")


def test_frames_are_left_out_by_what_most_trajectories_have_and_the_shortest_allows(tmp_path: Path) -> None:
    """Whatever file comes first; these waves are slow."""

    def proposed(*lengths: int) -> tuple[int, str]:
        place = tmp_path / "-".join(map(str, lengths))
        place.mkdir()
        for i, frames in enumerate(lengths):
            wave = np.sin(np.linspace(0, 6, 16) + 0.01 * np.arange(frames)[:, None])
            np.savez(place / f"{i}.npz", u=wave.astype(np.float32))
        text = "name: un\ndims: [time, x]\nfields: {u: [u]}\n"
        (task := tmp_path / "un.yaml").write_text(text)
        (held,) = holdings([place], str(task))
        return held.section("cpu").get("reduce", {}).get("time", 1), held.words + "".join(held.remarks)

    assert proposed(400, 400, 400)[0] == 9
    for order in ((10, 400, 400), (400, 10, 400)):
        every, words = proposed(*order)
        assert every == 4
        assert "3 trajectories × 10 to 400 frames" in words
        assert "the shortest trajectory has 10 frames, so frames are kept 4 apart; without it 9 would do" in words
    assert proposed(400, 2, 400)[0] == 1


def waves(path: Path, count: int, frames: int, speed: float) -> Path:
    """Waves that run so many radians a frame: by n frames a cell changes 2 sin(n speed / 2) times its deviation."""
    phase = np.random.default_rng(0).uniform(0, 6, (count, 1, 1)) + speed * np.arange(frames)[:, None]
    np.save(path, np.sin(2 * np.pi * np.arange(16) / 16 + phase).astype(np.float32))
    path.with_suffix(".yaml").write_text("name: w\ndims: [sample, time, x]\nfields: {u: [u]}\ndt: 0.1\nperiodic: [x]\n")
    return path


@pytest.mark.parametrize(
    ("count", "frames", "speed", "every", "pieces"),
    [
        (1, 3000, 0.1, 3, 3),  # a thousand are kept, and tests are of about 41 frames
        (1, 3000, 0.2, 2, 5),  # 2 sin(0.2) = 0.40, and with the next frame 0.59
        (1, 3000, 0.001, 73, None),  # slow: 2 sin(0.0365) = 0.07
        (1, 3000, 0.045, 5, 2),  # 2 sin(0.1125) = 0.22, and with the next frame 0.27
        (1, 30, 0.2, 1, None),
        (60, 400, 0.001, 9, None),
        (60, 400, 0.11, 4, None),  # 2 sin(0.22) = 0.44, and with the next frame 0.54
        (60, 400, 0.6, 1, None),
    ],
)
def test_frames_are_left_out_where_they_are_slow_or_trajectories_many(
    tmp_path: Path, count: int, frames: int, speed: float, every: int, pieces: int | None
) -> None:
    file = waves(tmp_path / "w.npy", count, frames, speed)
    (held,) = holdings([file], str(file.with_suffix(".yaml")))
    entry = held.section("cpu")
    assert entry.get("reduce", {}).get("time", 1) == every
    assert entry.get("split", {}).get("pieces", 1) == (pieces or 1)
    said = [words for words in held.left_out("cpu") if "frames is used" in words]
    assert bool(said) is (every > 1)
    assert all(f" of {frames} frames is used" in words for words in said)


def test_the_pace_of_waves_is_that_of_the_formula_and_nothing_at_rest_has_one(tmp_path: Path) -> None:
    file = waves(tmp_path / "w.npy", 3, 1000, 0.02)
    task = definition_from(str(file.with_suffix(".yaml")))
    with open_source(file, TASKS, task) as source:
        slow, fast = pace(source, 64, 1)
    assert (slow, fast) == pytest.approx([2 * np.arcsin(part / 2) / 0.02 for part in (SLOW, FAST)], rel=0.15)
    still = np.broadcast_to(np.sin(np.arange(16)), (3, 100, 16)).astype(np.float32)
    still[:, :, 3] = np.nan
    np.save(file, still)
    with open_source(file, TASKS, task) as source:
        assert pace(source, 64, 1) == (ANY_PACE, ANY_PACE)


def test_init_says_what_readers_noticed_and_what_is_doubtful(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(3)
    (tmp_path / "d").mkdir()
    for i in range(8):
        t = np.cumsum(draw.choice([0.02, 0.05], 10 + i % 3))
        u = 1e12 + draw.normal(size=(len(t), 16)).cumsum(0)
        np.savez(tmp_path / "d" / f"{i}.npz", u=u, t=t, x=np.arange(16) / 16, inflow=np.arange(len(t)))
    text = "name: d\ndims: [time, x]\nfields: {u: [u]}\nperiodic: [x]\n"
    (tmp_path / "d.yaml").write_text(text)
    words = ["--task", str(tmp_path / "d.yaml"), "--out", str(tmp_path / "run.yaml"), "--device", "cpu"]
    with pytest.raises(SystemExit, match="0"):
        main(["init", str(tmp_path / "d"), *words])
    shown = capsys.readouterr().out
    assert "the times are not uniform, and each step is learnt with its own length" in shown
    assert "PROBLEM: the times" not in shown
    assert shown.count("array inflow (10 and other sizes) is not used; the task does not name it") == 1
    assert "about 1e+12, which float32, in which all is read, can hardly tell apart" in shown
    for line in (line for line in shown.splitlines() if line.startswith("Note: ")):
        assert f"# {line}\n" in (tmp_path / "run.yaml").read_text()


def test_init_says_what_validate_calls_a_problem_and_refuses_what_a_run_would(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("name: d\ndims: [sample, time, x]\nfields: {u: [u]}\n")
    x, t = np.arange(16) / 16, np.cumsum([1, 1, 2, 1, 3, 1])
    u = np.sin(2 * np.pi * (x - 0.05 * t[:, None] + np.arange(12)[:, None, None] / 12))
    u[3], u[5, 2, 4] = u[2], np.nan
    np.savez(tmp_path / "d.npz", u=u, x=x, t=t)
    definition = definition_from(str(tmp_path / "d.yaml"))
    faults = [words for _, words in problems([tmp_path / "d.npz"], definition)]
    assert len(faults) == 2
    _, remarks = propose([tmp_path / "d.npz"], str(tmp_path / "d.yaml"), tmp_path / "c.yaml", 5.0, "cpu", False, str)
    for words in faults:
        assert f"# Note: {tmp_path / 'd.npz'}: PROBLEM: {words}." in (tmp_path / "c.yaml").read_text().splitlines()
    assert not any("PROBLEM: the times" in line for line in remarks)
    np.savez(tmp_path / "wide.npz", u=u, x=x**2, t=t)
    with pytest.raises(DataError, match="the cells along x are not equally wide"):
        propose([tmp_path / "wide.npz"], str(tmp_path / "d.yaml"), tmp_path / "e.yaml", 5.0, "cpu", False, str)
    np.savez(tmp_path / "flat.npz", u=u[..., :1], x=x[:1], t=t)
    with pytest.raises(DataError, match="cannot be learnt by ups"):
        propose([tmp_path / "flat.npz"], str(tmp_path / "d.yaml"), tmp_path / "e.yaml", 5.0, "cpu", False, str)
    assert not (tmp_path / "e.yaml").exists()


def test_minutes_that_do_not_suffice_and_constant_channels_are_said(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("name: d\ndims: [sample, time, x, channel]\nfields: {u: [u], k: [k]}\ndt: 1\n")
    x, t, start = np.arange(64) / 64, np.arange(41)[:, None], np.random.default_rng(0).random((20, 1, 1))
    u = np.sin(2 * np.pi * (x - 0.05 * t + start))
    values = np.stack([u, np.full_like(u, 3.0)], -1)

    def shown(values: Array, minutes: float = 5.0) -> str:
        np.save(tmp_path / "d.npy", values.astype(np.float32))
        out = tmp_path / "c.yaml"
        return "\n".join(propose([tmp_path / "d.npy"], str(tmp_path / "d.yaml"), out, minutes, "cpu", True, str)[1])

    assert "Note: d: k has the same value in all that was looked at" in shown(values)
    assert "more --minutes" not in shown(values)
    assert "Note: 4 steps in that time, and 400 take about 64 s: ask for more --minutes." in shown(values, 0.01)


def test_of_large_files_a_part_is_looked_at_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    u = np.random.default_rng(0).normal(size=(40, 30, 64)).astype(np.float32)
    u[:, 20, 3] = np.nan
    np.save(tmp_path / "d.npy", u)
    (tmp_path / "d.yaml").write_text("name: d\ndims: [sample, time, x]\nfields: {u: [u]}\ndt: 1\n")
    read: list[int] = []
    monkeypatch.setattr(module, "READ", u.nbytes - 1)
    monkeypatch.setattr(module, "LOOK", 16 * 1024)
    monkeypatch.setattr("ups.jobs.inspect.Scan.sample", lambda *args: read.extend(map(len, args[2])))
    _, remarks = propose([tmp_path / "d.npy"], str(tmp_path / "d.yaml"), tmp_path / "c.yaml", 5.0, "cpu", False, str)
    assert 48 <= sum(read) <= 72
    assert any("of their values about 16.4 kB were looked at, spread over all" in line for line in remarks)


def test_a_part_of_a_source_reaches_from_its_first_trajectory_to_the_last_frames(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.arange(40 * 30, dtype=np.float32).reshape(40, 30, 1) + np.zeros(16, np.float32))
    definition = Definition("d", dims=("sample", "time", "x"), fields={"u": ("u",)}, dt=1.0)
    with open_source(tmp_path / "d.npy", TASKS, definition) as source:
        few = Spread(source, 64 * 64)
        assert (few.ids[0], few.ids[-1], len(few)) == ("000000", "000035", 8)
        assert [few.read(i)[-1, 0, 0] for i in range(8)] == [30 * 5 * i + 29 for i in range(8)]
        assert all(0 < len(few.times_of(i)) == len(few.read(i)) <= 8 for i in range(8))
        whole = Spread(source, 40 * 30 * 64)
        assert whole.ids == source.ids
        assert (whole.read(3) == source.read(3)).all()


def test_where_a_config_cannot_be_written_is_told_before_the_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.jobs.recipe.proposal.holdings", lambda *_: pytest.fail("read first"))
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.iterdir())
    for out, words in ((tmp_path / "file" / "a.yaml", "Not a directory"), (Path("/proc/none/a.yaml"), "No such file")):
        with pytest.raises(DataError, match=rf"a\.yaml: cannot be written \({words}.*; choose another --out"):
            propose([tmp_path / "u.npz"], "", out, 1.0, "cpu", False, print)
    assert sorted(tmp_path.iterdir()) == before
