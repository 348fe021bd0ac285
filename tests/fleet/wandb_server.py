"""As much of a W&B server as `wandb sync` and an online run need: it remembers what it is sent."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """One run, as it was received: rows by their offset, summary, exit code, what else was asked for."""

    url: str = ""
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)  # name, group, config, …
    exits: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of runs
    artifacts: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def answer(self, path: str, body: Any) -> Any:
        if path.endswith("/file_stream"):
            return self._stream(body)
        question, variables = body.get("query", ""), body.get("variables") or {}
        if "upsertBucket" in question:
            self.names.add(variables["name"])
            self.run |= {key: value for key, value in variables.items() if value is not None}
            return {"upsertBucket": {"bucket": self._bucket(), "inserted": not self.rows}}
        if "RunResumeStatus" in question:
            return {"model": {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}, "bucket": self._bucket()}}
        if "createArtifact(" in question:
            self.artifacts.append(variables["input"]["artifactTypeName"])
            made = {"id": "A", "state": "COMMITTED", "artifactSequence": {"id": "S", "latestArtifact": None}}
            return {"createArtifact": {"artifact": made}}
        if "createRunFiles(" in question:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}
        if "viewer" in question:
            return {"viewer": {"id": "u", "username": "me", "entity": "me", "teams": {"edges": []}, "flags": "{}"}}
        return {"project": None}

    def _stream(self, body: Any) -> Any:
        files = body.get("files") or {}
        history = files.get("wandb-history.jsonl")
        if history:
            for number, line in enumerate(history["content"], history["offset"]):
                self.rows[number] = json.loads(line)
        if "wandb-summary.json" in files:
            self.summary = json.loads(files["wandb-summary.json"]["content"][-1])
        if body.get("complete"):
            self.exits.append(body["exitcode"])
        return {}

    def _bucket(self) -> dict[str, Any]:
        tail = [json.dumps(self.rows[max(self.rows)])] if self.rows else []
        return {
            "id": "QnVja2V0",
            "name": self.run.get("name", "none"),
            "displayName": "shown",
            "config": self.run.get("config", "{}"),
            "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(self.rows),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "tags": [],
            "wandbConfig": '{"t": 1}' if self.names else "{}",  # whether it has begun
            "project": {"id": "p", "name": self.run.get("project", "p"), "entity": {"id": "e", "name": "me"}},
        }


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a port of its own while the block runs."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            state.files[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            known = self.path == "/graphql" or self.path.endswith("/file_stream")
            answer = state.answer(self.path, json.loads(body)) if known else {}
            data = json.dumps({"data": answer} if self.path == "/graphql" else answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()
