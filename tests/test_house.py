"""The shape of the house: who imports whom, how large a room may be, and that each says what it is for."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
FILES = sorted(SOURCE.rglob("*.py"))

# The wings, and whom each may import: only those below it.
WINGS: dict[str, set[str]] = {
    "ups": set(),
    "ups_fleet": {"ups"},
    "ups_bench": {"ups", "ups_fleet"},
    "ups_apps": {"ups"},
}

# Each room of the instrument may import those listed, and itself. Only downwards; a new room is a new line here.
INSTRUMENT = {
    "cli": {"jobs", "run", "engine", "screen", "rundir", "config", "definition", "streams", "verdict", "run_files"}
    | {"wings", "open_files", "progress", "types"},
    "screen": {"progress"},
    "jobs": {"run", "eval", "engine", "models", "physics", "data", "pages", "rundir", "config", "heartbeat", "types"}
    | {"definition", "host_memory", "presence", "verdict", "progress"},
    "run": {"stages", "eval", "engine", "models", "physics", "data", "rundir", "config_shared", "config", "wings"}
    | {
        "definition",
        "metrics_log",
        "masks",
        "streams",
        "pages",
        "presence",
        "provenance",
        "heartbeat",
        "verdict",
        "progress",
        "types",
    },
    "stages": {"eval", "engine", "models", "physics", "config_shared", "config", "types"},
    "models": {"clouds", "graphs", "triton_check", "host_memory", "physics", "masks", "progress", "config", "types"},
    "eval": {"pages", "run_files", "types"},
    "engine": {"graphs", "triton_check", "wire", "heartbeat", "verdict", "shortage", "progress", "types"},
    "wings": {"config", "progress", "types"},
    "metrics_log": {"rundir", "types"},
    "rundir": {"provenance", "presence", "run_files", "config", "verdict", "types"},
    "provenance": {"verdict", "types"},
    "pages": {"types"},
    "physics": {"graphs", "triton_check", "progress", "types"},
    "data": {"clouds", "definition", "run_files", "masks", "shortage", "host_memory", "types"},
    "definition": {"config", "types"},
    "clouds": {"types"},
    "masks": {"types"},
    "config_values": {"types"},
    "config_shared": {"config_values", "types"},
    "config": {"config_shared", "config_values", "types"},
    "heartbeat": {"types"},
    "verdict": {"shortage", "types"},
    "shortage": {"host_memory"},
    "host_memory": set(),
    "open_files": {"types"},
    "graphs": {"types"},
    "triton_check": set(),
    "tensors": {"types"},
    "files": {"types"},
    "wire": {"types"},
    "presence": {"types"},
    "plugins": {"types"},
    "streams": set(),
    "progress": set(),
    "run_files": set(),
    "lazy_imports": set(),
    "parsing": set(),
    "version": set(),
    "types": set(),
}
# Anyone may parse and ask for the version; above the nouns, use the tensors that flow, write files whole, be added to.
EVERYWHERE = {"lazy_imports", "version", "parsing", "tensors", "files", "plugins"}
INSTRUMENT = {
    room: below | {"lazy_imports", "version", "parsing"} | (EVERYWHERE if "types" in below else set())
    for room, below in INSTRUMENT.items()
}
# Each room of the workshop may use the instrument, and of the workshop those listed.
WORKSHOP = {
    "wing": {"cli", "keys", "tracking", "sync", "fetch", "running", "doctor", "bundle", "lightning", "submit"},
    "cli": {"doctor", "fault_tests", "run_folders", "running", "submit", "supervise", "sweep", "tracking", "keys"},
    "submit": {"cli", "secrets", "supervise", "sweep", "keys", "web"},
    "lightning": {"running", "keys"},
    "bundle": set(),
    "sweep": {"run_folders", "running", "supervise", "keys"},
    "fault_tests": {"running", "supervise", "keys"},
    "running": {"fetch", "supervise", "sync", "tracking", "keys"},
    "doctor": {"fault_tests", "supervise", "keys"},
    "keys": {"supervise", "sync", "tracking"},
    "run_folders": {"supervise"},
    "sync": {"fetch", "outbox", "supervise"},
    "fetch": {"secrets", "web"},
    "tracking": {"outbox", "supervise", "web"},
    "outbox": {"secrets", "supervise"},
    "secrets": set(),
    "supervise": set(),
    "web": set(),
}
# And so for the apps.
APPS: dict[str, set[str]] = {
    "wing": set(),
    "export": {"page", "play", "serve"},
    "play": {"page", "serve"},
    "serve": set(),
    "page": set(),
}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}
# Names that no variable, parameter or field may have, but for fields that are keys of a file.
VAGUE = {"found", "told", "said", "kept", "asked"}
WRITTEN = {("ups_fleet/doctor/findings.py", "found"), ("ups/eval/training_facts.py", "asked")}
# Statements that import, whole, wherever they stand: as ruff lays them out, each begins a line.
IMPORT = re.compile(r"^[ \t]*((?:from|import) [^\n(]*(?:\([^)]*\))?)", re.MULTILINE)


class Code(NamedTuple):
    """What the tests here ask of a file; its tree itself would take the memory of all."""

    doc: str | None
    functions: list[tuple[str, int]]  # with their lines of code
    handlers: list[tuple[str, int]]  # what each catches, and where
    names: list[tuple[str, int]]  # that are assigned or are parameters, and where
    classes: list[str]
    silent: list[str]  # public functions and classes of the file that no docstring explains


LEAVES = (ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.boolop)  # with nothing of it inside


@functools.cache
def code_of(path: Path) -> Code:
    text = path.read_text()
    tree = ast.parse(text)
    top = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    given = {*re.findall(r"\b(\w+)\.__doc__ = ", text)}
    silent = [node.name for node in top if not ast.get_docstring(node) and node.name not in given]
    code = Code(ast.get_docstring(tree), [], [], [], [], silent)
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef):
            doc = ast.get_docstring(node, clean=False) or ""
            code.functions.append((node.name, (node.end_lineno or 0) - node.lineno - doc.count("\n")))
        elif isinstance(node, ast.ClassDef):
            code.classes.append(node.name)
        elif isinstance(node, ast.ExceptHandler):
            code.handlers.append((ast.unparse(node.type) if node.type else "", node.lineno))
        elif isinstance(node, ast.arg):
            code.names.append((node.arg, node.lineno))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            code.names.append((node.id, node.lineno))
        for value in vars(node).values():
            if isinstance(value, list):
                todo += (each for each in value if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, LEAVES):
                todo.append(value)
    return code


def room_of(module: str) -> str:
    """Its room, or the wing itself."""
    wing, _, rest = module.partition(".")
    return rest.partition(".")[0] or wing


def wing_of(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Modules of `ups` that a file imports anywhere: at its top, inside functions, for types alone."""
    modules = set()
    ours = [text for text in IMPORT.findall(path.read_text()) if "ups" in text or text.startswith("from .")]
    for node in ast.parse("\n".join(ours)).body:
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules & MODULES


