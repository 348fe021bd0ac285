"""What TensorBoard reads back: numbers, words, and of a step that was taken twice the later one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.tracking.tensorboard import TensorBoard


def test_scalars_and_texts_come_back_and_a_resumed_run_overrules_its_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the `tensorboard` extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, factor, ending in (((1, 2, 3), 1.0, "RANK_DIED"), ((2, 3), 10.0, "SUCCESS")):
        tracker = TensorBoard(tmp_path)
        for step in steps:
            tracker.log(step, {"codec/loss": factor * step, "codec/note": "slow"})
        tracker.close(ending)
    found = EventAccumulator(str(tmp_path / "tensorboard" / "codec")).Reload()
    assert [(row.step, row.value) for row in found.Scalars("loss")] == [(1, 1.0), (2, 20.0), (3, 30.0)]
    assert found.Tags()["tensors"] == ["note/text_summary"]
    whole = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert whole.Tensors("ending/text_summary")[-1].tensor_proto.string_val[0] == b"SUCCESS"
