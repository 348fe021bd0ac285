"""The engine `sky`: a SkyPilot task file, handed to the `sky` command, which rents a cluster for it alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob, State, Status
from ups_fleet.submit.records import keep_text
from ups_fleet.submit.shell import ANSWER, RefusedError, answer, begun_or_resumed, checks, quoted, within_seconds

RENTING = 3600.0  # seconds for a cluster to be there, or gone
PORT = 29400  # at which the nodes meet
IDLE = 10  # minutes after which a cluster without a job is ended
STATES: dict[str, State] = {
    **dict.fromkeys(("INIT", "SETTING_UP", "PENDING"), "queued"),
    "RUNNING": "running",
    "SUCCEEDED": "done",
    "CANCELLED": "stopped",
    **dict.fromkeys(("FAILED", "FAILED_SETUP", "FAILED_DRIVER"), "failed"),
}
GONE = re.compile(r"does not exist|not found|no existing clusters", re.I)


class Sky:
    """Clusters that SkyPilot rents, each ended when its job is over. The identity of a job is its cluster's name."""

    def check(self, job: LaunchJob) -> None:
        if job.nodes > 1 and not job.options.get("shared"):
            raise ConfigError(
                f"{job.nodes} nodes write one run together, and rented machines have no folder in common; name one "
                "that is mounted on all of them with --shared, or use one node."
            )
        if job.gpus and not job.options.get("gpu"):
            raise ConfigError(f"--gpus is {job.gpus}, but of which kind? Add --gpu, such as H100 (`sky show-gpus`).")
        for path in job.inputs:
            if not path.is_relative_to(job.place):
                raise ConfigError(
                    f"{path}: lies outside {job.place}, which is all that is brought to the machine; move it there, or "
                    "name an address that the run fetches it from."
                )

    def render(self, job: LaunchJob) -> str:
        resources: dict[str, Any] = {"autostop": {"idle_minutes": IDLE, "down": True}}
        if job.gpus:
            resources["accelerators"] = f"{job.options['gpu']}:{job.gpus}"
        if job.options.get("spot"):
            resources["use_spot"] = True
        for name, key in (("infra", "infra"), ("cpus", "cpus"), ("memory", "memory"), ("disk", "disk_size")):
            if value := job.options.get(name):
                resources[key] = value
        task: dict[str, Any] = {"name": cluster_of(job.key), "num_nodes": job.nodes, "workdir": str(job.place)}
        task["resources"] = resources
        if job.variables:
            task["secrets"] = dict.fromkeys(job.variables)  # their values are handed over by `sky --secret NAME`
        task["setup"] = YamlBlock(f"{job.options.get('install') or 'python -m pip install .'}\n")
        task["run"] = YamlBlock(f"{_run(job)}\n")
        return yaml.dump(task, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)

    def submit(self, job: LaunchJob, text: str) -> str:
        path = keep_text(job.key, text)
        secrets = [word for name in job.variables for word in ("--secret", name)]
        _answer(
            "launch", "--yes", "--detach-run", "--cluster", cluster_of(job.key), *secrets, str(path), within=RENTING
        )
        return cluster_of(job.key)

    def find(self, key: str) -> str | None:
        name = cluster_of(key)
        return name if re.search(rf"^{re.escape(name)}\s", _answer("status"), re.M) else None

    def status(self, identity: str) -> Status:
        try:
            text = _answer("logs", "--status", identity, codes=(0, 100, 101, 102, 103))
        except RefusedError as error:
            if GONE.search(str(error)):
                return Status("gone", "SkyPilot has no such cluster: it was ended, and costs nothing more.")
            raise
        word = (re.findall(r"Job \d+: (\w+)", text) or ["none"])[-1]
        if word not in STATES:
            return Status("running", f"its cluster is there, and has no job ({word}): `sky down {identity}` ends it.")
        return Status(STATES[word], f"SkyPilot says {word}.", 0 if word == "SUCCEEDED" else None)

    def logs(self, identity: str) -> Iterator[str]:
        yield _answer("logs", "--no-follow", identity, codes=(0, 100, 101, 103))

    def stop(self, identity: str) -> None:
        """The cluster goes, with its disk: only what is stored elsewhere is left."""
        try:
            _answer("down", "--yes", identity, within=RENTING)
        except RefusedError as error:
            if not GONE.search(str(error)):
                raise


def cluster_of(key: str) -> str:
    """The name of the cluster of a job: letters, digits and dashes."""
    return "ups-" + re.sub(r"[^A-Za-z0-9]+", "-", key).strip("-").lower()


def _run(job: LaunchJob) -> str:
    """The lines that every node runs, in the folder that was brought along."""
    inputs = [PurePosixPath(path.relative_to(job.place)) for path in job.inputs]
    shared = str(job.options.get("shared") or "")
    folder = PurePosixPath(shared) / job.name if shared else _brought(job.folder, job.place)
    more = [f"--out={quoted([folder.parent])}"]
    if job.nodes > 1:
        more += ['--node-rank="$SKYPILOT_NODE_RANK"']
        more += [f'--rendezvous="$(printf %s "$SKYPILOT_NODE_IPS" | head -n 1):{PORT}"']
    words = job.words(python="python", config=_brought(job.config, job.place))
    command = ["exec", within_seconds(job), quoted(words), *more, '"$@"']
    return "\n".join([checks(inputs), begun_or_resumed(folder), " ".join(part for part in command if part)])


def _brought(path: Path, place: Path) -> PurePosixPath:
    """A path on the machine, from the folder that was brought along."""
    return PurePosixPath(path.relative_to(place)) if path.is_relative_to(place) else PurePosixPath("runs") / path.name


class YamlBlock(str):
    """A text of several lines, as a block of YAML."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    YamlBlock, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def _answer(*words: str, within: float = ANSWER, codes: tuple[int, ...] = (0,)) -> str:
    return answer("sky", *words, within=within, codes=codes, advice="install it (pip install skypilot)")
