"""The checks with real ranks: each starts its own, and judges from outside what they do."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ups.rundir import RunDir
from ups_fleet.doctor.findings import Finding, bad, doubtful, good
from ups_fleet.doctor.machine_checks import own_folder
from ups_fleet.fault_tests.case import CaseResult, FaultCase, Strategy
from ups_fleet.fault_tests.faults import FAULTS
from ups_fleet.fault_tests.lab import NEEDED, Lab, reference_of
from ups_fleet.fault_tests.losses import NEAR, largest_gap, losses
from ups_fleet.supervise.forked_functions import FunctionName, Result, failure_of, run_copy, run_ranks
from ups_fleet.supervise.network import is_private

GROUP = "ranks"
# What the server that ranks are forked from imports for them, beside torch.
PRELOAD = (*NEEDED, "ups_fleet.doctor.rank_exercises", "ups_fleet.doctor.model_exercises")
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp")
# The faults with which runs are disturbed here: rows of the table of `ups faults`.
EXERCISES = {
    "nothing": ("F13", "undisturbed"),
    "memory": ("F1", "oom backward, one"),
    "kill": ("F6", "kill after a save"),
    "turned bit": ("F12", "resized past a turned bit"),
}
EXCHANGES = "ups_fleet.doctor.rank_exercises"
DISK = 15.0  # seconds to make, copy or remove a small folder


class RankChecks:
    """The checks, one after the other; `limit` is the most seconds that one start of ranks may take."""

    def __init__(self, ranks: int, device: str, folder: Path, limit: float) -> None:
        self.ranks, self.device, self.folder, self.limit = ranks, device, folder, limit
        self.kind = device.partition(":")[0]
        self.calm: dict[str, RunDir] = {}  # undisturbed runs, by strategy
        self.lab: Lab | None = None
        self._open = contextlib.ExitStack()

    def devices(self) -> Finding:
        """What torch sees; decides what `auto` means."""
        # The first start of all: with every import.
        results = self._run("devices", 1, seconds=2 * self.limit)
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
        results = self._run("devices", 1)
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
        results = self._run("listening", self.ranks, self.device, self.ranks)
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
            results = self._run("share_files", self.ranks, inside, self.ranks)
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
        results = self._run(name, self.ranks, self.device, self.ranks)
        text = failure_of(results)
        return bad(text, self._network()) if text else results

    def training(self, strategy: Strategy) -> Finding:
        """A run on ranks against the same in one process; replicated and sharded equal to the bit."""
        alone, many = self._calm("single"), self._calm(strategy)
        if isinstance(alone, str) or isinstance(many, str):
            words = alone if isinstance(alone, str) else str(many)
            return bad(words, "run `ups doctor CONFIG` with your config: it names the part that fails.")
        rows = losses(many)
        gap = largest_gap(rows, losses(alone))
        advice = "do not trust trainings on several ranks here; report it with the output of `ups doctor --json`."
        if gap > NEAR[self.kind]:
            return bad(f"losses or gradients are off those of one process by {gap:.1e}", advice, gap=gap)
        other = next((name for name in STRATEGIES if name != strategy and name in self.calm), None)
        same = other is not None and _simulator(self.calm[other]) == _simulator(many)
        if other and not same and self.ranks <= 2:  # sums of more than two may be taken in another order
            return bad(f"the simulator has other bits than with {other}", advice, gap=gap)
        words = f"{len(rows)} steps as in one process (within {gap:.0e}){f'; same bits as {other}' if same else ''}"
        return good(words, gap=gap)

    def checkpoint(self) -> Finding:
        """A run that was stopped goes on with one rank, from a checkpoint before the newest, whose bit was turned."""
        [result] = self._disturbed(("turned bit", "fsdp"))
        if result.broken:
            return bad("; ".join(result.broken), self._distrust())
        words = f"{self.ranks} ranks → 1: losses within {NEAR[self.kind]:.0e}, from the one before it"
        return good(f"a turned bit is noticed; {words}")

    def memory_fault(self) -> Finding:
        """Memory that is short once on one rank, in both strategies: the same simulator in the end."""
        advice = "a run would restart here and not recover in place; report it with `ups doctor --json`."
        results = self._disturbed(*(("memory", strategy) for strategy in STRATEGIES))
        for strategy, result in zip(STRATEGIES, results, strict=True):
            if result.broken:
                return bad(f"{strategy}: {'; '.join(result.broken)}", advice)
        rank, times = results[0].case["faults"][0]["rank"], [f"{result.seconds:.1f} s" for result in results]
        words = f"recovered in place to the same bits (ddp in {times[0]}, fsdp in {times[1]})"
        return good(f"out of memory on rank {rank}: {words}")

    def killed_rank(self) -> Finding:
        """A rank that is killed under the supervisor of runs: noticed, and started again to the same bits."""
        [result] = self._disturbed(("kill", "fsdp"))
        if result.broken:
            back = result.starts == 2 and result.endings[-1:] == ["SUCCESS"]
            lost = "a run would not survive a lost rank here; look at /dev/shm and the limit of processes."
            return bad("; ".join(result.broken), self._distrust() if back else lost)
        seconds, rank = result.detection or 0.0, result.case["faults"][0]["rank"]
        words = f"rank {rank} was noticed after {seconds:.1f} s and started again: same bits"
        return good(words, detection=seconds)

    def _distrust(self) -> str:
        return f"checkpoints cannot be trusted in {self.folder}; choose another disk (`out:`)."

    def close(self) -> None:
        """No folder is left."""
        self._open.close()

    def _lab(self) -> Lab:
        """The lab whose runs these checks make, on the disk where runs will be kept."""
        if self.lab is None:
            inside = self._open.enter_context(own_folder(self.folder, _in_child))
            cores = len(os.sched_getaffinity(0))
            self.lab = Lab(inside.resolve(), max(1, cores // self.ranks), tries=1, most=self.limit)
        return self.lab

    def _case(self, name: str, strategy: Strategy) -> FaultCase:
        """A row of the table of faults, here."""
        world = 1 if strategy == "single" else self.ranks
        case = FAULTS[EXERCISES[name]].case(random.Random(0), world, strategy)
        assert case is not None
        device = {} if self.kind == "cpu" else {"device": self.device}
        onto = 1 if name == "turned bit" else None
        return replace(case, changes={**case.changes, **device}, onto=onto)

    def _calm(self, strategy: Strategy) -> RunDir | str:
        """The undisturbed run, made once; or in words why there is none."""
        if strategy not in self.calm:
            lab, kind = self._lab(), reference_of(self._case("nothing", strategy))
            seconds = lab.undisturbed(kind)
            if isinstance(seconds, str):
                words = seconds.removesuffix(f": {lab.plain(kind)}")  # which is not left
                return f"{'one process' if strategy == 'single' else strategy}: {words}"
            self.calm[strategy] = RunDir(lab.plain(kind) / "run")
        return self.calm[strategy]

    def _disturbed(self, *rows: tuple[str, Strategy]) -> list[CaseResult]:
        """Runs disturbed as rows of the table say, and which of their promises were broken."""
        return self._lab().run([self._case(*row) for row in rows])

    def _run(self, name: str, world: int, *args: Any, seconds: float = 0.0) -> list[Result]:
        """What ranks do. By name: this process needs neither torch nor the seconds that its import takes."""
        exercise = FunctionName(EXCHANGES, name)
        return run_ranks(exercise, world, *args, seconds=seconds or self.limit, preload=PRELOAD)

    def _network(self) -> str:
        if self.kind == "cuda":
            return "try NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1, and GLOO_SOCKET_IFNAME=lo; NCCL_DEBUG=INFO says more."
        return "try GLOO_SOCKET_IFNAME=lo, and let the firewall pass what this machine sends itself."


def _simulator(run: RunDir) -> bytes:
    return run.artifact("simulator").read_bytes()


def _in_child(function: Callable[..., Any], *args: Any) -> None:
    """Touch the disk of the runs in a child process: a dead disk hangs whoever touches it."""
    if text := failure_of([run_copy(function, *args, seconds=DISK)]):
        raise OSError(text)
