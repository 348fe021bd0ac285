"""The container file and the devcontainer: built where there is a builder, else read line by line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
TEXT = (HOME / "Containerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Each instruction and the rest of its line, continued lines joined."""
    lines = re.sub(r"\\\n", " ", TEXT).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip() and not line.startswith("#")]  # type: ignore[misc]


def test_every_instruction_is_one_and_the_first_is_a_slim_python() -> None:
    known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    names = [name for name, _ in instructions()]
    assert set(names) <= known
    assert names.count("FROM") == 1
    (base,) = (rest for name, rest in instructions() if name == "FROM")
    assert base == "docker.io/library/python:${PYTHON}-slim"
    for name, rest in instructions():
        if name in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest), "no shell stands between a signal and the command"


def test_what_is_copied_is_there_and_is_not_ignored() -> None:
    ignored = (HOME / ".containerignore").read_text().split()
    assert (HOME / ".dockerignore").read_text().split() == ignored
    for name, rest in instructions():
        if name == "COPY":
            *sources, _ = (word for word in rest.split() if not word.startswith("--"))
            for source in sources:
                assert (HOME / source).exists(), source
                assert source not in ignored


def test_versions_come_from_the_constraints_and_torch_from_the_index_that_is_asked_for() -> None:
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in line and "==" not in line for line in installs)
    assert installs[0].endswith('--index-url "${TORCH_INDEX}" torch')
    arguments = dict(rest.split("=", 1) for name, rest in instructions() if name == "ARG")
    assert arguments["TORCH_INDEX"].endswith("/cpu")
    used = set(re.findall(r"\$\{(\w+)\}", "\n".join(rest for _, rest in instructions())))
    assert used == arguments.keys(), "each argument is used, and each that is used is declared"


def test_it_runs_as_nobody_special_and_the_doctor_has_seen_it() -> None:
    rows = instructions()
    users = [rest for name, rest in rows if name == "USER"]
    assert users == ["ups"]
    assert ("RUN", "ups doctor --device cpu") in rows[rows.index(("USER", "ups")) :]
    (check,) = (rest for name, rest in rows if name == "HEALTHCHECK")
    assert '["ups", "doctor"' in check


def test_the_devcontainer_installs_with_the_same_constraints() -> None:
    settings = json.loads((HOME / ".devcontainer/devcontainer.json").read_text())
    assert "--constraint constraints.txt" in settings["postCreateCommand"]
    assert "'.[dev]'" in settings["postCreateCommand"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_can_be_built() -> None:
    """Slow: it fetches an image and torch."""
    builder = next(filter(None, map(shutil.which, ("podman", "buildah", "docker"))), None)
    if builder is None:
        pytest.skip("no podman, buildah or docker here: the file was read, not built")
    (base,) = (rest for name, rest in instructions() if name == "FROM")
    pull = subprocess.run([builder, "pull", base.replace("${PYTHON}", "3.12")], check=False, capture_output=True)
    if pull.returncode:
        pytest.skip(f"no registry of images can be reached from here: {pull.stderr.decode(errors='replace')[-200:]}")
    words = [builder, "build", "--file", "Containerfile", "--tag", "ups-test", "."]
    assert subprocess.run(words, cwd=HOME, check=False).returncode == 0
