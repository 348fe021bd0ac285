"""What updates the weights: parameter groups, AdamW and Muon, clipping, average."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ups.engine.muon import Muon
from ups.engine.one_pass import OnePass
from ups.types import ConfigError

# Words in a parameter's own name that mark what weight decay must not pull to zero, and Muon must not rotate.
PLAIN = ("bias", "scale", "gain", "gamma", "norm", "embed", "token", "position", "table", "speed")
# A matrix with a shorter side than this joins fields to features; Muon is for those between hidden layers.
HIDDEN = 16
# Numbers per vector of the widest processor, and more.
LANES = 32


def decays(module: nn.Module) -> dict[str, bool]:
    """Whether weight decay applies to each trained parameter, by name: not to norms, biases, embeddings and scales."""
    decayed = {}
    for prefix, owner in module.named_modules():
        kind = type(owner).__name__.lower()
        for leaf, p in owner.named_parameters(prefix=prefix, recurse=False):
            plain = p.ndim < 2 or any(word in leaf.rpartition(".")[2].lower() for word in PLAIN)
            decayed[leaf] = not (plain or "norm" in kind or "embedding" in kind)
    return {name: decayed[name] for name, p in module.named_parameters() if p.requires_grad}


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that are learnt, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def clip(gradients: list[Tensor], norm: Tensor, most: float) -> None:
    """Scale the gradients so that their norm, now `norm`, is at most `most`."""
    torch._foreach_mul_(gradients, shrinking(norm, most))


def shrinking(norm: Tensor, most: float) -> Tensor:
    """The factor that clips a gradient of this norm to `most`."""
    return (most / (norm + 1e-6)).clamp(max=1.0)


class HostAdamW:
    """`torch.optim.AdamW` for real numbers on the host: its fused kernel, called without the class around it, which
    imports torch's compiler where the first is made, and that takes nearly as long as all of torch."""

    def __init__(self, groups: Sequence[dict[str, Any]], lr: Tensor, betas: tuple[float, float]) -> None:
        self.param_groups = [{**group, "fused": True, "capturable": False} for group in groups]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.lr, self.betas = lr, betas
        self.grad_scale: Tensor | None = None  # what a GPU's kernel is told; here clipping and skipping come before
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights that have a gradient."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            of = [self.state[p] for p in moved]
            adam(
                moved,
                [p.grad for p in moved],
                [values["exp_avg"] for values in of],
                [values["exp_avg_sq"] for values in of],
                [],
                [values["step"] for values in of],
                fused=True,
                decoupled_weight_decay=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=self.lr,
                weight_decay=group["weight_decay"],
                eps=1e-8,
                maximize=False,
            )

    def of_torch(self) -> torch.optim.AdamW:
        """Torch's own optimizer of the same weights, rate and state, for whoever needs one."""
        own = torch.optim.AdamW(self.param_groups, lr=self.lr, betas=self.betas)
        own.state.update(self.state)
        return own


