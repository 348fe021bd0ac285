"""Generation: same seed, same data; a kill anywhere loses nothing; every family in PDEBench's exact layout."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ups.data import open_source
from ups.physics import EQUATIONS, TASKS
from ups.progress import Progress
from ups.run.data import generate as module
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import batch_of, generate
from ups.types import ConfigError, DataError, PhysicsError
from ups.verdict import Ending, classify

SMALL: dict[str, dict[str, Any]] = {
    "burgers1d": {"resolution": 32, "params": {"nu": 0.1}, "frames": 21},
    "diffsorp1d": {"resolution": 16},
    "nsincom2d": {"resolution": 16, "frames": 12},
    "kdv1d": {"resolution": 32, "frames": 21},
    "ks1d": {"resolution": 32, "frames": 21},
    "cfd3d": {"resolution": 8, "frames": 6},
}


def small(task: str) -> dict[str, Any]:
    """Settings under which a task takes a second; a new one needs no line above unless it takes longer."""
    return SMALL.get(task, {"resolution": {1: 32, 2: 16, 3: 8}[EQUATIONS[task].task.ndim]})


# Frames of tasks whose solution takes longest, where any number will do.
FEW = {"cfd1d": 9, "cfd2d": 4, "cfd3d": 3, "diffsorp1d": 9, "nsincom2d": 4, "swe2d": 9}


def settings(task: str = "burgers1d", **changes: Any) -> GenerateConfig:
    return GenerateConfig(task=task, **{"samples": 5, "batch": 2, "device": "cpu", **small(task), **changes})


def quiet(progress: Progress) -> None:
    assert 0 <= progress.done <= progress.total


def make(folder: Path, **changes: Any) -> Path:
    return generate(settings(**changes), folder, quiet)[0]


def contents(path: Path) -> dict[str, Any]:
    """Every data set and attribute of a file."""
    found: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        found.update({f"@{k}": np.asarray(v).tolist() for k, v in file.attrs.items()})
        file.visititems(lambda name, node: found.update({name: node[()]}) if isinstance(node, h5py.Dataset) else None)
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("task", EQUATIONS)
def test_every_task_comes_back_from_its_file_as_its_equation_says(task: str, tmp_path: Path) -> None:
    frames = FEW.get(task, small(task).get("frames"))
    path = make(tmp_path, task=task, samples=3, **({"frames": frames} if frames else {}))
    equation = EQUATIONS[task](**small(task).get("params", {}))
    with open_source(path, TASKS) as source:
        assert source.task == TASKS[task]
        assert source.problems == ()
        assert dict(source.params) == equation.params()
        assert source.grid.shape == equation.grid(small(task)["resolution"]).shape
        assert np.allclose(source.times, equation.times()[:frames], atol=1e-5)
        sample = source[2]
        assert sample.values.shape == (len(source.times), *source.grid.shape, len(source.task.channels))
        assert np.isfinite(sample.values).all()
        assert source.task.steady or (sample.values[0] != sample.values[-1]).any()
        assert not np.array_equal(sample.values, source[0].values)


def test_single_array_layout_is_pdebenchs_to_the_letter(tmp_path: Path) -> None:
    path = make(tmp_path, params={"nu": 0.1}, frames=None)
    assert path.name == "1D_Burgers_Sols_Nu0.1.hdf5"
    with h5py.File(path) as file:
        assert set(file) == {"tensor", "x-coordinate", "t-coordinate"}
        assert file["tensor"].shape == (5, 201, 32)
        assert file["tensor"].dtype == np.float32
        assert file["tensor"].chunks is None
        assert file["t-coordinate"].shape == (202,)
        assert np.allclose(file["x-coordinate"], (np.arange(32) + 0.5) / 32)
        assert file.attrs["Nu"] == 0.1
        for key in ("ups_task", "ups_scheme", "ups_seed", "ups_version", "ups_laws", "ups_residual"):
            assert key in file.attrs


@pytest.mark.parametrize(
    ("task", "params", "name", "keys", "shapes"),
    [
        ("advection1d", {"beta": 1}, "1D_Advection_Sols_beta1.0.hdf5", "tensor", {"tensor": (2, 201, 32)}),
        ("reacdiff1d", {}, "ReacDiff_Nu0.5_Rho1.0.hdf5", "tensor", {"tensor": (2, 101, 32)}),
        (
            "cfd1d",
            {"eta": 1e-8, "zeta": 1e-8, "boundary": "trans"},
            "1D_CFD_Rand_Eta1.e-8_Zeta1.e-8_trans_Train.hdf5",
            "density pressure Vx",
            {"Vx": (2, 101, 32), "t-coordinate": (102,)},
        ),
        (
            "cfd2d",
            {"eta": 1e-8, "zeta": 1e-8, "mach": 1.0},
            "2D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_16_Train.hdf5",
            "density pressure Vx Vy y-coordinate",
            {"Vy": (2, 21, 16, 16), "t-coordinate": (22,)},
        ),
        ("darcy2d", {}, "2D_DarcyFlow_beta1.0_Train.hdf5", "tensor nu", {"tensor": (2, 1, 16, 16), "nu": (2, 16, 16)}),
        ("poisson2d", {}, "2D_Poisson_Train.hdf5", "tensor force", {"tensor": (2, 1, 16, 16), "force": (2, 16, 16)}),
        (
            "nsincom2d",
            {},
            "ns_incom_inhom_2d_16-0.h5",
            "velocity particles force t",
            {"velocity": (2, 12, 16, 16, 2), "force": (2, 16, 16, 2), "t": (2, 12)},
        ),
    ],
)
def test_names_keys_and_shapes_are_pdebenchs(
    task: str, params: dict[str, Any], name: str, keys: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    path = make(tmp_path, task=task, samples=2, params=params)
    assert path.name == name
    with h5py.File(path) as file:
        assert set(keys.split()) <= set(file)
        for key, shape in shapes.items():
            assert file[key].shape == shape


@pytest.mark.parametrize(
    ("task", "name", "shape"),
    [
        ("diffsorp1d", "1D_diff-sorp_NA_NA.h5", (101, 16, 1)),
        ("reacdiff2d", "2D_diff-react_NA_NA.h5", (101, 16, 16, 2)),
        ("swe2d", "2D_rdb_NA_NA.h5", (101, 16, 16, 1)),
    ],
)
def test_group_layout_has_a_group_per_sample(task: str, name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = make(tmp_path, task=task, samples=2)
    assert path.name == name
    with h5py.File(path) as file:
        assert sorted(file) == ["0000", "0001"]
        assert file["0001/data"].shape == shape
        assert file["0001/grid/t"].shape == (101,)
        assert "seed: 0" in file["0001"].attrs["config"]


def test_initial_states_are_bit_identical_in_any_batch_and_solutions_agree_to_round_off(tmp_path: Path) -> None:
    one = contents(make(tmp_path / "1", samples=7, batch=1))
    three = contents(make(tmp_path / "3", samples=7, batch=3))
    whole = contents(make(tmp_path / "7", samples=7, batch=None))
    for other in (three, whole):
        assert np.array_equal(one["tensor"][:, 0], other["tensor"][:, 0])
        assert np.allclose(one["tensor"], other["tensor"], rtol=0, atol=1e-6)


def test_the_same_seed_and_batch_size_give_the_same_bits_however_many_samples(tmp_path: Path) -> None:
    few, many = contents(make(tmp_path / "a", samples=3)), contents(make(tmp_path / "b", samples=6))
    assert np.array_equal(few["tensor"], many["tensor"][:3])
    other = contents(make(tmp_path / "c", samples=3, seed=1))
    assert not np.isclose(few["tensor"][:, 0], other["tensor"][:, 0]).all(axis=1).any()


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; 0, or the signal or code it died of."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(77)
    status = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def killed_at(call: int, folder: Path, **changes: Any) -> int:
    """Generate in a child that is killed at its `call`-th write, flush or rename (0: never)."""

    def work() -> None:
        count = 0

        def deadly(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return wrapped

        for name in ("pwrite", "fsync", "replace"):
            setattr(os, name, deadly(getattr(os, name)))
        make(folder, **changes)

    return in_child(work)


@pytest.mark.parametrize("task", ["burgers1d", pytest.param("reacdiff2d", marks=pytest.mark.slow)])
def test_killed_at_any_write_it_goes_on_and_ends_with_the_same_file(task: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    truth = contents(make(tmp_path / "truth", task=task, samples=4))
    folder = tmp_path / "killed"
    kills = 0
    for call in range(1, 40, 2):
        outcome = killed_at(1 + call % 5 if task == "reacdiff2d" else call, folder / str(call), task=task, samples=4)
        final = folder / str(call) / next((tmp_path / "truth").iterdir()).name
        assert outcome in (0, signal.SIGKILL)
        if outcome == 0:
            break
        kills += 1
        assert not final.exists() or same(contents(final), truth)
        assert same(contents(make(folder / str(call), task=task, samples=4)), truth)
        assert [p.name for p in (folder / str(call)).iterdir()] == [final.name]
        if task == "reacdiff2d" and kills == 5:
            break
    assert kills >= 5


def test_a_resumed_run_does_not_solve_again_what_is_on_disk(tmp_path: Path) -> None:
    assert killed_at(8, tmp_path) == signal.SIGKILL
    seen: list[float] = []
    generate(settings(), tmp_path, lambda progress: seen.append(progress.done))
    assert seen[0] > 0


def test_an_interruption_says_what_is_kept_and_keeps_it(tmp_path: Path) -> None:
    told: list[Progress] = []

    def stop(progress: Progress) -> None:
        told.append(progress)
        if progress.done > 2 and not progress.note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(settings(task="advection1d"), tmp_path, stop)
    assert told[-1].note.startswith("stopped; 2 of 5 trajectories are kept")
    again: list[Progress] = []
    (path,) = generate(settings(task="advection1d"), tmp_path, again.append)
    assert (again[0].done, again[0].written) == (2, 2)
    assert same(contents(path), contents(make(tmp_path / "straight", task="advection1d")))


def test_an_unfinished_file_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    assert killed_at(4, tmp_path) == signal.SIGKILL
    (part,) = (p for p in tmp_path.iterdir() if p.suffix == ".part")
    with pytest.raises(DataError, match="unfinished"):
        open_source(part, TASKS)
    part.rename(tmp_path / "1D_Burgers_Sols_Nu0.1.hdf5")
    with pytest.raises(DataError, match="unfinished"):
        open_source(tmp_path / "1D_Burgers_Sols_Nu0.1.hdf5", TASKS)


def test_a_file_begun_or_made_with_other_settings_is_kept_and_named(tmp_path: Path) -> None:
    assert killed_at(4, tmp_path) == signal.SIGKILL
    with pytest.raises(ConfigError, match=r"begun with other settings \(seed 0\)"):
        make(tmp_path, seed=1)
    path = make(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"already, with seed 0"):
        make(tmp_path, seed=1)
    assert path.read_bytes() == before
    assert make(tmp_path) == path
    generate(settings(seed=1), tmp_path, quiet, overwrite=True)
    assert path.read_bytes() != before


def test_what_another_folder_has_made_alike_is_taken_from_there_and_nothing_else(tmp_path: Path) -> None:
    config = GenerateConfig(task="advection1d", samples=2, resolution=16, frames=3, device="cpu")
    (first,) = generate(config, tmp_path / "first", print)
    (same,) = generate(config, tmp_path / "same", print, known=tmp_path / "first")
    assert same.samefile(first)
    more = config.model_copy(update={"samples": 3})
    for known in (tmp_path / "first", tmp_path / "nowhere"):
        (other,) = generate(more, tmp_path / f"other than {known.name}", print, known=known)
        assert not other.samefile(first)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / first.name).write_bytes(b"no data")
    (anew,) = generate(config, tmp_path / "anew", print, known=tmp_path / "broken")
    with open_source(anew, TASKS) as found:
        assert len(found.ids) == 2


def test_two_generators_of_one_file_do_not_mix(tmp_path: Path) -> None:
    def attempt(progress: Progress) -> None:
        if progress.done == 2 and progress.total == 5:
            with pytest.raises(DataError, match="another process is writing it"):
                make(tmp_path)

    generate(settings(), tmp_path, attempt)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    room = [3]

    def pwrite(fd: int, data: bytes, at: int) -> int:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DataError, match=r"No space left on device.*go on from sample 2"):
        make(tmp_path)
    assert not (tmp_path / "1D_Burgers_Sols_Nu0.1.hdf5").exists()
    monkeypatch.undo()
    assert len(contents(make(tmp_path))["tensor"]) == 5


def test_too_little_room_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())  # noqa: ARG005
    with pytest.raises(DataError, match=r"GB free, but .* needs"):
        make(tmp_path)
    assert not list(tmp_path.glob("*.hdf5"))


def limited(blocks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`ups data generate burgers1d` where no file may have more than so many blocks of 1024 bytes."""
    command = f'ulimit -f {blocks}; exec "$@"'
    words = [sys.executable, "-m", "ups", "data", "generate", "burgers1d", "--device", "cpu", *arguments]
    return subprocess.run(["bash", "-c", command, "-", *words], capture_output=True, text=True, check=False)


