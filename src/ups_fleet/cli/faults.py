"""`ups faults`: real runs, disturbed on purpose."""

from __future__ import annotations

from pathlib import Path

from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.types import ConfigError


def faults(
    *,
    faults: Whole = 100,
    seed: Whole = 0,
    ranks: str = "1,2,4",
    strategies: str = "single,ddp,fsdp",
    only: str = "",
    out: Place | None = None,
    table: Path | None = None,
    json: Path | None = None,
    jobs: Whole | None = None,
) -> int:
    """Kill, stop, starve, rob and damage tiny real runs, and check that each ends in time, truthfully, with equal bits.

    Every case is a run of its own under its own supervisor, on CPU ranks forked from one process, compared with the
    undisturbed run on the same ranks. The exit code is 0 if every promise was kept, else 1. Every result is written to
    results.jsonl in --out as soon as it is there: the same command again goes on where it was stopped or killed.

    Parameters
    ----------
    faults
        How many; as many of each family, and one of each that --only names.
    seed
        Same seed, same faults.
    ranks
        Numbers of ranks to try.
    strategies
        single (one rank), ddp, fsdp.
    only
        Families of faults, such as F6,F9, each of which is run; all of them by default.
    out
        Where the results and the runs are; runs that broke a promise stay. A new temporary folder by default.
    table
        A page, such as docs/faults.md, into which the table of results is written, between its two marks.
    json
        A file for all results, with what they depend on.
    jobs
        Cases at a time; as many as there are cores by default.
    """
    import os
    import tempfile
    import time

    from ups.screen import table as columns
    from ups_fleet.fault_tests.faults import draw
    from ups_fleet.fault_tests.journal import FaultJournal, request_of
    from ups_fleet.fault_tests.lab import Lab, same_samples
    from ups_fleet.fault_tests.table import markdown, skipped_words, summary, write_json, write_page

    worlds, kinds, families = _numbers(ranks), _strategies(strategies), _families(only)
    count = max(faults, len(families))  # each family that was named has a case
    cases = draw(count, seed, worlds, kinds, families)  # type: ignore[arg-type]
    if not cases:
        raise ConfigError("no fault fits these ranks and strategies; one rank is `single` or `fsdp`, more are not.")
    for family in set(families) - {case.family for case in cases}:
        raise ConfigError(f"{family} has no fault that fits these ranks and strategies; name others, or leave it out.")
    folder = (out or Path(tempfile.mkdtemp(prefix="ups-faults-"))).resolve()
    began, lab = time.monotonic(), Lab(folder, jobs or len(os.sched_getaffinity(0)))
    journal = FaultJournal(folder, request_of(count, seed, worlds, kinds, families))
    try:
        if journal.rows:
            print(f"{folder}: {len(journal.rows)} of {len(cases)} results are there; going on.")
        results = lab.run(cases, print, journal)
    finally:
        journal.close()
    problems = same_samples(lab, cases)
    seconds = time.monotonic() - began
    broken = [r for r in results if r.broken]
    print("", columns(summary(results)), *filter(None, [skipped_words(results)]), *problems, sep="\n")
    print(f"\n{len(results)} faults, this time in {seconds:.0f} s; {len(broken)} broke a promise.")
    if json is not None:
        write_json(json, journal.head, results, seconds)
    if table is not None:
        write_page(table, markdown(journal.head, results))
    print(f"{folder} holds the results{', and the runs that broke a promise' if broken or problems else ''}.")
    return 1 if broken or problems else 0


def _strategies(text: str) -> list[str]:
    kinds = [word for word in text.split(",") if word]
    for word in kinds:
        if word not in ("single", "ddp", "fsdp"):
            raise ConfigError(f"there is no strategy '{word}'; it is single, ddp or fsdp.")
    return kinds


def _families(text: str) -> list[str]:
    from ups_fleet.fault_tests.faults import FAMILIES

    families = list(dict.fromkeys(word.strip().upper() for word in text.split(",") if word.strip()))
    for word in families:
        if word not in FAMILIES:
            raise ConfigError(f"there is no fault '{word}'; they are {', '.join(FAMILIES)}.")
    return families


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--ranks is '{text}', but must be numbers, such as 1,2,4.") from None
