"""Charts and films: every point can be seen, frames differ, nothing that is not finite stops a picture."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from ups.pages import Curve, chart, film_forecast_lines, film_forecast_maps


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
