"""Runs the official `vastai` client as a program, and interprets its answers and its failures."""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import shutil
import sys
import time
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.types import ConfigError
from ups_fleet.supervise.children import UnansweredError, ask
from ups_fleet.web import FetchPace, WebRequest, opener

# As a program, not as a library: its releases pin exact versions of packages that a run needs in other ones, and its
# commands have stayed what they are while its modules were moved.
VARIABLE = "UPS_VASTAI"
INSTALL = "install it apart (`pipx install vastai`), or set UPS_VASTAI to the program"
PATIENCE = 115.0  # seconds of one command
MOST = 20_000_000  # characters of an answer
HOURS = 730.0  # of a month
SERVER = "https://console.vast.ai"
TRIES, PAUSE, CLOCK = 3, 1.0, 30.0  # times that the clock is asked for, seconds in between, and for an answer
MONEY = ("credit", "balance", "funds", "payment")


class VastError(ConfigError):
    """Vast has refused, or has not answered. `certain`: what was asked for was not done."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status

    @property
    def certain(self) -> bool:
        return 400 <= self.status < 500 and self.status not in (408, 429)

    @property
    def key(self) -> bool:
        """Whether it is the key that was refused."""
        return self.status in (401, 403)

    @property
    def money(self) -> bool:
        """Whether the account cannot pay."""
        return self.status == 402 or (self.certain and any(word in str(self).lower() for word in MONEY))


class NotOursError(VastError):
    """A machine carries the label of something else: it is not to be touched."""


@dataclass(frozen=True)
class Machine:
    """One rented machine, as Vast describes it now."""

    id: int
    label: str
    state: str
    """What its container does: loading, running, exited, offline … ; empty where nobody knows yet."""
    wanted: str
    """What Vast means to do with it: running or stopped."""
    message: str
    price: float
    """Dollars an hour while it runs."""
    disk_price: float
    """Dollars an hour for its disk, also while it is stopped."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Machine:
        return cls(
            id=int(row["id"]),
            label=str(row.get("label") or ""),
            state=str(row.get("actual_status") or ""),
            wanted=str(row.get("intended_status") or ""),
            message=" ".join(str(row.get("status_msg") or "").split())[:200],
            price=float(row.get("dph_total") or 0.0),
            disk_price=float(row.get("storage_total_cost") or _monthly(row) / HOURS),
        )

    @property
    def stopped(self) -> bool:
        """Whether its container stands still, for good."""
        return self.wanted == "stopped" and self.state != "running"


