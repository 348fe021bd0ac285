"""The shape of the house: who imports whom, how large a room may be, and that each says what it is for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ups"
FILES = sorted(SOURCE.rglob("*.py"))

# Each room may import those listed, and itself. Only downwards; a new room is a new line here.
FLOORS = {
    "cli": {"doctor", "jobs", "lab", "bench", "engine", "supervise", "rundir", "verdict", "screen", "config", "types"},
    "screen": {"jobs", "engine"},
    "doctor": {
        "jobs",
        "engine",
        "supervise",
        "models",
        "stages",
        "data",
        "rundir",
        "config",
        "heartbeat",
        "verdict",
        "types",
    },
    "jobs": {"stages", "eval", "engine", "tracking", "models", "physics", "data", "pages", "rundir", "config", "types"}
    | {"supervise", "verdict", "heartbeat"},
    "lab": {"jobs", "stages", "eval", "engine", "models", "physics", "rundir", "config", "types"}
    | {"supervise", "verdict", "heartbeat"},
    "bench": {"jobs", "stages", "eval", "engine", "models", "physics", "data", "rundir", "config", "types"}
    | {"supervise", "verdict", "heartbeat"},
    "supervise": {"rundir", "config", "heartbeat", "verdict", "types"},
    "stages": {"eval", "models", "physics", "types"},
    "eval": {"models", "physics", "pages", "types"},
    "models": {"physics", "types"},
    "engine": {"rundir", "heartbeat", "verdict", "types"},
    "tracking": {"rundir", "types"},
    "rundir": {"config", "verdict", "types"},
    "pages": {"types"},
    "physics": {"types"},
    "data": {"types"},
    "config": {"types"},
    "heartbeat": {"types"},
    "verdict": {"types"},
    "tensors": {"types"},
    "files": set(),
    "later": set(),
    "types": set(),
}
# Anyone above the nouns may use the tensors that flow, write files whole, and ask for the version.
FLOORS = {
    room: below | {"ups", "later"} | ({"tensors", "files"} if "types" in below else set())
    for room, below in FLOORS.items()
}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "ups"


def imports_of(path: Path, *, at_import_time: bool = False) -> set[str]:
    """Modules of `ups` that a file imports; those under TYPE_CHECKING or inside functions do not run at import."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    if at_import_time:
        for node in ast.walk(tree):
            late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            if late or typing_only:
                skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    known = {module_of(p) for p in FILES}
    return {m for m in found if m in known}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_every_file_imports_only_downwards(path: Path) -> None:
    room = room_of(module_of(path))
    if room in ("ups", "__main__"):
        return
    assert room in FLOORS, f"{room} is a new room: say in FLOORS what it may import"
    for imported in imports_of(path):
        assert room_of(imported) in FLOORS[room] | {room}, f"{room} may not import {imported}"


def test_no_import_goes_in_a_circle() -> None:
    graph = {module_of(p): imports_of(p, at_import_time=True) - {module_of(p)} for p in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path, module))
        if module in done:
            return
        for imported in graph[module]:
            # A package's __init__ names its own modules; that is its table of contents, not a dependence.
            if not module.startswith(imported + "."):
                visit(imported, (*path, module))
        done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_every_file_is_a_sitting_and_every_function_a_screen(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 350, "a file fits a sitting"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno
            doc = ast.get_docstring(node, clean=False)
            assert lines - (doc.count("\n") if doc else 0) <= 60, f"{node.name} does not fit a screen"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_every_file_says_in_one_line_what_it_is(path: Path) -> None:
    text = path.read_text()
    if not text.strip():
        return
    doc = ast.get_docstring(ast.parse(text))
    assert doc, "a docstring comes first"
    assert "\n" not in doc, "and it is one line"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_error_is_swallowed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            assert caught not in ("", "Exception", "BaseException"), f"line {node.lineno} catches everything"


def test_the_architecture_names_every_file_and_what_each_room_may_import() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\w+\.py", text))
    assert {path.name for path in FILES} - {"__init__.py", "__main__.py"} <= named
    table = [[re.findall(r"`(\w+)`", cell) for cell in row] for row in re.findall(r"^\|(.*?)\|(.*?)\|$", text, re.M)]
    said = {room: set(below) for rooms, below in table for room in rooms}
    for room, below in FLOORS.items():
        missing = below - {"ups", "later", "tensors", "files"} - said.get(room, set())
        assert room == "jobs" or not missing, f"{room} may import {missing}, which the table does not say"


def test_tests_mirror_the_source() -> None:
    for test in (ROOT / "tests").rglob("test_*.py"):
        room = test.relative_to(ROOT / "tests").parent
        assert (SOURCE / room).is_dir(), f"{test} tests a room that is not there"


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom ups.cli import app\n"
        "for words in ('', 'data', 'data generate', 'data info', 'data validate', 'config show', 'bench', 'demo'):\n"
        "    app([*words.split(), '--help'], result_action='return_value')\n"
        "assert 'torch' not in sys.modules, 'help imported torch'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
