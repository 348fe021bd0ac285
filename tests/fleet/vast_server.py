"""A server on this machine that answers Vast's client as Vast does, runs what is rented from it, and misbehaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ups_fleet.supervise.proc import end_all, owned

KEY = "planted-vast-key-93b1"
MARK = "UPS_TEST_MACHINE"


def offer(id: int, price: float, gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": id, "num_gpus": gpus, "gpu_name": "RTX 4090", "dph_total": price, "geolocation": "Sweden, SE"} | more


@dataclass
class Rented:
    """A machine: its row, and the processes of its script where it is really run."""

    row: dict[str, Any]
    folder: Path
    key: str
    script: str
    ends: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        path = self.folder / "container.log"
        return path.read_text(errors="replace") if path.exists() else str(self.row.get("log", ""))

    def pids(self) -> list[int]:
        return sorted(owned(MARK, str(self.folder)))


class Vast:
    """The state of the server. `faults`: for each kind of request what is answered in place of it, one after another: a
    status, seconds to wait, "after 500" (done, but 500 is answered), "done slowly" (answered after 12 s), "lie" (only
    said to be done), "nonsense"."""

    def __init__(self, folder: Path, *, really: bool = False, environment: dict[str, str] | None = None) -> None:
        self.folder, self.really, self.environment = folder, really, environment or {}
        self.offers = [offer(11, 0.5), offer(12, 0.4), offer(13, 0.9)]
        self.credit = 25.0
        self.states = ["loading", "running"]
        self.machines: dict[int, Rented] = {}
        self.gone: dict[int, Rented] = {}
        self.faults: dict[str, list[Any]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.variables: dict[str, str] = {}
        self.may_destroy = True
        self.wrap: list[str] = []
        self.up = True
        self.lock = threading.RLock()
        self.next = 7001
        self.ahead = 0.0  # seconds that its clock is ahead of this machine's
        self.pause: float = 0.3  # seconds from a stop to the end of a machine's processes

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.requests]

    def ends(self) -> list[str]:
        """Requests of machines to stop or destroy themselves that were accepted."""
        return [end for machine in (*self.machines.values(), *self.gone.values()) for end in machine.ends]

    def create(self, ask: int, body: dict[str, Any]) -> tuple[int, Any]:
        row = next((row for row in self.offers if row["id"] == ask), None)
        if row is None:
            return 404, {"success": False, "error": "no_such_ask", "msg": f"no_such_ask {ask} is not available."}
        if (body["runtype"], body["onstart"], body["args"][0]) != ("args", "bash", "-c"):
            return 400, {"success": False, "error": "invalid_args", "msg": "no script is given"}
        if self.credit <= 0:
            return 400, {"success": False, "error": "insufficient_credit", "msg": "Your account lacks credit."}
        id, self.next = self.next, self.next + 1
        self.offers.remove(row)
        instance = {"id": id, "label": body["label"], "dph_total": row["dph_total"], "storage_total_cost": 0.004}
        instance |= {"actual_status": None, "intended_status": "running", "status_msg": "", "extra_env": []}
        instance |= {"start_date": time.time(), "states": list(self.states), "image_uuid": body["image"]}
        folder = self.folder / f"machine-{id}"
        (folder / "root").mkdir(parents=True)
        script = body["args"][1]
        self.machines[id] = Rented(instance, folder, f"planted-container-key-{id}", script)
        if self.really:
            self.start(self.machines[id])
        return 200, {"success": True, "new_contract": id}

    def start(self, machine: Rented) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(machine.folder / "root"), "LANG": "C.UTF-8"}
        environment |= {"CONTAINER_ID": str(machine.row["id"]), "CONTAINER_API_KEY": machine.key}
        environment |= {"UPS_WORK": str(machine.folder / "root" / "ups"), MARK: str(machine.folder), **self.environment}
        with (machine.folder / "container.log").open("ab") as log:
            machine.process = subprocess.Popen(
                [*self.wrap, "bash", "-c", machine.script],
                env=environment,
                cwd=machine.folder / "root",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, id: int, state: str, by: Rented | None) -> None:
        """What becomes of a machine that was stopped or destroyed: its processes die a moment later."""
        machine = self.machines[id] if state == "stopped" else self.machines.pop(id)
        machine.row |= {"intended_status": "stopped", "states": []}
        machine.row["actual_status"] = machine.row["actual_status"] if self.really else "exited"
        if state != "stopped":
            self.gone[id] = machine
        if self.really:
            threading.Timer(self.pause, lambda: self.quiet(machine, asked=by is None)).start()

    def quiet(self, machine: Rented, asked: bool) -> None:
        """End the processes of a machine as Docker does: the first is asked, and has ten seconds."""
        if asked and machine.process is not None:
            machine.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                machine.process.wait(600)
        end_all(machine.pids)
        machine.row["actual_status"] = "exited"

    def look(self, machine: Rented) -> dict[str, Any]:
        """Its row now: each look takes it one state further."""
        if states := machine.row["states"]:
            machine.row["actual_status"] = states.pop(0) if len(states) > 1 else states[0]
        return {name: value for name, value in machine.row.items() if name != "states"}

    def answer(self, method: str, path: str, body: dict[str, Any], key: str) -> tuple[str, int, Any]:
        """The kind of a request, the status and the answer."""
        machine = next((m for m in self.machines.values() if m.key == key), None)
        if method == "GET" and path.startswith("/log/"):
            id = int(path.split("/")[2])
            return "log", 200, (self.machines.get(id) or self.gone[id]).log
        if path.startswith("/git/"):
            file = self.folder / path[1:]
            return "git", 200 if file.is_file() else 404, file.read_bytes() if file.is_file() else b""
        if path.endswith(("/gpu_names/unique/", "/gpu_types/")):
            return "names", 200, {"gpu_names": ["RTX 4090"], "gpu_types": []}
        if key != KEY and machine is None:
            return "key", 401, {"success": False, "error": "auth_error", "msg": "Invalid user key"}
        if path == "/api/v0/users/current":
            return "user", 200, {"id": 1, "credit": self.credit, "api_key": KEY}
        if path == "/api/v0/secrets/":
            return "secrets", 200, {"success": True, "secrets": self.variables}
        if path == "/api/v0/bundles/":
            return "offers", 200, {"offers": self._search(body)}
        if path.startswith("/api/v0/asks/"):
            return "create", *self.create(int(path.split("/")[4]), body)
        if path == "/api/v1/instances/":
            return "machines", 200, {"instances": [self.look(m) for m in self.machines.values()], "next_token": None}
        if path.startswith("/api/v0/instances/request_logs/"):
            return "logs", 200, {"success": True, "result_url": f"{self.url}/log/{path.split('/')[5]}"}
        if path in ("/api/v0/commands/rsync/", "/api/v0/commands/copy_direct/"):
            return "copy", 200, {"success": True, "src_addr": "127.0.0.1", "src_port": 22}
        if match := re.fullmatch(r"/api/v0/instances/(\d+)/", path):
            return self._instance(method, int(match[1]), machine)
        return "unknown", 404, {"success": False, "msg": f"{method} {path}"}

    def _search(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        """Offers within the bounds that the query has."""
        names = ("num_gpus", "dph_total", "gpu_ram")
        tests = [(name, bound, float(value)) for name in names for bound, value in query.get(name, {}).items()]
        holds = {"eq": lambda a, b: a == b, "lte": lambda a, b: a <= b, "gte": lambda a, b: a >= b}
        return [
            row for row in self.offers if all(holds[bound](row.get(name, 0), value) for name, bound, value in tests)
        ]

    def _instance(self, method: str, id: int, by: Rented | None) -> tuple[str, int, Any]:
        machine = self.machines.get(id)
        kind = {"GET": "machine", "PUT": "stop", "DELETE": "destroy"}[method] + (" itself" if by else "")
        if by is not None and (by is not machine or (method == "DELETE" and not self.may_destroy)):
            return kind, 403, {"success": False, "msg": "not permitted"}
        if machine is None:
            return (
                kind,
                404 if method != "GET" else 200,
                {"success": False, "instances": None, "msg": "no_such_instance"},
            )
        if method == "GET":
            return kind, 200, {"instances": self.look(machine)}
        fault = (self.faults.get(kind) or [None])[0]
        if fault is None or fault == "after 500":
            if by is not None:
                machine.ends.append(method)
            self.end(id, "stopped" if method == "PUT" else "destroyed", by)
        return kind, 200, {"success": True}

    def kind_of(self, method: str, path: str, key: str) -> str:
        if match := re.fullmatch(r"/api/v0/instances/(\d+)/", path):
            itself = " itself" if any(m.key == key for m in self.machines.values()) else ""
            return {"GET": "machine", "PUT": "stop", "DELETE": "destroy"}[method] + itself * bool(match)
        starts = {"/api/v0/users/": "user", "/api/v0/bundles": "offers", "/api/v0/asks/": "create"}
        starts |= {
            "/api/v1/instances": "machines",
            "/api/v0/instances/request_logs": "logs",
            "/api/v0/secrets": "secrets",
        }
        return next((kind for start, kind in starts.items() if path.startswith(start)), "other")

    url = ""


class Handler(BaseHTTPRequestHandler):
    vast: Vast

    def handle_one(self) -> None:
        vast, path = self.vast, urlsplit(self.path).path
        if not vast.up:
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        body = json.loads(raw) if raw else {}
        key = str(self.headers.get("Authorization") or "").removeprefix("Bearer ")
        with vast.lock:
            kind = vast.kind_of(self.command, path, key)
            fault = (vast.faults.get(kind) or [None])[0]
            vast.requests.append((kind, self.command, path))
        if isinstance(fault, float):
            vast.faults[kind].pop(0)
            time.sleep(fault)
            fault = None
        with vast.lock:
            if isinstance(fault, int):
                status, answer = fault, {"success": False, "msg": f"fault {fault}"}
            elif fault == "nonsense":
                status, answer = 200, "<html>"
            else:
                _, status, answer = vast.answer(self.command, path, body, key)
                status, answer = (500, {"msg": "late"}) if fault == "after 500" else (status, answer)
            if fault is not None:
                vast.faults[kind].pop(0)
        if fault == "done slowly":
            time.sleep(12.0)
        text = answer if isinstance(answer, str | bytes) else json.dumps(answer)
        content = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815

    def do_HEAD(self) -> None:
        """Whatever the path: the date is in the headers."""
        self.close_connection = True
        if self.vast.up:
            self.send_error(405)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.vast.ahead)

    def log_message(self, *words: object) -> None:
        """Nothing is printed."""


@contextmanager
def serving(vast: Vast, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """The server, until the block ends; what runs on its machines is ended then."""
    handler = type("Bound", (Handler,), {"vast": vast})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = True
        vast.url = f"http://127.0.0.1:{server.server_address[1]}"
        vast.environment["VAST_URL"] = vast.url
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            for machine in (*vast.machines.values(), *vast.gone.values()):
                end_all(machine.pids)
