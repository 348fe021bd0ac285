"""Runs a config's own model on ranks, whole or module by module, with a trace of it that survives a crash."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ups.engine.learner import precision
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.ranks.parallelize import Parallel, parallelize
from ups.engine.train import TrainConfig
from ups.engine.units import map_tensors, units_of
from ups.run.check import new_simulator
from ups.run.config import RunConfig
from ups.run.data.data_config import DataConfig
from ups.run.data.outlines import Outline, outlines
from ups.tensors import Window
from ups.types import DataError

Strategy = Literal["ddp", "fsdp"]
SAMPLES = 2
Sums = tuple[str, float, float]  # of a module's output: its name, the sum and the sum of magnitudes
SMALL = 1e-3  # numbers below it are compared by their difference alone


def unchanged(module: nn.Module) -> None:
    """The model as it is."""


@dataclass(frozen=True)
class ExercisedModel:
    """One stage of a config on a device. `change` is applied to its module once it is built: a repair, or a harm."""

    config: RunConfig
    stage: str
    device: str
    change: Callable[[nn.Module], None] = unchanged

    @property
    def train(self) -> TrainConfig:
        """How the stage is trained; eager, for inside what is compiled there are no modules to name."""
        return dataclasses.replace(self.config.stage(self.stage).train, compile=False)

    @property
    def near(self) -> float:
        """How far apart the same number may be on one rank and on several."""
        if self.train.precision == "bf16":
            return 2e-2
        if self.train.precision == "tf32" and self.device != "cpu":
            return 2e-3
        return 1e-6 if self.device == "cpu" else 1e-5


def shapes(config: RunConfig, data: DataConfig) -> Outline:
    """The shapes of a data set: from its file's header if it is there, from its equation otherwise."""

    def outline(**changes: None) -> Outline:
        return outlines(config.model_copy(update={"data": {"data": data.model_copy(update=changes)}}))[0]

    try:
        return outline()
    except (DataError, OSError):
        if data.file is None:
            raise
        return outline(file=None)


def build(subject: ExercisedModel, device: torch.device) -> tuple[Any, list[Window]]:
    """The stage, and a tiny window of each task, the same everywhere."""
    config = subject.config
    sets = [shapes(config, data) for data in config.data.values()]
    stage = config.stages[subject.stage](new_simulator(config, sets).to(device), config.stage(subject.stage))
    torch.manual_seed(config.seed)
    ahead = config.stage(subject.stage).ahead
    windows = [data.window(SAMPLES, config.looks_back(data.task), ahead).to(device) for data in sets]
    for window in windows:
        stage.fit(window)
    with torch.no_grad():
        for p in stage.module.parameters():  # what begins as zero or as an inverse would hide what lies behind it
            p.add_(0.02 * torch.randn(p.shape, dtype=p.dtype).to(device))
    subject.change(stage.module)
    return stage, windows


def whole(
    subject: ExercisedModel, world: int, strategy: Strategy, folder: Path, compiled: bool = False
) -> dict[str, Any]:
    """Forward and backward of the whole stage on every rank, each with the same samples: as one process would.

    `compiled`: with what `train.compile` compiles compiled; of such a block only its entry is noted.
    """
    with _ranks(subject, world, strategy) as ranks:
        trace = ModuleTrace(folder / f"trace-{ranks.rank}")
        trace.phase("build")
        stage, windows = build(subject, ranks.device)
        trace.phase("wrap")
        parallel = parallelize(stage.module, dataclasses.replace(subject.train, compile=compiled), ranks)
        modules = named(stage.module, subject.stage)
        if compiled:
            for name, part in modules:
                if part._compiled_call_impl is not None:
                    part._compiled_call_impl = trace.around(part._compiled_call_impl, name)
        else:
            trace.follow(stage.module, subject.stage)
        norms, losses = [], []
        for window in windows:
            torch.manual_seed(subject.config.seed)
            parallel.begin(last=True)
            trace.phase("forward")
            with precision(subject.train, ranks.device.type):
                terms = stage.loss(window)
            loss = functools.reduce(torch.add, (term.float() for term in terms.values()))
            losses.append(float(loss.detach()))
            norms.append(_back(loss, parallel, trace))
        return {
            "losses": losses,
            "norms": norms,
            "sums": trace.sums,
            "broken": trace.first_broken(),
            "parts": [name for name, _ in modules],
            "units": [name for name, part in modules if part in units_of(stage.module)],
        }


