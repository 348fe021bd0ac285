"""Pages that say how something is added, followed to the letter: their blocks are written into a copy of the house."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import test_house as law

ROOT = Path(__file__).parent.parent


def blocks(text: str) -> list[tuple[Path, str]]:
    """(file, what the page writes into it), in the page's order."""
    found = re.findall(r"`((?:src|docs|configs)/[\w/.-]+)`[^`\n]*:\n\n```\w+\n(.*?)```", text, re.DOTALL)
    return [(Path(name), block) for name, block in found]


def entered(text: str, block: str) -> str:
    """A Python file with what the page adds to it: imports, functions, entries of a dictionary.

    A comment in the dictionary stands for the entries that are there.
    """
    code, header, entries = re.split(r"^(\w+: .* = \{\n)", block, maxsplit=1, flags=re.MULTILINE)
    assert text.count(header) == 1, f"the page says {header!r}, which is not in the file"
    before, after = text.split(header)
    there, end, after = after.partition("\n}\n")
    new = re.sub(r"^ *#.*\n", lambda _: f"{there}\n", entries.removesuffix("}\n"), flags=re.MULTILINE).rstrip("\n")
    if code.startswith("from "):
        before = before.replace("from ups.", f"{code.strip()}\nfrom ups.", 1)
    else:
        before += code
    return before + header + new + end + after


def house_after(page: str, place: Path, copied: tuple[str, ...] = ("src", "docs")) -> Path:
    """A copy of the house with everything added that a page adds."""
    for name in copied:
        shutil.copytree(ROOT / name, place / name)  # with what is compiled: to compile it anew takes seconds
    shutil.copy(ROOT / "pyproject.toml", place)
    (place / "configs").mkdir()
    for path, block in blocks((ROOT / page).read_text()):
        file = place / path
        file.write_text(entered(file.read_text(), block) if file.exists() else block)
    return place


def python(house: Path, *words: str, env: Mapping[str, str] = {}, code: int = 0, given: str = "") -> str:
    """What a Python program prints in that house, to which `given` is typed; it must exit with `code`."""
    plain = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(house / "src"), "HOME": str(house)}
    # Where matplotlib has its list of fonts, which takes seconds to make.
    plain["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=house,
        env={**plain, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env},
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}: {done.stdout[-5000:]}"
    return done.stdout


def require_house_rules(page: str, place: Path, patch: pytest.MonkeyPatch) -> None:
    """The laws of tests/test_house.py that what a page adds to that house could break."""
    patch.setattr(law, "ROOT", place)
    patch.setattr(law, "SOURCE", place / "src")
    patch.setattr(law, "FILES", sorted((place / "src").rglob("*.py")))
    patch.setattr(law, "MODULES", {law.module_of(path) for path in law.FILES})
    law.test_every_file_imports_only_downwards()
    law.test_no_import_goes_in_a_circle_not_even_a_late_one()
    law.test_the_architecture_says_what_each_room_is_for_and_may_import()
    added = (path for path, _ in blocks((ROOT / page).read_text()) if path.suffix == ".py")
    patch.setattr(law, "FILES", [place / path for path in added])
    law.test_every_file_is_a_sitting_and_every_function_a_screen()
    law.test_every_file_says_in_one_line_what_it_is()