class Client:
    """The commands of `vastai` that a launch needs. The key is the client's own affair: it finds it by itself."""

    def user(self) -> dict[str, Any]:
        """The account."""
        return self._object(self._ask("show", "user"), "show user")

    def now(self) -> float:
        """Seconds since 1970 by Vast's own clock, which all computers that rent and reap have in common. The client
        shows only what this computer's clock makes of it."""
        url = f"{(os.environ.get('VAST_URL') or SERVER).rstrip('/')}/api/v0/"
        for number in range(1, TRIES + 1):
            try:
                return _date(url)
            except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
                if number == TRIES:
                    words = " ".join(str(error).split())[:120]
                    raise VastError(f"Vast does not say what time it is ({words}); ask again later.") from None
                time.sleep(PAUSE)
        raise AssertionError

    def variables(self) -> set[str]:
        """Names of the environment variables that the account gives its machines; their values are not asked for."""
        return set(self._object(self._ask("show", "env-vars"), "show env-vars"))

    def offers(self, query: str, disk: float, most: int) -> list[dict[str, Any]]:
        """Machines for rent that satisfy a query, the cheapest first."""
        words = ["search", "offers", query, "--order", "dph_total", "--limit", str(most), "--storage", f"{disk:g}"]
        return self._rows(self._ask(*words), "search offers")

    def create(self, offer: int, image: str, disk: float, label: str, script: str) -> int:
        """Rent a machine: its id. Asked once only: a second try of the client could rent a second machine. The script
        is the container's own process: all it prints is in `vastai logs`, and a stop is a signal to it."""
        words = ["create", "instance", str(offer), "--image", image, "--disk", f"{disk:g}", "--label", label]
        last = ("--args", "-c", script)
        answer = self._object(
            self._ask(*words, "--cancel-unavail", "--onstart-cmd", "bash", retry=1, last=last), "create instance"
        )
        if not answer.get("success") or not isinstance(answer.get("new_contract"), int):
            status = 400 if answer.get("success") is False else 0
            raise VastError(f"Vast rents no machine: {_message(answer)}", status)
        return int(answer["new_contract"])

    def machines(self) -> list[Machine]:
        """All machines of the account."""
        return [Machine.of(row) for row in self._rows(self._ask("show", "instances"), "show instances")]

    def machine(self, id: int) -> Machine | None:
        """One of them; None where it is no more."""
        try:
            row = self._object(self._ask("show", "instance", str(id)), "show instance")
        except VastError as error:
            if error.status == 404:
                return None
            raise
        return Machine.of(row) if row.get("id") else None

    def shown(self, id: int) -> Machine | None:
        """One of them, by its own page or by the list; None where neither has it."""
        return self.machine(id) or next((machine for machine in self.machines() if machine.id == id), None)

    def stop(self, id: int) -> None:
        """Stop a machine: its disk stays, and is paid for."""
        self._ask("stop", "instance", str(id), parse=False)

    def destroy(self, id: int) -> None:
        """Give a machine back, with its disk. The client says nothing of success: look whether it is gone."""
        self._ask("destroy", "instance", str(id), "--yes", parse=False)

    def logs(self, id: int, lines: int) -> str:
        """The last lines that a machine has printed."""
        return str(self._ask("logs", str(id), "--tail", str(lines), parse=False))

    def copy(self, id: int, path: str, folder: Path) -> None:
        """Copy a folder of a machine to one here, by rsync; the client says nothing of success: count what came."""
        if not shutil.which("rsync"):
            raise VastError("rsync is not installed here, and the files of a machine are copied by it; install it.")
        self._ask("copy", f"C.{id}:{path}", f"local:{folder}", parse=False, patience=3600.0)

    def _ask(
        self, *words: str, retry: int = 3, parse: bool = True, patience: float | None = None, last: tuple[str, ...] = ()
    ) -> Any:
        """What the client answers to a command: JSON, or text where it has no other form. `--raw` also keeps it from
        saying how a refused key ends."""
        patience = PATIENCE if patience is None else patience
        command = [*program(), *words, "--retry", str(retry), "--raw", *last]
        environment = {**os.environ, "VASTAI_NO_UPDATE_CHECK": "1", "PYTHONUTF8": "1"}
        try:
            done = ask(command, patience, env=environment)
        except UnansweredError:
            raise VastError(f"Vast has not answered `vastai {words[0]} {words[1]}` within {patience:.0f} s.") from None
        except OSError as error:
            raise ConfigError(f"{command[0]}: cannot be run ({error.strerror}); {INSTALL}.") from None
        text = done.stdout[:MOST]
        self._raise(done.stderr, done.returncode, f"vastai {words[0]} {words[1]}")
        if not parse:
            return text
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError:
            line = " ".join(text.split())[:120]
            raise VastError(f"`vastai {words[0]} {words[1]}` answers what is no JSON: {line}") from None

    def _raise(self, problem: str, code: int, command: str) -> None:
        """A VastError for what the client complains of: an error of HTTP is JSON on stderr, and its exit code is 0."""
        lines = [line for line in problem.splitlines() if line.strip()]
        for line in reversed(lines):
            try:
                error = json.loads(line)
            except ValueError:
                continue
            if isinstance(error, dict) and error.get("error"):
                raise refusal(int(error.get("status_code") or 0), str(error.get("msg") or ""), command)
        if code:
            last = " ".join(lines[-1].split())[:160] if lines else f"exit code {code}"
            raise VastError(f"`{command}` has failed: {last}")

    @staticmethod
    def _object(answer: Any, command: str) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise VastError(f"`vastai {command}` answers {type(answer).__name__}, not an object.")
        return answer

    @staticmethod
    def _rows(answer: Any, command: str) -> list[dict[str, Any]]:
        if not isinstance(answer, list) or not all(isinstance(row, dict) and row.get("id") for row in answer):
            raise VastError(f"`vastai {command}` answers no list of rows with ids.")
        return answer


def _date(url: str) -> float:
    """When a server has answered, by its own clock; whatever it answers."""
    try:
        with opener().open(WebRequest(url, FetchPace(CLOCK), method="HEAD")) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    return email.utils.parsedate_to_datetime(headers["Date"]).timestamp()


def refusal(status: int, message: str, command: str) -> VastError:
    """What an answer of the server means, in one sentence."""
    if status in (401, 403):
        remedy = "Set VAST_API_KEY, or run `vastai set api-key`; keys are made at https://console.vast.ai/manage-keys/."
        return VastError(f"Vast accepts no key of yours ({status}). {remedy}", status)
    detail = " ".join(message.split())[:160] or "no reason is given"
    return VastError(f"Vast answers {status or 'nothing'} to `{command}`: {detail}", status)


def program() -> list[str]:
    """The client's program; a ConfigError where there is none."""
    name = os.environ.get(VARIABLE) or shutil.which("vastai") or str(Path(sys.executable).with_name("vastai"))
    if not shutil.which(name):
        raise ConfigError(f"the engine vast needs Vast's own client, and {name} is not there; {INSTALL}.")
    return [name]


def _monthly(row: dict[str, Any]) -> float:
    """Dollars a month for the disk of a machine, from its size and the price of a GB."""
    return float(row.get("storage_cost") or 0.0) * float(row.get("disk_space") or 0.0)


def _message(answer: dict[str, Any]) -> str:
    """What an answer says of itself; the rest of it may hold the key of a machine."""
    return " ".join(str(answer.get("msg") or answer.get("error") or "no reason is given")[:160].split())
