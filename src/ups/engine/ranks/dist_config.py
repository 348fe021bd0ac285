"""DistConfig: on how many processes a run trains, and how the model lives on them; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ups.types import ConfigError


@dataclass(frozen=True)
class DistConfig:
    """On how many processes a run trains, and how the model lives on them. It changes speed and memory, not results;
    `gather` changes their rounding."""

    ranks: int = 1
    """Processes on each machine; one per GPU, or per group of cores."""
    nodes: int = 1
    """Machines; each runs the same command with its own --node-rank."""
    min_nodes: int | None = None
    """The fewest machines a run goes on with when one is lost; `nodes` if not given."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every rank holds the model. fsdp: its weights, gradients and moments are cut in pieces, for large models."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """nccl needs a GPU per rank; gloo runs anywhere; auto is nccl where it can be."""
    interface: str | None = None
    """The network interface on which ranks of several machines talk, such as eth0 or ib0, by gloo and by nccl; the one
    that leads to the rendezvous if not given. Ranks of one machine talk on loopback."""
    nccl_errors: Literal["leave", "abort", "clean_up"] = "leave"
    """nccl: what a rank does whose collective failed or took longer than `timeout`. leave: it ends at once, after it
    has written its last collectives down; abort: it frees the GPU first, which may hang; clean_up: it frees the GPU and
    goes on. Whatever it does, the supervisor restarts the ranks from the last checkpoint."""
    launcher: str | None = None
    """What starts the ranks: forked or processes on one machine, nodes on several; the one that fits if not given."""
    shard: int | None = None
    """fsdp: ranks that share one copy of the model; more ranks hold copies of it. All ranks if not given."""
    offload: bool = False
    """fsdp: keep weights and moments in host memory, and bring them to the GPU piece by piece."""
    gather: Literal["fp32", "bf16"] = "fp32"
    """fsdp: as what the weights of blocks travel, and are held while a block is computed. bf16, in stages with
    train.precision bf16: half of the bytes, and of the memory; the weights that are kept, and judged in validations,
    stay fp32, and gradients are summed in fp32."""
    gate: Literal["always", "probation", "off"] = "always"
    """fsdp: vote before every collective, so that a failure on one rank is mended in place: always, in the first steps
    and after every failure, or never (a failure then restarts the run from its last checkpoint)."""
    timeout: float = 600.0
    """Seconds a collective may take; a rank that died is noticed at once in any case."""
    vote_timeout: float = 300.0
    """Seconds a vote of the ranks may take; a rank that died is noticed at once in any case."""

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
