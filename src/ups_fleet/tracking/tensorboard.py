"""`tensorboard`: event files in `tensorboard/<stage>`, for `tensorboard --logdir <run>/tensorboard`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ups_fleet.tracking.log_reader import WHOLE_RUN, LogRow
from ups_fleet.tracking.mirror import Mirror, RunEnding

PATTERN = "events.out.tfevents.*"


@dataclass
class TensorBoard(Mirror):
    """Numbers become scalars and words become texts, a run of TensorBoard for each stage; config, machine, summary and
    ending are texts and scalars of the whole run."""

    files: dict[str, _EventFile] = field(default_factory=dict)
    old: list[Path] = field(default_factory=list)
    name = "tensorboard"
    package = "tensorboard"

    @property
    def place(self) -> Path:
        return self.facts.folder / "tensorboard"

    def open(self) -> None:
        self.old = [path for path in self.place.rglob(PATTERN) if path.is_file()]
        settings, facts = self.facts.settings, self.facts
        labels = {key: getattr(settings, key) for key in ("project", "group", "job_type", "tags", "notes")}
        about = {"config": facts.config, "environment": facts.environment, "labels": labels}
        for name, values in about.items():
            self._file(WHOLE_RUN).text(name, _block(values), 0, time.time())
        self._file(WHOLE_RUN).flush()

    def send(self, rows: Sequence[LogRow]) -> None:
        for row in rows:
            for stage, named in row.by_stage().items():
                self._file(stage).add(named, row.step, row.time)
        for file in self.files.values():
            file.flush()

    def settle(self) -> None:
        for path in self.old:
            path.unlink(missing_ok=True)

    def close(self, conclusion: RunEnding) -> None:
        file = self._file(WHOLE_RUN)
        file.add(self.facts.summary(conclusion), 0, time.time())
        for paths in self.facts.products().values():
            for path in paths:
                file.text(f"files/{path.name}", str(path), 0, time.time())
        for file in self.files.values():
            file.close()

    def _file(self, stage: str) -> _EventFile:
        if stage not in self.files:
            folder = self.place if stage == WHOLE_RUN else self.place / stage
            self.files[stage] = _EventFile(folder)
        return self.files[stage]


class _EventFile:
    """A new event file in a folder. A TensorBoard that is looking on forgets what older files there have said."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.event = import_module("tensorboard.compat.proto.event_pb2")
        self.summary = import_module("tensorboard.compat.proto.summary_pb2")
        writer = import_module("tensorboard.summary.writer.record_writer")
        name = f"events.out.tfevents.{time.time_ns() // 1000:020d}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / name).open("xb")
        self.writer = writer.RecordWriter(self.file)
        self._put(time.time(), file_version="brain.Event:2")
        start = self.event.SessionLog(status=self.event.SessionLog.START)
        self._put(time.time(), step=0, session_log=start)

    def add(self, named: Mapping[str, float | str], step: int, at: float) -> None:
        """Numbers as scalars, words as texts."""
        for name, value in named.items():
            if isinstance(value, str):
                self.text(name, value, step, at)
            else:
                self._summary(self.summary.Summary.Value(tag=name, simple_value=float(value)), step, at)

    def text(self, name: str, words: str, step: int, at: float) -> None:
        tensors = import_module("tensorboard.util.tensor_util")
        kind = import_module("tensorboard.plugins.text.metadata")
        tag = f"{name}/text_summary"
        about = kind.create_summary_metadata(display_name=name, description="")
        tensor = tensors.make_tensor_proto([words.encode()])
        self._summary(self.summary.Summary.Value(tag=tag, metadata=about, tensor=tensor), step, at)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()

    def _summary(self, value: Any, step: int, at: float) -> None:
        self._put(at, step=step, summary=self.summary.Summary(value=[value]))

    def _put(self, at: float, **content: Any) -> None:
        self.writer.write(self.event.Event(wall_time=at, **content).SerializeToString())


def _block(values: Mapping[str, Any]) -> str:
    """Values as a block of code, which TensorBoard shows as it is."""
    lines = json.dumps(values, indent=2, ensure_ascii=False, default=str).splitlines()
    return "\n".join("    " + line for line in lines)
