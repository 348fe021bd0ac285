"""Random initial states in any number of dimensions; PDEBench's states, points and windows."""

from __future__ import annotations

import math

from ups.lazy_imports import Tensor, torch
from ups.physics.random import Draw
from ups.types import Grid

WINDOW_WIDTH = 0.45
CUTOFF = 4  # waves along an axis
LOW = 6  # modes of `low_modes`
ABSOLUTE = 0.1  # probability that PDEBench takes the absolute value of a 1D state
REFERENCE = {1: 1024, 2: 128, 3: 32}


def random_waves(draw: Draw, grid: Grid, name: str = "u", amplitude: float | Tensor = 1.0, channels: int = 1) -> Tensor:
    """Smooth periodic states `(B, *S, channels)` without mean, in one, two or three dimensions.

    A sum of plane waves (`plane_waves`) with at most 4 periods along an axis, scaled so that its largest absolute value
    is `amplitude`, a number or `(B, channels)`. It is a function of the coordinates alone, so a finer grid shows the
    same state (the extreme is sought on a fixed grid, and may be missed by half a percent). Needs 9 cells per axis.
    """
    waves = plane_waves(draw, name, channels, grid.ndim)
    largest = evaluate(waves, reference(grid), draw).abs().flatten(2).amax(2)
    scale = (amplitude / largest).view(len(draw), channels, *([1] * grid.ndim))
    return (evaluate(waves, grid, draw) * scale).movedim(1, -1)


def low_modes(draw: Draw, grid: Grid, amplitude: float) -> Tensor:
    """`(B, N)` Σ_m A_m sin(2π m x / L + φ_m), A ~ U(−1, 1) scaled so that |u| ≤ `amplitude`; mean zero."""
    x = draw.tensor(2 * math.pi * (grid.coordinates[0] - grid.bounds[0][0]) / grid.lengths[0])
    size = draw.uniform("amplitude", (LOW,), -amplitude / LOW, amplitude / LOW)
    phase = draw.uniform("phase", (LOW,), 0.0, 2 * math.pi)
    u = torch.zeros((len(draw), len(x)), dtype=draw.dtype, device=draw.device)
    for m in range(LOW):
        u += size[:, m : m + 1] * torch.sin((m + 1) * x + phase[:, m : m + 1])
    return u


