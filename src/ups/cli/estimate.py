"""`ups estimate`: what a run will cost, before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.screen import table, waiting
from ups.streams import delivered
from ups.types import ConfigError


def estimate(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    device: Literal["cpu", "cuda"] | None = None,
    measure: bool = False,
    price: float | None = None,
    ranks: Whole | None = None,
    json_out: Annotated[Path | None, Parameter(name="--json")] = None,
) -> int:
    """Say what a run of CONFIG will take: parameters, FLOPs, memory, disk and time, and whether it fits.

    CONFIG is a YAML file; any key is a flag, with dots for the levels, for example `--operator.batch 256`. No data are
    made or needed, nothing is trained or written: memory and FLOPs come from the real steps run on tensors without
    numbers. Times come from a few real steps on random numbers where that takes seconds, else from FLOPs, bytes moved
    and what this device was measured to reach.

    Parameters
    ----------
    device
        Where the run would be; the config's own device by default.
    measure
        Run some real steps for the times, however long they take.
    price
        Of an hour of this device, in your currency: the run's cost is said too.
    ranks
        Also say what 2, 4 … up to so many devices like this one would give, each with a process of its own, over
        NVLink and over Ethernet. Computing is timed here, sending is reckoned from the bytes.
    json_out
        Also write all numbers (bytes, seconds) to this file.
    """
    from ups.config import file_and_flags, load

    file, overrides = file_and_flags(arguments)
    if file is None:
        raise ConfigError("no config was named; write `ups estimate CONFIG`.")
    with waiting(f"reading {file}") as show_activity:
        from ups.run.config import run_config

        config = load(run_config(), file, overrides)
        from ups.jobs.estimate.estimate import forecast

        outlook = forecast(config, device, measure, price, show_activity, ranks)
    print(f"{outlook.name} on {outlook.device}\n")
    print(table(outlook.rows()) + "\n")
    if outlook.scaling:
        print(f"{outlook.scaling.stage} on more devices like this one: how many times as fast, one batch shared out;")
        print("in brackets, how many times the samples a second, a whole batch for each\n")
        print(table(outlook.scaling.table()) + "\n")
    print("\n".join(outlook.lines()))
    if json_out:
        outlook.write(json_out)
    return delivered()
