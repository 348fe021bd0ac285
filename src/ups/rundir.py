"""RunDir: the folder of a run and all its paths. Refuses to mix two runs, and records how each run ended."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from ups.config import Config, dump, fingerprint, from_here, incidental_keys
from ups.files import foreign_in, laid_by_another, one_line, write_atomic
from ups.parsing import parse_yaml, read_json, read_record, read_text
from ups.presence import hold, release
from ups.provenance import environment
from ups.run_files import CONFIG, ENVIRONMENT, JOB, LOCK, REPORT, RESULTS, TRAJECTORIES, VERDICT
from ups.types import ConfigError, DataError, UpsError
from ups.verdict import FAILING, FINISHED, Ending, StorageError, Verdict

DEEPEST = 20  # folders below each other in a run's


class RunPlace:
    """A folder as this process has found it: another one of its name is not taken for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._status = folder, folder.stat()

    def require(self) -> None:
        """A StorageError where the folder was moved or removed."""
        try:
            same = os.path.samestat(self.folder.stat(), self._status)
        except OSError:
            same = False
        if not same:
            raise StorageError(
                f"{self.folder}: was moved or removed while the run wrote to it; put it back in its place and --resume."
            )


class RunDir(AbstractContextManager["RunDir"]):
    """A folder that explains itself: config, environment, logs, checkpoints, artifacts, report, results, verdict.

    As a context it holds a lock, so that two processes never write one run. It ends with a verdict: SUCCESS only
    where `succeed` was called, otherwise what the exception means that left the block.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / CONFIG
        self.environment = folder / ENVIRONMENT
        self.metrics = folder / "metrics.jsonl"
        self.report = folder / REPORT
        self.results = folder / RESULTS
        self.trajectories = folder / TRAJECTORIES  # the error on each test trajectory
        self.stages = folder / "stages.json"
        self.statistics = folder / "statistics.json"  # of the training data
        self.data = folder / "data.json"  # what its data files hold
        self.phases = folder / "phases.json"  # seconds of each part of the run
        self.journal = folder / "phases.jsonl"  # what was begun, ended or skipped, and when; only ever appended to
        self.verdict = folder / VERDICT
        self.logs = folder / "logs"
        self.profile = folder / "profile"  # STAGE/rank-R.json: traces of a few steps
        self.ledger = folder / "ledger.json"  # what the next starts of the ranks must keep to
        self.job = folder / JOB  # the config as this start was asked for it, which may differ in its ranks
        self.success = folder / ".success.json"  # rank 0: everything is written and verified
        self.hashes = folder / ".hashes.json"  # of data files that nobody has touched since
        # What all runs of a folder share: the hashes of data files, and what was found in them.
        self.shared_hashes, self.known_data = folder.parent / ".hashes.json", folder.parent / ".known_data.json"
        self.reserve = folder / ".reserve"  # room that the verdict takes on a full disk
        self.lock = folder / LOCK
        self.differences: list[str] = []  # in which the config of this start differs from that of the ones before
        self._former = b""  # the verdict of a run that was complete when it was opened
        self.secret = folder / ".secret"  # by which machines that run it together know each other
        self._lock: int | None = None

    @classmethod
    def open(
        cls, folder: Path, config: Config, *, resume: bool = False, overwrite: bool = False, force: bool = False
    ) -> RunDir:
        """A new run's folder, or with `resume` the same run's again, or with `overwrite` an old one emptied.

        `force`: resumed also with a config that differs, where that changes nothing of what is learnt.
        """
        run = cls(one_line(folder))
        if resume and overwrite:
            raise ConfigError("resume and overwrite exclude each other; give one of them.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run._hold()
            if not overwrite:
                run.require_own_files()
            run._begin(config, resume, overwrite, force)
        except OSError as error:
            run.close()
            remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another"
            remedy = "mount it again, or choose another" if error.errno in FAILING else remedy
            raise DataError(f"{folder}: cannot be used as a run folder ({error.strerror}); {remedy}.") from None
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

    def checkpoints(self, stage: str = "") -> Path:
        """The folder of a stage's checkpoints; without a name, of those of all stages."""
        return self.folder / "checkpoints" / stage

    def artifact(self, name: str) -> Path:
        """What a stage leaves behind: `codec`, `operator`, …, and `simulator`, which is what is loaded and served."""
        return self.folder / "artifacts" / f"{name}.safetensors"

    def cache(self, name: str) -> Path:
        """What can be made again: data and latents."""
        return self.folder / "cache" / name

    def tracking(self, name: str) -> Path:
        """What the courier keeps: for each mirror how far it has come, its lock, and what its library printed."""
        return self.folder / "tracking" / name

    def sync(self, name: str) -> Path:
        """What is known of the copy of this run in a store."""
        return self.folder / "sync" / name

    def attempt_logs(self, number: int) -> Path:
        """The folder for the logs of one start of the ranks."""
        return self.logs / f"attempt-{number}"

    def attempts(self) -> dict[int, Path]:
        """The log folders of all starts of the ranks so far, by number."""
        numbers = {path.name.removeprefix("attempt-"): path for path in self.logs.glob("attempt-*")}
        return {int(number): path for number, path in numbers.items() if number.isdecimal()}

    def stays(self, node: int) -> Path:
        """How long the ranks of a node stayed in the phases that come once, for the limits of later starts."""
        return self.logs / f"stays-{node}.json"

    def node_verdict(self, node: int | str) -> Path:
        """Where a node other than the first writes why it left for good; `*` for the pattern of all."""
        return self.folder / f".node-{node}.json"

    def node_verdicts(self) -> list[Path]:
        """What the nodes that left for good have written."""
        return sorted(self.folder.glob(self.node_verdict("*").name))

    def prepared(self, group: str) -> Path:
        """Rank 0 has made the data. Named by the group of ranks of one start."""
        return self.folder / f".prepared-{group}"

    def forget_prepared(self) -> None:
        """Remove the marks of earlier starts."""
        for mark in self.folder.glob(self.prepared("*").name):
            mark.unlink(missing_ok=True)

    def write(self, path: Path, values: Mapping[str, Any]) -> None:
        """A JSON file of this run, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(values, indent=2, ensure_ascii=False, default=str) + "\n")

    def read(self, path: Path) -> dict[str, Any]:
        """A JSON file of this run; a DataError where it is missing or damaged."""
        try:
            return read_record(path)
        except FileNotFoundError:
            raise DataError(f"{path}: is not there; the run has not come that far, --resume it.") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: is damaged ({error}); --resume the run to write it again.") from None

    def succeed(self, ending: Ending = Ending.SUCCESS, cause: str = "done.", **facts: Any) -> None:
        """The last act of a run that has done all it was asked for; `ending` says what came of it."""
        Verdict(ending, cause, facts=facts).write(self.verdict)
        self.stay_complete(ending)

    def stage_facts(self) -> dict[str, Any]:
        """What the training of each stage has left; nothing before the first."""
        return dict(self.read(self.stages)) if self.stages.is_file() else {}

    def stay_complete(self, ending: Ending) -> None:
        """A run that was complete is so still after a command that was refused, or was to end before the last phase."""
        if self._former and ending in (Ending.PAUSED, Ending.USER):
            write_atomic(self.verdict, self._former)

    def ended(self) -> Ending | None:
        """How the run ended; None while it has not, or if it was killed."""
        verdict = Verdict.read(self.verdict)
        return verdict.ending if verdict else None

    def known(self) -> str | None:
        """The fingerprint of the config that the run was begun with."""
        return str(read_json(self.environment).get("fingerprint") or "") or None

    def was(self, config: str | None) -> bool:
        """Whether a fingerprint is that of the config, or of one that the run had before `force` replaced it; what was
        learnt with either is the same."""
        former = read_json(self.environment).get("former")
        return config == self.known() or (isinstance(former, list) and config in former)

    def is_of(self, config: Config) -> bool:
        """Whether the run was begun with this config, whatever its name was then; its own config, in which that
        stands, counts unless someone has changed it since."""
        facts, today = read_json(self.environment), fingerprint(config)
        if facts.get("fingerprint") in {None, today}:
            return facts.get("fingerprint") == today
        try:
            unchanged = facts.get("config") == _digest(read_text(self.config))
            written = from_here(type(config), self.written(), self.config)
            written |= config.model_dump(mode="json", include=set(config.names))
            return unchanged and fingerprint(type(config).model_validate(written)) == today
        except (UpsError, OSError, ValueError):  # it is damaged
            return False

    def copies(self, folder: Path, stage: str) -> Path:
        """Where in another folder the second copies of a stage's checkpoints lie; no other run's are ever found there.

        A run that is overwritten is another run.
        """
        return folder / f"{self.folder.name}-{read_json(self.environment).get('run', '')}" / stage

    def close(self) -> None:
        if self._lock is not None:
            release(self._lock)
            self._lock = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is not None:
                with contextlib.suppress(OSError):  # the error itself says more than that the disk takes no verdict
                    Verdict.of(error).write(self.verdict)
            elif self.ended() is None:
                cause = "the run ended without saying that it succeeded"
                Verdict(Ending.RANK_DIED, cause).write(self.verdict)
        finally:
            self.close()

    def _hold(self) -> None:
        """An exclusive lock that the system releases when the process ends, however it ends."""
        if laid_by_another(self.folder):
            raise DataError(f"{self.folder}: another user has made it where anyone could; choose another name.")
        self._lock = hold(self.lock)

    def _begin(self, config: Config, resume: bool, overwrite: bool, force: bool) -> None:
        names = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        known = self.known()
        if {self.config.name, self.environment.name} <= {*names} and not known and not overwrite:
            raise DataError(f"{self.environment}: does not say what was begun here; put it back, or --overwrite it.")
        if names and known is None and names != [self.config.name]:  # a kill may have left the config alone
            raise ConfigError(f"{self.folder}: holds files and is not a run folder; choose another name or folder.")
        if known is not None and not overwrite:
            self._check(config, resume, force)
            if self.ended() in FINISHED:
                self._former = self.verdict.read_bytes()
            self.verdict.unlink(missing_ok=True)
            return
        for path in (path for path in self.folder.iterdir() if path != self.lock):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        text = dump(config)
        write_atomic(self.config, text)
        facts = {"fingerprint": fingerprint(config), "config": _digest(text), "run": uuid.uuid4().hex[:12]}
        self.write(self.environment, {**facts, **environment()})

    def require_own_files(self) -> None:
        """A DataError unless all that lies here is a file or a folder of its own, and each of the right kind."""
        places = [self.logs, self.checkpoints(), self.cache(""), self.artifact("").parent, self.profile]
        if (foreign := foreign_in(self.folder, DEEPEST)) is not None:
            raise DataError(
                f"{foreign}: is a link, a pipe, a device or too deep a folder, which no run leaves; move it away."
            )
        facts = (self.config, self.environment, self.stages, self.statistics, self.data, self.phases, self.ledger)
        words = (self.metrics, self.report, self.results, self.verdict, self.job, self.success, self.hashes)
        later = (self.trajectories, self.journal)
        for path in (*facts, *words, *later, self.reserve, self.secret, *self.artifact("").parent.glob("*")):
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise DataError(f"{path}: is a folder, where the run keeps a file; move it away.")
        for path in places:
            if os.path.lexists(path) and not path.is_dir():
                raise DataError(f"{path}: is no folder, where the run keeps one; move it away.")

    def written(self) -> Any:
        """What the run's config says; a DataError where it is damaged."""
        try:
            return parse_yaml(read_text(self.config)) or {}
        except (OSError, ValueError, yaml.YAMLError):
            raise DataError(f"{self.config}: is no YAML, so it is damaged; put it back, or --overwrite it.") from None

    def _check(self, config: Config, resume: bool, force: bool) -> None:
        """ConfigError where the run cannot go on with this config; where `force` allows it, the run's is replaced."""
        if not self.is_of(config):
            rows = _differences(self.written(), yaml.safe_load(dump(config)) or {})
            free = incidental_keys(config) | config.names
            rows = [row for row in rows if not free & {*_above(row)}]
            learnt = [row for row in rows if _above(row)[0] not in config.after_training]
            shown = learnt if force and learnt else rows
            what = f" ({', '.join(shown[:3])}{', …' if len(shown) > 3 else ''})" if shown else ""
            if learnt or not (resume and force):
                remedy = "resume it with its own config" if learnt or not rows else "--resume --force goes on with this"
                why = " that --force cannot replace, for it decides what is learnt" if force and learnt else ""
                raise ConfigError(
                    f"{self.folder}: holds a run with another config{what}{why}; {remedy}, overwrite it, or choose "
                    "another name."
                )
            self._replace_config(config)
            self.differences = rows
        if not resume:
            state = "a finished run" if self.ended() in FINISHED else "an unfinished run"
            raise ConfigError(f"{self.folder}: holds {state} with this config; --resume it, --overwrite it, or rename.")

    def _replace_config(self, config: Config) -> None:
        facts, text = read_json(self.environment), dump(config)
        former = [*(facts.get("former") or ()), facts.get("fingerprint")]
        write_atomic(self.config, text)
        self.write(
            self.environment,
            {**facts, "fingerprint": fingerprint(config), "config": _digest(text), "former": former},
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _above(difference: str) -> list[str]:
    """The key that a difference is of, dotted, and those above it."""
    parts = difference.partition(":")[0].split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _differences(old: Any, new: Any, at: str = "") -> list[str]:
    """`key: old → new` for every key that differs, dotted."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [d for key in keys for d in _differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))]
    return [] if old == new else [f"{at}: {old} → {new}"]
