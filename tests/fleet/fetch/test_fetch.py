"""`ups data fetch`: names of the catalogue, addresses, stores; what is printed, and what never is."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from lying_server import LyingServer, serving

from ups.cli.app import main
from ups.progress import Progress
from ups.types import ConfigError, DataError
from ups_fleet.fetch import catalogue
from ups_fleet.fetch.addresses import identity, may_hold_secrets, relative_path, shown
from ups_fleet.fetch.fetch import is_elsewhere, plan
from ups_fleet.fetch.stores import StoredFile

GENERATE = ["data", "generate", "advection1d", "--samples", "4", "--resolution", "32", "--beta", "0.4"]


def ups(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as PDEBench would publish it."""
    folder = tmp_path_factory.mktemp("made")
    assert ups(*GENERATE, "--out", str(folder)) == 0
    return next(folder.glob("*.hdf5"))


@pytest.fixture(scope="module")
def liar(made: Path) -> Iterator[LyingServer]:
    with serving() as liar:
        liar.files[made.name] = liar.files["255674"] = made.read_bytes()
        yield liar


def silent(_: Progress) -> None:
    """Not shown."""


def test_the_catalogue_has_every_published_file_once_and_no_checksum_that_is_none() -> None:
    files = catalogue.catalogue()
    kinds = Counter(file.name.partition(":")[0] for file in files)
    assert kinds["pdebench"] == 375
    assert len({group for group in catalogue.groups() if group.startswith("well:")}) == 23
    assert len({file.name.lower() for file in files}) == len(files)
    assert len({file.path for file in files}) == len(files)
    assert len({file.url for file in files}) == len(files)
    for file in files:
        assert re.fullmatch(r"https://[\w.~/%+-]+", file.url), file
        assert relative_path(file.path, file.url) == file.path
        assert re.fullmatch(r"[0-9a-f]{32}" if file.name.startswith("pdebench:") else "", file.md5), file
    twins = Counter(file.md5 for file in files if file.md5)
    assert max(twins.values()) == 2  # the simulations that PDEBench has published twice
    assert set(catalogue.published_sizes()) <= set(catalogue.groups())


def test_names_are_files_groups_splits_patterns_and_published_file_names() -> None:
    (one,) = catalogue.lookup("pdebench:advection1d/beta0.4")
    assert one.path == "1D_Advection_Sols_beta0.4.hdf5"
    assert catalogue.lookup("pdebench:1D_Advection_Sols_beta0.4.hdf5") == (one,)
    assert len(catalogue.lookup("pdebench:burgers1d")) == 12
    assert len(catalogue.lookup("pdebench:burgers1d/nu0.0*")) == 6
    assert len(catalogue.lookup("well:active_matter")) == 45 + 16 + 21 + 1
    assert len(catalogue.lookup("well:active_matter/valid")) == 16
    with pytest.raises(ConfigError, match="did you mean 'burgers1d'"):
        catalogue.lookup("pdebench:burger1d")
    with pytest.raises(ConfigError, match="--list well"):
        catalogue.lookup("well:")
    assert [is_elsewhere(word) for word in ("data/a.h5", "C:/a.h5", "pdebench.h5", "pdebench:x", "s3://b/a")] == [
        *(False, False, False),
        *(True, True),
    ]


