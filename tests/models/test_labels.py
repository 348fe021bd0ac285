"""xarray: dimensions go by their names, coordinates are checked, and answers are labelled as the question was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_simulators import GRIDS, awaken, simulator

from ups.models import Simulator
from ups.types import ConfigError

xarray = pytest.importorskip("xarray")

NAMES = ("activator", "inhibitor")
X = -1 + 2 * (np.arange(16) + 0.5) / 16
Y = -1 + 2 * (np.arange(24) + 0.5) / 24


@pytest.fixture(scope="module")
def sim() -> Simulator:
    assert GRIDS["reacdiff2d"] == (16, 24)
    sim = simulator("reacdiff2d")
    awaken(sim)
    return sim


@pytest.fixture(scope="module")
def u() -> np.ndarray:
    return np.random.default_rng(0).random((3, 16, 24, 2)).astype(np.float32)


def answer(sim: Simulator, given: Any, **more: Any) -> Any:
    return sim.rollout(given, 2, **more)


@pytest.fixture(scope="module")
def truth(sim: Simulator, u: np.ndarray) -> np.ndarray:
    return answer(sim, u)


def state(u: np.ndarray, *dims: str) -> Any:
    whole = xarray.DataArray(
        u, dims=("sample", "x", "y", "channel"), coords={"x": X, "y": Y, "channel": list(NAMES), "sample": [7, 8, 9]}
    )
    return whole.transpose(*dims) if dims else whole


@pytest.mark.parametrize(
    "dims", [("sample", "x", "y", "channel"), ("channel", "y", "sample", "x"), ("sample", "channel", "y", "x")]
)
def test_any_order_of_named_dimensions_is_the_same_state(
    sim: Simulator, u: np.ndarray, truth: np.ndarray, dims: tuple[str, ...]
) -> None:
    out = answer(sim, state(u, *dims))
    assert [d for d in out.dims if d != "time"] == list(dims)
    assert out.dims.index("time") == (1 if dims[0] == "sample" else 0)
    np.testing.assert_array_equal(out.transpose("sample", "time", "x", "y", "channel").values, truth)
    assert out.coords["sample"].values.tolist() == [7, 8, 9]
    np.testing.assert_array_equal(out.coords["y"], Y)


def test_a_field_of_one_channel_keeps_its_order_and_a_steady_answer_too() -> None:
    sim = simulator("darcy2d", shapes={"darcy2d": (16, 16)})
    awaken(sim)
    a = np.random.default_rng(0).random((16, 16))
    want = sim.solve(a)
    for given in (xarray.DataArray(a.T, dims=("y", "x")), xarray.DataArray(a.T[None], dims=("t", "y", "x"))):
        out = sim.solve(given)
        assert out.dims == ("y", "x")
        np.testing.assert_array_equal(out.values, want.T)
    np.testing.assert_array_equal(sim.solve(xarray.Dataset({"permeability": (("x", "y"), a)}))["pressure"], want)


def test_channels_go_by_their_names(sim: Simulator, u: np.ndarray, truth: np.ndarray) -> None:
    turned = state(u).isel(channel=[1, 0])
    out = answer(sim, turned)
    np.testing.assert_array_equal(out.values, truth)
    assert out.coords["channel"].values.tolist() == list(NAMES)
    with pytest.raises(ConfigError, match="has no channel 'inhibitor' along channel; it has activator, heat"):
        answer(sim, state(u).assign_coords(channel=["activator", "heat"]))


def test_an_axis_that_falls_is_turned_and_turned_back(sim: Simulator, u: np.ndarray, truth: np.ndarray) -> None:
    out = answer(sim, state(u).isel(y=slice(None, None, -1)))
    np.testing.assert_array_equal(out.coords["y"], Y[::-1])
    np.testing.assert_array_equal(out.values, truth[:, :, :, ::-1])


def test_a_dataset_has_a_variable_for_each_channel_and_is_answered_with_one(
    sim: Simulator, u: np.ndarray, truth: np.ndarray
) -> None:
    given = xarray.Dataset({name: state(u).sel(channel=name, drop=True) for name in NAMES[::-1]})
    out = answer(sim, given.assign(depth=3.0))
    assert isinstance(out, xarray.Dataset)
    assert set(out.data_vars) == set(NAMES)
    assert out.attrs["left_range_at"] == [0] * out.sizes["sample"], "none left what training saw"
    for i, name in enumerate(NAMES):
        assert out[name].dims == ("sample", "time", "x", "y")
        np.testing.assert_array_equal(out[name].values, truth[..., i])
    with pytest.raises(ConfigError, match="has no variable 'inhibitor'; it has activator"):
        answer(sim, given[["activator"]])


def test_frames_before_the_last_lie_along_time_which_goes_on(sim: Simulator, u: np.ndarray, truth: np.ndarray) -> None:
    given = xarray.concat([state(u) * 0, state(u)], "time").assign_coords(time=[3.0, 4.0])
    out = answer(sim, given.transpose("x", "time", "y", "channel", "sample"), dt=[0.5, 1.5])
    assert out.dims == ("x", "time", "y", "channel", "sample")
    assert out.coords["time"].values.tolist() == [4.5, 6.0]
    one = answer(sim, state(u).isel(sample=0).assign_coords(time=2.0))
    assert one.dims == ("time", "x", "y", "channel")
    np.testing.assert_allclose(one.values, truth[0], atol=1e-4)
    assert float(one.coords["time"][0]) > 2.0


def test_names_that_no_task_knows_are_taken_by_their_place(sim: Simulator, u: np.ndarray, truth: np.ndarray) -> None:
    plain = xarray.DataArray(u, dims=("n", "lat", "lon", "what"))
    out = answer(sim, plain)
    assert out.dims == ("n", "time", "lat", "lon", "what")
    np.testing.assert_array_equal(out.values, truth)
    first = answer(sim, plain.rename(what="channel").transpose("channel", ...))
    assert first.dims == ("time", "channel", "n", "lat", "lon")
    np.testing.assert_array_equal(first.transpose(*out.rename(what="channel").dims).values, truth)
    with pytest.raises(ConfigError, match="cannot be told apart"):
        answer(sim, xarray.DataArray(u[None, None], dims=("a", "b", "n", "x", "y", "channel")))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (Y + 5, "its coordinate y runs from .* but the task's box from -1 to 1"),
        (Y / 2, "give a state on the whole of it"),
        (np.where(np.arange(24) == 3, -3.0, Y), "neither rises nor falls"),
    ],
)
def test_coordinates_outside_of_the_box_are_refused(sim: Simulator, u: np.ndarray, y: np.ndarray, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        answer(sim, state(u).assign_coords(y=y))


def test_points_are_labelled_too(sim: Simulator, u: np.ndarray) -> None:
    out = answer(sim, state(u, "channel", "sample", "y", "x"), points=[[0.0, 0.0], [0.5, -0.5]])
    assert out.dims == ("sample", "time", "point", "channel")
    np.testing.assert_allclose(out.values, answer(sim, u, points=[[0.0, 0.0], [0.5, -0.5]]))
