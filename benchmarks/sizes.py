"""Error against size and minutes: trains each size on six data sets that no row has, in pieces that can be stopped.

    python benchmarks/sizes.py run /tmp/sizes --device cuda --ends 9   # again, until it says that all is there
    python benchmarks/sizes.py table /tmp/sizes

A piece ends within `--ends` minutes: the training that is under way saves a checkpoint, and the next piece goes on with
it. On a GPU that is sizes × six data sets × 0.5, 2, 8 and 30 minutes, and what `ups init` itself proposes, some 24
hours; `--minutes 0.5 2`, `--data ks grayscott` and `--sizes small base` take a part of it. `--steps` is for machines
with others on them: trainings end by steps, so many as the minutes have room for at the processor seconds that a step
takes. Validation errors alone are looked at, as a choice between sizes must be made by them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from ups.run.sizing import RULES, precision_of

SAMPLES, FRAMES = 240, 41
SMALLER = {"cpu": 4, "cuda": 1}  # a grid on a processor has so many times fewer cells along each axis
OWN = "init"  # the size, batch and precision that `ups init` proposes
MINUTES = {"cpu": [0.5, 1, 3], "cuda": [0.5, 2, 8, 30]}
SIZED = ("tiny", "small", "base", "large")


def random_fields(count: int, n: int, ndim: int, generator: torch.Generator, modes: int = 4) -> Tensor:
    """Smooth random periodic fields `(count, *S)` of unit variance."""
    noise = torch.randn(count, *(n,) * ndim, generator=generator)
    k = [torch.fft.fftfreq(n, 1 / n) for _ in range(ndim)]
    square = torch.stack(torch.meshgrid(*k, indexing="ij")).square().sum(0)
    z = torch.fft.fftn(noise, dim=tuple(range(1, ndim + 1))) * torch.exp(-square / (2 * modes**2))
    fields: Tensor = torch.fft.ifftn(z, dim=tuple(range(1, ndim + 1))).real
    return fields / fields.std(tuple(range(1, ndim + 1)), keepdim=True)


def laplacian(u: Tensor, ndim: int) -> Tensor:
    out = -2.0 * ndim * u
    for axis in range(u.ndim - ndim, u.ndim):
        out = out + u.roll(1, axis) + u.roll(-1, axis)
    return out


def grayscott(n: int, device: str, ndim: int = 2) -> dict[str, np.ndarray]:
    """u and v of Gray and Scott, feed and kill rates of each sample, from a few blots."""
    generator = torch.Generator().manual_seed(1)
    feed = (0.018 + 0.03 * torch.rand(SAMPLES, generator=generator)).to(device)
    kill = (0.051 + 0.012 * torch.rand(SAMPLES, generator=generator)).to(device)
    f, k = (each.view(-1, *(1,) * ndim) for each in (feed, kill))
    v = (random_fields(SAMPLES, n, ndim, generator) > 1.2).float().to(device) * 0.5
    u, frames = 1 - v, []
    for step in range(40 * (FRAMES + 4)):
        if step % 40 == 0 and step >= 160:
            frames.append(torch.stack((u, v), -1).cpu())
        reaction = u * v * v
        u, v = (
            u + 0.16 * (2 / ndim) * laplacian(u, ndim) - reaction + f * (1 - u),
            v + 0.08 * (2 / ndim) * laplacian(v, ndim) + reaction - (f + k) * v,
        )
    values = torch.stack(frames, 1).numpy()
    return {"u": values[..., 0], "v": values[..., 1], "feed": feed.cpu().numpy(), "kill": kill.cpu().numpy()}


def waves(n: int, device: str) -> dict[str, np.ndarray]:
    """Pressure and its rate of change in a medium whose speed of sound is random and given."""
    generator = torch.Generator().manual_seed(2)
    speed = (1 + 0.35 * torch.tanh(random_fields(SAMPLES, n, 2, generator))).to(device)
    p, rate, frames = random_fields(SAMPLES, n, 2, generator, 5).to(device), torch.zeros(SAMPLES, n, n).to(device), []
    dt, every = 0.25, max(1, n // 32)
    for step in range(FRAMES * every):
        if step % every == 0:
            frames.append(torch.stack((p, rate), -1).cpu())
        rate = rate + dt * speed**2 * laplacian(p, 2)
        p = p + dt * rate
    values = torch.stack(frames, 1).numpy()
    return {"p": values[..., 0], "rate": values[..., 1], "speed": speed.cpu().numpy()}


def turbulence(n: int, device: str) -> dict[str, np.ndarray]:
    """Vorticity of Kolmogorov's flow: forced by sin 4y, with drag, at a Reynolds number of a few hundred."""
    generator = torch.Generator().manual_seed(3)
    k = torch.fft.fftfreq(n, 1 / n).to(device)
    kx, ky = torch.meshgrid(k, k, indexing="ij")
    square, nu, drag = kx**2 + ky**2, 2e-3 * 128 / n, 0.1
    inverse = torch.where(square > 0, 1 / square.clamp(min=1), 0.0)
    kept = ((kx.abs() < n / 3) & (ky.abs() < n / 3)).float()
    y = 2 * torch.pi * torch.arange(n, device=device) / n
    force = torch.fft.fft2((-4 * torch.cos(4 * y)).expand(n, n))
    w = torch.fft.fft2(4 * random_fields(SAMPLES, n, 2, generator).to(device))
    dt, every, frames = 0.005, 40, []
    decay = torch.exp(-(nu * square + drag) * dt)

    def change(w: Tensor) -> Tensor:
        psi = w * inverse
        u, v, wx, wy = (torch.fft.ifft2(f).real for f in (1j * ky * psi, -1j * kx * psi, 1j * kx * w, 1j * ky * w))
        rate: Tensor = kept * (force - torch.fft.fft2(u * wx + v * wy))
        return rate

    for step in range(every * (FRAMES + 25)):
        if step % every == 0 and step >= 25 * every:
            frames.append(torch.fft.ifft2(w).real.float().cpu())
        first = change(w)
        w = decay * (w + 0.5 * dt * first) + 0.5 * dt * change(decay * (w + dt * first))
    return {"vorticity": torch.stack(frames, 1).numpy()}


