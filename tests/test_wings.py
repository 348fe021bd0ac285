"""The instrument alone, and each plug-in taken away or added: in copies of the source, as their users would."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pages_of import ROOT
from test_house import FILES, imports_of, module_of
from ups.cli.app import main
from ups.plugins import _installed

SMALL = """
data: {b: {task: burgers1d, samples: 12, resolution: 32, frames: 9, params: {nu: 0.1}}}
model: {codec: {width: 16}, operator: {core: transformer, width: 16, depth: 1}}
codec: {batch: 8, train: {steps: 20, seconds: null}}
operator: {batch: 8, train: {steps: 20, seconds: null}}
"""
# Hides the package that is installed here: only the copy on PYTHONPATH is there.
ALONE = """
import sys
from importlib.abc import MetaPathFinder


class OnlyTheCopy(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        from importlib.machinery import PathFinder

        wing = name.partition(".")[0]
        if wing not in ("ups", "ups_fleet", "ups_bench", "ups_apps") or "." in name:
            return None
        spec = PathFinder.find_spec(name, [HERE])
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return spec


sys.meta_path.insert(0, OnlyTheCopy())
"""
# What a module of a test imports when it is collected, and programs in it that are text.
IMPORTED = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
CODE_IN_TEXT = re.compile(r"""(\"{3}|'{3}).*?\1""", re.DOTALL)
END = "=== "
ONE_AFTER_THE_OTHER = f"""
import sys
from ups.cli.app import main

sys.stderr = sys.stdout
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as ended:
        print("{END}", ended.code, "{END}", sep="", flush=True)
"""


class Copy:
    """A copy of the source with some of it deleted."""

    def __init__(self, place: Path, *without: str) -> None:
        self.place, self.src = place, place / "src"
        shutil.copytree(ROOT / "src", self.src)  # with what is compiled
        for name in without:
            path = self.src / name
            assert path.exists(), name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.src / "sitecustomize.py").write_text(ALONE.replace("HERE", repr(str(self.src))))
        (place / "small.yaml").write_text(SMALL)

    def python(self, *words: str, code: int = 0, **variables: str) -> str:
        """What a Python program prints there, or says where it fails; it must exit with `code`."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("UPS_", "PYTEST"))}
        env |= {"PYTHONPATH": str(self.src), "CUDA_VISIBLE_DEVICES": "", **variables}
        done = subprocess.run(
            [sys.executable, *words], cwd=self.place, env=env, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == code, f"exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout if code == 0 else done.stderr

    def ups(self, *words: str, code: int = 0) -> str:
        return self.python("-m", "ups", *words, code=code)

    def commands(self, *lines: str) -> list[tuple[int, str]]:
        """Exit code and output of commands that are given in one process, one after the other."""
        said = self.python("-c", ONE_AFTER_THE_OTHER, *lines).split(END)
        return [(int(code), text) for text, code in zip(said[:-1:2], said[1::2], strict=True)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The instrument without the other wings."""
    return Copy(tmp_path_factory.mktemp("instrument"), "ups_fleet", "ups_bench", "ups_apps")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.whole
def test_the_instrument_alone_makes_data_trains_judges_and_predicts(alone: Copy) -> None:
    made = alone.ups("data", "generate", "burgers1d", "--samples", "3", "--resolution", "32", "--frames", "9")
    file = made.strip().splitlines()[-1]
    assert "burgers1d" in alone.ups("data", "info", file)
    alone.ups("run", "small.yaml", "--name", "one")
    verdict = json.loads((alone.place / "runs/one/verdict.json").read_text())
    assert verdict["verdict"] == "SUCCESS"
    alone.ups("evaluate", "runs/one")
    alone.ups("rollout", "runs/one", "--input", file, "--steps", "4", "--out", "predicted.hdf5")
    program = "import ups; s = ups.load('runs/one'); print(s.rollout(__import__('torch').zeros(1, 32, 1), 3).shape)"
    assert "32" in alone.python("-c", program)


