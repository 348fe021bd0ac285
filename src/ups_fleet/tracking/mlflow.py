"""`mlflow`: a run of MLflow, on a server or, where none is named, as files in `mlflow` of the run's folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.error
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ups.parsing import flat
from ups.types import ConfigError
from ups_fleet.tracking.log_reader import LogRow
from ups_fleet.tracking.mirror import KILLED, Mirror, RunEnding
from ups_fleet.tracking.settings import TrackingConfig
from ups_fleet.web import FetchPace, WebRequest, opener

RUN, ROWS = "ups.run", "ups.rows"  # tags: the run's own id, and how many lines of its log are there
BATCH, LONG = 100, 5000  # what MLflow takes at once: parameters and tags; characters of each
ANSWER = 5.0  # seconds that a server has to say whether it lets us in
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}  # we try again ourselves
STATUS = {"SUCCESS": "FINISHED", **dict.fromkeys((KILLED, "INTERRUPTED", "PREEMPTED", "PAUSED"), "KILLED")}


@dataclass
class Mlflow(Mirror):
    """Numbers are metrics with the step of their stage, words are tags, the config is parameters.

    On a server a resumed run is found again by its tag `ups.run`, and the tag `ups.rows` says which lines of the log it
    holds; files in the run's folder are written anew.
    """

    client: Any = None
    id: str = ""
    first: int = 0  # the line that it lacks
    known: dict[str, set[tuple[int, int, str]]] = field(default_factory=dict)  # what may have come after that
    uncertain: bool = False
    name = "mlflow"
    package = "mlflow"

    @classmethod
    def require(cls, settings: TrackingConfig, say: Callable[[str], None]) -> None:
        super().require(settings, say)
        uri = uri_of(settings)
        if uri.startswith(("http://", "https://")):
            _require_login(uri, say)

    def open(self) -> None:
        facts = self.facts
        uri, own = uri_of(facts.settings), facts.folder / "mlflow"
        if not uri:  # a kill can leave files there that MLflow itself no longer reads, so they are written anew
            shutil.rmtree(own, ignore_errors=True)
            uri = own.resolve().as_uri()
        os.environ.update({name: value for name, value in PATIENCE.items() if name not in os.environ})
        if uri.startswith("file:") or "://" not in uri:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        self.client = import_module("mlflow").MlflowClient(tracking_uri=uri)
        run = self._run(self._experiment())
        self.id, self.first = run.info.run_id, int(run.data.tags.get(ROWS, 0))
        self.uncertain = True
        self.client.update_run(self.id, status="RUNNING")

    def send(self, rows: Sequence[LogRow]) -> None:
        kind = import_module("mlflow.entities")
        metrics, tags = [], {}
        for row in (row for row in rows if row.number >= self.first):
            for name, value in row.values.items():
                if isinstance(value, str):
                    tags[_named(name)] = value
                elif not self._has(name, value, row):
                    metrics.append(kind.Metric(_named(name), float(value), _stamp(row), row.step))
        self.uncertain, self.known = False, {}
        for piece in _pieces(metrics, 1000):
            self.client.log_batch(self.id, metrics=piece)
        if rows and rows[-1].number >= self.first:
            self._tag({**tags, ROWS: rows[-1].number + 1})

    def close(self, conclusion: RunEnding) -> None:
        summary = self.facts.summary(conclusion)
        self._tag({name: value for name, value in summary.items() if isinstance(value, str)})
        for name, value in summary.items():
            if not isinstance(value, str):
                self.client.log_metric(self.id, _named(name), value)
        for kind, paths in self.facts.products().items():
            for path in paths:
                self.client.log_artifact(self.id, str(path), kind)
        self.client.set_terminated(self.id, STATUS.get(conclusion.ending, "FAILED"))

    def _experiment(self) -> str:
        project = self.facts.settings.project
        there = self.client.get_experiment_by_name(project)
        return str(there.experiment_id if there is not None else self.client.create_experiment(project))

    def _run(self, experiment: str) -> Any:
        """The run of this run's id, made where there is none."""
        facts, settings = self.facts, self.facts.settings
        there = self.client.search_runs([experiment], f"tags.`{RUN}` = '{facts.id}'", max_results=1)
        if there and ROWS in there[0].data.tags:
            return there[0]
        tags = {RUN: facts.id, "job_type": settings.job_type, "mlflow.note.content": settings.notes}
        tags |= {"group": settings.group or "", **dict.fromkeys(settings.tags, "true")}
        run = there[0] if there else self.client.create_run(experiment, run_name=facts.name, tags=tags)
        self.id, kind = run.info.run_id, import_module("mlflow.entities")
        params = [kind.Param(_named(name), _text(value)) for name, value in flat(facts.config).items()]
        for piece in _pieces(params, BATCH):
            self.client.log_batch(self.id, params=piece)
        self.client.log_dict(self.id, facts.config, "config.yaml")
        self._tag(flat({"environment": facts.environment}))
        self._tag({ROWS: 0})  # the last word: all of this is there
        return self.client.get_run(self.id)

    def _tag(self, values: dict[str, Any]) -> None:
        kind = import_module("mlflow.entities")
        tags = [kind.RunTag(_named(name), _text(value)) for name, value in values.items()]
        for piece in _pieces(tags, BATCH):
            self.client.log_batch(self.id, tags=piece)

    def _has(self, name: str, value: float, row: LogRow) -> bool:
        """Whether a number came before a kill that left the tag behind; only the first rows can have."""
        if not self.uncertain:
            return False
        if name not in self.known:
            there = self.client.get_metric_history(self.id, _named(name))
            self.known[name] = {(metric.step, metric.timestamp, repr(float(metric.value))) for metric in there}
        return (row.step, _stamp(row), repr(float(value))) in self.known[name]


def uri_of(settings: TrackingConfig) -> str:
    """The server or store that the config or the environment names; empty for files in the run's folder."""
    return settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""


def _require_login(uri: str, say: Callable[[str], None]) -> None:
    """A ConfigError where a server refuses us; a sentence where it does not answer: that may change."""
    parts = urlsplit(uri)
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    body = json.dumps({"max_results": 1}).encode()
    address = f"{server}/api/2.0/mlflow/experiments/search"
    question = WebRequest(address, FetchPace(ANSWER), data=body, headers={"Content-Type": "application/json"})
    user = os.environ.get("MLFLOW_TRACKING_USERNAME") or parts.username
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD") or parts.password or ""
    if user:
        question.add_header("Authorization", "Basic " + b64encode(f"{user}:{password}".encode()).decode())
    elif token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        question.add_header("Authorization", f"Bearer {token}")
    try:
        opener().open(question).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise ConfigError(
                f"the MLflow server {server} refuses us ({error.code}); set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
            ) from None
    except (OSError, ValueError) as error:
        say(f"mlflow: {server} does not answer ({error}); the run goes on, and what it misses is sent later.")


def _named(name: str) -> str:
    """A name that MLflow allows."""
    return re.sub(r"[^\w\-. /:]", "_", name)[:250]


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:LONG]


def _stamp(row: LogRow) -> int:
    return round(row.time * 1000)


def _pieces(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
