"""Data that a config names by address: fetched on first use, once, recorded as every file, and the same on resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lying_server import LyingServer, serving

from ups.cli.app import main
from ups.config import load
from ups.files import sha256
from ups.jobs.relative_paths import relative_paths
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.run.run import Run, run_alone
from ups.run.start import Start
from ups.types import ConfigError, DataError
from ups.verdict import Ending
from ups_fleet.fetch import catalogue, downloads
from ups_fleet.fetch.patience import UnreachableError
from ups_fleet.running.forever import run_forever

TINY = {
    "name": "tiny",
    "model": {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}},
    "codec": {"batch": 4, "train": {"steps": 2, "validate_every": 0}},
    "operator": {"batch": 4, "train": {"steps": 4, "validate_every": 0}},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = {"task": "advection1d", "scheme": "accurate", "samples": 8, "resolution": 32, "device": "cpu"}
    config = load(GenerateConfig, overrides=task)
    return generate(config, tmp_path_factory.mktemp("made"), lambda progress: None)[0]  # noqa: ARG005


@pytest.fixture
def liar(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LyingServer]:
    monkeypatch.setenv("UPS_DOWNLOADS", str(tmp_path / "downloads"))
    with serving() as server:
        server.files[made.name] = made.read_bytes()
        yield server


def settings(folder: Path, file: object) -> RunConfig:
    data = {"data": {"a": {"file": file, "task": "advection1d", "reduce": {"time": 40}}}}
    return load(run_config(), None, {"out": str(folder / "runs"), **TINY, **data})


def prepared(config: RunConfig, *, resume: bool = False) -> tuple[dict[str, object], list[str]]:
    """The files that a run has recorded after its data phase, and what it has said."""
    sentences: list[str] = []
    with (
        Run.open(config, replace(Screen.silent(), say=sentences.append), start=Start(resume=resume)) as run,
        run.folder,
    ):
        run.prepare()
        run.folder.succeed()
        return json.loads(run.folder.data.read_text())["files"], sentences


def test_it_is_fetched_on_first_use_and_never_again(liar: LyingServer, made: Path, tmp_path: Path) -> None:
    config = settings(tmp_path, f"{liar.url}/fine/{made.name}")
    files, _ = prepared(config)
    ((name, row),) = files.items()
    assert name.startswith("{downloads}/http/")
    assert row == {"bytes": made.stat().st_size, "sha256": sha256(made)}
    asked = len(liar.seen)
    liar.files.clear()
    assert prepared(config, resume=True)[0] == files
    assert len(liar.seen) == asked


def test_another_machine_fetches_it_again_and_a_file_that_changed_since_is_refused(
    liar: LyingServer, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path, f"{liar.url}/fine/{made.name}")
    files, _ = prepared(config)
    monkeypatch.setenv("UPS_DOWNLOADS", str(tmp_path / "of another machine"))
    assert prepared(config, resume=True)[0] == files
    shutil.rmtree(downloads.folder())
    content = bytearray(liar.files[made.name])
    content[-4:] = b"\0\0\0\1"
    liar.files[made.name] = bytes(content)
    with pytest.raises(DataError, match=r"has changed .* since the run in"):
        prepared(config, resume=True)


def test_a_published_name_serves_as_a_file(
    liar: LyingServer, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = catalogue.PublishedFile("pdebench:advection1d/mine", made.name, f"{liar.url}/fine/{made.name}")
    monkeypatch.setattr(catalogue, "catalogue", lambda: (row,))
    config = settings(tmp_path, "pdebench:advection1d/mine")
    assert list(prepared(config)[0]) == ["{downloads}/pdebench/" + made.name]
    assert relative_paths(config) == []


def test_what_no_config_may_name_is_refused_when_it_is_read(tmp_path: Path) -> None:
    for word in ("https://u:planted@host/a.h5", "https://host/a.h5?token=planted", "s3://b/a.h5#planted"):
        with pytest.raises(ConfigError, match="may hold a password") as error:
            settings(tmp_path, word)
        assert "planted" not in str(error.value)
    with pytest.raises(ConfigError, match="did you mean"):
        settings(tmp_path, "pdebench:advection1d/beta0.44")


def test_only_a_run_fetches(liar: LyingServer, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    word = f"{liar.url}/fine/{made.name}"
    path = tmp_path / "tiny.yaml"
    path.write_text(f"name: tiny\ndata: {{a: {{file: '{word}', task: advection1d}}}}\ndevice: cpu\n")
    with pytest.raises(SystemExit) as ended:
        main(["estimate", str(path)])
    assert ended.value.code == 2
    assert f"is not on this machine yet, in {downloads.place_of(word)}" in capsys.readouterr().err
    assert not liar.seen


def test_two_words_of_one_catalogue_share_a_folder_and_not_their_files(liar: LyingServer, tmp_path: Path) -> None:
    liar.files |= {"a.h5": b"a", "b.h5": b"b"}
    words = [f"{liar.url}/fine/a.h5", f"{liar.url}/fine/b.h5", str(tmp_path / "local.h5")]
    downloads.provide(words, lambda _: None)
    assert [downloads.paths(word)[0].read_bytes() for word in words[:2]] == [b"a", b"b"]
    downloads.paths(words[0])[0].write_bytes(b"c")
    with pytest.raises(DataError, match="is not on this machine"):
        downloads.paths(words[0])


def test_a_run_that_goes_on_for_ever_waits_for_a_server_that_is_down(tmp_path: Path) -> None:
    config, sentences, turns = settings(tmp_path, "https://host/a.h5"), list[str](), list[int]()

    def start(*, resume: bool) -> Ending:  # noqa: ARG001
        turns.append(1)
        if len(turns) < 3:
            raise UnreachableError("https://host/a.h5: could not be fetched")
        return Ending.USER

    assert run_forever(config, start, sentences.append, pause=0.01) == Ending.USER
    assert sum("could not be fetched" in sentence for sentence in sentences) == 2


@pytest.mark.slow
def test_a_run_on_two_ranks_fetches_once(liar: LyingServer, made: Path, tmp_path: Path) -> None:
    config = settings(tmp_path, f"{liar.url}/fine/{made.name}")
    run_alone(config, Screen.silent())
    liar.sent = 0
    shutil.rmtree(downloads.folder())
    path = tmp_path / "two.yaml"
    path.write_text((tmp_path / "runs" / "tiny" / "config.yaml").read_text().replace("name: tiny", "name: two"))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--ranks", "2", "--out", str(tmp_path / "runs")])
    assert ended.value.code == 0
    assert liar.sent < 1.1 * made.stat().st_size
    assert (tmp_path / "runs" / "two" / "report.html").is_file()
