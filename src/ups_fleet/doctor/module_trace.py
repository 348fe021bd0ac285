"""A trace of a model: every module notes its forward and backward in a file that survives a crash."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Sums = tuple[str, float, float]  # of a module's output: its name, the sum and the sum of magnitudes


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