@pytest.mark.whole
def test_the_instrument_alone_fits_arrays(alone: Copy) -> None:
    program = (
        "import numpy as np, ups\n"
        "x = np.linspace(0, 1, 32, endpoint=False); t = np.arange(9) / 20; p = np.random.rand(12)\n"
        "u = np.sin(2 * np.pi * (x[None, None] - t[None, :, None] - p[:, None, None]))[..., None]\n"
        "ups.fit(u, minutes=0.05, quiet=True)"
    )
    alone.python("-c", program)
    assert json.loads((alone.place / "runs/fit/verdict.json").read_text())["verdict"] == "SUCCESS"


@pytest.mark.whole
def test_the_instrument_alone_trains_on_two_ranks_of_torchrun_and_goes_on(alone: Copy) -> None:
    words = (
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
        "-m",
        "ups",
        "run",
    )
    alone.python(*words, "small.yaml", "--name", "two", "--until", "train")
    run = alone.place / "runs/two"
    manifests = [path.read_text() for path in run.glob("checkpoints/*/*/*.json")]
    assert sum('"world": 2' in text for text in manifests) == 2, "of codec and operator, by both ranks of one run"
    assert json.loads((run / "verdict.json").read_text())["verdict"] == "PAUSED"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in steps) == 20
    alone.ups("run", "small.yaml", "--name", "two", "--resume")
    assert json.loads((run / "verdict.json").read_text())["verdict"] == "SUCCESS"


def test_the_instrument_alone_has_no_command_and_no_key_of_the_workshop(alone: Copy) -> None:
    (_, text), (_, keys), *refused = alone.commands(
        "--help",
        "config show small.yaml",
        "run small.yaml --tracking csv",
        "run small.yaml --data.b.file https://example.org/x.hdf5",
    )
    for name in ("sweep", "launch", "doctor", "faults", "bundle", "bench", "track", "export"):
        assert not re.search(rf"│ {name} ", text), name
    assert not re.search(r"^(limits|tracking|sync):", keys, re.M)
    assert [code for code, _ in refused] == [2, 2]
    assert "tracking" in refused[0][1]
    assert "download it and name the file" in refused[1][1]


def test_the_tests_of_the_instrument_need_no_other_wing() -> None:
    tests = ROOT / "tests"
    theirs = {path.stem for wing in ("fleet", "bench", "apps") for path in (tests / wing).glob("*.py")} - {"conftest"}
    for path in sorted(tests.rglob("*.py")):
        if path.relative_to(tests).parts[0] not in ("fleet", "bench", "apps"):
            modules = IMPORTED.findall(CODE_IN_TEXT.sub("", path.read_text()))
            assert not {"ups_fleet", "ups_bench", "ups_apps", *theirs} & {*modules}, path


PLUG_INS = {
    "wandb": "ups_fleet/tracking/wandb.py",
    "mlflow": "ups_fleet/tracking/mlflow.py",
    "vast": "ups_fleet/submit/vast",
    "sky": "ups_fleet/submit/sky",
    "lightning": "ups_fleet/lightning",
    "bundle": "ups_fleet/bundle",
    "bench": "ups_bench",
    "export": "ups_apps/export",
    "apps": "ups_apps",
}


def test_no_plug_in_imports_another() -> None:
    homes = {name: place.removesuffix(".py").replace("/", ".") for name, place in PLUG_INS.items()}

    def around(module: str) -> set[str]:
        return {name for name, home in homes.items() if f"{module}.".startswith(f"{home}.")}

    for path in FILES:
        if own := around(module_of(path)):
            inside = {name for name, home in homes.items() if own & around(home)}
            others = set().union(*map(around, imports_of(path))) - inside
            assert not others, f"{path} imports {others}"


