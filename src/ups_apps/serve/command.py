"""The command `ups serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ups.cli.numbers import Whole
from ups.screen import waiting
from ups.types import ConfigError
from ups.wings import USE, Command

NEEDED = "needs FastAPI and uvicorn: pip install 'universal-physics-stack[serve]'."


def serve(
    runs: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    /,
    *,
    host: str = "127.0.0.1",
    port: Whole = 8000,
    token_file: Path | None = None,
    device: str = "cpu",
    steps: Whole = 10_000,
    seconds: float = 60.0,
    body: Whole = 64,
    memory: Whole = 512,
    queue: Whole = 64,
) -> None:
    """Answer requests for trained simulators by HTTP until Ctrl-C.

    POST /v1/rollout continues states, /v1/stream sends frames as they are computed, /v1/tasks says what can be asked,
    /openapi.json describes it all. Only this machine is answered; beyond it, only who sends the token.

    Parameters
    ----------
    runs
        Folders of runs, or files of simulators.
    host
        The address to listen on; 0.0.0.0 for all of this machine.
    port
        The port; 0 takes any that is free.
    token_file
        A file that holds the token. Without it, one is made and shown where others than this machine may ask.
    device
        cpu, cuda or cuda:N.
    steps
        The most steps of a rollout.
    seconds
        The most that one request may take.
    body
        The most megabytes that a request may send.
    memory
        The most megabytes of an answer.
    queue
        How many requests may wait; the next is told to come again (429).
    """
    if not runs:
        raise ConfigError("ups serve needs the folder of a run, or the file of a simulator: `ups serve RUN`.")
    if min(steps, body, memory, queue) < 1 or not seconds > 0:
        raise ConfigError("--steps, --seconds, --body, --memory and --queue are numbers above 0.")
    with waiting("loading"):
        try:
            from ups_apps.serve.listening import address_of, bound, listen, server_of, token_of
            from ups_apps.serve.service import Service, app_of
        except ModuleNotFoundError as error:
            raise ConfigError(f"ups serve {NEEDED} ({error.name} is missing)") from None
        from ups_apps.serve.limits import ServiceLimits
        from ups_apps.serve.shelf import Shelf

        limits = ServiceLimits(body << 20, steps, answer=memory << 20, seconds=seconds, waiting=queue)
        listener, token = bound(host, port), token_of(host, token_file)
        service = Service(Shelf(runs, device), limits)

    address = address_of(listener)
    names = ", ".join(service.shelf.simulators)
    print(f"{names} at {address} (what can be asked: {address}/openapi.json)", flush=True)
    if token is not None and token_file is None:
        print(f"token: {token}", flush=True)
    listen(server_of(app_of(service), host, token, limits, service.meters), listener)
    print("ups: stopped.", file=sys.stderr)


COMMAND = Command("serve", serve, USE, "Usage: ups serve RUN... [OPTIONS]")
