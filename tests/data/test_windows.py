"""Windows: batch n is a pure function of n, every window comes once per epoch, and frames are those of the file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch

from ups.data import open_source, sample_blocks
from ups.data import trajectories as module
from ups.data.reduction import Reduction
from ups.data.source import Source
from ups.data.trajectories import Trajectories
from ups.data.windows import Places, Windows, at_once, spread, whole
from ups.engine.probe import LOOKED_AT, _unlike
from ups.graphs import signature
from ups.physics import TASKS
from ups.types import ConfigError, DataError


class Rank(NamedTuple):
    rank: int
    world: int


ALONE = Rank(0, 1)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Values that name their own sample, frame and cell."""
    path = tmp_path / "1D_Advection_Sols_beta0.4.hdf5"
    n, t, x = np.meshgrid(np.arange(6), np.arange(11), np.arange(8), indexing="ij")
    with h5py.File(path, "w") as file:
        file["tensor"] = (n * 10000 + t * 100 + x).astype("f4")
        file["x-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
        file["t-coordinate"] = (np.arange(12) * 0.1).astype("f4")
    return open_source(path, TASKS)


def named(values: torch.Tensor) -> list[tuple[int, int]]:
    """(sample, frame) of each first cell."""
    return [(int(v) // 10000, int(v) % 10000 // 100) for v in values[..., 0, 0].flatten().tolist()]


def test_a_window_holds_consecutive_frames_of_one_sample(source: Source) -> None:
    part = Trajectories(source, source.ids, Reduction())
    window = part.window([2, 4], [0, 3], context=2, targets=3)
    assert named(window.context) == [(2, 0), (2, 1), (4, 3), (4, 4)]
    assert named(window.targets) == [(2, 2), (2, 3), (2, 4), (4, 5), (4, 6), (4, 7)]
    assert window.context.shape == (2, 2, 8, 1)
    assert window.params.tolist() == [[pytest.approx(0.4)]] * 2
    assert window.dt.tolist() == [pytest.approx(0.1)] * 2
    assert window.grid.periodic == (True,)


def test_a_spread_takes_of_each_part_its_share_and_joins_what_has_one_grid(source: Source) -> None:
    many, few = (Trajectories(source, source.ids[cut], Reduction()) for cut in (slice(0, 5), slice(5, 6)))
    coarse = Trajectories(source, source.ids[:2], Reduction(space=2))
    fine, other = spread([many, coarse, few], 2, 1, 24)
    # Nine windows in each of eight trajectories, of which a third are shown: 15, 6 and 3 of 24.
    assert (len(fine), len(other), other.context.shape[2]) == (18, 6, 4)
    samples = [sample for sample, _ in named(fine.context[:, :1])]
    assert samples == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    (alone,) = spread([many], 2, 1, 24)
    assert {frame for _, frame in named(alone.context[:, :1])} >= {0, 8}
    assert spread([many], 9, 3) == [], "none is as long as that"
    seldom = spread([many, few], 2, 1, 3)[0]
    assert [sample for sample, _ in named(seldom.context[:, :1])] == [0, 4, 5], "each part is shown, however small"


def test_reductions_take_every_nth_frame_and_cell_and_stretch_dt(source: Source) -> None:
    part = Trajectories(source, source.ids, Reduction(time=5, space=2))
    assert part.dt == pytest.approx(0.5)
    assert part.shape == (4,)
    assert named(part.frames([1], [0], 3)) == [(1, 0), (1, 5), (1, 10)]
    late = Trajectories(source, source.ids, Reduction(time=3, start=4))
    assert named(late.frames([1], [0], 3)) == [(1, 4), (1, 7), (1, 10)]
    assert part.frames([0], [0], 1)[0, 0, :, 0].tolist() == [0, 2, 4, 6]


def test_windows_read_from_the_file_equal_those_from_memory(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Trajectories(source, source.ids[1:4], Reduction(2, 2, start=1)).window([0, 2], [1, 2], 1, 2)
    monkeypatch.setattr(module, "RESIDENT", 0)
    read = Trajectories(source, source.ids[1:4], Reduction(2, 2, start=1)).window([0, 2], [1, 2], 1, 2)
    assert torch.equal(kept.context, read.context)
    assert torch.equal(kept.targets, read.targets)
    assert kept.ids == read.ids


@pytest.mark.parametrize("resident", [0, 2**30], ids=["from the file", "from memory"])
def test_windows_of_data_that_are_kept_elsewhere_are_the_same_windows(
    source: Source, monkeypatch: pytest.MonkeyPatch, resident: int
) -> None:
    monkeypatch.setattr(sample_blocks, "BLOCK", 400)  # bytes: a sample at a time
    train, valid = (Trajectories(source, ids, Reduction(2), resident) for ids in (source.ids[:4], source.ids[4:]))
    there, plain = (Windows([train], [valid], 3, context=2, targets=1, ranks=ALONE) for _ in range(2))
    device, both = torch.device("cpu"), train.size + valid.size
    assert there.keep(device, both, steps=2) == 0, "for two steps, which draw less than there is, nothing is moved"
    assert there.keep(device, train.size - 1, steps=None) == valid.size
    assert there.keep(device, both, steps=100) == both
    assert there.train[0] is not train
    monkeypatch.setattr(Trajectories, "_read", None)  # the file is not needed any more
    kept = [*map(there.batch, range(8)), *there.validation(0)]
    monkeypatch.undo()
    for window, same in zip(kept, [*map(plain.batch, range(8)), *plain.validation(0)], strict=True):
        assert torch.equal(window.context, same.context)
        assert torch.equal(window.targets, same.targets)
        assert torch.equal(window.dt, same.dt)
        assert window.ids == same.ids


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_windows_of_data_that_are_kept_on_a_gpu_are_made_there_of_the_same_numbers(source: Source) -> None:
    part = Trajectories(source, source.ids, Reduction())
    there, plain = (Windows([part], [part], 3, context=2, targets=1, ranks=ALONE) for _ in range(2))
    assert there.keep(torch.device("cuda"), 2 * part.size, steps=None) == part.size
    for step in range(4):
        window, same = there.batch(step), plain.batch(step)
        for name in ("context", "targets", "inputs", "params", "dt"):
            assert getattr(window, name).is_cuda, name
            assert torch.equal(getattr(window, name).cpu(), getattr(same, name)), name


def test_batches_of_one_kind_have_windows_of_one_shape_and_the_memory_probe_reads_one_of_each(source: Source) -> None:
    parts = [Trajectories(source, source.ids[:4], Reduction(space=space)) for space in (1, 2)]
    windows = Windows(parts, parts, batch=3, context=2, targets=1, ranks=Rank(0, 2))
    kinds = {step: windows.kind(step) for step in range(7, 7 + LOOKED_AT)}
    shapes = {step: signature(windows.batch(step)) for step in kinds}
    assert {kind: {shapes[step] for step in kinds if kinds[step] == kind} for kind in kinds.values()} == {
        kind: {shapes[step]} for step, kind in kinds.items()
    }
    assert len(set(kinds.values())) == len(set(shapes.values())) >= 2
    assert _unlike(windows, 7) == [next(s for s in kinds if kinds[s] == kind) for kind in dict.fromkeys(kinds.values())]


def test_every_window_comes_exactly_once_per_epoch_and_batches_depend_on_their_number_alone(source: Source) -> None:
    part = Trajectories(source, source.ids, Reduction())
    windows = Windows([part], [part], batch=6, context=2, targets=1, seed=3, ranks=ALONE)
    seen = [pair for n in range(9) for pair in named(windows.batch(n).state)]
    assert sorted(seen) == [(s, t) for s in range(6) for t in range(1, 10)]
    again = Windows([part], [part], batch=6, context=2, targets=1, seed=3, ranks=ALONE)
    for n in (40, 7, 7, 0):
        assert torch.equal(again.batch(n).context, windows.batch(n).context)
    other = Windows([part], [part], batch=6, context=2, targets=1, seed=4, ranks=ALONE)
    assert not torch.equal(other.batch(0).context, windows.batch(0).context)


def test_a_task_that_needs_less_context_is_learnt_from_its_first_frames_too(source: Source) -> None:
    """Its batches hold that much alone; those of others, and what is validated, are as they were."""
    part = Trajectories(source, source.ids, Reduction())
    windows = Windows([part], [part], batch=6, context=4, ranks=ALONE, contexts={"advection1d": 1, "burgers1d": 2})
    batches = [windows.batch(n) for n in range(10)]
    assert sorted(pair for b in batches for pair in named(b.context)) == [(s, t) for s in range(6) for t in range(10)]
    assert {b.context.shape for b in batches} == {(6, 1, 8, 1)}
    assert {w.context.shape[1] for w in windows.validation(0)} == {4}
    other = Windows([part], [part], batch=6, context=4, ranks=ALONE, contexts={"burgers1d": 2})
    assert {other.batch(n).context.shape for n in range(10)} == {(6, 4, 8, 1)}


def test_tasks_take_turns(source: Source) -> None:
    first, second = (Trajectories(source, [source.ids[i]], Reduction()) for i in (0, 5))
    windows = Windows([first, second], [first, second], batch=4, context=1, ranks=ALONE)
    assert [named(windows.batch(n).state)[0][0] for n in range(4)] == [0, 5, 0, 5]


def test_whole_trajectories_come_once_from_first_to_last_frame(source: Source) -> None:
    part = Trajectories(source, source.ids, Reduction())
    found = list(whole([part], context=3, batch=4))
    assert [len(w) for w in found] == [4, 2]
    assert [name for w in found for name in w.ids] == list(source.ids)
    assert found[0].targets.shape == (4, 8, 8, 1)


def test_a_validation_begins_where_the_judge_will(source: Source) -> None:
    """After all given frames, though fewer are looked back on; after the context where none would be left."""
    part = Trajectories(source, source.ids, Reduction())
    counts = {}
    for given in (0, 1, 5, 11):
        windows = Windows([part], [part], batch=6, context=2, ranks=ALONE, given=given)
        (window,) = windows.validation(0)
        counts[given] = (window.context.shape[1], window.targets.shape[1])
        assert windows.frames()[1] == 6 * counts[given][1]
        assert windows.batch(0).context.shape[1] == 2, "it is trained as before"
    assert counts == {0: (2, 9), 1: (2, 9), 5: (5, 6), 11: (2, 9)}


class Uneven:
    """Samples of so many frames, whose windows say from which sample and frame on, and how much, they were cut."""

    task, shape, origin = TASKS["burgers1d"], (8,), Path("nowhere")

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.times = np.array(lengths), np.arange(max(lengths)) * 0.1

    def __len__(self) -> int:
        return len(self.lengths)

    def window(self, samples: list[int], first: list[int], context: int, targets: int) -> object:
        return samples, first, context, targets


def test_windows_of_samples_of_several_lengths_are_numbered_through_and_short_samples_have_none() -> None:
    part = Uneven(4, 2, 6)
    own, chosen = Places(part, 2, 1), Places(part, 2, 1, np.array([2, 0, 0]))
    assert (len(own), len(chosen)) == (6, 8)
    assert own.of(np.arange(6)) == ([0, 0, 2, 2, 2, 2], [0, 1, 0, 1, 2, 3])
    assert chosen.of(np.arange(8)) == ([2] * 4 + [0] * 4, [0, 1, 2, 3, 0, 1, 0, 1])
    windows = Windows([part], [part], batch=4, context=2, ranks=ALONE, draws=[np.array([0, 0])])
    assert set(windows.window(0, np.arange(4))[0]) == {0}, "the samples to take"


def test_a_trajectory_is_judged_whole_with_those_of_its_length_and_not_where_it_ends_with_its_context() -> None:
    part = Uneven(6, 4, 6, 2, 4)
    assert list(whole([part], 2)) == [([0, 2], [0, 0], 2, 4), ([1, 4], [0, 0], 2, 2)]
    assert list(whole([part], 2, frames=4)) == [([1, 4], [0, 0], 2, 2)]
    assert list(whole([part], 2, frames=4, cut=True)) == [([0, 1, 2, 4], [0] * 4, 2, 2)]


def test_as_many_whole_trajectories_are_one_window_as_fit() -> None:
    assert at_once(4, 10, (8,), 0) == 4
    assert at_once(4, 10, (8,), 80) == 10, "a GPU would be idle with fewer"
    assert at_once(32, 2**10, (2**6, 2**6), 0) == 16, "as memory allows"
    assert at_once(32, 2**10, (2**9, 2**9), 0) == 1, "one at least"


def test_a_spread_of_large_frames_is_of_as_few_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    part, taken = Uneven(*[4] * 20), list[int]()
    part.shape = (2**20,)
    monkeypatch.setattr(part, "window", lambda samples, *_: taken.append(len(samples)) or SimpleNamespace(kind=0))
    monkeypatch.setattr("ups.data.windows.Window.join", list)
    spread([part], 2, 1)
    assert taken == [2**25 // (3 * 2**20)]


def test_true_frames_before_a_validation_are_as_many_as_some_trajectory_goes_beyond() -> None:
    mixed, short = Uneven(8, 4), Uneven(5, 4)
    windows = Windows([mixed], [mixed, short], batch=4, context=2, ranks=ALONE, given=5)
    assert list(windows.validation(0)) == [([0], [0], 5, 3), ([0], [0], 2, 3), ([1], [0], 2, 2)]
    assert windows.frames()[1] == 3 + (3 + 2)


def test_a_step_counts_the_frames_of_a_usual_task_and_a_steady_state_once() -> None:
    moving, still = Uneven(8, 8), Uneven(1, 1)
    still.task = TASKS["darcy2d"]
    windows = Windows([moving, still], [], batch=6, context=2, targets=3, ranks=ALONE, batches={"darcy2d": 2})
    assert windows.frames()[0] == (6 * 3 + 2 * 1) // 2


def test_windows_in_a_step_of_a_task_are_those_that_are_validated_together_and_enough_for_all_ranks(
    source: Source,
) -> None:
    part, own = Trajectories(source, source.ids, Reduction()), {"advection1d": 2}
    windows = Windows([part], [part], batch=6, context=2, ranks=ALONE, batches=own)
    assert [len(window) for window in windows.validation(0)] == [2, 2, 2]
    with pytest.raises(ConfigError, match="a batch of 2 cannot be shared by 3 ranks"):
        Windows([part], [part], batch=6, context=2, ranks=Rank(0, 3), batches=own)


def test_data_are_moved_to_a_gpu_once_and_where_a_rank_draws_more_frames_than_there_are(source: Source) -> None:
    part, device = Trajectories(source, source.ids, Reduction()), torch.device("cpu")
    assert Windows([part], [part], 3, 2, ranks=ALONE).keep(device, 2 * part.size, None) == part.size
    # 66 frames; each step draws 6 windows of 3 frames, of all ranks.
    kept = {world: Windows([part], [part], 6, 2, ranks=Rank(0, world)).keep(device, part.size, 4) for world in (1, 2)}
    assert kept == {1: part.size, 2: 0}
    two = Windows([part, part], [part], 6, 2, ranks=ALONE)
    assert two.keep(device, part.size, 7) == 0, "of two tasks each is drawn in every other step"


def test_statistics_are_those_of_all_frames(source: Source) -> None:
    part = Trajectories(source, source.ids[:3], Reduction())
    mean, std, least, most = part.statistics()
    values = part.frames([0, 1, 2], [0, 0, 0], 11).double()
    assert float(mean) == pytest.approx(float(values.mean()))
    assert float(std) == pytest.approx(float(values.std(correction=0)), rel=1e-6)
    assert (float(least), float(most)) == (float(values.min()), float(values.max()))


def test_what_does_not_fit_is_one_sentence(source: Source) -> None:
    with pytest.raises(DataError, match="which 3 does not divide"):
        Trajectories(source, source.ids, Reduction(space=3))
    with pytest.raises(DataError, match="no sample 'nobody'"):
        Trajectories(source, ["nobody"], Reduction())
    part = Trajectories(source, source.ids, Reduction(time=5))
    with pytest.raises(DataError, match="too few for 3 frames of context"):
        Windows([part], [part], batch=2, context=3, ranks=ALONE)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_shares_of_the_ranks_are_disjoint_and_together_the_batch_of_one_process(source: Source, world: int) -> None:
    part = Trajectories(source, source.ids, Reduction())
    alone = Windows([part], [part], batch=7, context=2, targets=1, seed=3, ranks=ALONE)
    shares = [Windows([part], [part], 7, 2, 1, 3, ranks=Rank(r, world)) for r in range(world)]
    for step in range(20):
        batches = [share.batch(step) for share in shares]
        assert torch.equal(torch.cat([b.targets for b in batches]), alone.batch(step).targets)
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        assert {share.count(step) for share in shares} == {7}
    with pytest.raises(ConfigError, match="cannot be shared by 8 ranks"):
        Windows([part], [part], batch=7, context=2, ranks=Rank(0, 8))


def test_a_steady_task_is_one_step_from_nothing_to_its_solution(tmp_path: Path) -> None:
    path = tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5"
    with h5py.File(path, "w") as file:
        file["nu"] = np.random.default_rng(0).random((5, 8, 8), np.float32)
        file["tensor"] = np.random.default_rng(1).random((5, 1, 8, 8), np.float32)
        file["x-coordinate"] = file["y-coordinate"] = (np.arange(8, dtype=np.float32) + 0.5) / 8
    part = Trajectories(open_source(path, TASKS), open_source(path, TASKS).ids, Reduction())
    window = Windows([part], [part], batch=3, context=1, targets=4, ranks=ALONE).batch(0)
    assert window.targets.shape == (3, 1, 8, 8, 1)
    assert not window.context.any()
    assert window.inputs.shape == (3, 8, 8, 1)
    assert window.dt.tolist() == [1.0] * 3
    assert [w.targets.shape[1] for w in whole([part], 1)] == [1]
