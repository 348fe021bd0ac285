"""A bundle holds what it says, refuses what cannot be, and proves itself on a machine without a network."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ups.cli.app import main
from ups.types import ConfigError, DataError
from ups.version import __version__
from ups_fleet.bundle import selftest
from ups_fleet.bundle import wheels as module
from ups_fleet.bundle.bundle import BundleRequest, make_bundle, script, summary
from ups_fleet.bundle.wheels import DISTRIBUTION, is_run, slimmed, write_own_wheel, write_stand_in

HERE = ".".join(map(str, sys.version_info[:2]))


def rows_of(wheel: Path) -> dict[str, str]:
    """The RECORD of a wheel: the digest of each file."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("RECORD"))
        return {row.rsplit(",", 2)[0]: row.rsplit(",", 2)[1] for row in archive.read(record).decode().splitlines()}


def test_the_own_wheel_holds_every_file_of_the_package_and_records_it(tmp_path: Path) -> None:
    wheel = write_own_wheel(tmp_path)
    assert wheel.name == f"universal_physics_stack-{__version__}-py3-none-any.whl"
    rows = rows_of(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == rows.keys()
        assert {"ups/cli/__init__.py", "ups/configs/demo.yaml", "ups/pages/page.html", "ups/py.typed"} <= rows.keys()
        assert not any("__pycache__" in name for name in rows)
        (described,) = (archive.read(name).decode() for name in rows if name.endswith("/METADATA"))
        (entry,) = (archive.read(name).decode() for name in rows if name.endswith("/entry_points.txt"))
    assert f"Version: {__version__}\n" in described
    assert "Requires-Dist: torch" in described
    assert "ups = ups.__main__:main" in entry
    assert wheel.read_bytes() == write_own_wheel(tmp_path).read_bytes(), "the same files give the same bytes"


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("scipy/fft/_pocketfft/helper.py", True),
        ("scipy/fft/tests/test_helper.py", False),
        ("scipy/fft/tests/data/big.npz", False),
        ("numpy/_core/tests/_natype.py", True),
        ("numpy/testing/__init__.py", True),
        ("numpy/__init__.pyi", False),
        ("numpy.libs/libopenblas.so", True),
        ("matplotlib/mpl-data/sample_data/topo.npz", False),
        ("matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf", True),
        ("numpy-2.dist-info/RECORD", True),
    ],
)
def test_only_what_no_code_of_a_package_needs_is_left_out(name: str, stays: bool) -> None:
    assert is_run(name) is stays


