"""What the ranks of a check do that need no run: see devices, exchange numbers, listen, share files."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor

from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups_fleet.supervise.network import listeners


def devices() -> dict[str, Any]:
    """What torch sees here."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "gloo": c10d.is_gloo_available(),
        "nccl": c10d.is_nccl_available(),
        "built_for": torch.version.cuda,
        "cuda": [],
    }
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        one = torch.ones(1024, device=f"cuda:{index}").sum().item()
        name, kind = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        facts["cuda"].append({"name": name, "free": free, "total": total, "capability": kind, "works": one == 1024})
    if facts["cuda"]:
        facts["driver"] = _driver()
        facts["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version())) if facts["nccl"] else ""  # type: ignore[no-untyped-call]
    return facts


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().split("  ")[1]
    except (OSError, IndexError):
        return "unknown"


def _start(device: str, world: int) -> AbstractContextManager[Dist]:
    return Dist.start(device, DistConfig(ranks=world, timeout=30, vote_timeout=30))


def collectives(device: str, world: int) -> dict[str, Any]:
    """Each collective on numbers whose result is known exactly; the names of those that gave another."""
    with _start(device, world) as ranks:
        rank, at = ranks.rank, ranks.device
        wrong: list[str] = []

        def expect(name: str, result: Tensor, wanted: Tensor) -> None:
            if not torch.equal(result.cpu(), wanted.cpu()):
                wrong.append(name)

        steps = torch.arange(1000, device=at)
        for kind in (torch.float32, torch.int64, torch.bfloat16):
            mine = (steps % 7 + rank).to(kind)  # small whole numbers: exact in every type
            everyone = [(steps % 7 + r).to(kind) for r in range(world)]
            total = mine.clone()
            c10d.all_reduce(total)
            expect(f"all-reduce of {kind}", total, torch.stack(everyone).sum(0).to(kind))
            parts = [torch.empty_like(mine) for _ in range(world)]
            c10d.all_gather(parts, mine)
            expect(f"all-gather of {kind}", torch.stack(parts), torch.stack(everyone))
            whole = torch.cat([(steps % 5 + rank + r).to(kind) for r in range(world)])
            piece = torch.empty(1000, dtype=kind, device=at)
            c10d.reduce_scatter_tensor(piece, whole)
            wanted = sum((steps % 5 + r + rank for r in range(world)), torch.zeros_like(steps)).to(kind)
            expect(f"reduce-scatter of {kind}", piece, wanted)
            received = mine.clone()
            c10d.broadcast(received, world - 1)
            expect(f"broadcast of {kind}", received, everyone[-1])
        if [int(n) for n in ranks.gather(rank)] != list(range(world)) or ranks.agree(7.5 - rank) != 7.5:
            wrong.append("votes")
        return {"wrong": wrong, "backend": c10d.get_backend(), "device": str(at)}


def listening(device: str, world: int) -> list[tuple[str, int]]:
    """Where this rank listens while all its groups are open: addresses and ports."""
    with _start(device, world) as ranks:
        places = [(row.address, row.port) for row in listeners()]
        ranks.barrier()
        return places


def bandwidth(device: str, world: int, size: int = 2**22) -> dict[str, Any]:
    """Bytes a second through an all-reduce of 16 MiB, and seconds for one vote."""
    with _start(device, world) as ranks:
        data = torch.ones(size, device=ranks.device)
        times = []
        for _ in range(5):
            ranks.barrier()
            began = time.perf_counter()
            c10d.all_reduce(data)
            if ranks.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(50):
            ranks.agree(0.0)
        vote = (time.perf_counter() - began) / 50
        return {"bytes_per_second": 4 * size / min(times[1:]), "vote": vote, "backend": c10d.get_backend()}


def share_files(folder: Path, world: int) -> dict[str, Any]:
    """Whether each rank at once sees what the others write, and a lock that one holds keeps the others out."""
    with _start("cpu", world) as ranks:
        (folder / f"from-{ranks.rank}").write_text(str(ranks.rank))
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        if ranks.rank == 0:
            fcntl.flock(handle, fcntl.LOCK_EX)
        ranks.barrier()
        seen = [r for r in range(world) if _reads(folder / f"from-{r}", str(r))]
        kept_out = True
        if ranks.rank:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kept_out = False
        ranks.barrier()
        os.close(handle)
        return {"seen": seen, "kept_out": kept_out}


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False
