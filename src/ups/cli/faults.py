"""`ups faults`: real runs, disturbed on purpose."""

from __future__ import annotations

from pathlib import Path

from ups.cli.numbers import Whole
from ups.screen import table
from ups.types import ConfigError


def faults(
    *,
    faults: Whole = 100,
    seed: Whole = 0,
    ranks: str = "1,2,4",
    strategies: str = "single,ddp,fsdp",
    only: str = "",
    out: Path | None = None,
    json: Path | None = None,
    jobs: Whole | None = None,
) -> int:
    """Kill, stop, starve and damage tiny real runs, and check that each ends in time, truthfully, with the same bits.

    Every case is a run of its own under its own supervisor, on CPU ranks forked from one process, compared with the
    undisturbed run on the same ranks. The exit code is 0 if every promise was kept, else 1.

    Parameters
    ----------
    faults
        How many.
    seed
        Same seed, same faults.
    ranks
        Numbers of ranks to try.
    strategies
        single (one rank), ddp, fsdp.
    only
        Families of faults, such as F6,F9; all of them by default.
    out
        Where the runs are made; those that broke a promise stay there. A temporary folder by default.
    json
        A file for all results, with what they depend on.
    jobs
        Cases at a time; as many as there are cores by default.
    """
    import os
    import tempfile
    import time

    from ups.lab.fault_recipes import RECIPES, draw
    from ups.lab.lab import Lab, same_samples, summary, write

    worlds = _numbers(ranks)
    kinds = [word for word in strategies.split(",") if word]
    families = [word.upper() for word in only.split(",") if word]
    known = list(dict.fromkeys(family for family, _ in RECIPES))
    for word in kinds:
        if word not in ("single", "ddp", "fsdp"):
            raise ConfigError(f"there is no strategy '{word}'; it is single, ddp or fsdp.")
    for word in families:
        if word not in known:
            raise ConfigError(f"there is no fault '{word}'; they are {', '.join(known)}.")
    cases = list(draw(faults, seed, worlds, kinds, families))  # type: ignore[arg-type]
    if not cases:
        raise ConfigError("no fault fits these ranks and strategies; one rank is `single` or `fsdp`, more are not.")
    folder = (out or Path(tempfile.mkdtemp(prefix="ups-faults-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    lab = Lab(folder, jobs or len(os.sched_getaffinity(0)))
    found = lab.run(cases, print)
    told = same_samples(lab, cases)
    seconds = time.monotonic() - began
    print("", table(summary(found)), *told, sep="\n")
    broken = [r for r in found if r.broken]
    each = seconds / len(found)
    print(f"\n{len(found)} faults in {seconds:.0f} s, {each:.2f} s each; {len(broken)} broke a promise.")
    if json is not None:
        asked = {"faults": faults, "seed": seed, "ranks": worlds, "strategies": kinds, "only": families}
        write(json, found, asked, seconds)
    if broken or told:
        print(f"{folder} holds the runs that broke a promise.")
    return 1 if broken or told else 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--ranks is '{text}', but must be numbers, such as 1,2,4.") from None
