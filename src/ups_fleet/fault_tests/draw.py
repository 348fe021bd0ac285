"""The fault matrix: which faults there are, and how cases of them are drawn at random, as many of each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from ups_fleet.fault_tests import (
    closed_streams,
    containers,
    disturbance_recipes,
    fault_recipes,
    hostile_folders,
    kernel_kills,
    outside_training,
    second_copies,
    small_disks,
    strangers,
    swapped_data,
)
from ups_fleet.fault_tests.case import FaultCase, Recipes, Strategy

RECIPES: Recipes = {
    **fault_recipes.RECIPES,
    **disturbance_recipes.RECIPES,
    **strangers.RECIPES,
    **outside_training.RECIPES,
    **containers.RECIPES,
    **small_disks.RECIPES,
    **closed_streams.RECIPES,
    **swapped_data.RECIPES,
    **hostile_folders.RECIPES,
    **kernel_kills.RECIPES,
    **second_copies.RECIPES,
}
FAMILIES = sorted({family for family, _ in RECIPES}, key=lambda name: int(name[1:]))


def draw(
    count: int, seed: int, worlds: Sequence[int], strategies: Sequence[Strategy], only: Sequence[str] = ()
) -> list[FaultCase]:
    """`count` cases, as many of each family (to one), in an order drawn from the seed.

    Within a family every recipe comes on every kind of world once, in another order each time, and all over again.
    """
    kinds = [(w, s) for w in worlds for s in strategies if (w == 1) is (s == "single") or (w == 1 and s == "fsdp")]
    endless = [_of_family(family, seed, kinds) for family in FAMILIES if not only or family in only]
    streams = [itertools.chain([first], rest) for rest in endless if (first := next(rest, None)) is not None]
    random.Random(f"{seed}/families").shuffle(streams)
    cases = [next(stream) for stream in itertools.islice(itertools.cycle(streams), count)]
    random.Random(f"{seed}/order").shuffle(cases)
    return cases


def _of_family(family: str, seed: int, kinds: Sequence[tuple[int, Strategy]]) -> Iterator[FaultCase]:
    recipes = [(name, recipe) for (room, name), recipe in RECIPES.items() if room == family]
    for turn in itertools.count():
        order = [(*recipe, *kind) for recipe in recipes for kind in kinds]
        random.Random(f"{seed}/{turn}/{family}").shuffle(order)
        made = 0
        for name, recipe, world, strategy in order:
            case = recipe(random.Random(f"{seed}/{turn}/{family}/{name}/{world}/{strategy}"), world, strategy)
            if case is not None:
                made += 1
                yield case
        if not made:
            return
