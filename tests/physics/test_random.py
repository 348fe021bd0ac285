"""Randomness: a pure function of seed, sample, name and element."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ups.physics.random import Draw, philox

# Known answers published with Random123 for philox4x32-10.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(int(w) for w in philox(np.array(counter, np.uint64), key)) == words


def test_a_sample_draws_the_same_in_any_company_and_order() -> None:
    alone = Draw(5, [17]).normal("x", (3,))
    crowd = Draw(5, [40, 17, 3])
    crowd.uniform("something else", (9,))
    assert torch.equal(alone[0], crowd.normal("x", (3,))[1])


def test_names_samples_and_seeds_keep_streams_apart() -> None:
    def u(seed: int, sample: int, name: str) -> torch.Tensor:
        return Draw(seed, [sample]).uniform(name, (64,))

    reference = u(0, 0, "a")
    for other in (u(1, 0, "a"), u(0, 1, "a"), u(0, 0, "b"), u(2**40, 0, "a"), u(0, 2**40, "a")):
        assert not torch.isclose(reference, other).any()


def test_draws_follow_their_distributions() -> None:
    from scipy import stats  # here, for its import takes every worker a second

    draw = Draw(3, range(200))
    assert stats.kstest(draw.uniform("u", (100,)).flatten().numpy(), "uniform").pvalue > 0.01
    assert stats.kstest(draw.normal("n", (100,)).flatten().numpy(), "norm").pvalue > 0.01
    logs = draw.log_uniform("l", (100,), 10.0, 100.0).log10().flatten().numpy()
    assert stats.kstest(logs - 1, "uniform").pvalue > 0.01
    counts = np.bincount(draw.integers("i", (100,), 5).flatten().numpy(), minlength=5)
    assert stats.chisquare(counts).pvalue > 0.01
    assert abs(Draw(3, range(20000)).chance("c", 0.1).double().mean() - 0.1) < 0.01