def test_a_limit_of_file_sizes_is_one_sentence_and_code_18(tmp_path: Path) -> None:
    """HDF5 does not survive it: the process ended by a segmentation fault."""
    small = ("--samples", "20", "--resolution", "128", "--out", str(tmp_path / "out"))
    ended = limited(300, *small)
    assert ended.returncode == 18, ended.stderr
    assert [line for line in ended.stderr.splitlines() if line.startswith("ups: ")] == [ended.stderr.splitlines()[-1]]
    assert "(ulimit -f)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "out").glob("*"))


def test_a_file_begun_without_a_limit_is_not_gone_on_with_under_one(tmp_path: Path) -> None:
    class EnoughError(Exception):
        """Stops the first attempt."""

    def stop(progress: Progress) -> None:
        if progress.done == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        generate(settings(), tmp_path, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DataError, match=r"larger than 1 kB .*raise that limit") as caught:
            make(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert classify(caught.value).ending == Ending.STORAGE
    assert len(contents(make(tmp_path))["tensor"]) == 5


def test_a_solution_that_blows_up_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = EQUATIONS["burgers1d"]
    real = kind.simulate

    def broken(self: Any, *args: Any) -> torch.Tensor:
        frames = real(self, *args)
        frames[1, 7] = float("nan")
        return frames

    monkeypatch.setattr(kind, "simulate", broken)
    with pytest.raises(PhysicsError, match=r"sample 1 became infinite at t = 0.07"):
        make(tmp_path)
    assert not (tmp_path / "1D_Burgers_Sols_Nu0.1.hdf5").exists()


def test_memory_is_bounded_by_the_batch_not_by_the_samples() -> None:
    equation = EQUATIONS["cfd2d"]()
    config = settings("cfd2d", batch=None, samples=10**6)
    batch = batch_of(config, 21, equation.grid(512), 4, torch.device("cpu"))
    assert batch * 21 * 512**2 * 4 * 8 <= 2**28


def test_provenance_holds_the_measured_laws(tmp_path: Path) -> None:
    with h5py.File(make(tmp_path)) as file:
        laws = json.loads(file.attrs["ups_laws"])
        assert 0 <= laws["mass"] < 1e-6
        assert 0 <= file.attrs["ups_residual"] < 0.05


def test_how_long_a_file_takes_is_said_once_something_was_done_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = [0.0], list[Progress]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    writer: Any = SimpleNamespace(done=0)
    tell = module.SolvingProgress(lines.append, "file", 200, writer)
    for clock[0], done in ((0.0, 0.0), (1.0, 100.0), (4.0, 100.0), (5.0, 150.0)):
        tell(done)
    assert [line.note for line in lines] == ["", "", "", "about 9 s for 200 trajectories"]
