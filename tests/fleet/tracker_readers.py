"""What the trackers' own formats and readers say of a run."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BLOCK, HEADER = 32768, 7


@dataclass
class Shown:
    """A run as a tracker shows it: (step, value) by name of value, how it ended, and what goes along."""

    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    ending: str = ""
    code: int | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def csv_shown(folder: Path) -> Shown:
    shown = Shown()
    for path in sorted((folder / "csv").glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            shown.ending = row.get("ending") or shown.ending
            for name in (name for name in row if name not in ("step", "time", "ending", "cause")):
                if row[name] not in (None, ""):
                    shown.curves.setdefault(f"{path.stem}/{name}", []).append((int(row["step"]), _number(row[name])))
    return shown


def tensorboard_shown(folder: Path) -> Shown:
    """By TensorBoard's own EventAccumulator."""
    pytest.importorskip("tensorboard", reason="needs the `tensorboard` extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = Shown()
    places = {path.parent for path in (folder / "tensorboard").rglob("events.out.tfevents.*")}
    for place in sorted(places):
        events = EventAccumulator(str(place)).Reload()
        stage = "" if place.name == "tensorboard" else f"{place.name}/"
        for name in events.Tags()["scalars"]:
            points = [(row.step, row.value) for row in events.Scalars(name)]
            if stage:
                shown.curves[stage + name] = points
            else:
                shown.summary[name] = points[-1][1]
        for tag in events.Tags()["tensors"]:
            text = events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
            name = tag.removesuffix("/text_summary")
            shown.ending = text if name == "ending" else shown.ending
            if name in ("config", "labels"):
                setattr(shown, name, json.loads(text))
            if name.startswith("files/"):
                shown.files.append(name.removeprefix("files/"))
    return shown


def mlflow_shown(uri: str, id: str, project: str = "ups") -> Shown:
    """By MLflow's own client, in a process of its own, for it remembers what was there."""
    pytest.importorskip("mlflow", reason="needs the `mlflow` extra")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_mlflow_shown, (uri, id, project))


def _mlflow_shown(uri: str, id: str, project: str) -> Shown:
    """There must be exactly one run."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(project)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["ups.run"] == id
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return Shown(
        curves={name: [(m.step, m.value) for m in points] for name, points in histories.items()},
        ending=run.data.tags.get("ending", ""),
        code=None,
        summary=dict(run.data.metrics),
        config=dict(run.data.params),
        labels={**run.data.tags, "status": run.info.status, "name": run.info.run_name},
        files=[f.path for kind in ("report", "model") for f in client.list_artifacts(run.info.run_id, kind)],
    )


def wandb_shown(folder: Path) -> Shown:
    """By W&B's own records, of the one offline run in the folder."""
    pytest.importorskip("wandb", reason="needs the `wandb` extra")
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    shown = Shown()
    for data in wandb_records(path):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            shown.labels |= {"project": run.project, "group": run.run_group, "job_type": run.job_type, "id": run.run_id}
            shown.labels |= {"tags": list(run.tags), "name": run.display_name}
            shown.config |= {item.key: json.loads(item.value_json) for item in run.config.update}
        elif kind == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name in (name for name in row if not name.startswith("_") and not name.endswith("/step")):
                stage = name.partition("/")[0]
                shown.curves.setdefault(name, []).append((row[f"{stage}/step"], _number(row[name])))
        elif kind == "summary":
            for item in record.summary.update:
                shown.summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        elif kind == "artifact":
            shown.files += [entry.path for entry in record.artifact.manifest.contents]
        elif kind == "exit":
            shown.code = record.exit.exit_code
    shown.ending = str(shown.summary.get("ending", ""))
    return shown


def wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format behind a header of seven bytes."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + HEADER])
        parts += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):
            yield parts
            parts = b""


def _number(value: Any) -> Any:
    try:
        return float(value)
    except ValueError:
        return value
