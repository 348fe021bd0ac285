"""Every mirror, by its tracker's own reader: each row once, the true ending, whatever was killed in between."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from shown_runs import CONFIG, ID, curve, end, labels, log, made_up
from tracker_readers import Shown, csv_shown, mlflow_shown, tensorboard_shown, wandb_shown

from ups.config import load
from ups.run.config import run_config
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.outbox import Line
from ups_fleet.tracking import MIRRORS, Mirror, TrackingConfig, feed, require
from ups_fleet.tracking.delivery import write_settings
from ups_fleet.tracking.log_reader import LogReader, LogRow
from ups_fleet.tracking.mirror import RunEnding, RunFacts

PAGE = Path(__file__).parents[3] / "docs" / "howto-add-a-tracker.md"
READERS: dict[str, Callable[[Path], Shown]] = {
    "csv": csv_shown,
    "tensorboard": tensorboard_shown,
    "wandb": wandb_shown,
    "mlflow": lambda folder: mlflow_shown((folder / "mlflow").as_uri(), ID, "burgers"),
    "mlflow on a server": lambda folder: mlflow_shown((folder.parent / "store").as_uri(), ID, "burgers"),
}


def test_every_mirror_is_read_back() -> None:
    assert {name.partition(" ")[0] for name in READERS} == MIRRORS.keys()


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    kind = request.param.partition(" ")[0]
    if package := MIRRORS[kind].package:
        pytest.importorskip(package, reason=f"needs the `{kind}` extra")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if request.param != kind:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    return str(request.param)


def feed_here(folder: Path, name: str, killed: bool) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if killed:

        def send_and_die(mirror: Mirror, _: LogReader, rows: list[LogRow], *__: object) -> None:
            mirror.send(rows)
            os.killpg(0, signal.SIGKILL)

        feed._send = send_and_die  # type: ignore[assignment]
    sys.exit(feed.Feeder(folder, name).send(Line()))


def fed(folder: Path, name: str, killed: bool = False) -> int:
    """A process that feeds a mirror whose run is over; `killed`: with all it has started, as soon as it has sent rows
    and before it has noted that."""
    process = multiprocessing.get_context("fork").Process(
        target=feed_here, args=(folder, name.partition(" ")[0], killed)
    )
    process.start()
    process.join(600)
    assert process.exitcode is not None
    return process.exitcode


def test_each_row_is_there_once_after_kills_and_resumes_and_the_ending_is_true(name: str, tmp_path: Path) -> None:
    run = made_up(tmp_path / "shown", [name.partition(" ")[0]], **labels())
    log(run, range(1, 9), note="slow")
    assert fed(run.folder, name, killed=True) == -signal.SIGKILL
    end(run, Ending.OOM, products=False)
    assert fed(run.folder, name) == 0
    shown = READERS[name](run.folder)
    assert shown.curves["codec/loss"] == curve(range(1, 9))
    assert shown.ending == "OOM"
    run.verdict.unlink()  # resumed from a checkpoint of step 4
    log(run, range(5, 11), factor=10.0)
    log(run, [1], stage="operator", bad=float("nan"))
    end(run, Ending.SUCCESS)
    assert fed(run.folder, name) == 0
    shown = READERS[name](run.folder)
    held = [*curve(range(1, 5)), *curve(range(5, 11), 10.0)]
    if name == "mlflow on a server":  # which takes nothing back: of a step the later value is true
        held = sorted([*held, *curve(range(5, 9))])
        shown.curves["codec/loss"].sort()
    assert shown.curves["codec/loss"] == held
    assert shown.curves["operator/loss"] == [(1, 1.0)]
    assert shown.ending == "SUCCESS"
    check_what_people_expect(name, shown)


def check_what_people_expect(name: str, shown: Shown) -> None:
    if name == "csv":
        return
    assert {Path(file).name for file in shown.files} == {"report.html", "results.json", "simulator.safetensors"}
    assert shown.summary["test/burgers1d/nrmse"] == 0.125
    assert shown.labels["job_type"] == "train"
    assert shown.labels["group"] == "sweep-3"
    if name.startswith("mlflow"):
        assert shown.config["operator.train.lr"] == "0.001"
        assert shown.labels["environment.versions.torch"] == "9.9"
        assert (shown.labels["status"], shown.labels["name"], shown.labels["a"]) == ("FINISHED", "shown", "true")
    else:
        assert shown.config["operator"] == CONFIG["operator"]
        assert (shown.labels["project"], shown.labels["tags"]) == ("burgers", ["a", "b"])
    if name == "wandb":
        assert shown.config["environment"]["versions"] == {"torch": "9.9"}
        assert (shown.code, shown.labels["id"], shown.labels["name"]) == (0, ID, "shown")


@pytest.mark.parametrize("attach", [True, False])
def test_the_products_of_a_run_are_attached_where_that_is_wanted(tmp_path: Path, attach: bool) -> None:
    run = made_up(tmp_path / "run", ["wandb"], attach=attach)
    end(run, Ending.SUCCESS)
    both = {"report": [run.report, run.results], "model": [run.artifact("simulator")]}
    assert RunFacts.read(run.folder, 0).products() == (both if attach else {})


def test_a_run_killed_before_its_first_row_is_shown_as_killed(name: str, tmp_path: Path) -> None:
    run = made_up(tmp_path / "shown", [name.partition(" ")[0]], project="burgers")
    assert fed(run.folder, name) == 0
    shown = READERS[name](run.folder)
    assert shown.ending == "KILLED"
    assert shown.curves == {}
    if name == "wandb":
        assert shown.code == 137
    if name.startswith("mlflow"):
        assert shown.labels["status"] == "KILLED"


def of_the_page() -> dict[str, type[Mirror]]:
    """The mirror of docs/howto-add-a-tracker.md, its blocks executed as they are written."""
    module, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    namespace: dict[str, object] = {"__name__": "page"}
    sys.modules["page"] = type(sys)("page")
    exec(module, namespace)
    rows: dict[str, str] = eval(f"{{{line}}}", namespace)
    mirrors: Any = {name: namespace[place.partition(":")[2]] for name, place in rows.items()}
    return cast("dict[str, type[Mirror]]", mirrors)


def test_the_mirror_of_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    (kind,) = of_the_page().values()
    run = made_up(tmp_path, [])
    log(run, range(1, 4))
    end(run, Ending.SUCCESS)
    for _ in range(2):
        mirror = kind(RunFacts.read(run.folder, 0))
        mirror.open()
        mirror.send(LogReader(run.metrics).read())
        mirror.close(RunEnding.of(RunDir(run.folder)))
    with sqlite3.connect(run.folder / "metrics.sqlite") as database:
        rows = database.execute("SELECT step, value FROM metrics WHERE name = 'codec/loss' ORDER BY step").fetchall()
        assert rows == curve([1, 2, 3])
        assert database.execute("SELECT value FROM metrics WHERE name = 'ending'").fetchall() == [("SUCCESS",)]


@contextmanager
def refusing() -> Iterator[str]:
    """The address of a server that wants a login."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_bad_requests_are_one_sentence_before_work_is_spent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"^there is no tracker 'tensorbord'; did you mean 'tensorboard'\?"):
        require(TrackingConfig(to=("csv", "tensorbord")), said.append)
    for variable in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=r"there is no login for W&B at api.wandb.ai; run `wandb login`"):
        require(TrackingConfig(to=("wandb",), mode="online"), said.append)
    require(TrackingConfig(to=("wandb",)), said.append)
    assert len(said) == 1
    assert "kept offline" in said.pop()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0123456789\n")
    require(TrackingConfig(to=("wandb",), mode="online"), said.append)
    require(TrackingConfig(to=("mlflow",), uri="http://127.0.0.1:9"), said.append)
    assert len(said) == 1
    assert "does not answer" in said.pop()
    with refusing() as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url.replace("//", "//me:a-secret@"))
        with pytest.raises(ConfigError, match=r"refuses us \(401\); set MLFLOW_TRACKING_USERNAME") as caught:
            require(TrackingConfig(to=("mlflow",)), said.append)
    assert "a-secret" not in str(caught.value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(ConfigError, match=r"pip install 'universal-physics-stack\[tensorboard\]'"):
        require(TrackingConfig(to=("tensorboard",)), said.append)


def test_a_folder_for_mlflow_counts_from_the_configs_own_wherever_its_run_is_started_and_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    for uri, meant in (
        ("shown", str(tmp_path / "own" / "shown")),
        ("../shown", str(tmp_path / "shown")),
        ("/shown", "/shown"),
        ("sqlite:////shown.db", "sqlite:////shown.db"),
        ("https://mlflow.example.org", "https://mlflow.example.org"),
        ("databricks", "databricks"),
    ):
        (tmp_path / "own" / "a.yaml").write_text(f"tracking: {{to: [mlflow], uri: '{uri}'}}\n")
        config = load(run_config(), tmp_path / "own" / "a.yaml")
        write_settings(tmp_path / "run", config.tracking)
        assert TrackingConfig.model_validate_json((tmp_path / "run/tracking/settings.json").read_text()).uri == meant
