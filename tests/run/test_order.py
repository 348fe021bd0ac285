"""The order of a training: what is told of it, and the proof that every rank was given its share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch

from ups.config import load
from ups.data.sampler import LEAD, Mix, Sampler
from ups.data.windows import Windows
from ups.engine.ranks.dist import Dist, DivergedError
from ups.physics import TASKS
from ups.run.config import run_config
from ups.run.order import ProvenBatches, drawn, windows_of
from ups.run.training import seeded
from ups.types import Dynamics


class Numbers:
    """Data whose windows nobody looks at."""

    task, times, shape, origin = TASKS["burgers1d"], np.arange(6.0), (4,), "nowhere"
    lengths = np.full(9, 6)

    def __len__(self) -> int:
        return 9

    def window(self, *_: object) -> None:
        """Not asked for."""


class Rank(NamedTuple):
    rank: int
    world: int


class Together:
    """The ranks of this process: each is given what all have to say."""

    def __init__(self, world: int) -> None:
        self.world, self.rows = world, [()] * world

    def gather(self, _: object) -> list[Any]:
        return self.rows


class Notes:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None: ...


def ranks(world: int) -> tuple[list[Windows], list[ProvenBatches], Together, Notes]:
    made = [Windows([cast(Any, Numbers())], [], 5, 1, ranks=Rank(rank, world)) for rank in range(world)]
    dist, notes = Together(world), Notes()
    proven = [ProvenBatches(w, w, cast(Dist, dist), "operator", [notes] if w.rank == 0 else []) for w in made]
    return made, proven, dist, notes


def prove(made: list[Windows], proven: list[ProvenBatches], dist: Together, step: int) -> None:
    dist.rows = [(*w.drawn.until(step), step) for w in made]
    for rank in proven:
        rank.prove(step)


@pytest.mark.parametrize(("memoryless", "each"), [(True, 5), (False, 3)])
def test_a_task_is_drawn_with_as_many_frames_as_are_looked_back_on(memoryless: bool, each: int) -> None:
    """Of six frames, all but the last are a context of one; three of them in a row are one of three."""
    keys = {"data.b.task": "burgers1d", "model.operator.context": 3}
    config, part = load(run_config(), None, keys), Numbers()
    part.params = torch.zeros(9, 1)  # type: ignore[attr-defined]
    task = dataclasses.replace(TASKS["burgers1d"], dynamics=Dynamics(memoryless=memoryless))
    data: Any = SimpleNamespace(task=task, parts=lambda _: [part])
    dist: Any = SimpleNamespace(rank=0, world=1, device=torch.device("cpu"))
    windows = windows_of(config, [data], config.stage("operator"), dist)
    assert [len(places) for places in windows.places] == [9 * each]
    assert [len(p) for p in windows_of(config, [data], config.stage("operator"), dist, context=4).places] == [9 * 2]


def test_what_all_ranks_were_given_is_proven_at_each_validation_and_its_digest_is_that_of_one_process() -> None:
    digests = []
    for world in (1, 2, 4):
        made, proven, dist, notes = ranks(world)
        prove(made, proven, dist, 0)
        assert notes.rows == []
        for step in range(30):
            for windows in made:
                windows.batch(step)
            if step in (9, 24):
                prove(made, proven, dist, step - 2)  # windows are built ahead of the step
        assert [(step, row["operator/order/proven_steps"]) for step, row in notes.rows] == [(7, 7), (22, 22)]
        digests.append([row["operator/order/digest"] for _, row in notes.rows])
    assert digests[0] == digests[1] == digests[2]


def test_a_rank_that_was_given_other_windows_is_named_on_every_rank() -> None:
    made, proven, dist, _ = ranks(4)
    for step in range(20):
        for windows in made:
            windows.batch(step)
        if step == 9:
            prove(made, proven, dist, 10)
    which, chosen = made[2].indices(20)
    for windows in made:
        windows.used(20, which, (chosen + 1) % 40) if windows.rank == 2 else windows.batch(20)
    for rank in proven:
        dist.rows = [(*w.drawn.until(21), 21) for w in made]
        with pytest.raises(DivergedError, match="rank 2 was given other windows in steps 0 to 20"):
            rank.prove(21)


def test_ranks_at_other_steps_are_named() -> None:
    made, proven, dist, _ = ranks(2)
    made[0].batch(0)
    made[1].batch(1)
    dist.rows = [(*made[0].drawn.until(1), 1), (*made[1].drawn.until(2), 2)]
    with pytest.raises(DivergedError, match="other steps than each other"):
        proven[0].prove(1)


def test_shares_epochs_and_repeated_samples_are_those_of_a_count_of_what_was_drawn() -> None:
    names, counts = ("burgers", "darcy", "advection"), (1000, 40, 333)
    mix = Mix(policy="weights", weights={"burgers": 0.5, "darcy": 0.2, "advection": 0.3})
    sampler = Sampler(names, counts, 7, mix, batches={"advection": 3})
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in range(300):
        task, windows = sampler.indices(step)
        seen[task] += windows.tolist()
    rows = drawn(sampler, "operator", 300)
    assert [row.samples for row in rows] == [len(seen[i]) for i in range(3)]
    assert [row.repeated for row in rows] == [len(seen[i]) - len(set(seen[i])) for i in range(3)]
    assert [row.epochs for row in rows] == [len(seen[i]) / counts[i] for i in range(3)]
    assert [row.asked for row in rows] == pytest.approx([0.5, 0.2, 0.3])
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.share for row in rows] == pytest.approx([0.5, 0.2, 0.3], abs=0.01)


def test_by_error_the_share_asked_for_is_the_mean_over_the_steps() -> None:
    heard = [(100, {"a": 0.3, "b": 0.1}), (400, {"a": 0.1, "b": 0.1})]
    sampler = Sampler(("a", "b"), (50, 60), 4, Mix(policy="error"), validations=lambda: heard)
    early = (100 + LEAD) * 0.5
    assert sampler.wanted_shares(0) == sampler.wanted_shares(100) == (0.5, 0.5)
    assert sampler.wanted_shares(300)[0] == pytest.approx((early + (300 - 100 - LEAD) * 0.75) / 300)
    assert sampler.wanted_shares(1000)[0] == pytest.approx((early + 300 * 0.75 + (1000 - 400 - LEAD) * 0.5) / 1000)
    assert sampler.turns(1000)[0] / 1000 == pytest.approx(sampler.wanted_shares(1000)[0], abs=0.005)
    assert torch.tensor(sampler.wanted_shares(777)).sum() == pytest.approx(1)


def test_what_a_stage_draws_follows_from_the_seed_of_the_run_and_is_no_other_stages() -> None:
    def seed(stage: str = "operator", **keys: int) -> int:
        return seeded(load(run_config(), None, {"data.b.task": "burgers1d", **keys}), stage).seed

    drawn_from = [seed(), seed(seed=1), seed("codec"), seed(**{"operator.train.seed": 1})]
    assert len(set(drawn_from)) == 4
    assert seed() == drawn_from[0]
    nearest = min(abs(a - b) for a in drawn_from for b in drawn_from if a != b)
    assert nearest > 10**6, "a rank adds its number: none draws what a rank of another run does"
