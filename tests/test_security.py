"""The source runs nothing that it reads, and every promise of docs/security.md has its test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

# Where something stands that could run what it is given, and why it may.
ALLOWED = {
    ("ups_fleet/supervise/forked_functions.py", "pickle"): "pipes between a process and the children that it forks",
    (
        "ups_fleet/doctor/model_exercises.py",
        "pickle",
    ): "a file in a private folder, between a process and its ranks",
    ("ups/data/readers/torch_files.py", "pickle"): "the exception that refuses objects; nothing is unpickled",
    ("ups_fleet/lightning/stage_module.py", "pickle"): "the exception that refuses objects; nothing is unpickled",
    ("ups_fleet/fault_tests/disturbances.py", "pickle"): "made by the lab, to show that nobody unpickles it",
    ("ups_fleet/fault_tests/disturbances.py", "os.system"): "what that pickle would do; never called",
    ("ups/parsing.py", "yaml.load"): "with a SafeLoader of its own",
}
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp", "commands.getoutput"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
}
# Collectives that pickle what they send.
OBJECTS = re.compile(r"(broadcast|all_gather|gather|scatter|send|recv)_object(_list)?$")


def dangers(tree: ast.AST) -> Iterator[str]:
    """What in a file could run what it is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name.partition(".")[0] for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in CALLS:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if isinstance(node.func, ast.Name) and name in CALLS:
        yield name
    if OBJECTS.search(name):
        yield name
    if name == "torch.load" and keywords.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if keywords.get("allow_pickle", "False") != "False":
        yield "allow_pickle"
    if keywords.get("shell", "False") != "False":
        yield "shell"
    if keywords.get("weights_only", "True") != "True":
        yield "weights_only"


def test_nothing_runs_what_it_reads() -> None:
    there = {
        (path.relative_to(SOURCE).as_posix(), danger)
        for path in SOURCE.rglob("*.py")
        for danger in dangers(ast.parse(path.read_text()))
    }
    assert sorted(there - ALLOWED.keys()) == [], "mend it, or add it to ALLOWED with its reason"
    assert sorted(ALLOWED.keys() - there) == [], "what is no longer there is not allowed either"


SAMPLES = {
    "import pickle": "pickle",
    "from dill import loads": "dill",
    "torch.load(path)": "torch.load without weights_only=True",
    "torch.load(path, weights_only=False)": "torch.load without weights_only=True",
    "np.load(path, allow_pickle=True)": "allow_pickle",
    "yaml.load(text, Loader)": "yaml.load",
    "yaml.unsafe_load(text)": "yaml.unsafe_load",
    "eval(text)": "eval",
    "exec(text)": "exec",
    "dist.all_gather_object(values, value)": "dist.all_gather_object",
    "broadcast_object_list(values)": "broadcast_object_list",
    "subprocess.run(words, shell=True)": "shell",
    "run = os.system": "os.system",
    "tempfile.mktemp()": "tempfile.mktemp",
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_each_danger_is_seen(sample: str) -> None:
    assert SAMPLES[sample] in set(dangers(ast.parse(sample)))


def test_what_is_harmless_is_no_danger() -> None:
    for text in ("model.eval()", "re.compile(x)", "torch.load(p, weights_only=True)", "np.load(p, allow_pickle=False)"):
        assert list(dangers(ast.parse(text))) == []


def test_every_promise_of_the_security_page_has_its_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    promises = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(promises) > 25
    for file, name in promises:
        assert f"\ndef {name}(" in (ROOT / file).read_text(), f"docs/security.md names {file}::{name}"
    rows = [row for row in re.findall(r"^\|.*\|$", text, re.M) if not re.match(r"\|(---|\s*what )", row)]
    assert [row for row in rows if "::" not in row] == [], "every row names a test"
