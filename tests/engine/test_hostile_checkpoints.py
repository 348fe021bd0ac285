"""A run folder from a stranger: nothing in it is executed, followed or believed; each trick gets a sentence."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ups.engine
from ups.engine.checkpoint import index, manifest
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.checkpoint.store import CorruptError, Snapshot
from ups.files import sum_of

SHARD = "rank-0-0.safetensors"
FILES = ["manifest.json", "facts.json", "index.json", "own-0.json", SHARD]


def folder(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 1 and 2; the newer one."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in (1, 2):
        tensors = {"w": torch.full((4, 3), float(step)), "b": torch.ones(2), "n": torch.tensor(step)}
        store.save(Snapshot(step, tensors, {"step": step}, {"rng": torch.ones(3)}))
        store.wait()
    return tmp_path / "checkpoints" / "step-000000002"


def signed(path: Path) -> None:
    """The manifest as someone writes it who wants the rest to be believed."""
    old = json.loads((path / "manifest.json").read_bytes())
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in path.iterdir()
        if p.name != "manifest.json"
    }
    new = {**old, "files": files}
    (path / "manifest.json").write_text(json.dumps({**new, "sum": sum_of(new)}))


def refused(path: Path) -> str:
    """Why step 2 is passed over; what is loaded is step 1, whole."""
    sentences: list[str] = []
    store = CheckpointStore(path.parent, say=sentences.append)
    checkpoint = store.newest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    tensors = {"w": torch.zeros(4, 3), "b": torch.zeros(2), "n": torch.tensor(0)}
    store.load(checkpoint, tensors)
    assert torch.equal(tensors["w"], torch.ones(4, 3))
    assert len(sentences) == 1
    assert "step-000000002 is damaged (" in sentences[0]
    return sentences[0]


class Strike:
    """What a pickle can do to whoever opens it."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (self.target, "w")


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_in_place_of_any_file_is_not_opened(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path)
    (path / name).write_bytes(pickle.dumps(Strike(str(tmp_path / "struck"))))
    if name != "manifest.json":
        signed(path)
    refused(path)
    assert not (tmp_path / "struck").exists()


