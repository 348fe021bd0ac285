"""docs/howto-add-a-pde.md, followed to the letter in a copy of the house: its equations work and are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages_of import ROOT, blocks, house_after, python, require_house_rules

PAGE = "docs/howto-add-a-pde.md"

# Each example: its file, the amplitude of its initial states, an end time, and the cells of an independent solver.
EXAMPLES = """
EXAMPLES = {
    "bbm1d": ("1D_BBM_Sols_delta1.0.hdf5", 1.0, 10.0, 144),
    "allencahn2d": ("2D_AllenCahn_eps0.1.hdf5", 0.9, 1.0, 96),
}
"""

COMMANDS = """
from ups.cli.app import app

for name, (file, *_) in EXAMPLES.items():
    for cells in (24,):
        made = f"data generate {name} --samples 2 --resolution {cells} --out made{cells}"
        for command in (made, f"data info made{cells}/{file}", f"data validate made{cells}/{file}"):
            app(command.split(), result_action="return_value")
    app(f"config show configs/{name}.yaml".split(), result_action="return_value")
"""

# scipy's DOP853 on the equations as the page states them, written once more, on a fixed grid that resolves them.
COMPARE = """
import numpy as np
from scipy.integrate import solve_ivp
from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.types import Grid

def bbm1d(u):
    k = 2 * np.pi / 64 * np.fft.fftfreq(len(u), 1 / len(u))
    return np.fft.ifft(-1j * k / (1 + k**2) * np.fft.fft(u + u**2 / 2)).real

def allencahn2d(u):
    k = np.pi * np.fft.fftfreq(len(u), 1 / len(u))
    return 0.1**2 * np.fft.ifft2(-(k[:, None] ** 2 + k**2) * np.fft.fft2(u)).real + u - u**3

for name, (_, amplitude, end, fine) in EXAMPLES.items():
    equation, rate = EQUATIONS[name](), globals()[name]
    box, shape = equation.task.bounds, (fine,) * equation.task.ndim
    for cells in (24,):
        grid = equation.grid(cells)
        # Every so many of these points are the centres of the stored cells.
        points = tuple(x[0] + np.arange(fine) * (hi - lo) / fine for x, (lo, hi) in zip(grid.coordinates, box))
        u0 = equation.initial(Draw(0, range(64)), Grid.along(points, grid.periodic, box))[3, ..., 0].numpy()
        assert np.abs(u0).max() <= 1.01 * amplitude
        run = solve_ivp(
            lambda t, u: rate(u.reshape(shape)).ravel(), (0, end), u0.ravel(), "DOP853", [end], rtol=1e-8, atol=1e-9
        )
        truth = run.y[:, -1].reshape(shape)[(slice(None, None, fine // cells),) * len(shape)]
        frames = equation.simulate(Draw(0, [3]), grid, [0.0, end / 2, end], "accurate")
        error = np.abs(frames[0, -1, ..., 0].numpy() - truth).max()
        assert error < 2e-6, (name, cells, error)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house with both equations added as the page says."""
    assert len(blocks((ROOT / PAGE).read_text())) == 8, "four files for each of two examples"
    return house_after(PAGE, tmp_path_factory.mktemp("house"), ("src", "docs", "tests"))


def test_its_commands_make_files_in_which_nothing_is_wrong_and_its_equations_agree_with_scipy(house: Path) -> None:
    output = python(house, "-c", EXAMPLES + COMMANDS + COMPARE)
    assert output.count("nothing wrong found") == 2
    assert "CONTRADICTS" not in output
    assert "u stays between -1 and 1, but for up to 0.0e+00" in output


def test_they_are_built_as_the_rest_of_the_house(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_house_rules(PAGE, house, monkeypatch)


@pytest.mark.slow  # the equations are compared with scipy above
def test_its_equations_pass_the_tests_that_every_equation_passes(house: Path) -> None:
    files = ("tests/physics/test_every_equation.py",)
    names = "bbm1d or allencahn2d"
    output = python(house, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", names)
    assert re.search(r"\d+ (passed|failed|error)|\[100%\]", output)
