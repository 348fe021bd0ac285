"""A run that goes on by itself: what is tried again and what is not, requests to stop, schedulers, and a reboot."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ups
from broken_streams import codes_of
from ups.cli.app import main
from ups.config import load
from ups.presence import HeldError
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.run import run_alone
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.running import forever
from ups_fleet.running.forever import LONGEST, MENDED_BY_TIME, requeue, run_forever
from ups_fleet.supervise.proc import owned

TINY = """
name: tiny
data: {a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 40}}}
model: {codec: {dim: 8}, operator: {width: 16, depth: 1, heads: 2}}
codec: {batch: 4, train: {steps: 6, validate_every: 0, checkpoint_steps: 2}}
operator: {batch: 4, train: {steps: 20, validate_every: 0, checkpoint_steps: 2}}
device: cpu
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return load(run_config(), tmp_path / "tiny.yaml", {"out": str(tmp_path / "runs")})


class Starts:
    """Starts of a run that end as they are told; remembers whether each was a resume."""

    def __init__(self, *endings: Ending | Exception | Callable[[], Ending]) -> None:
        self.endings, self.resumes = list(endings), list[bool]()

    def __call__(self, *, resume: bool) -> Ending:
        self.resumes.append(resume)
        ending = self.endings.pop(0)
        if isinstance(ending, Exception):
            raise ending
        return ending if isinstance(ending, Ending) else ending()


def silent(sentence: str) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("ending", Ending)
def test_only_what_time_may_mend_is_tried_again(config: RunConfig, ending: Ending) -> None:
    starts = Starts(ending, Ending.SUCCESS)
    result = run_forever(config, starts, silent, pause=0)
    again = ending in {Ending.OOM, Ending.HANG, Ending.RANK_DIED, Ending.NO_PROGRESS, Ending.STORAGE}
    assert (result, len(starts.resumes)) == ((Ending.SUCCESS, 2) if again else (ending, 1))
    assert (ending in MENDED_BY_TIME) == again


def test_a_run_that_is_there_is_resumed(config: RunConfig) -> None:
    begun = Starts(Ending.PREEMPTED)
    run_forever(config, begun, silent, pause=0)
    assert begun.resumes == [False]
    with RunDir.open(Path(config.out) / config.name, config) as folder:
        folder.close()
        resumed = Starts(Ending.PREEMPTED)
        run_forever(config, resumed, silent, pause=0)
        assert resumed.resumes == [True]
        folder.succeed()
    other = config.model_copy(update={"seed": 7})
    assert run_forever(other, Starts(Ending.USER), silent, pause=0) == Ending.USER, "another config is for the run"


def test_a_finished_run_is_left_alone_and_one_that_is_no_longer_whole_is_not(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    shorter = {"codec.train.steps": 2, "operator.train.steps": 2, "out": str(tmp_path)}
    config = load(run_config(), tmp_path / "tiny.yaml", shorter)
    folder, _ = run_alone(config, Screen.silent())
    folder.close()
    said: list[str] = []
    assert run_forever(config, Starts(), said.append, pause=0) == Ending.SUCCESS
    assert "is finished" in said[0]

    def late() -> Ending:
        """A request to stop after the verdict, before the supervisor has returned."""
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        return Ending.CRASH

    simulator = folder.artifact("simulator")
    cases = [(simulator, b""), (simulator, simulator.read_bytes()[:-9]), (folder.results, b"["), (folder.report, b"")]
    for path, damaged in cases:
        content = path.read_bytes()
        path.write_bytes(damaged) if damaged else path.unlink()
        starts = Starts(Ending.PREEMPTED)
        assert run_forever(config, starts, said.append, pause=0) == Ending.PREEMPTED, path
        assert starts.resumes == [True]
        assert "no longer whole" in said[-1]
        path.write_bytes(content)
    whole = folder.verdict.read_bytes()
    folder.verdict.unlink()

    def finishing() -> Ending:
        folder.verdict.write_bytes(whole)
        return late()

    assert run_forever(config, Starts(finishing), silent, pause=0) == Ending.SUCCESS


def test_pauses_grow_and_are_short_again_after_progress(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([0, 0, 0, 5, 5, *[5] * 10])
    pauses: list[float] = []
    monkeypatch.setattr(forever, "progress", lambda folder, config: next(steps))  # noqa: ARG005
    monkeypatch.setattr(forever.time, "sleep", pauses.append)
    run_forever(config, Starts(*[Ending.HANG] * 15, Ending.SUCCESS), silent)
    assert pauses[:5] == [10, 20, 40, 10, 20]
    assert pauses[-1] == LONGEST


def test_a_run_that_another_process_holds_is_waited_for_and_a_mistake_is_not(config: RunConfig) -> None:
    said: list[str] = []
    starts = Starts(HeldError("held."), HeldError("held."), OSError(28, "No space left on device"), Ending.SUCCESS)
    assert run_forever(config, starts, said.append, pause=0) == Ending.SUCCESS
    assert sum("held." in sentence for sentence in said) == 1
    assert any(sentence.startswith("STORAGE: ") for sentence in said)
    with pytest.raises(ConfigError):
        run_forever(config, Starts(ConfigError("no.")), silent, pause=0)
    with pytest.raises(OSError, match="fork"):
        run_forever(config, Starts(OSError(38, "fork")), silent, pause=0)


@pytest.mark.parametrize(
    ("number", "ending"),
    [
        (signal.SIGTERM, Ending.PREEMPTED),
        (signal.SIGUSR1, Ending.PREEMPTED),
        (signal.SIGHUP, Ending.PREEMPTED),
        (signal.SIGINT, Ending.INTERRUPTED),
    ],
)
def test_a_request_to_stop_ends_a_pause_at_once(config: RunConfig, number: int, ending: Ending) -> None:
    before = signal.getsignal(number)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), number))

    def hanging() -> Ending:
        timer.start()
        return Ending.HANG

    began = time.monotonic()
    assert run_forever(config, Starts(hanging), silent, pause=10_000) == ending
    timer.join()
    assert time.monotonic() - began < 250
    assert signal.getsignal(number) == before


