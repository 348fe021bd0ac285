"""The simulator of a codec and an operator alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ups.models.config import CodecConfig, OperatorConfig, SimulatorConfig
from ups.models.simulator import Simulator, assemble
from ups.types import TaskSpec


def build(
    tasks: Sequence[TaskSpec],
    codec: CodecConfig | None = None,
    operator: OperatorConfig | None = None,
    config: SimulatorConfig | None = None,
    grids: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Simulator:
    """A simulator of a codec and an operator alone."""
    configs = {"codec": codec or CodecConfig(), "operator": operator or OperatorConfig()}
    return assemble(tasks, configs, config, grids, seed)
