"""Mirror images of the whole grid: samples again, for training alone, and read in blocks as one by one."""

import dataclasses
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ups.config import load
from ups.data import Source, defined, open_source
from ups.data.readers.memory import open_memory
from ups.data.reduction import Reduction
from ups.data.sample_blocks import blocks_of, read_block
from ups.data.splits import PARTS
from ups.data.trajectories import Trajectories
from ups.data.views import Mirrored
from ups.definition import Definition
from ups.lazy_imports import torch
from ups.physics import EQUATIONS, TASKS
from ups.physics.elliptic import SOLVED
from ups.physics.symmetries import mirrors_of
from ups.progress import Screen
from ups.run.config import run_config
from ups.run.data.data_config import GenerateConfig
from ups.run.data.datasets import DataSet, open_sets
from ups.run.data.generate import generate
from ups.types import ConfigError, Field, Param, TaskSpec

SILENT = Screen.silent().following


def made(folder: Path, task: str, **settings: object) -> Source:
    config = GenerateConfig.model_validate({"task": task, "samples": 12, "device": "cpu", **settings})
    return open_source(generate(config, folder, SILENT)[0], TASKS)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Darcy's problem on 16 × 16 cells, solved exactly."""
    return made(tmp_path_factory.mktemp("media"), "darcy2d", resolution=16, scheme="accurate")


