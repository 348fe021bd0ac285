"""The flight recorder: a rank that waits in a collective says in which, although its main thread cannot."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from watched_ranks import join_group, run_ranks, values

from ups.heartbeat import Beat
from ups_fleet.supervise import flight_recorder
from ups_fleet.supervise.rank_states import RankState, rows, table, with_stacks
from ups_fleet.supervise.start_dir import StartDir


def waiting(folder: Path) -> str:
    """Rank 0 waits in an all-reduce while rank 1 asks where it is; rank 1's reading of the answer."""
    import torch
    import torch.distributed as dist

    join_group()
    flight_recorder.answer(folder / f"flight-{dist.get_rank()}.json")
    dist.all_reduce(torch.ones(3))
    pids: list[Any] = [None, None]
    dist.all_gather_object(pids, os.getpid())
    found = ""
    if dist.get_rank() == 1:
        time.sleep(0.3)
        for _ in range(1000):
            os.kill(pids[0], signal.SIGUSR2)
            time.sleep(0.1)
            found = flight_recorder.last(folder / "flight-0.json")
            if "77" in found:
                break
    dist.all_reduce(torch.ones(77))
    return found


def test_a_rank_that_waits_in_a_collective_says_in_which(tmp_path: Path) -> None:
    _, found = values(run_ranks(waiting, 2, tmp_path, env={"TORCH_FR_BUFFER_SIZE": "2000"}))
    assert found.startswith("all_reduce")
    assert found.endswith("77 (waits)")


def entry(record: int, name: str, number: int, group: str = "0") -> dict[str, Any]:
    return {
        "record_id": record,
        "profiling_name": name,
        "collective_seq_id": number,
        "input_sizes": [[4, 5]],
        "process_group": [group, ""],
    }


@pytest.mark.parametrize(("completed", "words"), [("6", "(waits)"), ("7", "(ended)")])
def test_the_newest_collective_of_a_dump_is_read(tmp_path: Path, completed: str, words: str) -> None:
    path = tmp_path / "flight-0.json"
    status = {"1": {"last_completed_collective": completed}}
    dump = {"entries": [entry(9, "gloo:broadcast", 7, "1"), entry(8, "gloo:all_reduce", 90)], "pg_status": status}
    path.write_text(json.dumps(dump))
    assert flight_recorder.last(path) == f"broadcast 7 of group 1, 4×5 {words}"
    beat = Beat(0, 1, 3, "vote", "", 0.0, 1, False, False, 0, (), ())
    (state,) = with_stacks([RankState(0, 0, "", beat, 1.0)], StartDir(tmp_path))
    assert f"broadcast 7 of group 1, 4×5 {words}" in table([state])
    assert rows([state])[0]["collective"] == state.collective


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"entries": []}', '{"entries": [{}]}'])
def test_a_dump_that_is_missing_or_damaged_says_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "flight").write_text(text)
    assert flight_recorder.last(tmp_path / "flight") == ""
