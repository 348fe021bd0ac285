"""The optimizer of the engine in the form that Lightning takes."""

from __future__ import annotations

from typing import Any

import torch

from ups.engine.optim import Optimizer
from ups.types import ConfigError


class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer as one of torch's: the same numbers to the bit."""

    def __init__(self, engine: Optimizer) -> None:
        super().__init__([{"params": list(engine.named.values())}], {"lr": engine.base})
        self.engine = engine

    def step(self, closure: Any = None) -> Any:
        value = None if closure is None else closure()
        self.engine.lr.fill_(self.param_groups[0]["lr"])
        self.engine.step(torch.tensor(bool(self.engine.gradients()), device=self.engine.lr.device))
        return value

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "moments": dict(self.engine.state_dict())}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        moments, own = state_dict.get("moments", {}), self.engine.state_dict()
        if moments.keys() != own.keys():
            raise ConfigError(
                "the checkpoint was saved by another optimizer, or of another model; use the config it was made with."
            )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "moments"})
        for name, value in own.items():
            value.copy_(moments[name])