# SLURM.

SCONTROL = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
show) echo "JobId=$4 JobName=x JobState={state} Reason=None" ;;
requeue) {requeue} ;;
esac
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], list[str]]]:
    def install(state: str = "RUNNING", requeue: str = "exit 0") -> Callable[[], list[str]]:
        place, log = tmp_path / "bin", tmp_path / "scontrol.log"
        place.mkdir()
        (place / "scontrol").write_text(SCONTROL.format(log=log, state=state, requeue=requeue))
        (place / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        return lambda: log.read_text().splitlines() if log.exists() else []

    return install


def test_a_preempted_job_is_queued_again_and_goes_on_when_it_comes_back(
    config: RunConfig, scontrol: Callable[..., Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, said = scontrol(), list[str]()
    assert run_forever(config, Starts(Ending.PREEMPTED), said.append, pause=0) == Ending.PREEMPTED
    assert asked()[-1] == "requeue 4711"
    assert "queued again" in said[-1]
    RunDir.open(Path(config.out) / config.name, config).close()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    back = Starts(Ending.SUCCESS)
    assert run_forever(config, back, said.append, pause=0) == Ending.SUCCESS
    assert back.resumes == [True]
    assert asked().count("requeue 4711") == 1, "a finished job is not queued again"


@pytest.mark.parametrize("ending", [Ending.INTERRUPTED, Ending.USER, Ending.CORRUPT, Ending.SUCCESS])
def test_no_other_ending_queues_a_job_again(
    config: RunConfig, scontrol: Callable[..., Callable[[], list[str]]], ending: Ending
) -> None:
    asked = scontrol()
    assert run_forever(config, Starts(ending), silent, pause=0) == ending
    assert run_forever(config, Starts(Ending.PREEMPTED), silent, node=1, pause=0) == Ending.PREEMPTED
    assert asked() == []


def test_a_job_that_somebody_cancelled_is_not_queued_again(scontrol: Callable[..., Callable[[], list[str]]]) -> None:
    asked, said = scontrol(state="CANCELLED"), list[str]()
    requeue(os.environ, said.append)
    assert not any(line.startswith("requeue") for line in asked())
    assert "was cancelled" in said[0]


def test_a_scheduler_that_refuses_or_is_not_there_is_a_sentence(
    scontrol: Callable[..., Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scontrol(requeue="echo 'Requested operation is disabled' >&2; exit 1")
    said: list[str] = []
    requeue(os.environ, said.append)
    monkeypatch.setenv("PATH", str(tmp_path))
    requeue(os.environ, said.append)
    assert "(Requested operation is disabled); submit it anew" in said[0]
    assert "could not be queued again" in said[1]


# The command line and the service.


def ups_run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run", *map(str, words)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--unit"], "write --forever --unit"),
        (["--forever", "--overwrite"], "would delete the run at every start"),
        (["--forever", "--here"], "needs a supervisor"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code, _, err = ups_run(capsys, tmp_path / "tiny.yaml", "--out", config.out, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err


def test_the_unit_has_absolute_paths_and_systemd_finds_no_fault_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setenv("PYTHONPATH", "/a b/src")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    words = ("tiny.yaml", "--forever", "--unit", "--out", "runs of 100%$HOME", "--limits.grace", "600", "--ranks", "2")
    code, text, _ = ups_run(capsys, *words)
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert code == 0
    assert not (tmp_path / "runs of 100%$HOME").exists(), "nothing else is done"
    assert lines["WorkingDirectory"] == str(tmp_path)
    assert lines["ExecStart"].startswith(f"{sys.executable} -m ups run {tmp_path}/tiny.yaml --forever ")
    assert '"--out=runs of 100%%$$HOME"' in lines["ExecStart"]
    assert "--ranks=2" in lines["ExecStart"]
    assert lines["Environment"] == '"PYTHONPATH=/a b/src"'
    assert int(lines["TimeoutStopSec"]) > 600
    final = {Ending(int(code)) for code in lines["RestartPreventExitStatus"].split()}
    assert final == set(Ending) - MENDED_BY_TIME - {Ending.PREEMPTED}
    assert "loginctl enable-linger" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: the rest of the unit was checked")
    unit = tmp_path / "ups-tiny.service"
    unit.write_text(text)
    (tmp_path / "runtime").mkdir()
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    verify = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
    checked = subprocess.run(verify, capture_output=True, text=True, env=env, check=False)
    ours = [line for line in checked.stderr.splitlines() if unit.name in line]
    assert (checked.returncode, ours) == (0, [])
    unit.write_text(text.replace("Restart=always", "Restart=at-times"))
    assert unit.name in subprocess.run(verify, capture_output=True, text=True, env=env, check=False).stderr


# A reboot.


def command(place: Path) -> list[str]:
    return [sys.executable, "-m", "ups", "run", str(place / "tiny.yaml"), "--out", str(place / "runs"), "--forever"]


def environment() -> dict[str, str]:
    source = str(Path(ups.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def power_cut(process: subprocess.Popen[bytes], home: Path) -> None:
    """Every process of the run is gone at once."""
    process.kill()
    for pid in owned("UPS_HOME", str(home)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 120
    while owned("UPS_HOME", str(home)) and time.monotonic() < end:
        time.sleep(0.02)


def leave_behind(home: Path) -> list[Path]:
    """What the life before the boot may have left: marks, half a save, start folders of processes whose numbers
    belong to others by now."""
    places = [Path(tempfile.mkdtemp(prefix=f"ups-{pid}-1-", dir="/dev/shm")) for pid in (os.getpid(), 2**22 - 3)]
    for place in places:
        (place / "pid-0").write_text(str(os.getpid()))
        (place / "exit-0.json").write_text(json.dumps({"rank": 0, "code": 0, "clock": 0.0}))
    if home.exists():
        (home / ".prepared-29500").touch()
        (home / ".success.json").write_text('{"report": "report.html"}')
        (home / ".reserve").write_bytes(bytes(10))
        half = home / "checkpoints/operator/step-000000099.tmp-deadbeef"
        half.mkdir(parents=True, exist_ok=True)
        (half / "facts.json").write_text("{")
    return places


def weights(place: Path) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in load_file(place / "runs/tiny/artifacts/simulator.safetensors").items()}


@pytest.fixture
def quiet(tmp_path: Path) -> dict[str, np.ndarray]:
    """The weights of the run that nobody disturbs, by one thread like those of the command."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.mkldnn.flags(enabled=True):  # a test of Muon may have left it off in this process
            run_alone(
                load(run_config(), tmp_path / "tiny.yaml", {"out": str(tmp_path / "quiet/runs")}), Screen.silent()
            )
    finally:
        torch.set_num_threads(threads)
    return weights(tmp_path / "quiet")


# A place in the run's folder that appears as it comes so far.
MOMENTS = (".lock", "cache/data", "data.json", "checkpoints/codec", "checkpoints/operator", "artifacts", "results.json")


def cut_after(place: Path, moment: str, delay: float) -> None:
    """Start the command, and cut the power when it has come so far and a little further."""
    home = place / "runs/tiny"
    process = subprocess.Popen(command(place), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 200
    try:
        while not (home / moment).exists() and process.poll() is None:
            assert time.monotonic() < end, f"it has not come to {moment}"
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
    finally:
        power_cut(process, home)


def survives(
    place: Path, moments: Sequence[str], truth: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut the power at each of these moments, then let the run finish: the bits are those of a quiet life."""
    home, left = place / "runs/tiny", list[Path]()
    try:
        for moment in moments:
            cut_after(place, moment, random.uniform(0, 1.5))
            left += leave_behind(home)
        ended = subprocess.run(
            command(place), env=environment(), timeout=600, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        ours = weights(place)
        assert all(np.array_equal(ours[name], truth[name]) for name in truth), moments
        assert not list(home.glob("checkpoints/*/*.tmp-*"))
        code, _, err = ups_run(capsys, *command(place)[4:])
        assert (code, "is finished" in err) == (0, True)
    finally:
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_after_a_power_cut_the_same_command_line_ends_in_the_same_bits(
    tmp_path: Path, quiet: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    survives(tmp_path, [random.choice(MOMENTS[3:5])], quiet, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_many_power_cuts_the_same_command_line_ends_in_the_same_bits(
    tmp_path: Path, quiet: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    survives(tmp_path, MOMENTS, quiet, capsys)


@pytest.mark.parametrize("key", ["--out", "--cache.folder", "--data.a.file"])
def test_a_config_adds_no_line_to_the_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    words = ("tiny.yaml", "--forever", "--unit", key, "d.h5\nSuccessAction=exit-force\n#")
    code, text, err = ups_run(capsys, *words)
    assert (code, text) == (2, "")
    assert "has a line break or a control character" in err


def test_a_unit_that_the_disk_did_not_take_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    words = ["run", str(tmp_path / "tiny.yaml"), "--forever", "--unit"]
    assert codes_of([(words, {}, ("full", "file"))], tmp_path / "printed") == [1]
