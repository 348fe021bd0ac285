"""A config's own model on ranks, in a child: the whole of it, or some of its parts alone on what they were given."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ups.doctor.module_trace import Trail, finite, tensors_of
from ups.engine.dist import Dist, DistConfig
from ups.engine.parallelize import Parallel, parallelize, units_of
from ups.engine.train import TrainConfig
from ups.jobs.plan import Planned, planned, simulator_of
from ups.jobs.run import STAGES
from ups.jobs.settings import DataConfig, RunConfig
from ups.tensors import Window
from ups.types import DataError

Strategy = Literal["ddp", "fsdp"]
SAMPLES = 2
SMALL = 1e-3  # numbers below it are compared by their difference alone


def unchanged(module: nn.Module) -> None:
    """The model as it is."""


@dataclass(frozen=True)
class Subject:
    """One stage of a config on a device. `change` is made to its module once it is built: to try a repair, or harm."""

    config: RunConfig
    stage: str
    device: str
    change: Callable[[nn.Module], None] = unchanged

    @property
    def train(self) -> TrainConfig:
        """How the stage is trained; eager, for inside what is compiled there are no parts to name."""
        return dataclasses.replace(STAGES[self.stage].settings(self.config).train, compile=False)

    @property
    def compiles(self) -> bool:
        """Whether the config asks for a compiler."""
        return STAGES[self.stage].settings(self.config).train.compile

    @property
    def near(self) -> float:
        """How far apart the same number may be on one rank and on several."""
        if self.train.precision == "bf16":
            return 2e-2
        return 1e-6 if self.device == "cpu" else 1e-5


def shapes(data: DataConfig) -> Planned:
    """The shapes of a data set: from its file's header if it is there, from its equation otherwise."""
    if data.file:
        try:
            return planned(data)
        except (DataError, OSError):
            return planned(data.model_copy(update={"file": None}))
    return planned(data)


def build(subject: Subject, device: torch.device) -> tuple[Any, list[Window]]:
    """The stage, and a tiny window of each task, the same everywhere."""
    config = subject.config
    sets = [shapes(data) for data in config.data.values()]
    stage = STAGES[subject.stage].make(simulator_of(config, sets).to(device), config)
    torch.manual_seed(config.seed)
    ahead = STAGES[subject.stage].settings(config).unroll
    windows = [data.window(SAMPLES, config.model.operator.context, ahead).to(device) for data in sets]
    for window in windows:
        stage.fit(window)
    with torch.no_grad():
        for p in stage.module.parameters():  # what begins as zero or as an inverse would hide what lies behind it
            p.add_(0.02 * torch.randn(p.shape, dtype=p.dtype).to(device))
    subject.change(stage.module)
    return stage, windows


def whole(subject: Subject, world: int, strategy: Strategy, folder: Path) -> dict[str, Any]:
    """Forward and backward of the whole stage on every rank, each with the same samples: as one process would."""
    with _ranks(subject, world, strategy) as ranks:
        trail = Trail(folder / f"trail-{ranks.rank}")
        trail.phase("build")
        stage, windows = build(subject, ranks.device)
        trail.phase("wrap")
        parallel = parallelize(stage.module, subject.train, ranks)
        trail.follow(stage.module, subject.stage)
        losses, norms = _pass(subject, stage, windows, parallel, trail, ranks)
        names = [name for name, part in _named(stage.module, subject.stage)]
        units = [name for name, part in _named(stage.module, subject.stage) if part in units_of(stage.module)]
        found = {"losses": losses, "norms": norms, "sums": trail.sums, "broken": trail.first_broken()}
        return {**found, "parts": names, "units": units}


def compiled(subject: Subject, folder: Path) -> dict[str, Any]:
    """The same in one process, with what `train.compile` compiles compiled; such a block notes that it is entered."""
    with _ranks(subject, 1, "ddp") as ranks:
        trail = Trail(folder / "trail-0")
        trail.phase("build")
        stage, windows = build(subject, ranks.device)
        trail.phase("wrap")
        parallel = parallelize(stage.module, dataclasses.replace(subject.train, compile=True), ranks)
        for name, part in _named(stage.module, subject.stage):
            if part._compiled_call_impl is not None:
                part._compiled_call_impl = trail.around(part._compiled_call_impl, name)
        losses, norms = _pass(subject, stage, windows, parallel, trail, ranks)
        return {"losses": losses, "norms": norms, "sums": []}


def _pass(
    subject: Subject, stage: Any, windows: list[Window], parallel: Parallel, trail: Trail, ranks: Dist
) -> tuple[list[float], list[float]]:
    """Forward and backward of every window: the losses, and the norms of the gradients."""
    norms, losses = [], []
    for window in windows:
        torch.manual_seed(subject.config.seed)
        parallel.begin(last=True)
        trail.phase("forward")
        with _precision(subject, ranks):
            terms = stage.loss(window)
        loss = functools.reduce(torch.add, (term.float() for term in terms.values()))
        losses.append(float(loss.detach()))
        norms.append(_back(loss, parallel, trail))
    return losses, norms