def test_a_slim_wheel_records_what_is_left_and_one_with_nothing_to_leave_out_stays_to_the_byte(tmp_path: Path) -> None:
    wheel = write_own_wheel(tmp_path)
    before, raw = rows_of(wheel), wheel.read_bytes()
    slimmed(wheel, stored=False)
    assert wheel.read_bytes() == raw
    slimmed(wheel, stored=False, needed=lambda name: not name.startswith("ups_fleet/fault_tests/"))
    after = rows_of(wheel)
    assert {name for name in before if not name.startswith("ups_fleet/fault_tests/")} == after.keys()
    assert all(after[name] == before[name] for name in after)
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == after.keys()
        assert archive.testzip() is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--python", "2.7"], "must be a version such as 3.12"),
        (["--python", "3.9"], "needs 3.11 or newer"),
        (["--platform", "riscv64"], "must be one of x86_64, aarch64"),
        (["--with", "baselines,nonsense"], "'nonsense', which is no extra; there are baselines"),
        (["--out", "full"], "full is not empty"),
        (["--without", "torch,no-such-package"], "no-such-package: it is not installed here"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_anything_is_fetched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_run", lambda *_: pytest.fail("pip was started"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(SystemExit) as ended:
        main(["bundle", *words])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"], "nothing is left behind"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip knows no index but a folder of ours."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    index = tmp_path / "index"
    index.mkdir()
    return index


def test_without_a_network_it_says_so_in_one_sentence(
    alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DataError, match=r"^the package index could not be reached; .* carry it over\.$"):
        make_bundle(BundleRequest(out=tmp_path / "bundle"), lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [alone.name]


def test_a_version_without_wheels_is_named(alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(alone))
    with pytest.raises(ConfigError, match=r"^there is no wheel of \S+ for Python 3\.45 on aarch64; ask for another"):
        make_bundle(BundleRequest(python="3.45", platform="aarch64", out=tmp_path / "bundle"), lambda _: None)


def bundle_of_nothing(folder: Path, **changes: Any) -> Path:
    """A bundle with one small wheel, and its self-test."""
    (folder / "wheels").mkdir(parents=True)
    wheel = write_stand_in(folder / "wheels", "tiny", "1.0")
    row = {"name": "tiny", "version": "1.0", "file": wheel.name, "bytes": wheel.stat().st_size}
    row["sha256"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    manifest = {"ups": "0", "python": HERE, "platform": platform.machine(), "without": {}, "wheels": [row], **changes}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.copy(selftest.__file__, folder / "selftest.py")
    return wheel


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("a flipped byte", "is damaged (its SHA-256 is not the one in manifest.json)"),
        ("a missing wheel", "is missing; carry the whole folder over again"),
        ("another Python", f"made for Python 3.99, and this is {HERE}"),
        ("another machine", "made for vax, and this machine is"),
        ("no torch", "torch-of-another-world is not installed for"),
        ("an old torch", "is needed"),
        ("something else in its place", "holds something else; name another folder with --unpack"),
    ],
)
def test_a_bundle_that_cannot_work_fails_with_its_reason(tmp_path: Path, damage: str, sentence: str) -> None:
    changes: dict[str, Any] = {
        "another Python": {"python": "3.99"},
        "another machine": {"platform": "vax"},
        "no torch": {"without": {"torch-of-another-world": "2.11"}},
        "an old torch": {"without": {"numpy": "999.1"}},
    }.get(damage, {})
    wheel = bundle_of_nothing(tmp_path / "bundle", **changes)
    if damage == "a flipped byte":
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    if damage == "a missing wheel":
        wheel.unlink()
    if damage == "something else in its place":
        (tmp_path / "bundle" / "site").mkdir()
        (tmp_path / "bundle" / "site" / "thesis.tex").touch()
    words = [sys.executable, str(tmp_path / "bundle" / "selftest.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("ups bundle FAILED: ")
    assert done.stdout.count("\n") == 1
    assert sentence in done.stdout


# What torch needs beside itself: all that the other machine has.
TORCH = ("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "filelock", "fsspec", "typing_extensions.py")
TORCH_TOO = ("jinja2", "markupsafe", "setuptools", "_distutils_hack", "pkg_resources")


def only_torch(folder: Path) -> Path:
    """A folder with links to torch and what it needs of this environment, and to nothing else."""
    folder.mkdir()
    packages = Path(str(metadata.distribution("torch").locate_file("")))
    names = [*TORCH, *TORCH_TOO, *(path.name for path in packages.glob("torch-*.dist-info"))]
    for name in names:
        if (packages / name).exists():
            (folder / name).symlink_to(packages / name)
    return folder


def test_a_python_that_is_too_old_to_read_the_self_test_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("3.45")
    assert "__future__" not in text
    ast.parse(text, feature_version=(3, 6))
    with pytest.raises(SystemExit) as end:
        exec(compile(text, "selftest.py", "exec"), {"__name__": "__main__"})
    assert end.value.code == 1
    assert capsys.readouterr().out.startswith("ups bundle FAILED: it was made for Python 3.45, and this is 3.")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_bundle_for_this_python_works_with_torch_alone_and_without_a_network(tmp_path: Path) -> None:
    """Slow, as it fetches, packs and unpacks 200 MB. An empty environment, another folder, no network at all."""
    try:
        bundle = make_bundle(BundleRequest(out=tmp_path / "bundle"), lambda _: None)
    except DataError as error:
        if "could not be reached" not in str(error):
            raise
        pytest.skip(str(error))
    manifest = json.loads((bundle / "manifest.json").read_text())
    names = {wheel["name"] for wheel in manifest["wheels"]}
    assert {DISTRIBUTION, "numpy", "scipy", "h5py", "pydantic"} <= names
    assert not {"torch", "triton", "sympy"} & names
    assert manifest["without"] == {"torch": "2.11"}
    assert " wheels; most of it " in summary(bundle)
    interpreter = os.path.realpath(sys.executable)  # that of no environment
    path = only_torch(tmp_path / "torch")
    words = ["env", "-i", f"PYTHONPATH={path}", interpreter, str(bundle / "selftest.py"), "--device", "cpu"]
    cut_off = ["unshare", "-n"] if os.geteuid() == 0 and shutil.which("unshare") else []
    done = subprocess.run([*cut_off, *words], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"ups bundle OK: ups {__version__} and {len(names) - 1} packages on Python {HERE}, ")
    assert done.stdout.endswith(f"export PYTHONPATH={bundle / 'site'}\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(bundle / "wheels"), "--no-deps"]
    pip += ["--target", str(tmp_path / "target"), *(f"{w['name']}=={w['version']}" for w in manifest["wheels"])]
    assert subprocess.run(pip, capture_output=True, check=False).returncode == 0
