"""Checkpoints: what is saved is what is loaded; damage is found; a kill leaves a good one; the last good one stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ups.engine import checkpoint
from ups.engine.checkpoint import Checkpoints, Saved, random_state, set_random_state, verify


def saved(step: int) -> Saved:
    tensors = {
        "module/w": torch.full((3, 2), float(step)),
        "module/wave": torch.randn(2, 3, dtype=torch.cfloat),
        "module/n": torch.tensor(step),
        "module/half": torch.randn(4).bfloat16(),
    }
    return Saved(step, tensors, {"score": 0.1 + step, "worst": float("inf"), "names": ["ä"]})


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    store, held = Checkpoints(tmp_path / "deep" / "er"), saved(7)
    store.save(held)
    found = store.latest()
    assert found is not None
    assert (found.step, found.facts) == (7, held.facts)
    assert set(found.tensors) == set(held.tensors)
    assert all(torch.equal(found.tensors[n], t) and found.tensors[n].dtype == t.dtype for n, t in held.tensors.items())
    assert set(found.part("module")) == {"w", "wave", "n", "half"}


def test_no_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").latest() is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 10, 9):
        store.save(saved(step))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000009", "step-000000010"]
    assert store.latest().step == 10  # type: ignore[union-attr]


def damage_flip(path: Path) -> None:
    content = bytearray((path / "tensors.safetensors").read_bytes())
    content[len(content) // 2] ^= 4
    (path / "tensors.safetensors").write_bytes(content)


def damage_cut(path: Path) -> None:
    (path / "state.json").write_bytes((path / "state.json").read_bytes()[:-3])


def damage_remove(path: Path) -> None:
    (path / "tensors.safetensors").unlink()


def damage_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("{}")


def damage_newer(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))


DAMAGES = [damage_flip, damage_cut, damage_remove, damage_manifest, damage_newer]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(tmp_path: Path, damage: object) -> None:
    said: list[str] = []
    store = Checkpoints(tmp_path, keep=2, say=said.append)
    store.save(saved(1))
    store.save(saved(2))
    assert callable(damage)
    damage(tmp_path / "step-000000002")
    assert store.latest().step == 1  # type: ignore[union-attr]
    assert len(said) == 1
    assert "step-000000002 is damaged" in said[0]


def test_retention_never_counts_a_damaged_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    store.save(saved(1))
    store.save(saved(2))
    damage_flip(tmp_path / "step-000000002")
    store.save(saved(3))
    assert verify(tmp_path / "step-000000001") is None
    store.save(saved(4))
    assert verify(tmp_path / "step-000000003") is None
    assert not (tmp_path / "step-000000001").exists()


def test_a_damaged_one_of_the_same_step_is_written_anew(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(saved(2))
    damage_flip(tmp_path / "step-000000002")
    store.save(saved(2))
    assert store.latest().step == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("moment", ["write", "mkdir", "rename"])
def test_a_save_that_dies_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    store = Checkpoints(tmp_path)
    store.save(saved(1))

    def die(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((checkpoint, "_write") if moment == "write" else (Path, moment)), die)
        with pytest.raises(OSError, match="No space"):
            store.save(saved(2))
    assert store.latest().step == 1  # type: ignore[union-attr]
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001"]


def test_what_a_killed_save_left_is_ignored_and_cleared(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(saved(1))
    left = tmp_path / "step-000000005.tmp-12345678"
    left.mkdir()
    (left / "tensors.safetensors").write_bytes(b"half")
    assert store.latest().step == 1  # type: ignore[union-attr]
    store.save(saved(2))
    assert not left.exists()


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(np.random.rand())

    draw()
    tensors, facts = random_state(torch.device("cpu"))
    store = Checkpoints(tmp_path)
    store.save(Saved(1, tensors, facts))
    expected = [draw() for _ in range(3)]
    found = store.latest()
    assert found is not None
    set_random_state(found.tensors, found.facts, torch.device("cpu"))
    assert [draw() for _ in range(3)] == expected
