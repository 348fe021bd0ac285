"""Charts and films: every point can be seen, frames differ, nothing that is not finite stops a picture."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from ups.pages import Curve, Film, chart, film_forecast_lines, film_forecast_maps
from ups.pages.drawing import opening
from ups.pages.maps import Board, Panel


def pixels(uri: str) -> np.ndarray:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), int)


def coloured(uri: str) -> int:
    """Pixels that are neither grey nor white: those of a curve."""
    found = pixels(uri)
    return int((np.ptp(found, axis=2) > 60).sum())


def test_a_point_between_gaps_is_seen() -> None:
    x, y = np.arange(1.0, 6.0), np.array([np.nan, 1.0, 0.0, 2.0, np.inf])
    nothing = coloured(chart([Curve("a", x, np.full(5, np.nan))], "x", "y"))
    assert coloured(chart([Curve("a", x, y)], "x", "y")) > nothing + 20


def test_two_references_are_told_apart_by_their_dashes() -> None:
    x, flat = np.arange(1.0, 9.0), np.ones(8)
    low, high = Curve("a", x, flat, dashed=True), Curve("a", x, 9 * flat, dashed=True)
    assert chart([low, high], "x", "y") != chart([high, low], "x", "y")


def test_one_point_is_a_chart() -> None:
    assert coloured(chart([Curve("a", np.ones(1), np.ones(1))], "x", "y", log_x=True)) > 20


@pytest.mark.parametrize("broken", [False, True])
def test_films_show_each_frame_and_survive_a_forecast_that_is_not_finite(broken: bool) -> None:
    t, x = np.arange(4.0), np.linspace(0, 1, 16, endpoint=False)
    line = np.sin(2 * np.pi * (x - 0.1 * t[:, None]))[..., None]
    plane = np.repeat(line[:, :, None], 16, axis=2)
    for truth, film in (
        (line, lambda a, b: film_forecast_lines(a, b, x, t, ("u",), "alt")),
        (plane, lambda a, b: film_forecast_maps(a, b, t, ("u",), "alt")),
    ):
        forecast = truth.copy()
        if broken:
            forecast[2:] = np.nan
        made = film(truth, forecast)
        assert made.captions == ("t = 0", "t = 1", "t = 2", "t = 3")
        assert len(set(made.frames)) == 4
        assert len({pixels(frame).shape for frame in made.frames}) == 1, "a film does not jump"


def test_a_film_opens_where_there_is_something_to_see() -> None:
    """Not at a uniform start, nor at noise before a pattern has grown; a field that decays is best at its start."""
    t, x = np.arange(9.0), np.linspace(0, 1, 64, endpoint=False)
    wave = np.sin(2 * np.pi * x) * np.ones((64, 1))
    grown = np.clip(t - 3, 0, 1)[:, None, None] * wave
    noise = np.random.default_rng(0).normal(size=(9, 64, 64)) * np.exp(-t)[:, None, None]
    assert opening(grown, range(9)) == 4
    assert opening(grown + noise, range(9)) == 4
    assert opening(np.exp(-t)[:, None] * np.sin(2 * np.pi * x), range(9)) == 0
    assert opening(np.full((9, 64), np.nan), range(9)) == 0
    assert film_forecast_maps(grown[..., None], grown[..., None], t, ("u",), "alt").start == 4


def test_maps_have_axes_and_a_colour_bar() -> None:
    """The bar holds the colours of its scale from the bottom to the top, and the map the colours of its field."""
    ramp = np.linspace(0, 1, 8)[:, None] * np.ones((1, 8))
    board = Board([[Panel("u", (0.0, 1.0))]], ((0.0, 2.0), (0.0, 2.0)), 100)
    picture = pixels(board.picture([[ramp]]))
    left, top = board.lefts[0], board.tops[0]
    bar = picture[top : top + 100, left + 100 + 6 + 5]
    field = picture[top + 50, left : left + 100]
    assert np.abs(bar[::-1][:3] - field[:3]).max() < 30
    assert np.abs(bar[::-1][-3:] - field[-3:]).max() < 30
    outside = picture[top + 100 :, left : left + 100]
    assert (outside < 128).all(-1).any(), "numbers below the map"


@pytest.mark.parametrize("broken", [False, True])
def test_an_ensemble_is_a_fan_around_its_mean_or_a_picture_of_its_spread(broken: bool) -> None:
    t, x = np.arange(4.0), np.linspace(0, 1, 16, endpoint=False)
    line = np.sin(2 * np.pi * (x - 0.1 * t[:, None]))[..., None]
    wide = 0.1 * (1 + t)[:, None, None]
    bands = np.stack([line + k * wide for k in (-2, -1, 1, 2)])
    bands[:, 3] = np.nan if broken else bands[:, 3]
    plain = film_forecast_lines(line, line, x, t, ("u",), "alt")
    fan = film_forecast_lines(line, line, x, t, ("u",), "alt", bands=bands, mask=x < 0.8)
    assert len({pixels(frame).shape for frame in (*plain.frames, *fan.frames)}) == 1
    blue = [int((np.subtract(*pixels(f)[..., [2, 0]].T) > 20).sum()) for f in (plain.frames[0], *fan.frames)]
    assert blue[2] > blue[1] > blue[0] + 500, "the fan opens"
    assert (blue[4] > blue[3]) != broken
    plane = np.repeat(line[:, :, None], 16, axis=2)
    spread = np.repeat(wide[:, :, None], 16, axis=2) * np.ones_like(plane)
    maps = film_forecast_maps(plane, plane, t, ("u",), "alt", spread=np.where(broken, np.nan, spread))
    three = film_forecast_maps(plane, plane, t, ("u",), "alt")
    assert pixels(maps.frames[0]).shape[1] > 1.3 * pixels(three.frames[0]).shape[1]
    assert broken or "spread up to 0.4" in maps.alt


def test_a_plain_axis_begins_at_zero_and_shows_what_is_zero() -> None:
    x = np.arange(5.0)
    shown = [chart([Curve("a", x, y)], "x", "y", log_y=False) for y in (np.zeros(5), np.full(5, np.nan))]
    assert coloured(shown[0]) > coloured(shown[1]) + 100


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_cells_that_do_not_count_are_grey_whatever_is_predicted_there(ndim: int) -> None:
    t, shape = np.arange(3.0), (12,) * ndim
    truth = np.sin(np.arange(12.0)).reshape(-1, *(1,) * (ndim - 1)) * np.ones(shape)
    truth = truth * (1 + t.reshape(-1, *(1,) * ndim))
    mask = np.ones(shape, bool)
    mask[3:7] = False

    def film(fill: float, mask: np.ndarray | None) -> Film:
        there, truly = np.where(True if mask is None else mask, truth, fill)[..., None], truth[..., None]
        if ndim > 1:
            return film_forecast_maps(truly, there, t, ("u",), "alt", mask=mask)
        return film_forecast_lines(truly, there, np.arange(12.0), t, ("u",), "alt", mask=mask)

    assert film(1e6, mask) == film(0.0, mask)

    def grey(mask: np.ndarray | None) -> float:
        colours = pixels(film(0.0, mask).frames[-1])[..., :3].astype(int)
        return float(((np.ptp(colours, -1) < 20) & (colours.min(-1) > 150) & (colours.max(-1) < 220)).mean())

    assert grey(mask) > grey(None) + 0.1


def test_a_caption_says_where_errors_are_larger_than_they_are_drawn() -> None:
    t, x = np.arange(1.0), np.linspace(0, 1, 8)
    line = np.sin(2 * np.pi * x)[None, :, None]
    plane = np.repeat(line[:, :, None], 8, axis=2)
    near = film_forecast_lines(line, line + 0.5, x, t, ("u",), "alt").alt
    far = film_forecast_lines(line, line + 77, x, t, ("u",), "alt").alt
    wide = film_forecast_maps(plane, plane + 77, t, ("u",), "alt").alt
    assert near == "alt"
    assert all("errors of u beyond ±" in alt and "drawn as that, the largest is 77" in alt for alt in (far, wide))
