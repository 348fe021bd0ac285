"""Real ranks for tests: one thread each, all forked from one server that has imported whatever any test needs."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import inspect
import io
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# What any rank imports, here or in the workshop; what FSDP2 imports at its first step alone takes seconds.
ALL = (
    *("pytest", "blank_pictures", "torch", "torch._dynamo", "torch.distributed.checkpoint", "h5py", "rich.console"),
    *("safetensors.torch", "scipy.optimize", "matplotlib.figure", "matplotlib.backends.backend_agg"),
    *(
        "ups.models",
        "ups.physics",
        "ups.engine.ranks.sharded",
        "ups.engine.loop",
        "ups.engine.checkpoint.checkpoint_store",
    ),
    *("ups.cli.app", "ups.cli.preflight", "ups.jobs.estimate.fits", "ups.run.run"),
    *("ups_fleet.cli.worker", "ups_fleet.running.supervised", "ups_fleet.fault_tests.case_run"),
    *("ups_fleet.doctor.rank_exercises", "ups_fleet.doctor.model_exercises", "ups_fleet.doctor.machine_checks"),
)


@dataclass(frozen=True)
class Ended:
    """How a rank ended: what its function gave, or the traceback of what left it."""

    value: Any = None
    exitcode: int | None = None
    traceback: str = ""
    log: str = ""


def run_ranks(
    function: Callable[..., Any], world: int, *args: Any, timeout: float = 400, env: Mapping[str, str] = {}
) -> list[Ended]:
    """`function(*args)` in `world` processes with the environment that a launcher gives; how each ended, by rank.

    Returns soon after `timeout` seconds at the latest; who has not answered by then is killed.
    """
    warm_up()
    context, folder = multiprocessing.get_context("forkserver"), Path(tempfile.mkdtemp(prefix="ups-ranks-"))
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    shared |= {"UPS_MEET": f"file:{folder / 'meeting'}", **env}
    where = (function.__module__, str(Path(inspect.getfile(function)).resolve()), function.__qualname__)
    ranks, pipes = [], []
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            about = (theirs, where, pickle.dumps(args), own, str(folder / f"{rank}.log"))
            ranks.append(context.Process(target=_rank, args=about, daemon=True))
            ranks[-1].start()
            theirs.close()
            pipes.append(ours)
        answers = _answers(pipes, timeout)
        for rank, process in enumerate(ranks):
            process.join(5 if rank in answers else 0)
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid or 0, signal.SIGQUIT)  # its stacks, into its log
                time.sleep(0.3)
                process.kill()
                process.join(10)
        logs = [(folder / f"{rank}.log").read_text(errors="replace") for rank in range(world)]
        said = [answers.get(rank, (None, "it said nothing")) for rank in range(world)]
        return [
            Ended(value, process.exitcode, trace, log)
            for (value, trace), process, log in zip(said, ranks, logs, strict=True)
        ]
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def values(ranks: list[Ended]) -> list[Any]:
    """What all gave; fails with the traceback of the first that did not end well."""
    for number, rank in enumerate(ranks):
        assert rank.exitcode == 0, f"rank {number} ended with {rank.exitcode}:\n{rank.traceback}\n{rank.log[-8000:]}"
    return [rank.value for rank in ranks]


def warm_up() -> None:
    """Start the server that ranks are forked from: the first to start it says what it imports."""
    here = [name for name in ALL if importlib.util.find_spec(name.partition(".")[0]) is not None]
    multiprocessing.get_context("forkserver").set_forkserver_preload(here)
    forkserver.ensure_running()


def join_group(seconds: float = 30) -> None:
    """In a rank: the process group of all, over gloo."""
    import torch.distributed as dist

    from ups.engine.ranks.meeting import meeting

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=meeting(world), rank=rank, world_size=world, timeout=limit)


def free_port() -> int:
    """A port nobody uses, below those that the kernel gives to whoever asks for any: nobody gets it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _answers(pipes: list[Connection], timeout: float) -> dict[int, tuple[Any, str]]:
    """(value, traceback) of those who answered in time. Once one is gone without a word, the others get a while."""
    end, answers, waiting = time.monotonic() + timeout, {}, list(pipes)
    while waiting and (patience := end - time.monotonic()) > 0:
        for pipe in wait(waiting, patience):
            assert isinstance(pipe, Connection)
            waiting.remove(pipe)
            try:
                answers[pipes.index(pipe)] = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                end = min(end, time.monotonic() + max(15, timeout / 4))
    return answers


def _rank(pipe: Connection, where: tuple[str, str, str], args: bytes, env: dict[str, str], log: str) -> None:
    """All that a rank does; it never returns."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    faulthandler.enable(sys.__stderr__ or io.StringIO())
    faulthandler.register(signal.SIGQUIT, sys.__stderr__, all_threads=True)
    os.environ.update(env)
    sys.modules["torch"].set_num_threads(1)
    code, answer = 0, (None, "")
    try:
        function: Any = _module(*where[:2])
        for name in where[2].split("."):
            function = getattr(function, name)
        answer = (function(*pickle.loads(args)), "")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        answer = (None, traceback.format_exc())
    except BaseException:  # noqa: BLE001  (its traceback is the answer)
        code, answer = 1, (None, traceback.format_exc())
    with contextlib.suppress(OSError):
        pipe.send_bytes(pickle.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # teardown of a process group races with its objects, and nobody asked for it


def _module(name: str, file: str) -> Any:
    """A module by its name if it can be imported by that, else by its file, as that of a test."""
    if name in sys.modules or name.partition(".")[0] in ("ups", "ups_fleet", "ups_bench"):
        return importlib.import_module(name)
    for end in (at for at, letter in enumerate(name) if letter == "."):
        sys.modules.setdefault(name[:end], type(sys)(name[:end]))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