def _back(loss: Tensor, parallel: Parallel, trace: ModuleTrace) -> float:
    """Backward and reduce; the norm of the gradient, which is not finite where any of it is not."""
    trace.phase("backward")
    loss.backward()  # type: ignore[no-untyped-call]
    trace.phase("reduce")
    parallel.pack()
    parallel.reduce()
    gradients = {name: p.grad for name, p in parallel.parameters.items() if p.grad is not None}
    norm = float(parallel.norm(gradients))
    for name, gradient in gradients.items():
        if not finite(gradient):
            trace.broken.append(("gradient", name))
    for p in parallel.parameters.values():
        p.grad = None
    return norm


def capture(subject: ExercisedModel, names: list[str], path: Path) -> list[str]:
    """Write to `path` the first input of each named module, and its output on that alone, in one process.

    The names of those that are used.
    """
    with _ranks(subject, 1, "ddp") as ranks:
        stage, windows = build(subject, ranks.device)
        inputs: dict[str, tuple[Any, Any]] = {}

        def note(name: str) -> Any:
            def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
                inputs.setdefault(name, map_tensors((args, kwargs), lambda tensor: tensor.detach().clone()))

            return hook

        modules = dict(named(stage.module, subject.stage))
        hooks = [modules[n].register_forward_pre_hook(note(n), with_kwargs=True) for n in names if n in modules]
        for window in windows:
            torch.manual_seed(subject.config.seed)
            with precision(subject.train, ranks.device.type):
                stage.loss(window)
        for hook in hooks:
            hook.remove()
        captured = {}
        for name, (args, kwargs) in inputs.items():
            module = modules[name]
            parallel = parallelize(module, _plain(subject), ranks) if _trained(module) else None
            captured[name] = (args, kwargs, _once(subject, module, parallel, args, kwargs, ranks, None))
        path.write_bytes(pickle.dumps(captured))
        return list(captured)


def alone(
    subject: ExercisedModel, world: int, strategy: Strategy, folder: Path, names: list[str], path: Path
) -> list[str]:
    """Each named module alone on every rank, on its captured input; those that differ, as sentences `module: how`."""
    with _ranks(subject, world, strategy) as ranks:
        trace = ModuleTrace(folder / f"trace-{ranks.rank}")
        trace.phase("build")
        stage, _ = build(subject, ranks.device)
        captured, differences = pickle.loads(path.read_bytes()), []
        for name in names:
            args, kwargs, wanted = captured[name]
            module = dict(named(stage.module, subject.stage))[name]
            trace.phase(f"wrap {name}")
            parallel = parallelize(module, _plain(subject), ranks) if _trained(module) else None
            trace.follow(module, name)
            sizes = _once(subject, module, parallel, args, kwargs, ranks, trace)
            for what, a, b in zip(("output", "gradient"), sizes, wanted, strict=True):
                gap = abs(a - b) / max(abs(b), SMALL)
                if not gap <= 10 * subject.near:
                    differences.append(f"{name}: its {what} is {a:.6g} in the place of {b:.6g}")
                    break
        return differences


def _once(
    subject: ExercisedModel,
    module: nn.Module,
    parallel: Parallel | None,
    args: Any,
    kwargs: Any,
    ranks: Dist,
    trace: ModuleTrace | None,
) -> tuple[float, float]:
    """Forward and backward of a module: the root mean square of its output, and the norm of its gradient."""
    torch.manual_seed(subject.config.seed)
    if parallel is not None:
        parallel.begin(last=True)
    if trace is not None:
        trace.phase("forward")
    with precision(subject.train, ranks.device.type):
        out = module(*args, **kwargs)
    squares = [t.float().square().mean() for t in tensors_of(out)]
    size = functools.reduce(torch.add, squares)
    if parallel is None or not size.requires_grad:
        return float(size.detach()) ** 0.5, 0.0
    return float(size.detach()) ** 0.5, _back(size, parallel, trace or ModuleTrace(Path("/dev/null")))


def _plain(subject: ExercisedModel) -> TrainConfig:
    """A module alone has no blocks whose activations could be recomputed."""
    return dataclasses.replace(subject.train, activations="keep")


def _trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _ranks(subject: ExercisedModel, world: int, strategy: Strategy) -> AbstractContextManager[Dist]:
    if world == 1:
        return Dist.alone(subject.device)
    own = subject.config.dist
    config = DistConfig(ranks=world, strategy=strategy, timeout=600, vote_timeout=600)
    if strategy == "fsdp":
        config = dataclasses.replace(config, offload=own.offload, gather=own.gather)
    return Dist.start(subject.device, config)


