"""TrackingConfig: where a run is shown beside its log, and under which names."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ups.config import Config


def is_folder(uri: str) -> bool:
    """Whether MLflow takes an address for a folder of this machine: it names no kind of store."""
    return uri != "databricks" and re.match(r"[A-Za-z][\w+.-]*:", uri) is None


class TrackingConfig(Config):
    """Other places that show the log. `tracking: [tensorboard, wandb]` is short for the key `to`."""

    located: ClassVar = {"uri": is_folder}

    to: tuple[Annotated[str, Field(pattern=r"^[a-z]\w*$")], ...] = ()
    """Where else the log is shown: csv, tensorboard, wandb, mlflow. metrics.jsonl is always written and is the
    original."""
    project: str = Field(default="ups", min_length=1)
    """The project (W&B) or experiment (MLflow)."""
    entity: str | None = None
    """The team or user (W&B); your own by default."""
    group: str | None = None
    """A name shared by runs that belong together."""
    job_type: str = "train"
    """What the run does, to tell it from others in its group."""
    tags: tuple[str, ...] = ()
    """Words by which to find the run."""
    notes: str = ""
    """A sentence on what this run tries."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """W&B: online, offline (files in the run's folder, for `wandb sync`), or auto: online where there is a login."""
    uri: str | None = None
    """MLflow: the server, store or folder; by default MLFLOW_TRACKING_URI, else files in the run's folder."""
    attach: bool = True
    """Whether the report, the results and the simulator are uploaded too."""
    wait: float = Field(default=10.0, ge=0, le=3600)
    """Seconds that a run waits at its end for trackers to receive everything; `ups track RUN` sends the rest later."""

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = [given]
        return {"to": given} if isinstance(given, list | tuple) else given

    @field_validator("to")
    @classmethod
    def _once(cls, to: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(to))

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        stored = uri is None or uri.startswith(("/", ".", "file:", "sqlite:"))
        if not stored and uri is not None and ("@" in uri or "?" in uri):
            raise ValueError(
                "uri may hold a password or a token (it has a '@' or a '?'), which would be written into the run's "
                "folder; give it as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            )
        return uri