def edited(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the index, and write the file of tensors to match wherever that can be done."""
    content = json.loads((path / "index.json").read_bytes())
    edit(content["tensors"])
    (path / "index.json").write_text(json.dumps(content))
    try:
        layouts = index.from_json(json.dumps(content).encode())
    except ValueError:
        layouts = {}
    for name, shard in index.shards_of(layouts).items():
        if shard.size < 2**20 and (path / name).exists():
            (path / name).write_bytes(shard.header.ljust(shard.size, b"\0"))
    signed(path)


def w(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors["w"].update(changes)


def chunk(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors["w"]["chunks"][0].update(changes)


def chunks(*places: tuple[str, list[int], list[int]]) -> Callable[[dict[str, Any]], Any]:
    return w(chunks=[{"file": file, "offsets": offsets, "sizes": sizes} for file, offsets, sizes in places])


OTHER = "rank-1-0.safetensors"
TRICKS = {
    "outside": (chunk(offsets=[1, 0]), "reaches outside"),
    "missing": (w(chunks=[]), "not all of it"),
    "half": (chunk(sizes=[2, 3]), "not all of it"),
    "overlap": (chunks((SHARD, [0, 0], [2, 3]), (OTHER, [1, 0], [2, 3])), "overlap"),
    "twice": (chunks((SHARD, [0, 0], [2, 3]), (SHARD, [2, 0], [2, 3])), "two chunks in one file"),
    "axes": (chunk(offsets=[0]), "number of axes"),
    "negative": (chunk(offsets=[-1, 0]), "cannot be read"),
    "fraction": (chunk(sizes=[4, 3.0]), "cannot be read"),
    "parent": (chunk(file="../step-000000001/rank-0-0.safetensors"), "no checkpoint has"),
    "absolute": (chunk(file="/etc/passwd"), "no checkpoint has"),
    "elsewhere": (chunk(file="rank-7-0.safetensors"), "rank-7-0.safetensors"),
    "type": (w(dtype="load"), "unknown type 'load'"),
    "terabytes": (w(shape=[2**40, 3]), "not all of it"),
    "terabytes all": (lambda t: (w(shape=[2**40, 3])(t), chunk(sizes=[2**40, 3])(t)), "asks for"),
    "no table": (lambda t: t.update(w=None), "cannot be read"),
    "numbers": (w(shape=[10**30]), "cannot be read"),
}


@pytest.mark.parametrize(("edit", "words"), TRICKS.values(), ids=TRICKS)
def test_an_index_that_cannot_be_true_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], Any], words: str
) -> None:
    path = folder(tmp_path)
    edited(path, edit)
    assert words in refused(path)


def test_a_header_that_is_another_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    honest = (path / SHARD).read_bytes()
    for forged in (b"\xff" * 8 + honest[8:], (2**40).to_bytes(8, "little") + honest[8:], b"\0" * len(honest)):
        (path / SHARD).write_bytes(forged)
        signed(path)
        assert "does not begin as index.json says" in str(manifest.verify(path))
    assert f"{SHARD} does not begin as index.json says" in refused(path)


def test_json_without_end_is_refused(tmp_path: Path) -> None:
    for name, content in (
        ("index.json", b'{"tensors":' + b"[" * 200_000),
        ("facts.json", b"[" * 200_000),
        ("own-0.json", b"9" * 10_000),
        ("facts.json", b"\xff\xfe"),
    ):
        path = folder(tmp_path / name / str(len(content)))
        (path / name).write_bytes(content)
        signed(path)
        assert name in refused(path)


def test_json_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for name in ("manifest.json", "index.json"):
        os.truncate(path / name, 2**40)  # nothing of it is on the disk
        assert manifest.verify(path) == "manifest.json has 1099511627776 bytes, which is too many"
        with pytest.raises(ValueError, match=f"{name} has 1099511627776 bytes, which is too many"):
            manifest.read_small(path / name)
    refused(path)


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_any_file_is_not_followed(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path)
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    assert f"{name} is not a file of its own" in refused(path)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for name in ("manifest.json", SHARD):
        (path / name).rename(tmp_path / name)
        os.mkfifo(path / name)
        assert manifest.verify(path) == f"{name} is not a file of its own"
        (path / name).unlink()
        (tmp_path / name).rename(path / name)
    assert manifest.verify(path) is None


def test_a_link_in_place_of_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    path = folder(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "it is not a folder of its own" in refused(path)


def test_names_that_lead_out_of_the_folder_are_missing_in_it(tmp_path: Path) -> None:
    path = folder(tmp_path)
    listed = json.loads((path / "manifest.json").read_bytes())
    listed["files"]["../../secret"] = {"bytes": 1, "sha256": "0"}
    (path / "manifest.json").write_text(json.dumps({**listed, "sum": sum_of(listed)}))
    assert "../../secret is missing" in refused(path)


def test_a_world_of_a_billion_ranks_is_no_work(tmp_path: Path) -> None:
    path = folder(tmp_path)
    listed = {**json.loads((path / "manifest.json").read_bytes()), "world": 10**9}
    (path / "manifest.json").write_text(json.dumps({**listed, "sum": sum_of(listed)}))
    assert "manifest.json cannot be read" in refused(path)


@pytest.mark.parametrize("tensor", ["AAAA", "no base 64", 7])
@pytest.mark.parametrize("dtype", ["load", "float32", 7])
def test_a_generators_state_that_is_none_is_refused(tmp_path: Path, tensor: Any, dtype: Any) -> None:
    path = folder(tmp_path)
    (path / "own-0.json").write_text(json.dumps({"rng": {"tensor": tensor, "dtype": dtype, "shape": [3]}}))
    signed(path)
    with pytest.raises(CorruptError, match="holds a tensor that cannot be read; delete this folder"):
        CheckpointStore(path.parent).newest()


def test_nothing_in_the_engine_can_run_what_it_reads() -> None:
    root = Path(ups.engine.__file__).parent
    wrong = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "torch.distributed.checkpoint"}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not wrong & {alias.name for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert not any((node.module or "").startswith(name) for name in wrong), path
            if isinstance(node, ast.Attribute):
                assert not node.attr.endswith(("_object", "_object_list")), f"{path}: {node.attr}"
                assert ast.unparse(node) not in ("torch.load", "torch.save"), path