class Problem:
    """A data set: its arrays, or the equation of the package that makes them."""

    def __init__(self, cells: int, task: dict[str, object], make: Callable[[int, str], dict[str, np.ndarray]]) -> None:
        self.cells, self.task, self.make = cells, task, make


def arrays(ndim: int, fields: list[str], **more: object) -> dict[str, object]:
    axes = ["x", "y", "z"][:ndim]
    return {"dims": ["sample", "time", *axes], "fields": {f: [f] for f in fields}, "periodic": axes, "dt": 1.0, **more}


RATES_OF = {"feed": "feed", "kill": "kill"}
PROBLEMS: dict[str, Problem | str] = {
    "ks": "ks1d",
    "kdv": "kdv1d",
    "grayscott": Problem(128, arrays(2, ["u", "v"], datasets=RATES_OF), grayscott),
    "waves": Problem(128, arrays(2, ["p", "rate"], inputs={"speed": ["speed"]}), waves),
    "turbulence": Problem(128, arrays(2, ["vorticity"]), turbulence),
    "grayscott3d": Problem(32, arrays(3, ["u", "v"], datasets=RATES_OF), lambda n, d: grayscott(n, d, 3)),
}


def ups(*words: object) -> str:
    """What a command prints."""
    return subprocess.run(
        [sys.executable, "-m", "ups", *map(str, words)], capture_output=True, text=True, check=True
    ).stdout


