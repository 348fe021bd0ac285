"""What the proof adds to the instrument: `ups bench`."""

from __future__ import annotations

from collections.abc import Sequence

from ups.wings import CHECK, Command, Wing


class Bench(Wing):
    """The proof."""

    def commands(self) -> Sequence[Command]:
        from ups_bench.cli.bench import bench

        return (Command("bench", bench, CHECK),)


WING = Bench()
