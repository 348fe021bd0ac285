"""The run directory: the only file that knows paths; refuses to mix two runs, and says how a run ended."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml

from ups import __version__
from ups.config import Config, dump, fingerprint
from ups.files import write_atomic
from ups.types import ConfigError, DataError, UpsError

Verdict = Literal["SUCCESS", "FAILED", "INTERRUPTED"]
PACKAGES = ("torch", "numpy", "scipy", "h5py", "safetensors", "pydantic", "neuraloperator")


class RunDir:
    """A folder that explains itself: config, environment, logs, checkpoints, artifacts, report, results, verdict.

    As a context it holds a lock, so that two processes never write one run. It ends with a verdict: SUCCESS only
    where `succeed` was called, FAILED or INTERRUPTED with the cause otherwise.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.environment = folder / "environment.json"
        self.log = folder / "log.jsonl"
        self.metrics = folder / "metrics.jsonl"
        self.report = folder / "report.html"
        self.results = folder / "results.json"
        self.stages = folder / "stages.json"
        self.statistics = folder / "statistics.json"
        self.job = folder / ".job.yaml"  # the config as this start was asked for it, which may differ in its ranks
        self.verdict = folder / "verdict.json"
        self._lock: int | None = None

    @classmethod
    def open(cls, folder: Path, config: Config, *, resume: bool = False, overwrite: bool = False) -> RunDir:
        """A new run's folder, or with `resume` the same run's again, or with `overwrite` an old one emptied."""
        if resume and overwrite:
            raise ConfigError("resume and overwrite exclude each other; give one of them.")
        run = cls(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run._hold()
            run._begin(config, resume, overwrite)
        except OSError as error:
            run.close()
            raise DataError(f"{folder}: cannot be used as a run folder ({error.strerror}); choose another.") from None
        except UpsError:
            run.close()
            raise
        return run

    @classmethod
    def at(cls, folder: Path) -> RunDir:
        """An existing run's folder, to read from."""
        run = cls(folder)
        if not run.config.is_file():
            raise DataError(f"{folder}: is not a run folder (it has no config.yaml); check the path.")
        return run

    def checkpoints(self, stage: str) -> Path:
        """Where a stage keeps its checkpoints."""
        return self.folder / "checkpoints" / stage

    def artifact(self, name: str) -> Path:
        """What a stage leaves behind: `codec`, `operator`, …, and `simulator`, which is what is loaded and served."""
        return self.folder / "artifacts" / f"{name}.safetensors"

    def cache(self, name: str) -> Path:
        """What can be made again: data and latents."""
        return self.folder / "cache" / name

    def write(self, path: Path, values: Mapping[str, Any]) -> None:
        """A JSON file of this run, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(values, indent=2, ensure_ascii=False, default=str) + "\n")

    def read(self, path: Path) -> dict[str, Any]:
        """A JSON file of this run; a DataError where it is missing or damaged."""
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); the run has not come that far, --resume it.") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}: holds no facts of a run, so it is damaged; --resume the run to write it again.")
        return found

    def succeed(self, **facts: Any) -> None:
        """The last act of a run whose artifacts are written."""
        self._conclude("SUCCESS", facts)

    def ended(self) -> Verdict | None:
        """How the run ended; None while it has not, or if it was killed."""
        return _read(self.verdict).get("verdict")

    def known(self) -> str | None:
        """The fingerprint of the config that the run was begun with."""
        return _read(self.environment).get("fingerprint")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is not None:
                ending: Verdict = "INTERRUPTED" if isinstance(error, KeyboardInterrupt) else "FAILED"
                self._conclude(ending, {"cause": f"{type(error).__name__}: {error}"})
            elif self.ended() is None:
                self._conclude("FAILED", {"cause": "the run ended without saying that it succeeded"})
        finally:
            self.close()

    def _conclude(self, verdict: Verdict, facts: Mapping[str, Any]) -> None:
        self.write(self.verdict, {"verdict": verdict, "time": _now(), **facts})

    def _hold(self) -> None:
        """An exclusive lock that the system releases when the process ends, however it ends."""
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.folder}: another process is writing this run; wait for it or stop it.") from None

    def _begin(self, config: Config, resume: bool, overwrite: bool) -> None:
        held = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        known = self.known()
        if held and known is None and held != [self.config.name]:  # a kill may have left the config alone
            raise ConfigError(f"{self.folder}: holds files and is not a run folder; choose another name or folder.")
        if known is not None and not overwrite:
            self._check(config, known, resume)
            self.verdict.unlink(missing_ok=True)
            return
        for name in held:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        write_atomic(self.config, dump(config))
        self.write(self.environment, {"fingerprint": fingerprint(config), **environment()})

    def _check(self, config: Config, known: str, resume: bool) -> None:
        if known != fingerprint(config):
            differ = _differences(yaml.safe_load(self.config.read_text()) or {}, yaml.safe_load(dump(config)) or {})
            what = f" ({', '.join(differ[:3])}{', …' if len(differ) > 3 else ''})" if differ else ""
            raise ConfigError(
                f"{self.folder}: holds a run with another config{what}; resume it with its own config, "
                "overwrite it, or choose another name."
            )
        if not resume:
            state = "a finished run" if self.ended() == "SUCCESS" else "an unfinished run"
            raise ConfigError(f"{self.folder}: holds {state} with this config; --resume it, --overwrite it, or rename.")


def environment() -> dict[str, Any]:
    """What a number depends on beside the config: versions, machine, device, git state."""
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "started": _now(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {
            "ups": __version__,
            "python": platform.python_version(),
            **{n: v for n, v in versions.items() if v},
        },
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": _device(),
        "git": _git(),
    }


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit of the current folder and whether anything differs from it; None where there is no repository."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _differences(old: Any, new: Any, at: str = "") -> list[str]:
    """`key: old → new` for every key that differs, dotted."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [d for key in keys for d in _differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))]
    return [] if old == new else [f"{at}: {old} → {new}"]
