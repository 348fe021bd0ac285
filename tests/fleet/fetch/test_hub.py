"""Data of the Hub of Hugging Face, by its own client from a server of ours: whole as published, or one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hub_server import TOKEN, HubServer, serving_hub

pytest.importorskip("huggingface_hub", reason="the extra `remote` is not installed")
FILES = {"data/large.bin": Random(1).randbytes(3_000_000), "data/small.json": b'{"dt": 0.1}', "README.md": b"words"}
# The client reads HF_ENDPOINT when it is imported: one process fetches all that is asked for.
FETCHES = """
import json, os, sys
from pathlib import Path
from ups_fleet.fetch.fetch import plan
from ups_fleet.fetch.patience import Patience
from ups.types import UpsError
for name, address in json.loads(sys.argv[2]):
    notes = []
    try:
        place, patience = Path(sys.argv[1]) / name, Patience(2, 0.1)
        plan([address], place, lambda p: notes.append(p.note or ""), patience=patience).fetch()
        error = ""
    except UpsError as problem:
        error = f"{type(problem).__name__}: {problem}"
    print(json.dumps({"error": error, "notes": [note for note in notes if note]}), flush=True)
"""


def fetched(hub: HubServer, folder: Path, addresses: dict[str, str], **more: str) -> dict[str, Any]:
    """What became of fetching each address to the folder of its name."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder), "HF_HUB_DISABLE_TELEMETRY": "1", **more}
    words = [sys.executable, "-c", FETCHES, str(folder), json.dumps(list(addresses.items()))]
    done = subprocess.run(words, env=own, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(addresses, map(json.loads, done.stdout.splitlines()), strict=True))


def test_a_data_set_of_the_hub_arrives_as_published_or_not_at_all(tmp_path: Path) -> None:
    """`ignores`: each piece is answered with the beginning of the file, and only the checksum tells."""
    whole, refused = ("good", "cut", "short", "busy"), ("ignores", "private", "missing", "gated")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "small.json").write_bytes(b"x" * len(FILES["data/small.json"]))
    with serving_hub() as hub:
        hub.files = FILES
        addresses = {how: f"hf://datasets/me/{how}/data/" for how in whole}
        addresses |= {how: f"hf://datasets/me/{how}/data/large.bin" for how in refused}
        addresses |= {"nobody": "hf://datasets/me/", "nothing": "hf://"}
        rows = fetched(hub, tmp_path, {**addresses, "other": "hf://datasets/me/good/data/small.json"})
        login = fetched(hub, tmp_path, {"let in": "hf://datasets/me/private/data/small.json"}, HF_TOKEN=TOKEN)
    for how in whole:
        assert rows[how]["error"] == ""
        for name in ("large.bin", "small.json"):
            assert (tmp_path / how / name).read_bytes() == FILES[f"data/{name}"], how
        notes = " ".join(rows[how]["notes"])
        assert "its SHA-256 is as published" in notes
        assert "its name in git is as published" in notes
    for how in ("nobody", "nothing"):
        assert "is no address of a file there" in rows[how]["error"]
    for how in refused:
        assert not (tmp_path / how / "large.bin").exists()
    assert "is not what was published; it is damaged or another file" in rows["ignores"]["error"]
    assert "is there already and is another file" in rows["other"]["error"]
    for how, words in (("private", "may not know that it does"), ("missing", "does not exist"), ("gated", "is denied")):
        assert words in rows[how]["error"]
        assert "HF_TOKEN" in rows[how]["error"]
        assert "\n" not in rows[how]["error"]
    assert login["let in"]["error"] == ""
    assert TOKEN not in "".join(path.read_text(errors="ignore") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_hub_that_is_down_is_one_sentence(tmp_path: Path) -> None:
    with serving_hub() as hub:
        hub.files = FILES
    down = fetched(hub, tmp_path, {"down": "hf://datasets/me/good/README.md"})
    assert down["down"]["error"].startswith("UnreachableError: ")