def test_wings_import_only_those_below_them() -> None:
    for path in FILES:
        module = module_of(path)
        wings = {wing_of(name) for name in imports_of(path)} - {wing_of(module)}
        assert wings <= WINGS[wing_of(module)], f"{module} may not import {wings - WINGS[wing_of(module)]}"


def test_every_file_imports_only_downwards() -> None:
    for path in FILES:
        module = module_of(path)
        wing, room = wing_of(module), room_of(module)
        floors = {"ups": INSTRUMENT, "ups_fleet": WORKSHOP, "ups_apps": APPS}.get(wing)
        if floors is not None and room not in (wing, "__main__"):
            assert room in floors, f"{room} is a new room: say what it may import"
            inside = {name for name in imports_of(path) if wing_of(name) == wing and name != wing}
            above = {name for name in inside if room_of(name) not in floors[room] | {room}}
            assert not above, f"{module} may not import {above}"


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle, the first of them again at the end; none where there is no circle."""
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        circles = (visit(below, (*path, module)) for below in sorted(graph[module]) if below not in done)
        circle = next((circle for circle in circles if circle), [])
        done.add(module)
        return circle

    return next((circle for module in graph if (circle := visit(module, ()))), [])


def test_no_import_goes_in_a_circle_not_even_a_late_one() -> None:
    graph = {}
    for path in FILES:
        module = module_of(path)
        graph[module] = imports_of(path) - {module}
        if path.name == "__init__.py":  # naming its own modules is a table of contents, not a dependence
            graph[module] = {below for below in graph[module] if not below.startswith(f"{module}.")}
    assert " → ".join(circle_in(graph)) == ""
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_every_file_is_a_sitting_and_every_function_a_screen() -> None:
    for path in FILES:
        assert path.read_text().count("\n") <= 600, f"{path}: a file fits a sitting"
        for name, lines in code_of(path).functions:
            assert lines <= 60, f"{module_of(path)}: {name} does not fit a screen"


def test_every_file_says_in_one_line_what_it_is() -> None:
    for path in FILES:
        if path.read_text().strip():
            doc = code_of(path).doc
            assert doc, f"{path}: a docstring comes first"
            assert "\n" not in doc, f"{path}: its docstring is one line"


def test_every_public_function_and_class_of_the_instrument_says_what_it_is() -> None:
    silent = {module_of(path): code_of(path).silent for path in FILES if wing_of(module_of(path)) == "ups"}
    assert {module: names for module, names in silent.items() if names} == {}


def test_no_error_is_swallowed() -> None:
    for path in FILES:
        for caught, line in code_of(path).handlers:
            assert caught not in ("", "Exception", "BaseException"), f"{path}:{line} catches everything"


def test_a_variable_is_named_for_what_it_holds() -> None:
    """`found`, `told`, `said`, `kept` and `asked` say where a value is from; a noun (`files`, `message`) says what."""
    for path in FILES:
        place = str(path.relative_to(SOURCE))
        for name, line in code_of(path).names:
            vague = name in VAGUE and (place, name) not in WRITTEN
            assert not vague, f"{path}:{line}: call `{name}` by the noun that it holds"


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for name in code_of(path).classes:
            if not name.startswith("_"):
                homes.setdefault(name, []).append(module_of(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_what_is_called_a_number_is_one_for_int() -> None:
    """'²'.isdigit() is true, and int('²') is an error: a name that a stranger gave a file would end a run."""
    assert [path for path in FILES if re.search(r"\.is(digit|numeric)\(", path.read_text())] == []


def tables_of(page: str) -> dict[str, list[list[list[str]]]]:
    """The tables of a page by heading: rows, cells, and what each cell names in backticks."""
    chapters = re.split(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {
        title: [
            [re.findall(r"`([\w.]+)`", cell) for cell in row.split("|")]
            for row in re.findall(r"^\|(.*)\|$", text, re.M)
        ]
        for title, text in zip(chapters[1::2], chapters[2::2], strict=True)
    }


def test_the_architecture_says_what_each_room_is_for_and_may_import() -> None:
    tables = tables_of((ROOT / "docs" / "architecture.md").read_text())
    for wing in ("ups", "ups_fleet", "ups_apps"):
        rooms = {path.name for path in (SOURCE / wing).iterdir() if (path / "__init__.py").exists()}
        assert {row[0][0] for row in tables[f"`{wing}`"] if row[0]} == rooms
    stated = {room: set(row[1]) for row in tables["Who may import whom"] for room in row[0]}
    for room, below in INSTRUMENT.items():
        assert stated.get(room, set()) == below - EVERYWHERE, f"the table is wrong on {room}"


def test_tests_mirror_the_source() -> None:
    """`tests/data` has the tests of `ups.data`, `tests/fleet/sync` those of `ups_fleet.sync`, and so on."""
    for test in (ROOT / "tests").rglob("test_*.py"):
        place = test.relative_to(ROOT / "tests").parent
        wing = {"fleet": "ups_fleet", "bench": "ups_bench", "apps": "ups_apps"}.get(
            place.parts[0] if place.parts else "", "ups"
        )
        room = place if wing == "ups" else place.relative_to(place.parts[0])
        assert (SOURCE / wing / room).is_dir(), f"{test} tests a room that is not there"


def test_nothing_is_handed_to_oneself_through_the_environment() -> None:
    """What a run was asked for is a `Start`. Only who has just become another process, or hands something to a library
    that reads variables alone, writes into its own environment."""
    library = {"cli/run.py", "tracking/mlflow.py", "tracking/wandb.py"}
    child = {"supervise/launchers/forked.py", "supervise/forked_functions.py"}
    writes = re.compile(r"os\.environ(\[[^\]]+\] = |\.update|\.setdefault|\.pop|\.clear| \|=)|putenv")
    rows = {str(path.relative_to(SOURCE)) for path in FILES if writes.search(path.read_text())}
    rows = {row for row in rows if not row.startswith("ups_fleet/fault_tests/")}  # they disturb on purpose
    assert rows == {f"ups_fleet/{name}" for name in library | child}


def test_child_processes_begin_in_one_place() -> None:
    """`ups_fleet/supervise/children.py`. Others have a reason of their own."""
    below = {
        "ups/provenance.py",
        "ups/triton_check.py",
        "ups/streams.py",
    }  # git, a compiler, a count
    workers = {"ups/data/loader.py", "ups_fleet/supervise/start_dir.py"}  # those of torch's loader
    functions = {"ups_fleet/supervise/forked_functions.py"}  # called in a child, with what they return
    bare = {"ups_fleet/supervise/rank_parent.py", "ups_fleet/bundle/selftest.py"}  # run without this package
    apart = {"ups_fleet/bundle/wheels.py"}  # of a room that imports none, and reads line by line
    proof = {"ups_bench/accuracy.py", "ups_bench/cache.py", "ups_bench/growth_start.py"}
    tests = {"fault_tests/command.py"}
    begins = re.compile(r"^\s*(?:import|from) (?:subprocess|multiprocessing)\b|os\.fork\(", re.M)
    rows = {str(path.relative_to(SOURCE)) for path in FILES if begins.search(path.read_text())}
    named = below | workers | functions | bare | apart | proof | {f"ups_fleet/{name}" for name in tests}
    assert rows - named == {"ups_fleet/supervise/children.py"}


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom ups.cli.app import app\n"
        "data = ('data', 'data generate', 'data info', 'data validate', 'data import', 'data fetch')\n"
        "for words in ('', *data, 'config show', 'bench', 'demo', 'runs', 'show', 'compare', 'launch slurm'):\n"
        "    app([*words.split(), '--help'], result_action='return_value')\n"
        "assert 'torch' not in sys.modules, 'help imported torch'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)