def files_of(name: str, out: Path, device: str) -> list[object]:
    """What `ups init` is given: the data, made where they are not there."""
    problem, place = PROBLEMS[name], out / "data"
    place.mkdir(parents=True, exist_ok=True)
    if isinstance(problem, str):
        cells = 512 // SMALLER[device]
        lines = ups("data", "generate", problem, "--samples", SAMPLES, "--frames", FRAMES, "--resolution", cells,
                   "--out", place, "--device", device)  # fmt: skip
        return [lines.strip().splitlines()[-1]]
    file, task = place / f"{name}.npz", place / f"{name}.yaml"
    if not file.exists():
        task.write_text(yaml.safe_dump({"name": name, **problem.task}))
        made = problem.make(problem.cells // SMALLER[device], device)
        np.savez(place / "part.npz", allow_pickle=False, **made)
        os.replace(place / "part.npz", file)
    return [file, "--task", task]


def cells(args: argparse.Namespace) -> Iterator[tuple[float, str, str]]:
    yield from ((m, d, s) for m in args.minutes for d in args.data for s in args.sizes)


def config_of(minutes: float, data: str, size: str, args: argparse.Namespace, out: Path) -> tuple[Path, list[object]]:
    """What `ups init` writes for these data, and the flags that make it train another size."""
    files, config = files_of(data, out, args.device), out / f"{data}-{minutes:g}.yaml"
    if not config.exists():
        ups("init", *files, "--minutes", minutes, "--out", config, "--device", args.device)
    if size == OWN:
        return config, []
    flags: list[object] = ["--model.operator.size", size, "--operator.train.lr", RULES[size].rate]
    return config, [*flags, "--operator.train.precision", precision_of(size, args.device), "--batch", args.batch]


def cpu_seconds(config: Path, flags: list[object], out: Path) -> float:
    """Processor seconds of a step, from two short trainings."""
    spent, steps = [], (10, 40)
    for count in steps:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        budget = ["--operator.train.seconds", "null", "--operator.train.steps", count, "--name", "timed", "--out", out]
        budget += ["--operator.train.validate_every", 0, "--until", "train", "--overwrite"]
        ups("run", config, *flags, *budget)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return max(1e-4, (spent[1] - spent[0]) / (steps[1] - steps[0]))


def run(args: argparse.Namespace) -> None:
    out, ends = Path(args.out), time.monotonic() + 60 * args.ends - 40  # a checkpoint takes its time
    out.mkdir(parents=True, exist_ok=True)
    times = out / "steps.json"
    for minutes, data, size in cells(args):
        name = f"{data}-{size}-{minutes:g}"
        folder = out / "runs" / name
        if (folder / "stages.json").exists():
            continue
        if time.monotonic() > ends - 20:
            print("more to do: call it again")
            return
        config, flags = config_of(minutes, data, size, args, out)
        if args.steps:
            known = json.loads(times.read_text()) if times.exists() else {}
            key = f"{data}-{size}"
            if key not in known:
                known[key] = cpu_seconds(config, flags, out)
                times.write_text(json.dumps(known))
            steps = max(10, round(60 * minutes / known[key]))
            flags += ["--operator.train.seconds", "null", "--operator.train.steps", steps]
        words = ["run", config, *flags, "--name", name, "--out", out / "runs", "--until", "train"]
        words += ["--resume"] if folder.exists() else []
        child = subprocess.Popen([sys.executable, "-m", "ups", *map(str, words)], stdout=subprocess.DEVNULL)
        try:
            code = child.wait(max(1.0, ends - time.monotonic()))
            print(name, "ended with code", code, flush=True)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGTERM)
            child.wait()
            print(f"{name} is stopped at a checkpoint: call it again")
            return
    print("all is there: python benchmarks/sizes.py table", out)


def table(args: argparse.Namespace) -> None:
    """Steps and validation error of every size."""
    for folder in sorted((Path(args.out) / "runs").iterdir()):
        if (folder / "stages.json").exists():
            stage = json.loads((folder / "stages.json").read_text())["operator"]
            size = yaml.safe_load((folder / "config.yaml").read_text())["model"]["operator"].get("size", "tiny")
            print(
                f"{folder.name:28} {size:6} {stage['steps']:7} steps {stage['seconds']:7.0f} s",
                f"  error {stage['score']:.4g}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("out")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ends", type=float, default=9.0, help="minutes after which it ends")
    parser.add_argument("--steps", action="store_true", help="by steps, from processor seconds")
    parser.add_argument("--minutes", type=float, nargs="+")
    parser.add_argument("--data", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--sizes", nargs="+", choices=[*RULES, OWN], default=[*SIZED, OWN])
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    args.minutes = args.minutes or MINUTES[args.device]
    run(args) if args.what == "run" else table(args)


if __name__ == "__main__":
    main()