def test_a_published_name_is_fetched_checked_and_its_path_printed(
    liar: LyingServer, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    md5 = hashlib.md5(made.read_bytes()).hexdigest()
    row = catalogue.PublishedFile("pdebench:advection1d/beta0.4", made.name, f"{liar.url}/fine/255674", md5)
    monkeypatch.setattr(catalogue, "catalogue", lambda: (row,))
    words = ["data", "fetch", "pdebench:advection1d/beta0.4", "--to", str(tmp_path)]
    assert ups(*words, "--dry-run") == 0
    assert "0.1 MB missing, MD5 " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert ups(*words) == 0
    path = tmp_path / made.name
    assert capsys.readouterr().out.splitlines() == [f"{path}: nothing wrong found", str(path)]
    assert path.read_bytes() == made.read_bytes()
    asked = len(liar.seen)
    assert ups(*words, "--unchecked") == 0
    assert len(liar.seen) == asked
    wrong = catalogue.PublishedFile(row.name, row.path, row.url, "0" * 32)
    monkeypatch.setattr(catalogue, "catalogue", lambda: (wrong,))
    capsys.readouterr()
    assert ups(*words[:-1], str(tmp_path / "other")) == 2
    captured = capsys.readouterr()
    assert "it is damaged or another file" in captured.err
    assert captured.out == ""
    assert list((tmp_path / "other").glob("*.hdf5")) == []


def test_what_is_no_data_is_told_and_exit_code_1(
    liar: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    liar.files["bad.h5"] = b"nothing that any reader knows"
    assert ups("data", "fetch", f"{liar.url}/fine/bad.h5", "--to", str(tmp_path)) == 1
    assert "bad.h5: " in capsys.readouterr().out


def test_no_secret_of_an_address_is_printed_or_written(
    liar: LyingServer, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = liar.url.replace("http://", "http://planted-user:planted-word@")
    for how in ("fine", "denied", "absent", "corrupt"):
        url = f"{plain}/{how}/{made.name}?X-Amz-Signature=planted-signature&token=planted-token"
        ups("data", "fetch", url, "--to", str(tmp_path / how), "--dry-run")
        ups("data", "fetch", url, "--to", str(tmp_path / how))
    captured = capsys.readouterr()
    files = "".join(path.read_text(errors="ignore") for path in tmp_path.rglob("*") if path.is_file())
    assert "planted" not in captured.out + captured.err + files + "".join(map(str, tmp_path.rglob("*")))
    signed = "https://u:p@h/a.h5?id=1&X-Amz-Signature=2#f"
    assert shown(signed) == "https://h/a.h5?…"
    assert may_hold_secrets(signed)
    assert identity(signed) == identity("https://h/a.h5?id=1&X-Amz-Signature=3") != identity("https://h/a.h5?id=2")


def test_local_files_and_stores_are_fetched_alike(made: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    assert plan([made.as_uri()], tmp_path / "file", silent).fetch()[0].read_bytes() == made.read_bytes()
    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/a/one.h5": made.read_bytes(), "/bucket/a/b/two.h5": b"2" * 100})
    paths = plan(["memory://bucket/a/"], tmp_path / "folder", silent).fetch()
    assert [path.relative_to(tmp_path / "folder").as_posix() for path in paths] == ["b/two.h5", "one.h5"]
    assert paths[1].read_bytes() == made.read_bytes()
    (two,) = plan(["memory://bucket/a/*/t*.h5"], tmp_path / "pattern", silent).fetch()
    assert two.read_bytes() == b"2" * 100
    with pytest.raises(DataError, match="does not exist"):
        plan(["memory://bucket/none.h5"], tmp_path, silent)
    with pytest.raises(DataError, match="holds no file"):
        plan(["memory://elsewhere/"], tmp_path, silent)
    with pytest.raises(DataError, match="leads out of its folder"):
        relative_path("a/../../b", "s3://bucket/")


def test_a_stored_file_that_changes_is_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/c.bin", b"old" * 1000)
    truly, turns = StoredFile._block, Counter[str]()

    def changing(self: StoredFile, start: int, end: int) -> bytes:
        block = truly(self, start, end)
        turns["blocks"] += 1
        if turns["blocks"] == 1:
            store.pipe("/bucket/c.bin", b"new" * 1000)
        return block

    monkeypatch.setattr(StoredFile, "_block", changing)
    (path,) = plan(["memory://bucket/c.bin"], tmp_path, silent).fetch()
    assert path.read_bytes() == b"new" * 1000


def test_two_files_of_one_name_are_refused_and_a_folder_that_may_not_be_written(made: Path, tmp_path: Path) -> None:
    other = tmp_path / made.name
    shutil.copy(made, other)
    with pytest.raises(ConfigError, match="would both be called"):
        plan([made.as_uri(), other.as_uri()], tmp_path, silent)
    with pytest.raises((DataError, OSError)):
        plan([made.as_uri()], Path("/proc/nowhere"), silent).fetch()
