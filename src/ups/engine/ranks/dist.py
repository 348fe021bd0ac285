"""Dist: rank, world, device, groups and mesh, made once, device first; one process is the same object."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ups.engine.ranks.control import Control
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.ranks.majority import named, odd_ranks
from ups.engine.ranks.meeting import meeting
from ups.types import ConfigError, UpsError
from ups.verdict import Ending

T = TypeVar("T")


class DivergedError(UpsError):
    """Ranks that should hold the same hold different things."""

    ending = Ending.DIVERGED


@dataclass(frozen=True)
class Dist:
    """Who this process is among the ranks.

    Made once, by `Dist.start`, before any loader: what needs a rank needs this object. `rank` counts over all machines.
    `control` is for votes, on a group of its own; `group` for gradients; `saver` for checkpoints alone. At world size 1
    there are no groups.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (a value, not a resource)
    config: DistConfig = field(default_factory=DistConfig)
    control: Control = field(default_factory=lambda: Control(None, 0, 1))
    group: dist.ProcessGroup | None = None
    saver: dist.ProcessGroup | None = None
    mesh: DeviceMesh | None = None

    @classmethod
    @contextmanager
    def start(cls, device: str = "auto", config: DistConfig | None = None) -> Iterator[Dist]:
        """This process among those of its launcher, or alone; `device` is auto, cpu, cuda or cuda:N."""
        config = config or DistConfig()
        rank, local, world = (_number(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        if world is None or world == 1:
            if config.world > 1:
                raise ConfigError(f"the config asks for {config.world} ranks and this process is alone; use `ups run`.")
            own = _selected(device_of(device))
            backend = _backend(config, own, 0) if config.backend == "nccl" else "gloo"
            grouped = "nccl" in backend or config.strategy == "fsdp"
            with (
                _group_of_one(backend, own) if grouped else nullcontext(),
                cls(device=own, config=config, mesh=_mesh(own, config, 1))._until_the_end() as ranks,
            ):
                yield ranks
            return
        if rank is None or local is None:
            raise ConfigError(f"WORLD_SIZE is {world}, but RANK and LOCAL_RANK are not set; start with `ups run`.")
        own = _selected(_own_device(device, local))
        backend = _backend(config, own, local)
        dist.init_process_group(
            backend,
            store=meeting(world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=config.timeout),
            device_id=own if own.type == "cuda" and backend == "nccl" else None,
        )
        try:
            with cls._joined(rank, world, own, config)._until_the_end() as ranks:
                yield ranks
        finally:
            _leave()

    @classmethod
    @contextmanager
    def alone(cls, device: str = "auto") -> Iterator[Dist]:
        """One process on `device`, whatever launcher started it: for work that is not shared."""
        yield cls(device=_selected(device_of(device)))

    @classmethod
    def _joined(cls, rank: int, world: int, device: torch.device, config: DistConfig) -> Dist:
        votes, saver = (_gloo(seconds) for seconds in (config.vote_timeout, config.timeout))
        mesh = _mesh(device, config, world)
        return cls(rank, world, device, config, Control(votes, rank, world), dist.group.WORLD, saver, mesh)

    @contextmanager
    def _until_the_end(self) -> Iterator[Dist]:
        """Itself, without its groups afterwards: one that is held when Python ends may abort the process, as its
        threads may still be releasing tensors then."""
        try:
            yield self
        finally:
            self.control.end()
            for name in ("group", "saver", "mesh"):
                object.__setattr__(self, name, None)

    @property
    def leads(self) -> bool:
        """Whether this rank writes what only one may write."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in order of rank; it travels as JSON."""
        return self.control.gather(value)

    def agree(self, value: float) -> float:
        """Rank 0's number, so that decisions by the clock are the same everywhere."""
        return self.control.agree(value)

    def sums(self, values: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """The sum over ranks of (total, count) by name; a rank may lack a name."""
        sums: dict[str, tuple[float, float]] = {}
        for row in self.gather(dict(values)):
            for name, (total, count) in row.items():
                t, n = sums.get(name, (0.0, 0.0))
                sums[name] = (t + total, n + count)
        return sums

    def barrier(self) -> None:
        self.gather(None)

    def handshake(self, facts: Mapping[str, Any]) -> None:
        """Compare what must be the same on every rank; refuse, naming it, where it is not."""
        rows = self.gather({name: str(value) for name, value in facts.items()})
        for name in rows[0]:
            values = {rank: row.get(name, "nothing") for rank, row in enumerate(rows)}
            others, usual = odd_ranks(values)
            if not others:
                continue
            if usual is None:
                by_rank = ", ".join(f"rank {rank} has {_short(value)}" for rank, value in values.items())
            else:
                by_rank = f"{named(others)} {'has' if len(others) == 1 else 'have'} {_short(values[others[0]])}, the "
                by_rank += f"{self.world - len(others)} others {_short(values[usual])}"
            raise DivergedError(
                f"ranks do not agree on the {name}: {by_rank}; start all of them with the same config, code and data."
            )


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is '{text}', which is no number; unset it.") from None


def _selected(device: torch.device) -> torch.device:
    """The device, made this process's current one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the device comes first: everything later may allocate on it
    return device


def _own_device(name: str, local: int) -> torch.device:
    """The device of a local rank: its own GPU; ranks share one only where there are too few."""
    device = device_of("cuda" if name.startswith("cuda") else name)
    return torch.device("cuda", local % torch.cuda.device_count()) if device.type == "cuda" else device


def _backend(config: DistConfig, device: torch.device, local: int) -> str:
    """The backend that is configured, or ConfigError: never another one in silence."""
    apart = device.type == "cuda" and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if config.backend == "nccl" and not (apart and dist.is_nccl_available()):
        count = torch.cuda.device_count()
        raise ConfigError(f"dist.backend is nccl, which needs a GPU per rank, and there are {count}; use gloo or auto.")
    return config.backend if config.backend != "auto" else "nccl" if apart and dist.is_nccl_available() else "gloo"


def _gloo(seconds: float) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    assert isinstance(group, dist.ProcessGroup)
    return group


@contextmanager
def _group_of_one(backend: str, device: torch.device) -> Iterator[None]:
    """The group that a mesh needs even for one process: nobody else joins it, so it takes no port. By nccl where that
    was asked for: what fails in it fails before many GPUs are rented."""
    if dist.is_initialized():  # whoever made it ends it
        yield
        return
    own = device if backend == "nccl" else None
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=own)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _leave()


def _leave() -> None:
    """End the process group."""
    gc.collect()  # what points at a group goes before the group: the other way round can abort
    if dist.is_initialized():
        dist.destroy_process_group()


def _mesh(device: torch.device, config: DistConfig, world: int) -> DeviceMesh | None:
    """Ranks in a row, or in rows of `shard`: replicas of a sharded model."""
    if config.strategy != "fsdp":
        return None
    if config.shard is None or config.shard == world:
        return init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (world // config.shard, config.shard), mesh_dim_names=("replica", "shard"))


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is one; anything else must exist. CUDA always carries its index."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is '{name}', which is no device; use auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device is '{name}', but torch sees no CUDA device here; use cpu or auto.")
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ConfigError(f"device is '{name}', but there are only {torch.cuda.device_count()} CUDA devices here.")
        return torch.device("cuda", index)
    return device