@pytest.fixture(scope="module")
def gas(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A gas with vectors, which a mirror turns."""
    return made(tmp_path_factory.mktemp("gas"), "cfd2d", resolution=8, frames=3, params={"boundary": "trans"})


def mirrored(source: Source, rows: list[int]) -> Mirrored:
    odd = mirrors_of(source.task)
    assert odd is not None
    return Mirrored(source, rows, odd)


def test_the_image_of_a_solution_solves_the_problem_with_the_image_of_its_medium(media: Source) -> None:
    both = mirrored(media, [2, 5])
    assert both.ids[12:] == tuple(f"00000{i}@mirrored-{axes}" for axes in ("x", "y", "x-y") for i in (2, 5))
    kind = EQUATIONS["darcy2d"]
    for index in range(12, 18):
        medium = torch.from_numpy(both.inputs(index))[None]
        beta = {"beta": torch.tensor([float(both.params_of(index)["beta"])])}
        solved = kind.steady_system(beta, medium, both.grid_of(index)).solution(SOLVED)[0]
        np.testing.assert_allclose(both.read(index)[0], solved.numpy(), rtol=1e-5, atol=1e-7)
        assert not np.array_equal(both.read(index), media.read(2 + 3 * (index % 2)))


def test_velocities_change_their_sign_across_their_own_axis_alone(gas: Source) -> None:
    both = mirrored(gas, [0])
    assert gas.task.channels == ("density", "pressure", "Vx", "Vy")
    for image, axes, signs in ((12, (1,), (1, 1, -1, 1)), (13, (2,), (1, 1, 1, -1)), (14, (1, 2), (1, 1, -1, -1))):
        np.testing.assert_array_equal(both.read(image), np.flip(gas.read(0), axes) * np.array(signs, np.float32))
    np.testing.assert_array_equal(both.read(3), gas.read(3))


@pytest.mark.parametrize("rows", [[*range(3, 12)], [0, 1, 2, 7, 8, 11], [4]])
def test_blocks_of_images_hold_what_is_read_one_by_one(media: Source, rows: list[int]) -> None:
    both = mirrored(media, rows)
    every = list(range(len(both)))
    size = 4 * 16 * 16
    blocks = blocks_of(both, every, range(len(both)), size)
    assert [i for block in blocks for i in block] == every
    runs = 1 + sum(b != a + 1 for a, b in pairwise(rows))
    assert len(blocks) == 1 + 3 * runs, "as few as rows that follow each other allow"
    for one, several in ((both.read, both.read_several), (both.inputs, both.inputs_of)):
        found = np.concatenate([read_block(every[b.start : b.stop], one, several) for b in blocks])
        np.testing.assert_array_equal(found, np.stack([one(i) for i in every]))


def test_images_are_taken_before_cells_are_left_out(media: Source) -> None:
    both = mirrored(media, [4])
    part = Trajectories(both, both.ids[12:], Reduction(space=2))
    expected = [np.flip(media.read(4), axes)[:, ::2, ::2] for axes in ((1,), (2,), (1, 2))]
    np.testing.assert_array_equal(part.frames([0, 1, 2], [0] * 3, 1).numpy(), np.stack(expected))
    np.testing.assert_array_equal(part.inputs[0].numpy(), np.flip(media.inputs(4), 0)[::2, ::2])


def opened(folder: Path, symmetry: str, **data: object) -> DataSet:
    row = {"task": "darcy2d", "samples": 20, "resolution": 8, "split": {"convention": "pdebench-first"}, **data}
    settings = {"device": "cpu", "data": {"row": row}, "model.simulator.symmetry": symmetry}
    config = load(run_config(), None, settings)
    (found,) = open_sets(config.data, folder / "made", SILENT, ExitStack(), simulator=config.model.simulator)
    return found


@pytest.mark.parametrize("symmetry", ["train", "both", "{darcy2d: train}"])
def test_images_of_all_cells_are_for_training_alone_and_of_what_is_trained_on(tmp_path: Path, symmetry: str) -> None:
    plain, found = (opened(tmp_path, word, reduce={"space": 2}) for word in ("rollout", symmetry))
    parts = {part: [i for t in found.parts(part) for i in t.ids] for part in PARTS}
    assert parts["test"] == [i for t in plain.parts("test") for i in t.ids] == ["000000", "000001"]
    assert parts["valid"] == ["000002", "000003"]
    assert len(parts["train"]) == 4 * 16
    assert {name.partition("@")[0] for name in parts["train"]} == {f"{i:06d}" for i in range(4, 20)}
    assert found.fact().samples == "64 / 2 / 2, mirror images included"
    assert plain.fact().samples == "16 / 2 / 2"


def test_there_are_images_of_all_cells_only_where_those_in_use_have_none_among_themselves(tmp_path: Path) -> None:
    ways: list[dict[str, object]] = [
        {},  # all cells are used
        {"store": {"space": 2}},  # the file has no others
        {"task": "reacdiff1d", "resolution": 32, "frames": 4, "reduce": {"space": 2}},  # they wrap: the same, moved
        {"task": "diffsorp1d", "resolution": 32, "frames": 4, "reduce": {"space": 2}},  # it knows a direction
    ]
    for i, way in enumerate(ways):
        assert not opened(tmp_path / str(i), "both", **way).mirrored, way


def gas_like(axes: str, **fields: list[str]) -> TaskSpec:
    """The task of arrays of four channels on such axes that are said to be a gas."""
    arrays = {name: np.zeros((4, 3, 8, 8), np.float32) for names in fields.values() for name in names}
    dims = ("sample", "time", *axes)
    definition = Definition(name="mine", equation="cfd2d", dims=dims, fields={k: tuple(v) for k, v in fields.items()})
    return defined(open_memory(arrays, definition, {}), definition, TASKS).task


def test_names_that_contradict_the_places_of_fields_and_components_are_refused() -> None:
    known = {"density": ["rho"], "pressure": ["p"], "velocity": ["vel_x", "vel_y"]}
    assert mirrors_of(gas_like("xy", **known)) == ((2,), (3,))
    assert gas_like("xy", a=["rho"], b=["p"], c=["one"], d=["two"]).channels == ("rho", "p", "one", "two")
    told = "which are told by their order; say them in this order"
    with pytest.raises(ConfigError, match=f"density, pressure, velocity, {told}"):
        gas_like("xy", velocity=["vel_x", "vel_y"], density=["rho"], pressure=["p"])
    with pytest.raises(ConfigError, match=told):
        gas_like("xy", rho=["rho"], flow=["a", "b"], p=["p"])
    with pytest.raises(ConfigError, match=f"vx, density, vy, pressure, and those of cfd2d density.*{told}"):
        gas_like("xy", a=["vx"], b=["density"], c=["vy"], d=["pressure"])
    with pytest.raises(
        ConfigError, match=r"the axes y, x; say them in the order of the axes, `velocity: \[vel_y, vel_x"
    ):
        gas_like("yx", **known)
    assert mirrors_of(gas_like("yx", **{**known, "velocity": ["vel_y", "vel_x"]})) == ((2,), (3,))


def test_parameters_and_inputs_that_an_equation_does_not_have_may_belong_to_a_side() -> None:
    flow, field = TASKS["burgers1d"], TASKS["poisson2d"]
    assert (mirrors_of(flow), mirrors_of(field)) == (((0,),), ((), ()))
    sides = dataclasses.replace(flow, parameters=(*flow.parameters, Param("left", 1.0, "of the left end")))
    forces = dataclasses.replace(field, inputs=(Field("force", ("fx", "fy"), 1),))
    masked = dataclasses.replace(field, inputs=(*field.inputs, Field.scalar("mask")), mask="mask")
    assert (mirrors_of(sides), mirrors_of(forces), mirrors_of(masked)) == (None, None, ((), ()))