class Optimizer:
    """AdamW for everything, or Muon for the hidden matrices and AdamW for the rest; one step, one state.

    The learning rate is the tensor `lr`, and `step(ok)` changes nothing where the tensor `ok` is false; so a step
    needs no word from the host and can be part of a CUDA graph. State exists from the start, before any step.

    A number moves by the same bits wherever it lies in its tensor, as ranks that hold pieces of it need. On the host
    the fused kernel rounds the last few numbers of a tensor in another way, those that fill no vector; a tensor that
    has such numbers is moved as a longer twin, whose last ones are nobody's. On a GPU large tensors that a rank holds
    whole are moved by a kernel of our own (`OnePass`), which agrees with torch's to round-off.
    """

    def __init__(
        self,
        module: nn.Module,
        kind: Literal["adamw", "muon"] = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        named: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.named = trained(module) if named is None else dict(named)
        if not self.named:
            raise ConfigError("the stage's module has no parameter to train; unfreeze one or leave the stage out.")
        device = next(iter(self.named.values())).device
        decay = decays(module)
        self.base = lr
        self.lr = torch.tensor(lr, dtype=torch.float32, device=device)
        hidden = [name for name in self.named if kind == "muon" and takes_muon(self.named[name], decay[name])]
        wave = {name for name, p in self.named.items() if p.is_complex()}
        large = {name: p for name, p in self.named.items() if name not in hidden and OnePass.takes(p)}

        on_gpu, rest = device.type == "cuda", set(self.named) - {*hidden, *large} - wave
        ragged = [] if on_gpu else [p for n, p in self.named.items() if n in rest and p.numel() % LANES]
        self.twins = {p: p.new_zeros(math.ceil(p.numel() / LANES) * LANES) for p in ragged}

        def groups(names: set[str]) -> list[dict[str, object]]:
            sides = (([n for n in self.named if n in names and decay[n] is side], side) for side in (True, False))
            members = (([self.named[n] for n in ns], weight_decay * side) for ns, side in sides if ns)
            return [{"params": [self.twins.get(p, p) for p in ps], "weight_decay": pull} for ps, pull in members]

        self.members: list[torch.optim.Optimizer | HostAdamW] = []  # those that can skip a step by themselves
        self.guarded: list[torch.optim.Optimizer] = []  # those that are run at the base rate and then scaled
        self.muon = _muon({self.named[n]: weight_decay * decay[n] for n in hidden}) if kind == "muon" else None
        self.one_pass = OnePass({n: (p, weight_decay * decay[n]) for n, p in large.items()}, betas) if large else None
        if rest:
            self.members.append(
                torch.optim.AdamW(groups(rest), lr=self.lr, betas=betas, fused=True, capturable=True)
                if on_gpu
                else HostAdamW(groups(rest), self.lr, betas)
            )
        if wave:  # fused AdamW knows no complex numbers
            self.guarded.append(torch.optim.AdamW(groups(wave), lr=lr, betas=betas, capturable=on_gpu))
        for member in self.members + self.guarded:
            _materialise(member)

    def zero_grad(self) -> None:
        for p in self.named.values():
            p.grad = None

    def clip(self, norm: Tensor, most: float) -> None:
        """Scale the gradients so that their norm, now `norm`, is at most `most` in the next step. On a GPU the fused
        kernel does so as it goes through them, which spares a pass over memory; of large tensors (`OnePass`) `.grad`
        stays as it is."""
        able: list[Any] = [m for m in (*self.members, self.one_pass) if m is not None and self.lr.is_cuda]
        scale = 1 / shrinking(norm, most) if able else None
        for member in able:
            member.grad_scale = scale
        left = [p for p in self.named.values() if p.grad is not None and not any(p in m.state for m in able)]
        if left:
            clip([p.grad for p in left if p.grad is not None], norm, most)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients there are; a parameter no loss of this step touched has none, and stays as it is."""
        return {name: p.grad for name, p in self.named.items() if p.grad is not None}

    @torch.no_grad()
    def step(self, ok: Tensor, ema: Ema | None = None) -> None:
        """Move the weights, and then their average where it is given, if `ok` (a boolean scalar tensor) is true;
        otherwise leave weights, state and average alone."""
        moved = self._step(ok, ema)
        if ema is not None:
            ema.update(ok, moved)

    def _step(self, ok: Tensor, ema: Ema | None) -> Collection[str]:
        """The names of those whose average has moved already."""
        if not (ok.is_cuda or ok):  # on the host a skipped step is simply none
            return ()
        for p, twin in self.twins.items():
            twin.grad = None if p.grad is None else torch.cat((p.grad.flatten(), twin.new_zeros(len(twin) - p.numel())))
            twin[: p.numel()].copy_(p.flatten())
        for member in self.members:
            member.found_inf = (~ok).float() if ok.is_cuda else None  # type: ignore[union-attr]
            member.step()
            member.grad_scale = None  # type: ignore[union-attr]
        for p, twin in self.twins.items():
            p.copy_(twin[: p.numel()].view_as(p))
        for member in self.guarded:
            self._scaled(member, ok)
        if self.muon is not None:
            self.muon.step(self.lr, ok)
        if self.one_pass is None:
            return ()
        averages, weight = (None, None) if ema is None else (ema.average, ema.weight)
        return self.one_pass.step(ok, self.lr, averages, weight)

    def _scaled(self, member: torch.optim.Optimizer, ok: Tensor) -> None:
        """A step at the base rate, then only lr/base of the way: both updates are linear in the learning rate."""
        moved = [p for group in member.param_groups for p in group["params"] if p.grad is not None]
        state = [value for p in moved for value in member.state[p].values()]
        before, memory = [p.clone() for p in moved], [value.clone() for value in state]
        member.step()
        part = self.lr / self.base
        for p, old in zip(moved, before, strict=True):
            p.copy_(torch.where(ok, old + part * (p - old), old))
        for value, old in zip(state, memory, strict=True):
            value.copy_(torch.where(ok, value, old))

    def state_dict(self) -> dict[str, Tensor]:
        """Every moment by `parameter/key`; the learning rate is not among them, being a function of progress."""
        return {f"{name}/{key}": value for name, p in self.named.items() for key, value in self._of(p).items()}

    def _of(self, p: Tensor) -> dict[str, Tensor]:
        twin = self.twins.get(p)
        key = p if twin is None else twin
        if self.muon is not None and p in self.muon.state:
            return self.muon.state[p]
        if self.one_pass is not None and p in self.one_pass.state:
            return self.one_pass.state[p]
        state = next(dict(m.state[key]) for m in self.members + self.guarded if key in m.state)
        return state if twin is None else {k: v[: p.numel()].view_as(p) if v.ndim else v for k, v in state.items()}


def takes_muon(p: Tensor, decayed: bool) -> bool:
    """Whether Muon moves a parameter: a matrix between hidden layers. Those of waves are better left to AdamW."""
    return p.ndim == 2 and decayed and min(p.shape) >= HIDDEN and not p.is_complex()


def matrices(module: nn.Module) -> list[Tensor]:
    """The weights of a module that Muon moves where it is asked for."""
    decay = decays(module)
    return [p for name, p in trained(module).items() if takes_muon(p, decay[name])]


def _muon(pulls: Mapping[Tensor, float]) -> Muon:
    if not pulls:
        raise ConfigError(f"optimizer is 'muon', but no weight is a matrix of {HIDDEN} or more a side; use adamw.")
    return Muon(list(pulls), list(pulls.values()))


def _materialise(member: torch.optim.Optimizer | HostAdamW) -> None:
    """Make the state that the first step would make, so that no step allocates any."""
    for group in member.param_groups:
        for p in group["params"]:
            home = p.device if group["fused"] or group["capturable"] else torch.device("cpu")
            member.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=home),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }


def move_towards(average: list[Tensor], weights: list[Tensor], share: Tensor) -> None:
    """s ← s + w (θ − s) in one pass over memory, w being a tensor: descent by a fused kernel, s − w (1 · s − θ).

    The kernel knows real numbers of one kind at a time: complex ones go as their parts, and each kind for itself.
    """
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for s, theta in zip(average, weights, strict=True):
        s, theta = (torch.view_as_real(one) if one.is_complex() else one for one in (s, theta))
        mine, theirs = kinds.setdefault(s.dtype, ([], []))
        mine.append(s)
        theirs.append(theta)
    for mine, theirs in kinds.values():
        torch._fused_sgd_(
            mine,
            theirs,
            [],
            lr=share,
            weight_decay=1.0,
            momentum=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=True,
            is_first_step=False,
        )


class Ema:
    """The exponential moving average of the trained weights: s ← s + w (θ − s), w = 1 − min(decay, (1 + n)/(10 + n)).

    The ramp in n (updates so far) lets a short run have an average too. `decay` 0 makes it the weights themselves.
    """

    def __init__(self, named: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.weights = dict(named)
        self.average = {name: p.detach().clone() for name, p in self.weights.items()}
        self.weight = torch.ones((), device=next(iter(self.weights.values())).device)

    def ramp(self, updates: int) -> float:
        """w of the update after `updates` others."""
        return 1 - min(self.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, ok: Tensor, done: Collection[str] = ()) -> None:
        """One update with weight `self.weight`, a tensor set by the host beforehand, of all that are not `done` yet;
        none where `ok` is false."""
        average = [value for name, value in self.average.items() if name not in done]
        weights = [self.weights[name] for name in self.average if name not in done]
        if not average:
            return
        if not ok.is_cuda:  # on the host, where numbers are at hand, one pass over memory
            torch._foreach_lerp_(average, weights, float(self.weight) * bool(ok))
            return
        average, weights = ([getattr(one, "_local_tensor", one) for one in many] for many in (average, weights))
        move_towards(average, weights, self.weight * ok)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the module holds the average; afterwards its own weights again, in the same memory."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, p in self.weights.items():
            before = p.detach().clone()
            p.copy_(self.average[name])
            self.average[name].copy_(before)
