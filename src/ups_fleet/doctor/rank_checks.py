"""The checks with real ranks: each starts its own, and judges from outside what they do."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ups_fleet.doctor import killed_rank
from ups_fleet.doctor.findings import Finding, bad, doubtful, good
from ups_fleet.doctor.machine_checks import own_folder
from ups_fleet.supervise.forked_functions import FunctionName, Result, failure_of, run
from ups_fleet.supervise.network import is_private

# How far apart losses and gradients of one process and of several may be: sums in another order, nothing else.
NEAR = {"cpu": 1e-6, "cuda": 1e-5}
GROUP = "ranks"
# What the server that ranks are forked from imports for them, beside torch.
PRELOAD = (
    "ups.engine.loop",
    "ups.engine.checkpoint.vault",
    "ups_fleet.doctor.rank_exercises",
    "ups_fleet.doctor.model_exercises",
)
DISK = 15.0  # seconds to make, copy or remove a small folder


def exercise(name: str) -> FunctionName:
    """What ranks do. By name: this process needs neither torch nor the seconds that its import takes."""
    return FunctionName("ups_fleet.doctor.rank_exercises", name)


class RankChecks:
    """The checks, one after the other; `limit` is the most seconds that one start of ranks may take."""

    def __init__(self, ranks: int, device: str, folder: Path, limit: float) -> None:
        self.ranks, self.device, self.folder, self.limit = ranks, device, folder, limit
        self.kind = device.partition(":")[0]
        self.trainings: dict[str, dict[str, Any]] = {}  # undisturbed ones, by strategy
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.home = Path(tempfile.gettempdir()) / f"ups-doctor-{uuid.uuid4().hex[:8]}"

    def devices(self) -> Finding:
        """What torch sees; decides what `auto` means."""
        # The first start of all: with every import.
        results = run(exercise("devices"), 1, seconds=2 * self.limit, preload=PRELOAD)
        if text := failure_of(results):
            return bad(f"torch does not start: {text}", "reinstall torch for this machine (and its driver).")
        facts = results[0].value
        cards = facts["cuda"]
        if self.kind == "auto":
            self.device = self.kind = "cuda" if cards else "cpu"
        if self.kind == "cuda" and not cards:
            built = f"built for CUDA {facts['built_for']}" if facts["built_for"] else "built without CUDA"
            words = f"torch {facts['torch']} is {built} and sees no GPU"
            return bad(words, "install torch for CUDA and look at `nvidia-smi`, or use --device cpu.", **facts)
        if not cards:
            return good(f"CPU only (torch {facts['torch']})", **facts)
        broken = next((card["name"] for card in cards if not card["works"]), None)
        if broken:
            return bad(f"{broken} adds up wrongly", "take this GPU out of CUDA_VISIBLE_DEVICES.", **facts)
        free = min(card["free"] / card["total"] for card in cards)
        words = ", ".join(f"{c['name']} ({c['free'] / 2**30:.0f} of {c['total'] / 2**30:.0f} GiB free)" for c in cards)
        words = f"{words}; driver {facts['driver']}, CUDA {facts['built_for']}"
        if free < 0.5:
            return doubtful(words, "more than half of a GPU's memory is taken; `nvidia-smi` shows by whom.", **facts)
        return good(words, **facts)

    def backends(self) -> Finding:
        """Which ways to communicate there are."""
        results = self._run(exercise("devices"), 1)
        if failure_of(results):
            return bad("unknown, since torch does not start", "see the line above.")
        facts = results[0].value
        if not facts["gloo"]:
            return bad("torch was built without gloo", "install a torch from pytorch.org: votes of ranks need gloo.")
        nccl = f"nccl {facts.get('nccl_version', '')}".strip() if facts["nccl"] else "no nccl"
        if self.kind == "cuda" and not facts["nccl"]:
            return doubtful("gloo, no nccl", "GPUs will exchange through host memory; install a torch with NCCL.")
        few = len(facts["cuda"]) < self.ranks
        why = " (needs a GPU per rank: gloo is used)" if facts["nccl"] and few else ""
        return good(f"gloo, {nccl}{why}")

    def listening(self) -> Finding:
        """Where ranks listen while they work: on one machine nobody else may reach them."""
        results = self._run(exercise("listening"), self.ranks, self.device, self.ranks)
        if text := failure_of(results):
            return bad(text, self._network())
        places = sorted({(rank, *place) for rank, result in enumerate(results) for place in result.value})
        rows = [f"rank {rank} on {address}:{port}" for rank, address, port in places]
        wide = [row for row, (_, address, _) in zip(rows, places, strict=True) if not is_private(address)]
        if wide:
            advice = "bring loopback up (`ip link set lo up`); until then keep other users and networks away."
            return bad(f"others can reach {', '.join(wide)}", advice, listening=rows)
        ports = ", ".join(str(port) for _, _, port in places)
        return good(f"loopback alone: {len(places)} sockets ({ports}); ranks meet through a file", listening=rows)

    def files(self) -> Finding:
        """Whether ranks see each other's files in the run folder."""
        with own_folder(self.folder, _in_child) as inside:
            results = self._run(exercise("share_files"), self.ranks, inside, self.ranks)
        advice = f"put runs on a folder all ranks share (`out:`), not on {self.folder}."
        if text := failure_of(results):
            return bad(text, advice)
        for rank, result in enumerate(results):
            missing = sorted(set(range(self.ranks)) - set(result.value["seen"]))
            if missing:
                return bad(f"rank {rank} does not see what rank {missing[0]} wrote", advice)
            if not result.value["kept_out"]:
                return bad(f"rank {rank} got a lock that rank 0 holds", advice)
        return good(f"{self.ranks} ranks see each other's files and locks in {self.folder}")

    def collectives(self) -> Finding:
        """Whether every collective gives the exact result."""
        results = self._exchange("collectives")
        if isinstance(results, Finding):
            return results
        wrong = [f"{name} on rank {r}" for r, result in enumerate(results) for name in result.value["wrong"]]
        backend = results[0].value["backend"]
        if wrong:
            advice = "do not train here: numbers arrive changed; test the memory, the GPUs and the driver."
            return bad(f"wrong results over {backend}: {', '.join(wrong[:3])}", advice, wrong=wrong)
        words = "all-reduce, all-gather, reduce-scatter, broadcast and votes are exact"
        return good(f"{words} over {backend}", backend=backend)

    def bandwidth(self) -> Finding:
        """How fast ranks exchange numbers and votes."""
        results = self._exchange("bandwidth")
        if isinstance(results, Finding):
            return results
        speed = min(result.value["bytes_per_second"] for result in results)
        vote = max(result.value["vote"] for result in results)
        backend = results[0].value["backend"]
        words = f"{speed / 1e9:.2f} GB/s all-reduce of 16 MiB over {backend}, {1e3 * vote:.2g} ms a vote"
        facts = {"bytes_per_second": speed, "vote": vote}
        if speed < 2e7 or vote > 0.1:
            advice = "ranks will spend their time waiting; end other programs, or use fewer ranks than cores."
            return doubtful(words, advice, **facts)
        return good(words, **facts)

    def _exchange(self, name: str) -> list[Result] | Finding:
        """An exercise in which ranks exchange numbers; a finding if there is nobody to exchange with, or it failed."""
        if self.ranks == 1:
            return good("one rank has nobody to exchange with")
        results = self._run(exercise(name), self.ranks, self.device, self.ranks)
        text = failure_of(results)
        return bad(text, self._network()) if text else results

    def training(self, strategy: str) -> Finding:
        """A training on ranks against the same in one process; replicated and sharded equal to the bit."""
        alone = self._trained("alone", 1, "ddp")
        many = self._trained(strategy, self.ranks, strategy)
        if isinstance(alone, str) or isinstance(many, str):
            words = alone if isinstance(alone, str) else str(many)
            return bad(words, "run `ups doctor CONFIG` with your config: it names the part that fails.")
        gap = largest_gap(many["rows"], alone["rows"])
        advice = "do not trust trainings on several ranks here; report it with the output of `ups doctor --json`."
        if gap > NEAR[self.kind]:
            return bad(f"losses or gradients are off those of one process by {gap:.1e}", advice, gap=gap)
        other = next((name for name in ("ddp", "fsdp") if name != strategy and name in self.trainings), None)
        equal = other is not None and self.trainings[other]["digests"] == many["digests"]
        if other and not equal and self.ranks <= 2:  # sums of more than two may be taken in another order
            name = next(n for n, d in many["digests"].items() if self.trainings[other]["digests"].get(n) != d)
            return bad(f"'{name}' has other bits than with {other}", advice, gap=gap)
        same = f"; same bits as {other}" if equal else ""
        return good(f"{len(many['rows'])} steps as in one process (within {gap:.0e}){same}", gap=gap)

    def checkpoint(self) -> Finding:
        """Stop, go on with the same ranks to the same bits, go on with one, and notice a turned bit."""
        straight = self._trained("fsdp", self.ranks, "fsdp")
        alone = self._trained("alone", 1, "ddp")
        if isinstance(straight, str) or isinstance(alone, str):
            return bad("nothing could be trained that could be saved", "see the lines above.")
        with own_folder(self.folder, _in_child) as inside:
            return self._round_trip(inside, straight, alone)

    def _round_trip(self, inside: Path, straight: dict[str, Any], alone: dict[str, Any]) -> Finding:
        one, other = inside / "one", inside / "other"
        advice = f"checkpoints cannot be trusted in {self.folder}; choose another disk (`out:`)."
        stopped = self._run(exercise("train"), self.ranks, self.device, "fsdp", self.ranks, None, one, 1)
        if text := failure_of(stopped):
            return bad(f"saving: {text}", advice)
        _in_child(shutil.copytree, one, other)
        on = self._run(exercise("train"), self.ranks, self.device, "fsdp", self.ranks, None, one)
        if text := failure_of(on):
            return bad(f"going on: {text}", advice)
        if on[0].value["digests"] != straight["digests"]:
            return bad("a training that was stopped and went on has other weights than one that was not", advice)
        few = self._run(exercise("train"), 1, self.device, "ddp", 1, None, other)
        if text := failure_of(few):
            return bad(f"going on with one rank: {text}", advice)
        gap = largest_gap(few[0].value["rows"], alone["rows"][stopped[0].value["stopped"] :])
        if gap > NEAR[self.kind]:
            return bad(f"with one rank in the place of {self.ranks}, losses are off by {gap:.1e}", advice, gap=gap)
        damaged = self._run(exercise("takes_damaged"), 1, one)
        if text := failure_of(damaged):
            return bad(f"reading a damaged one: {text}", advice)
        if damaged[0].value:
            return bad("a checkpoint with a turned bit was taken for whole", advice)
        return good(f"{self.ranks} ranks → {self.ranks}: same bits; → 1: within {gap:.0e}; a turned bit is noticed")

    def memory_fault(self) -> Finding:
        """Memory that is short once on one rank, in both strategies: the same weights in the end."""
        times, advice = [], "a run would restart here and not recover in place; report it with `ups doctor --json`."
        for strategy in ("ddp", "fsdp"):
            calm = self._trained(strategy, self.ranks, strategy)
            if isinstance(calm, str):
                return bad("nothing could be trained that could fail", "see the lines above.")
            fault = {"kind": "oom", "rank": self.ranks - 1, "phase": "backward", "step": 1}
            began = time.monotonic()
            results = self._run(exercise("train"), self.ranks, self.device, strategy, self.ranks, fault)
            if text := failure_of(results):
                return bad(f"{strategy}: {text}", advice)
            if results[0].value["recovered"] != 1:
                return bad(f"{strategy}: the fault was not noticed", advice)
            if results[0].value["digests"] != calm["digests"]:
                return bad(f"{strategy}: the weights after the recovery are not those of a calm run", advice)
            times.append(f"{strategy} in {time.monotonic() - began:.1f} s")
        return good(f"out of memory on rank {self.ranks - 1}: recovered in place to the same bits ({', '.join(times)})")

    def start_killed_rank(self) -> None:
        """Start what `killed_rank` judges: it takes as long as all other checks, and hardly any of the processor."""
        words = [sys.executable, "-m", "ups_fleet.doctor.killed_rank", "supervise", str(self.home), str(self.ranks)]
        self.supervisor = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def killed_rank(self) -> Finding:
        """A rank that is killed under the supervisor of runs and its launcher."""
        if self.supervisor is None:
            self.start_killed_rank()
        assert self.supervisor is not None
        advice = "a run would not survive a lost rank here; look at /dev/shm and the limit of processes."
        try:
            output, errors = self.supervisor.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return bad(f"the supervisor did not end within {self.limit:.0f} s", advice)
        finally:
            self.close()
        try:
            verdict = json.loads(output.decode().splitlines()[-1])
        except (ValueError, IndexError):
            last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            return bad(f"the supervisor failed: {last[0]}", advice)
        if problem := killed_rank.problem(verdict, self.ranks):
            return bad(problem, advice)
        seconds = verdict["attempts"][0]["detection"] or 0.0
        words = f"rank {self.ranks - 1} was noticed after {seconds:.1f} s and started again"
        return good(words, detection=seconds)

    def close(self) -> None:
        """Nothing is left running, and no folder."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.supervisor.pid, signal.SIGKILL)  # its ranks die with it
            self.supervisor.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)

    def _trained(self, name: str, world: int, strategy: str) -> dict[str, Any] | str:
        """An undisturbed training, made once; or in words why there is none."""
        if name not in self.trainings:
            results = self._run(exercise("train"), world, self.device, strategy, world)
            if text := failure_of(results):
                return f"{'one process' if world == 1 else strategy}: {text}"
            self.trainings[name] = results[0].value
        return self.trainings[name]

    def _run(self, function: FunctionName, world: int, *args: Any) -> list[Result]:
        return run(function, world, *args, seconds=self.limit, preload=PRELOAD)

    def _network(self) -> str:
        if self.kind == "cuda":
            return "try NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1, and GLOO_SOCKET_IFNAME=lo; NCCL_DEBUG=INFO says more."
        return "try GLOO_SOCKET_IFNAME=lo, and let the firewall pass what this machine sends itself."


def largest_gap(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """The largest relative difference between two trainings' losses and gradient norms; inf if their steps differ."""
    if len(a) != len(b) or not a:
        return float("inf")
    pairs = [(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)]
    worst = max(abs(x - y) / max(abs(y), 1e-30) for x, y in pairs)
    return worst if worst == worst else float("inf")


def _in_child(function: Callable[..., Any], *args: Any) -> None:
    """Touch the disk of the runs in a child process: a dead disk hangs whoever touches it."""
    if text := failure_of(run(function, 1, *args, seconds=DISK, method="fork")):
        raise OSError(text)
