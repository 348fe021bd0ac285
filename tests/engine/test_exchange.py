"""JSON between ranks: every rank learns what every rank said, whatever the length; nothing that arrives is executed."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from ranks import join_group, run_ranks, values
from ups.engine.ranks import exchange
from ups.engine.ranks.exchange import gather_json


def said_by(rank: int) -> Any:
    return [{"name": "ä" * rank * 1000, "number": 0.1 + rank, "worst": float("inf")}, [rank, None, True], rank == 0][
        rank
    ]


def all_hear_all() -> list[Any]:
    join_group(20)
    return gather_json(said_by(dist.get_rank()), dist.group.WORLD)


def test_every_rank_hears_every_rank_in_order() -> None:
    for everyone in values(run_ranks(all_hear_all, 3)):
        assert everyone == [said_by(rank) for rank in range(3)]


def test_one_process_hears_itself_as_the_others_would() -> None:
    assert gather_json({1: (2, 3)}, None) == [{"1": [2, 3]}]


def nonsense(sent: bytes) -> str:
    join_group(20)
    if dist.get_rank() == 1:
        exchange.to_json = lambda value: sent  # noqa: ARG005
    try:
        gather_json("a word", dist.group.WORLD)
    except ValueError as error:
        return type(error).__name__
    return "taken"


@pytest.mark.parametrize("sent", [b"\x80\x04\x95not json", b"[" * 100_000], ids=["a pickle", "nested without end"])
def test_what_is_no_json_is_an_error_and_nothing_else(sent: bytes) -> None:
    assert "taken" not in values(run_ranks(nonsense, 2, sent))


def test_what_would_fill_the_memory_is_refused_before_it_is_sent() -> None:
    for name in values(run_ranks(too_much, 2)):
        assert name == "a rank wants to send 102 bytes at once, and at most 10 are taken"


def too_much() -> str:
    exchange.MOST = 10
    join_group(20)
    try:
        gather_json("x" * 100 if dist.get_rank() else "", dist.group.WORLD)
    except ValueError as error:
        return str(error)
    return "taken"