def smooth_field(draw: Draw, grid: Grid, name: str, slope: tuple[int, int] = (0, 0)) -> Tensor:
    """`(B, X, Y)` random sum of the modes 0 ≤ |m| ≤ 4 per axis, but the constant; `slope`: derivatives per axis.

    Amplitudes are uniform in (−1, 1)/(1 + m²). Built without any trigonometry or sum that runs over the batch, so a
    sample has the same bits in every batch.
    """
    bases = []
    for axis, order in enumerate(slope):
        angle = 2 * math.pi * (grid.coordinates[axis] - grid.bounds[axis][0]) / grid.lengths[axis]
        rows = []
        for m in range(CUTOFF + 1):
            turn = order * math.pi / 2
            scale = (2 * math.pi * m / grid.lengths[axis]) ** order
            rows += [draw.tensor(scale * f(m * torch.as_tensor(angle) + turn).numpy()) for f in (torch.cos, torch.sin)]
        bases.append(rows)
    size = draw.uniform(name, (2 * CUTOFF + 2, 2 * CUTOFF + 2), -1.0, 1.0)
    field = torch.zeros((len(draw), *grid.shape), dtype=draw.dtype, device=draw.device)
    for i, along_x in enumerate(bases[0]):
        row = torch.zeros((len(draw), grid.shape[1]), dtype=draw.dtype, device=draw.device)
        for j, along_y in enumerate(bases[1]):
            if i > 1 or j > 1:  # 0 and 1 are the constant's cosine and sine
                row += size[:, i, j, None] / (1 + (i // 2) ** 2 + (j // 2) ** 2) * along_y
        field += along_x[:, None] * row[:, None, :]
    return field


def random_modes(draw: Draw, x: Tensor, length: float, modes: int = 4, window: float = 0.1, name: str = "u") -> Tensor:
    """PDEBench's random 1D state `(B, N)` at the points `x`: Σ_k A_k sin(2π k c_k x / length + φ_k), k = 1 … modes.

    c_k counts how often mode k came up in two draws, so a mode that never came up adds a constant and one that came
    up twice doubles its wavenumber. With probability 0.1 the absolute value is taken, the sign is random, and
    with probability `window` all but a stretch of 0.45 is faded to zero (see `window_of`). A ~ U(0, 1), φ ~ U(0, 2π).
    Standard deviation ≈ 0.79, range ≈ ±3.2 for four modes. `length` is the box: the state is periodic.
    """
    drawn = draw.integers(f"{name}.modes", (2,), modes)
    k = torch.arange(1, modes + 1, device=draw.device)
    counts = (drawn.unsqueeze(-1) + 1 == k).sum(1)
    wave = (2 * math.pi / length) * (k * counts).to(draw.dtype)
    amplitude = draw.uniform(f"{name}.amplitude", (modes,))
    phase = draw.uniform(f"{name}.phase", (modes,), 0.0, 2 * math.pi)
    u = torch.zeros((len(draw), len(x)), dtype=draw.dtype, device=draw.device)
    for m in range(modes):
        u += amplitude[:, m : m + 1] * torch.sin(wave[:, m : m + 1] * x + phase[:, m : m + 1])
    u = torch.where(draw.chance(f"{name}.absolute", ABSOLUTE).unsqueeze(1), u.abs(), u)
    sign = torch.where(draw.chance(f"{name}.sign", 0.5), 1.0, -1.0).to(draw.dtype)
    return u * sign.unsqueeze(1) * window_of(draw, x, window, name)


def window_of(draw: Draw, x: Tensor, probability: float, name: str = "u") -> Tensor:
    """A smooth window `(B, N)`: ½[tanh((x − x_L)/0.01) − tanh((x − x_R)/0.01)], or 1 where the sample has none.

    PDEBench draws the place and the decision from one random number r, hence x_L = 0.1 + 0.35 r with r < probability,
    and x_R = x_L + 0.45 always.
    """
    r = draw.uniform(f"{name}.window").unsqueeze(1)
    left = 0.1 + 0.35 * r
    faded = 0.5 * (torch.tanh((x - left) / 0.01) - torch.tanh((x - left - WINDOW_WIDTH) / 0.01))
    return torch.where(r < probability, faded, torch.ones_like(faded))


def pdebench_points(grid: Grid) -> Grid:
    """Points stretched by L / (L − dx): PDEBench takes the first to the last cell centre for one wavelength.

    Evaluated there, a periodic state becomes PDEBench's, which misses periodicity by one cell in a thousand.
    """
    stretched = tuple(
        lo + (x - lo) * (length / (length - dx))
        for x, (lo, _), length, dx in zip(grid.coordinates, grid.bounds, grid.lengths, grid.spacing, strict=True)
    )
    return Grid.along(stretched, grid.periodic, grid.bounds)


def normalised(u: Tensor) -> Tensor:
    """Each sample `(B, ...)` mapped to [0, 1] by its own minimum and maximum; a constant sample to 0."""
    flat = u.flatten(1)
    low, high = flat.amin(1), flat.amax(1)
    view = (-1, *([1] * (u.dim() - 1)))
    span = (high - low).clamp_min(torch.finfo(u.dtype).tiny)
    return (u - low.view(view)) / span.view(view)


def wave_numbers(ndim: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Integer wavenumbers `(D, K, …, K)`, K from −4 to 4 on each axis, and their norm."""
    k = torch.arange(-CUTOFF, CUTOFF + 1, device=draw.device, dtype=draw.dtype)
    grid = torch.stack(torch.meshgrid(*([k] * ndim), indexing="ij"))
    return grid, grid.square().sum(0).sqrt()


def plane_waves(draw: Draw, name: str, count: int, ndim: int) -> Tensor:
    """Coefficients `(B, count, K, …, K)` of random fields: Re Σ_k c_k e^{2πi k·x/L}.

    One wave of random phase for every wavenumber with norm ≤ 4 and no zero component; its amplitude is norm^(−1/2) in
    two dimensions, norm^(−1) in three.
    """
    grid, norm = wave_numbers(ndim, draw)
    allowed = (norm <= CUTOFF) & (grid != 0).all(0)
    amplitude = torch.where(allowed, norm.clamp_min(1) ** (-0.5 if ndim < 3 else -1.0), torch.zeros_like(norm))
    phase = draw.uniform(name, (count, *norm.shape), 0.0, 2 * math.pi)
    return torch.polar(amplitude.expand_as(phase).contiguous(), phase)


def solenoidal(coefficients: Tensor, draw: Draw) -> Tensor:
    """The divergence-free part of a velocity `(B, D, K, …, K)`: c − k (k·c)/k² wave by wave (Helmholtz)."""
    grid, norm = wave_numbers(coefficients.shape[1], draw)
    along = (grid * coefficients).sum(1, keepdim=True) / norm.clamp_min(1).square()
    return coefficients - grid * along


def evaluate(coefficients: Tensor, grid: Grid, draw: Draw) -> Tensor:
    """The fields `(B, count, *S)` at the points of `grid`, one axis after the other, each a matrix product."""
    k = torch.arange(-CUTOFF, CUTOFF + 1, device=draw.device, dtype=draw.dtype)
    field = coefficients
    for x, length in zip(grid.coordinates, grid.lengths, strict=True):
        angle = (2 * math.pi / length) * draw.tensor(x)[:, None] * k
        waves = torch.polar(torch.ones_like(angle), angle)
        field = torch.tensordot(field, waves, dims=([2], [1]))
    return field.real


def reference(grid: Grid) -> Grid:
    """A fixed grid on which means and extremes are taken, so that a state does not depend on its resolution."""
    n = REFERENCE[grid.ndim]
    return Grid((n,) * grid.ndim, grid.periodic, grid.bounds)
