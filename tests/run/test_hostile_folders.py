"""Run folders in which something else stands in the place of a file: every command survives it or says which it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ups.config import load as load_config
from ups.jobs.evaluate import Question, evaluate_run
from ups.jobs.rollout import rollout
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.load import load
from ups.run.run import run_alone
from ups.run.start import Start
from ups.types import UpsError

TINY = """
name: tiny
data: {a: {task: advection1d, scheme: accurate, samples: 20, resolution: 16, device: cpu, reduce: {time: 50}}}
model: {codec: {dim: 4}, operator: {width: 8, depth: 1, heads: 1}}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 2}}
device: cpu
"""
FILES = (
    *("config.yaml", "environment.json", "metrics.jsonl", "results.json", "stages.json", "statistics.json"),
    *("data.json", "phases.json", "verdict.json", "ledger.json", "artifacts/simulator.safetensors"),
)
CONTENTS: dict[str, bytes | None] = {
    "a list": b"[1, 2]",
    "a number": b"5",
    "a word": b'"x"',
    "nothing": b"",
    "no text": b"\xff\xfe\x00\x01" * 10,
    "brackets": b"[" * 50_000,
    "another object": b'{"a": 1}',
    "a list of objects": b'[{"a": 1}]',
    "a folder": None,
}


def settings(out: Path) -> RunConfig:
    path = out / "tiny.yaml"
    path.write_text(TINY)
    return load_config(run_config(), path, {"out": str(out)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    return run_alone(settings(out), Screen.silent())[0].folder


COMMANDS: dict[str, Callable[[Path], object]] = {
    "load": load,
    "rollout": lambda run: rollout(
        run, next((run / "cache").rglob("*.hdf5")), 1, run.parent / "out.h5", 1, None, overwrite=True
    ),
    "evaluate": lambda run: evaluate_run(run, Question(device="cpu"), Screen.silent()),
    "resume": lambda run: run_alone(settings(run.parent), Screen.silent(), start=Start(resume=True)),
}


def unnamed(finished: Path, place: Path, name: str, content: str, command: str) -> str:
    """What a command says of a run in which a file holds something else, unless it is one sentence that names it."""
    shutil.rmtree(place / "tiny", ignore_errors=True)
    run = shutil.copytree(finished, place / "tiny")
    path, raw = run / name, CONTENTS[content]
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.mkdir() if raw is None else path.write_bytes(raw)
    try:
        COMMANDS[command](run)
    except UpsError as error:
        sentence = str(error)
        return "" if "\n" not in sentence and path.name in sentence else f"{command}, {content}: {sentence}"
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_whatever_stands_in_the_place_of_a_file_of_a_run_is_survived_or_one_sentence(
    finished: Path, tmp_path: Path, name: str
) -> None:
    """For each command another of the contents, or in turn a folder; `slow` tries all of them with all."""
    others = [content for content in CONTENTS if content != "a folder"]
    turn = FILES.index(name)
    cases = [
        ("a folder" if (turn + i) % 2 else others[(turn + i) // 2 % len(others)], command)
        for i, command in enumerate(COMMANDS)
    ]
    assert [words for case in cases if (words := unnamed(finished, tmp_path, name, *case))] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FILES, "logs", "checkpoints", "cache", "artifacts"])
def test_every_content_in_the_place_of_every_file(finished: Path, tmp_path: Path, name: str) -> None:
    cases = [(content, command) for content in CONTENTS for command in COMMANDS if command != "rollout"]
    assert [words for case in cases if (words := unnamed(finished, tmp_path, name, *case))] == []