@dataclass
class ModuleTrace:
    """Hooks on every submodule, which write to a file (one write per event: what the kernel has is safe).

    It also keeps sums of every output, in order, and the submodules whose output (or gradient) is not finite although
    their input was. To be attached after a module is wrapped: then the gathering of a shard counts as the submodule's.
    """

    path: Path
    sums: list[Sums] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)  # ("forward" or "backward", submodule)
    _entered_names: set[str] = field(default_factory=set)
    _spoilt: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def phase(self, name: str) -> None:
        """Note what is done now to the whole model."""
        self._note("#", name)

    def follow(self, module: nn.Module, root: str) -> None:
        """Attach the hooks; submodules are called `root.path.in.module`."""
        for name, part in named(module, root):
            part.register_forward_pre_hook(self._before(name), with_kwargs=True, prepend=True)
            part.register_forward_hook(self._after(name), with_kwargs=True)
        for entry in getattr(module, "entries", ()):
            setattr(module, entry, self.around(getattr(module, entry), f"{root}.{entry}"))

    def _note(self, kind: str, name: str) -> None:
        os.write(self.handle, f"{kind} {name}\n".encode())

    def _before(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._note(">", name)
            tensors = [t for t in tensors_of((args, kwargs)) if t.requires_grad]
            if tensors and torch.is_grad_enabled():
                tensors[0].register_hook(lambda g: self._left(name, g))  # type: ignore[no-untyped-call]

        return hook

    def _after(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            outputs = list(tensors_of(output))
            if not all(finite(t) for t in outputs) and all(finite(t) for t in tensors_of((args, kwargs))):
                self.broken.append(("forward", name))
            given = list(tensors_of((args, kwargs)))
            for t in outputs:
                value = t.detach().double()
                self.sums.append((name, float(value.sum()), float(value.abs().sum())))
                passed_on = any(t is one for one in given)  # by a module that does nothing: its backward is nobody's
                if t.requires_grad and torch.is_grad_enabled() and not passed_on:
                    t.register_hook(lambda g: self._entered_backward(name, g))  # type: ignore[no-untyped-call]
            self._note("<", name)

        return hook

    def around(self, method: Any, name: str) -> Any:
        """`method`, whose calls are noted like those of a submodule."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._note(">", name)
            output = method(*args, **kwargs)
            self._note("<", name)
            return output

        return run

    def _entered_backward(self, name: str, gradient: Tensor) -> None:
        self._note("}", name)
        self._entered_names.add(name)
        if not finite(gradient):
            self._spoilt.add(name)

    def _left(self, name: str, gradient: Tensor) -> None:
        self._note("{", name)
        if not finite(gradient) and name in self._entered_names - self._spoilt:
            self.broken.append(("backward", name))

    def first_broken(self) -> tuple[str, str] | None:
        """Where a value first was not finite: forward before backward, a submodule before what contains it."""
        if not self.broken:
            return None
        phase = self.broken[0][0]
        names = [name for p, name in self.broken if p == phase]
        inner = [n for n in names if not any(other.startswith(f"{n}.") for other in names)]
        return phase, inner[0]


def named(module: nn.Module, root: str) -> list[tuple[str, nn.Module]]:
    """A module and its submodules, called `root` and `root.path.in.module`."""
    return [(f"{root}.{path}" if path else root, part) for path, part in module.named_modules()]


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every floating-point tensor in tuples, lists, dicts and objects with fields."""
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_of(part)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors_of([getattr(value, name) for name in value.__dataclass_fields__])


def finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def last_module(path: Path) -> tuple[str, str]:
    """(phase of the whole, the innermost module that had begun and not ended) when the trace broke off."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "start", ""
    phase, inside = "start", list[str]()
    back: dict[str, int] = {}
    for number, line in enumerate(lines):
        kind, _, name = line.partition(" ")
        if kind == "#":
            phase, inside, back = name, [], {}
        elif kind == ">":
            inside.append(name)
        elif kind == "<":
            while inside and inside.pop() != name:
                continue
        elif kind == "}":
            back[name] = number
        elif kind == "{":
            back.pop(name, None)
    if inside or not back:
        return phase, inside[-1] if inside else ""
    newest = max(back.values())
    # The output of a module is also the output of what contains it: their notes follow each other.
    together = [
        name
        for name, number in back.items()
        if newest - number < len(back) and all(line.startswith("}") for line in lines[number : newest + 1])
    ]
    return phase, max(together, key=lambda name: name.count("."))


def first_difference(ours: list[Sums], theirs: list[Sums], near: float) -> tuple[str, float] | None:
    """The first module whose output differs by more than `near`, and by how much; None where none does."""
    for (name, a, size), (their_name, b, their_size) in zip(ours, theirs, strict=False):
        gap = abs(a - b) / max(size, their_size, 1e-30)
        if name != their_name or not math.isfinite(gap) or gap > near:
            return name, gap
    return None
