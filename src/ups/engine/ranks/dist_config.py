"""DistConfig: how many processes train a run, and how the model is divided among them; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ups.types import ConfigError


@dataclass(frozen=True)
class DistConfig:
    """How many processes train a run, and how the model is divided among them. Changes speed and memory, not results;
    only `gather` changes how they are rounded."""

    ranks: int = 1
    """Processes per machine: one per GPU, or per group of cores."""
    nodes: int = 1
    """Number of machines; each runs the same command with its own --node-rank."""
    min_nodes: int | None = None
    """The fewest machines with which a run continues after it has lost one; by default `nodes`."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every rank holds the whole model. fsdp: its weights, gradients and moments are divided among the ranks, for
    large models."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """nccl needs a GPU per rank; gloo works anywhere; auto is nccl where that works."""
    interface: str | None = None
    """The network interface through which ranks of several machines talk (gloo and nccl), such as eth0 or ib0; by
    default the one that leads to the rendezvous. Ranks of one machine talk on loopback."""
    nccl_errors: Literal["leave", "abort", "clean_up"] = "leave"
    """nccl: what a rank does when a collective has failed or has taken longer than `timeout`. leave: it writes its last
    collectives down and exits at once; abort: it frees the GPU first, which may hang; clean_up: it frees the GPU and
    continues. In all cases the supervisor restarts the ranks from the last checkpoint."""
    launcher: str | None = None
    """How the ranks are started: forked or processes on one machine, nodes on several; by default whichever fits."""
    shard: int | None = None
    """fsdp: how many ranks share one copy of the model. With more ranks there are several copies. By default all ranks
    share one."""
    offload: bool = False
    """fsdp: keep weights and moments in host memory, and move them to the GPU piece by piece."""
    gather: Literal["fp32", "bf16"] = "fp32"
    """fsdp: the format in which weights of blocks are sent between ranks and held while a block is computed. bf16 (for
    stages with train.precision bf16) halves the traffic and this memory. The weights that are saved and validated stay
    fp32, and gradients are summed in fp32."""
    gate: Literal["always", "probation", "off"] = "always"
    """fsdp: let the ranks vote before collectives, so that a failure on one rank is repaired without a restart. always:
    before every one; probation: in the first steps and after each failure; off: never, and a failure restarts the run
    from its last checkpoint."""
    timeout: float = 600.0
    """Seconds that a collective may take. A rank that has died is noticed at once anyway."""
    vote_timeout: float = 300.0
    """Seconds that a vote of the ranks may take. A rank that has died is noticed at once anyway."""

    def __post_init__(self) -> None:
        limits = {
            "ranks": (self.ranks >= 1, "at least 1"),
            "nodes": (self.nodes >= 1, "at least 1"),
            "min_nodes": (self.min_nodes is None or 1 <= self.min_nodes <= self.nodes, "from 1 to nodes"),
            "shard": (self.shard is None or self.shard >= 1, "at least 1"),
            "timeout": (self.timeout > 0, "above 0"),
            "vote_timeout": (self.vote_timeout > 0, "above 0"),
        }
        for name, (holds, limit) in limits.items():
            if not holds:
                raise ConfigError(f"dist.{name} is {getattr(self, name)}, but must be {limit}.")
        if self.shard is not None and self.world % self.shard:
            raise ConfigError(f"dist.shard is {self.shard}, which does not divide the {self.world} ranks; change one.")
        if self.strategy == "ddp" and (self.shard is not None or self.offload or self.gather != "fp32"):
            raise ConfigError(
                "dist.shard, dist.offload and dist.gather are for strategy fsdp; leave them out, or change it."
            )

    def rounds(self, precision: str) -> bool:
        """Whether blocks of a stage of this `train.precision` are gathered as bf16."""
        return self.gather == "bf16" and precision == "bf16"

    def environment(self) -> dict[str, str]:
        """Variables that torch reads when a rank starts."""
        return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": {"abort": "1", "clean_up": "2", "leave": "3"}[self.nccl_errors]}

    @property
    def world(self) -> int:
        return self.ranks * self.nodes
