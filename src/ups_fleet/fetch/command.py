"""`ups data fetch`: data from elsewhere, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.cli.data import checked
from ups.cli.numbers import Whole
from ups.cli.places import Place
from ups.screen import following
from ups.streams import delivered
from ups.types import ConfigError, counted
from ups.wings import Command


def fetch(
    *what: str,
    to: Place = Path("data"),
    parts: Whole = 4,
    list_: Annotated[bool, Parameter(name="--list")] = False,
    dry_run: bool = False,
    unchecked: bool = False,
) -> int:
    """Fetch data from elsewhere, whole or not at all, and look for what is wrong with them; paths are printed last.

    WHAT is a name of the catalogue (`pdebench:advection1d/beta0.4`, `pdebench:burgers1d`, `well:active_matter`,
    `well:active_matter/train`), or an address: https://…, s3://…, hf://…, file://…; at a store also a folder (`…/`) or
    a pattern. A fetch that was stopped, or killed, goes on where it was. The exit code is 1 if a file has a fault.

    Parameters
    ----------
    what
        Names and addresses.
    to
        Folder for the files.
    parts
        Pieces of a file that are fetched at the same time, from 1 to 32.
    list_
        Show what the catalogue has, of the words given or of all, and fetch nothing.
    dry_run
        Say what would be fetched, how large it is and whether there is room, and fetch nothing.
    unchecked
        Leave out the checks of `ups data validate` after the fetch; sizes and checksums are always compared.
    """
    if list_:
        from ups.screen import table
        from ups_fleet.fetch.catalogue import listing

        print(table(listing(what)))
        return delivered()
    if not what:
        raise ConfigError("nothing was named; write `ups data fetch NAME --to DIR`, or --list to see the names.")
    if not 1 <= parts <= 32:
        raise ConfigError(f"--parts is {parts}, but must be from 1 to 32.")
    from ups_fleet.fetch.fetch import plan

    with following(f"asking for {counted(len(what), 'name')}") as report:
        fetched = plan(what, to, report, parts)
        if not dry_run:
            paths = fetched.fetch()
    if dry_run:
        print(*fetched.lines(), sep="\n")
        fetched.require_room()
        return delivered()
    code = 0 if unchecked else checked(fetched.data(paths))
    print(*fetched.data(paths), sep="\n")
    return code


COMMAND = Command("fetch", fetch, parent="data")