def _named(module: nn.Module, root: str) -> list[tuple[str, nn.Module]]:
    return [(f"{root}.{path}" if path else root, part) for path, part in module.named_modules()]


def _back(loss: Tensor, parallel: Parallel, trail: Trail) -> float:
    """Backward and reduce; the norm of the gradient, which is not finite where any of it is not."""
    trail.phase("backward")
    loss.backward()  # type: ignore[no-untyped-call]
    trail.phase("reduce")
    parallel.collect()
    gradients = {name: p.grad for name, p in parallel.parameters.items() if p.grad is not None}
    norm = float(parallel.norm(gradients))
    for name, gradient in gradients.items():
        if not finite(gradient):
            trail.broken.append(("gradient", name))
    for p in parallel.parameters.values():
        p.grad = None
    return norm


def capture(subject: Subject, names: list[str], path: Path) -> list[str]:
    """What each of the named parts is given first, and what it then makes of it alone, in one process; those used."""
    with _ranks(subject, 1, "ddp") as ranks:
        stage, windows = build(subject, ranks.device)
        given: dict[str, tuple[Any, Any]] = {}

        def note(name: str) -> Any:
            def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
                given.setdefault(name, (_detached(args), _detached(kwargs)))

            return hook

        parts = dict(_named(stage.module, subject.stage))
        hooks = [parts[n].register_forward_pre_hook(note(n), with_kwargs=True) for n in names if n in parts]
        for window in windows:
            torch.manual_seed(subject.config.seed)
            with _precision(subject, ranks):
                stage.loss(window)
        for hook in hooks:
            hook.remove()
        known = {}
        for name, (args, kwargs) in given.items():
            parallel = parallelize(parts[name], _plain(subject), ranks) if _trained(parts[name]) else None
            known[name] = (args, kwargs, _once(subject, parts[name], parallel, args, kwargs, ranks, None))
        path.write_bytes(pickle.dumps(known))
        return list(known)


def alone(subject: Subject, world: int, strategy: Strategy, folder: Path, names: list[str], path: Path) -> list[str]:
    """Each named part alone on every rank, on what was captured; those that differ, as sentences `part: how`."""
    with _ranks(subject, world, strategy) as ranks:
        trail = Trail(folder / f"trail-{ranks.rank}")
        trail.phase("build")
        stage, _ = build(subject, ranks.device)
        known, odd = pickle.loads(path.read_bytes()), []
        for name in names:
            args, kwargs, wanted = known[name]
            part = dict(_named(stage.module, subject.stage))[name]
            trail.phase(f"wrap {name}")
            parallel = parallelize(part, _plain(subject), ranks) if _trained(part) else None
            trail.follow(part, name)
            found = _once(subject, part, parallel, args, kwargs, ranks, trail)
            for what, a, b in zip(("output", "gradient"), found, wanted, strict=True):
                gap = abs(a - b) / max(abs(b), SMALL)
                if not gap <= 10 * subject.near:
                    odd.append(f"{name}: its {what} is {a:.6g} in the place of {b:.6g}")
                    break
        return odd


def _once(
    subject: Subject,
    part: nn.Module,
    parallel: Parallel | None,
    args: Any,
    kwargs: Any,
    ranks: Dist,
    trail: Trail | None,
) -> tuple[float, float]:
    """Forward and backward of a part: the root mean square of what comes out, and the norm of its gradient."""
    torch.manual_seed(subject.config.seed)
    if parallel is not None:
        parallel.begin(last=True)
    if trail is not None:
        trail.phase("forward")
    with _precision(subject, ranks):
        out = part(*args, **kwargs)
    squares = [t.float().square().mean() for t in tensors_of(out)]
    size = functools.reduce(torch.add, squares)
    if parallel is None or not size.requires_grad:
        return float(size.detach()) ** 0.5, 0.0
    folder = trail or Trail(Path("/dev/null"))
    return float(size.detach()) ** 0.5, _back(size, parallel, folder)


def _plain(subject: Subject) -> TrainConfig:
    """A part alone has no blocks of which to forget the activations."""
    return dataclasses.replace(subject.train, activations="keep")


def _trained(part: nn.Module) -> bool:
    return any(p.requires_grad for p in part.parameters())


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_detached, value))
    if isinstance(value, tuple | list):
        return type(value)(_detached(v) for v in value)
    if isinstance(value, dict):
        return {key: _detached(v) for key, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if f.init]
        return dataclasses.replace(value, **{name: _detached(getattr(value, name)) for name in names})
    return value


def _precision(subject: Subject, ranks: Dist) -> AbstractContextManager[Any]:
    on = subject.train.precision == "bf16"
    return torch.autocast(ranks.device.type, torch.bfloat16) if on else nullcontext()


def _ranks(subject: Subject, world: int, strategy: Strategy) -> AbstractContextManager[Dist]:
    if world == 1:
        return Dist.alone(subject.device)
    offload = subject.config.dist.offload and strategy == "fsdp"
    return Dist.start(
        subject.device, DistConfig(ranks=world, strategy=strategy, offload=offload, timeout=600, vote_timeout=600)
    )
