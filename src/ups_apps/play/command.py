"""The command `ups play`."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.screen import waiting
from ups.types import ConfigError
from ups.wings import USE, Command


def play(
    runs: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    /,
    *,
    host: str = "127.0.0.1",
    port: Whole = 0,
    device: str = "cpu",
    no_browser: bool = False,
) -> None:
    """Play with trained simulators in the browser: draw a state, move a parameter, and watch.

    Opens a page of this machine that needs no network. Ctrl-C ends it.

    Parameters
    ----------
    runs
        Folders of runs, or files of simulators.
    host
        The address to listen on. Beyond this machine the address that is shown holds a token, without which nothing is
        answered.
    port
        The port; 0 takes any that is free.
    device
        cpu, cuda or cuda:N.
    no_browser
        Only show the address.
    """
    if not runs:
        raise ConfigError("ups play needs the folder of a run, or the file of a simulator: `ups play RUN`.")
    with waiting("loading"), ExitStack() as loaded:
        try:
            from ups_apps.play.playground import Playground
            from ups_apps.serve.listening import address_of, bound, listen, server_of, token_of
            from ups_apps.serve.service import Service
        except ModuleNotFoundError as error:
            needed = "needs FastAPI and uvicorn: pip install 'universal-physics-stack[serve]'"
            raise ConfigError(f"ups play {needed}. ({error.name} is missing)") from None
        from ups_apps.serve.shelf import Shelf

        listener, token = bound(host, port), token_of(host, None)
        stack = loaded.enter_context(ExitStack())
        service = Service(Shelf(runs, device))
        there = Playground(service, stack, lambda sentence: print(f"ups: {sentence}", file=sys.stderr))
        keep = loaded.pop_all()

    with keep:
        address = address_of(listener)
        place = f"{address}/" if token is None else f"{address}/#token={token}"
        print(f"{there.title} at {place} (Ctrl-C ends it)", flush=True)
        if not no_browser and token is None:
            webbrowser.open(place)
        listen(server_of(there.app(), host, token, service.limits, service.meters), listener)
    print("ups: stopped.", file=sys.stderr)


COMMAND = Command("play", play, USE, "Usage: ups play RUN... [OPTIONS]")
