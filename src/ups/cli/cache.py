"""`ups cache`: build, check, list and clear latent caches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ups.files import one_line
from ups.progress import Screen
from ups.screen import following, table, waiting
from ups.streams import delivered
from ups.types import ConfigError

cache = App(name="cache", help="Latent caches: what a trained codec makes of its data, encoded once, read from disk.")


@cache.command(usage="Usage: ups cache build RUN|CONFIG [OPTIONS] [--KEY.OF.CONFIG VALUE ...]")
def build(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    rebuild: bool = False,
    device: str = "auto",
) -> None:
    """Encode the training and validation data of a trained run; the folders of the caches are the last lines printed.

    RUN is a run's folder, CONFIG the YAML file of a run that was trained; any key is a flag, for example
    `--cache.folder /scratch/latents` or `--cache.dtype bf16`. What is there already is kept if it was made of just
    these weights and data. A build that was stopped goes on; several at once share the work.

    Parameters
    ----------
    rebuild
        Replace caches that are damaged or were made of something else.
    device
        Where to encode: auto, cpu, cuda or cuda:N.
    """
    from ups.config import file_and_flags

    target, overrides = file_and_flags(arguments)
    if target is None:
        raise ConfigError("no run was named; write `ups cache build RUN`.")
    with following(f"opening {target}") as report:
        from ups.jobs.cache import build as job
        from ups.jobs.cache import run_of

        folder, config = run_of(target, {**overrides, **({"cache.rebuild": "true"} if rebuild else {})})
        one_line(folder.folder if config.cache.folder is None else Path(config.cache.folder))
        for path in job(folder, config, device, Screen(print, report, _unseen)):
            print(path)


def _unseen(_: object) -> None:
    """Nothing is trained here."""


@cache.command
def verify(path: Path) -> int:
    """Read every byte of every cache below PATH, a run's folder or one of caches; exit code 1 if one is damaged."""
    with waiting(f"looking for caches below {path}"):
        from ups.jobs.cache import check

    damaged = 0
    for folder, damage in check(path):
        damaged += damage is not None
        print(damage or f"{folder}: whole.")
    return 1 if damaged else 0


@cache.command
def info(path: Path) -> int:
    """List the caches below PATH, a run's folder or one of caches: counts, number format, rounding, size."""
    with waiting(f"reading {path}"):
        from ups.jobs.cache import table as rows

        text = table(rows(path))
    print(text)
    return delivered()


@cache.command
def gc(path: Path) -> None:
    """Delete what stopped builders left below PATH, and in a run's folder caches of other weights or data."""
    with waiting(f"reading {path}"):
        from ups.jobs.cache import clear

        deleted = clear(path, Screen.silent())
    print("\n".join(deleted) or "there is nothing to delete.")