@pytest.mark.parametrize("half", [0, 1])
def test_plug_ins_can_be_deleted_and_the_others_are_there(half: int, tmp_path: Path) -> None:
    """Half of them at a time; none imports another, so each can be deleted by itself."""
    gone, left = (set([*PLUG_INS][start::2]) for start in (half, 1 - half))
    copy = Copy(tmp_path, *(PLUG_INS[name] for name in gone))
    program = (
        "from ups.run.config import run_config; run_config()()\n"
        "from ups_fleet.tracking import MIRRORS; from ups_fleet.submit import ENGINES; import ups_fleet.cli.worker\n"
        "from ups.cli.app import app\n"
        "app(['--help'], result_action='return_value'); app(['launch', '--help'], result_action='return_value')\n"
        "print('tables', *(row.__name__ for table in (MIRRORS, ENGINES) for row in table.values()))"
    )
    text = copy.python("-c", program)
    tables = set(text.rpartition("tables")[2].lower().split())
    assert not gone & tables
    assert {"wandb", "mlflow", "vast", "sky"} & left <= tables
    for name, above in {"bundle": "bundle", "bench": "bench", "export": "apps"}.items():
        assert bool(re.search(rf"│ {name} ", text)) == ({name, above} <= left)


SQLITE = """
import json
from ups_fleet.tracking.mirror import Mirror


class Lines(Mirror):
    name = "lines"

    def open(self):
        self.path = self.facts.folder / "lines.txt"
        self.path.write_text("")

    def send(self, rows):
        with self.path.open("a") as file:
            file.writelines(f"{row.step} {json.dumps(dict(row.values))}\\n" for row in rows)

    def close(self, conclusion):
        with self.path.open("a") as file:
            file.write(f"{conclusion.ending}\\n")
"""
COMMAND = '''
from pathlib import Path

from ups.wings import LOOK, Command


def last(run: Path) -> None:
    """Print the last line of the log."""
    print((run / "lines.txt").read_text().splitlines()[-1])


COMMAND = Command("last", last, LOOK)
'''


def package(place: Path, points: str) -> None:
    """A package as it is installed, with these entry points."""
    (place / "lines_of_runs.py").write_text(SQLITE)
    (place / "last_line.py").write_text(COMMAND)
    about = place / "lines_of_runs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-of-runs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)


@pytest.mark.whole
def test_a_package_adds_a_tracker_and_a_command(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    package(copy.src, "[ups.trackers]\nlines = lines_of_runs:Lines\n[ups.commands]\nlast = last_line:COMMAND\n")
    copy.ups("run", "small.yaml", "--tracking", "lines", "--name", "told", "--until", "train")
    assert copy.ups("last", "runs/told").strip() == "PAUSED"
    assert "last" in copy.ups("--help")
    assert "lines" in copy.ups("run", "small.yaml", "--tracking", "liness", code=2)


def test_a_package_that_takes_a_name_or_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)

    def place_of(points: str) -> Path:
        place = tmp_path / f"{len(points)}"
        place.mkdir()
        package(place, points)
        return place

    def refused(points: str, tracker: str) -> str:
        with monkeypatch.context() as patch:
            patch.syspath_prepend(place_of(points))
            patch.setattr("ups.plugins._installed", _installed.__wrapped__)
            with pytest.raises(SystemExit) as ended:
                main(["run", str(tmp_path / "small.yaml"), "--tracking", tracker])
        assert ended.value.code == 2
        return capsys.readouterr().err

    assert "lines_of_runs:Lines adds 'csv'" in refused("[ups.trackers]\ncsv = lines_of_runs:Lines\n", "csv")
    lost = refused("[ups.trackers]\nlost = not_there:Lines\n", "lost")
    assert "lines-of-runs adds 'lost'" in lost
    assert "not_there" in lost
    env = {**os.environ, "PYTHONPATH": str(place_of("[ups.commands]\nlost = not_there:COMMAND\n"))}
    words = [sys.executable, "-m", "ups", "--help"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 2
    assert done.stderr.startswith("ups: lines-of-runs adds 'lost' to the commands of ups")
    assert "Traceback" not in done.stderr
