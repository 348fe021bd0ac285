"""`store`: of what is solved whole, the file holds just the frames and cells that `reduce` would pick from it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ups.run.config import run_config
from ups.run.data.data_config import DataConfig, GenerateConfig
from ups.run.data.datasets import DataSet, open_sets
from ups.run.data.outlines import outlines

KEPT = {"time": 5, "space": 2, "start": 1}
BURGERS = {"task": "burgers1d", "samples": 10, "resolution": 32, "params": {"nu": 0.1}, "device": "cpu", "frames": 12}
GROUPS = {"task": "reacdiff2d", "samples": 10, "resolution": 8, "device": "cpu", "frames": 7}
DARCY = {"task": "darcy2d", "samples": 10, "resolution": 16, "scheme": "accurate", "device": "cpu"}


@pytest.mark.parametrize(
    ("data", "kept"), [(BURGERS, KEPT), (GROUPS, KEPT), (DARCY, {"space": 2})], ids=["fields", "groups", "steady"]
)
def test_a_file_stored_in_part_gives_the_windows_of_a_whole_one_reduced(
    data: dict[str, Any], kept: dict[str, int], tmp_path: Path
) -> None:
    def opened(stack: ExitStack, **way: Any) -> DataSet:
        made = DataConfig.model_validate({**data, **way})
        (sets,) = open_sets({"it": made}, tmp_path / "".join(way), lambda progress: None, stack)  # noqa: ARG005
        return sets

    with ExitStack() as stack:
        whole, part = opened(stack, reduce=kept), opened(stack, store=kept)
        windows = [sets.parts("train")[0].window([0, 3], [0, 0], 1, 1) for sets in (whole, part)]
        for name in ("context", "targets", "inputs", "params", "dt"):
            assert torch.equal(getattr(windows[0], name), getattr(windows[1], name)), name
        assert windows[0].grid.periodic == windows[1].grid.periodic
        assert windows[0].grid.lengths == pytest.approx(windows[1].grid.lengths, rel=1e-5)
        sizes = [sets.first.source.path.stat().st_size for sets in (whole, part)]
        assert sizes[1] < sizes[0]
        (outline,) = outlines(run_config().model_validate({"data": {"it": {**data, "store": kept}}}))
        assert (outline.shape, outline.frames) == (part.shape, max(part.parts("train")[0].lengths))
        (full,) = outlines(run_config().model_validate({"data": {"it": {**data, "reduce": kept}}}))
        assert sizes[1] <= outline.disk < full.disk, "what is said of the disk is of what is stored"


def test_what_cannot_be_stored_so_is_said_before_anything_is_solved() -> None:
    with pytest.raises(ValueError, match="axis 0 has 32 cells, which 3 does not divide"):
        GenerateConfig.model_validate({**BURGERS, "store": {"space": 3}})
    with pytest.raises(ValueError, match=r"store\.start is 300, but burgers1d has 12 frames"):
        run_config().model_validate({"data": {"it": {**BURGERS, "store": {"start": 300}}}})
