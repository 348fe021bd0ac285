"""The laws of the control plane, on real ranks: one failure is everyone's, one difference is named, none hangs."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ranks import join_group, run_ranks, values
from ups.engine.ranks.control import Control, DesyncError, LostPeer, PeerFailed, Word
from ups.types import UpsError

OOM = 1


def test_a_wait_that_an_exception_ends_is_over() -> None:
    alone, words = Control(None, 0, 1), list[str]()
    alone.waiting = words.append
    with pytest.raises(MemoryError), alone.wait("gather"):
        raise MemoryError
    assert words == ["gather", ""]


def control(seconds: float = 140) -> Control:
    join_group(seconds)
    rank, world = dist.get_rank(), dist.get_world_size()
    return Control(
        dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds)) if world > 1 else None, rank, world
    )


def attempt(c: Control, gates: int, fails_at: int | None, step: int = 0) -> tuple[int, list[Word]]:
    """As a training step does it: gates, then finish, whatever happened; how many gates were passed."""
    passed = 0
    try:
        for n in range(gates):
            if n == fails_at:
                raise MemoryError
            c.gate(f"op {n}")
            passed += 1
    except PeerFailed:
        word = Word(ok=False, step=step)
    except MemoryError:
        word = Word(ok=False, kind=OOM, step=step, phase=2)
    else:
        word = Word(step=step)
    return passed, c.finish(word)


def every_place(world: int) -> list[Any]:
    """Each rank alone, then all together, fail before each of three gates and after the last; then nobody does."""
    c = control()
    seen: list[Any] = []
    for failing in [*range(world), None]:
        for place in range(3):
            fails = place if failing in (c.rank, None) else None
            seen.append(attempt(c, 3, fails))
    seen.append(attempt(c, 3, None, step=7))
    return seen


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_failure_on_any_rank_at_any_place_is_everyones_at_the_same_gate(world: int) -> None:
    by_rank = values(run_ranks(every_place, world, world))
    for attempts in zip(*by_rank, strict=True):
        assert all(words == attempts[0][1] for _, words in attempts), "all ranks hear the same words"
        assert len({passed for passed, _ in attempts}) == 1, "nobody passes a gate that another did not"
    *failed, (passed, words) = by_rank[0]
    assert (passed, words) == (3, [Word(step=7)] * world)
    for n, (passed, words) in enumerate(failed):
        failing = n // 3
        assert passed == n % 3
        expected = Word(ok=False, kind=OOM, phase=2)
        assert words == [expected if failing in (rank, world) else Word(ok=False) for rank in range(world)]


def failing_last() -> list[Word]:
    c = control()
    return attempt(c, 2 if c.rank else 3, 2 if c.rank == 0 else None)[1]


def test_a_failure_after_the_last_gate_meets_those_who_are_done() -> None:
    assert values(run_ranks(failing_last, 2)) == [[Word(ok=False, kind=OOM, phase=2), Word()]] * 2


def exchange() -> tuple[list[Any], float, list[Word]]:
    c = control()
    heard = c.gather({"rank": c.rank, "text": "x" * (1 + 1000 * c.rank)})
    return heard, c.agree(0.1 + c.rank), c.finish(Word(stop=c.rank == 1))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_gather_gives_every_object_and_agree_the_first_ranks_number(world: int) -> None:
    for heard, agreed, words in values(run_ranks(exchange, world)):
        assert heard == [{"rank": rank, "text": "x" * (1 + 1000 * rank)} for rank in range(world)]
        assert agreed == 0.1
        assert [word.stop for word in words] == [rank == 1 for rank in range(world)]


def outcome(calls: list[list[str]]) -> tuple[str, str, str, float]:
    """The error this rank meets doing its calls, then what it meets afterwards."""
    c = control()
    began = time.monotonic()
    try:
        for call in calls[c.rank]:
            match call:
                case "finish":
                    c.finish(Word(step=3))
                case "finish later":
                    c.finish(Word(step=4))
                case "gather":
                    c.gather(c.rank)
                case _:
                    c.gate(call)
    except UpsError as error:
        first = error
    try:
        c.finish(Word(ok=False))
    except UpsError as error:
        return type(first).__name__, str(first), str(error), time.monotonic() - began
    return type(first).__name__, str(first), "", 0.0


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([["a", "b"], ["a", "c"]], "rank 0 at 'b', rank 1 at 'c'"),
        ([["a", "finish"], ["a", "b"]], "rank 0 at 'the end of step 3', rank 1 at 'b'"),
        ([["finish"], ["finish later"]], "step 3', rank 1 at 'the end of step 4'"),
        ([["a"], ["gather"], ["a"]], "rank 0 at 'a', rank 1 at 'gather', rank 2 at 'a'"),
    ],
)
def test_different_operations_are_named_on_every_rank_before_anything_hangs(calls: list[list[str]], said: str) -> None:
    for kind, sentence, later, seconds in values(run_ranks(outcome, len(calls), calls)):
        assert kind == DesyncError.__name__
        assert said in sentence
        assert later == sentence, "there is no common place to go on from"
        assert seconds < 100


def lonely(how: str, given_up: Path) -> str:
    c = control(seconds=2 if how == "stuck" else 140)
    if how == "killed":
        c.gate("first")
    if c.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        end = time.monotonic() + 100
        while not given_up.exists():
            assert time.monotonic() < end, "it is waited for for ever"
            time.sleep(0.05)
        return ""
    with pytest.raises(LostPeer) as lost:
        c.gate("second")
    given_up.touch()
    return str(lost.value)


@pytest.mark.parametrize(("how", "said"), [("killed", "closed its connection"), ("stuck", "did not answer in time")])
def test_a_rank_that_is_gone_or_stuck_is_a_sentence(how: str, said: str, tmp_path: Path) -> None:
    results = run_ranks(lonely, 2, how, tmp_path / "given up")
    assert f"rank 0 was at 'second' when rank 1 {said}" in results[0].value
    assert results[1].exitcode == (-9 if how == "killed" else 0)


def ending(how: str) -> int:
    match how:
        case "raises":
            raise ValueError("on purpose")
        case "exits":
            raise SystemExit(17)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "leaves":
            os._exit(0)
        case "hangs":
            time.sleep(100)
    return int(os.environ["RANK"])


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("returns", 0, ""),
        ("raises", 1, "ValueError: on purpose"),
        ("exits", 17, "SystemExit"),
        ("crashes", -11, "said nothing"),
        ("leaves", 0, "said nothing"),
        ("hangs", -9, "said nothing"),
    ],
)
def test_a_test_survives_whatever_its_ranks_do(how: str, code: int, said: str) -> None:
    results = run_ranks(ending, 2, how, timeout=1 if how == "hangs" else 400)
    assert [result.exitcode for result in results] == [code, code]
    assert all(said in result.traceback for result in results)
    assert [result.value for result in results] == ([0, 1] if how == "returns" else [None, None])
