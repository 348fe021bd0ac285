"""Addresses: which are the same file, what a server gets of them, and what nobody is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from lying_server import LyingServer, serving

from ups.cli.app import main
from ups.progress import Progress
from ups.types import ConfigError, DataError, UpsError
from ups_fleet.fetch.addresses import gives_access, http_address, identity, may_hold_secrets, relative_path, shown
from ups_fleet.fetch.fetch import FetchPlan, plan, wanted
from ups_fleet.fetch.http_file import HttpFile
from ups_fleet.fetch.patience import Patience
from ups_fleet.fetch.remote_file import local_path

HASTY = Patience(tries=2, first=0.01, longest=0.05, longest_requested=1.0, stall=1.0, least=1)
CONTENT = b"content of a file" * 1000


@pytest.fixture(scope="module")
def liar() -> Iterator[LyingServer]:
    with serving() as liar:
        liar.files.update({"d.h5": CONTENT, "my file.h5": CONTENT, "é.h5": CONTENT})
        yield liar


def planned(url: str, folder: Path) -> FetchPlan:
    def silent(_: Progress) -> None:
        """Not shown."""

    return plan([url], folder, silent, patience=HASTY)


def query_of(path: Path) -> str:
    """Which query a file of `/query/` came from."""
    names = [f"{name}={value}" for name in ("sigma", "date", "key", "design") for value in "12"]
    return next(name for name in names if hashlib.sha256(name.encode()).digest() == path.read_bytes())


@pytest.mark.parametrize("name", ["sigma", "date", "design"])
def test_an_address_that_differs_in_its_query_is_another_file(liar: LyingServer, name: str, tmp_path: Path) -> None:
    (path,) = planned(f"{liar.url}/query/d.h5?{name}=1", tmp_path).fetch()
    requests = len(liar.seen)
    planned(f"{liar.url}/query/d.h5?{name}=1", tmp_path).fetch()
    assert len(liar.seen) == requests
    for _ in range(2):
        with pytest.raises(DataError, match="is there already and is another file"):
            planned(f"{liar.url}/query/d.h5?{name}=2", tmp_path).fetch()
        path.touch()
    assert query_of(path) == f"{name}=1"


def test_a_file_of_another_signature_is_not_taken_before_the_server_is_asked(liar: LyingServer, tmp_path: Path) -> None:
    planned(f"{liar.url}/fine/d.h5?token=1", tmp_path).fetch()
    requests = len(liar.seen)
    planned(f"{liar.url}/fine/d.h5?token=2", tmp_path).fetch()
    assert len(liar.seen) > requests
    liar.tags["d.h5"] = "newer"
    with pytest.raises(DataError, match="is another file"):
        planned(f"{liar.url}/fine/d.h5?token=3", tmp_path).fetch()
    del liar.tags["d.h5"]
    for secret in ("sig", "Signature", "api_key", "access-token", "X-Amz-Date", "Expires", "password"):
        assert gives_access(f"https://h/a?{secret}=1"), secret
        assert identity(f"https://h/a?x=1&{secret}=1") == identity(f"https://h/a?x=1&{secret}=2"), secret
    for name in ("sigma", "keyword", "update", "author", "monkey", "tokens", "se", "a=1&b"):
        assert identity(f"https://h/a?{name}=1") != identity(f"https://h/a?{name}=2"), name
    assert identity("https://h/a?sv=1&se=1&sig=1") == identity("https://h/a?sv=1&se=2&sig=2")
    assert identity("s3://b/x#1/a.h5") != identity("s3://b/x#2/a.h5")


@pytest.mark.parametrize("name", ["my file.h5", "é.h5"])
def test_letters_that_may_not_stand_in_an_address_are_quoted(liar: LyingServer, name: str, tmp_path: Path) -> None:
    (path,) = planned(f"{liar.url}/fine/{name}?token=S3CR3T", tmp_path / "direct").fetch()
    assert path.name == name
    assert path.read_bytes() == CONTENT
    file = HttpFile("https://h/a", HASTY)
    location = f"/b c/{name}?x=ü".encode().decode("latin-1")
    quoted = http_address(f"https://h/b c/{name}?x=ü")
    assert file._next(file.url, {"Location": location}) == quoted  # type: ignore[arg-type]
    assert quoted.isascii()
    assert " " not in quoted
    for wrong in ("http://h:abc/x", "http://[::1/x", "https://h:99999/"):
        with pytest.raises(DataError, match="redirects to what is no http address"):
            file._next(file.url, {"Location": wrong})  # type: ignore[arg-type]
    assert http_address("https://bücher.example/a%20b?c=%C3%A9") == "https://xn--bcher-kva.example/a%20b?c=%C3%A9"


@pytest.mark.parametrize(
    "address",
    [
        *("http://127.0.0.1:S3C/x.h5", "http://u:S3C/RET@host/x.h5", "http://u:S3C#RET@host/x.h5", "http://[S3C/x.h5"),
        *(
            "http://u:S3C?RET@host/x.h5",
            "http:/u:S3C/RET@host",
            "http://u:S3C@h\u2100/x.h5",
            "http://127.0.0.1:1\x7fS3C/",
        ),
        "ftp://u:S3CRET@127.0.0.1:1/x.h5",
    ],
)
def test_a_mistake_in_an_address_is_one_sentence_that_shows_no_secret(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", "fetch", address, "--to", str(tmp_path)])
    words = capsys.readouterr()
    assert ended.value.code == 2
    assert "S3C" not in words.out + words.err
    assert "RET" not in words.out + words.err
    assert "Traceback" not in words.err


def test_what_may_be_a_password_is_not_shown() -> None:
    assert shown("http://u:12/34@host/x.h5") == "http://…"
    assert may_hold_secrets("http://u:12/34@host/x.h5")
    assert shown("http://host/a@2.h5") == "http://host/a@2.h5"
    with pytest.raises(ConfigError, match="is no address"):
        may_hold_secrets("https://u:pass/word@host/x.h5")


@pytest.mark.parametrize(
    ("how", "words"),
    [("packed", "is sent compressed"), ("nothing", "is empty"), ("boundless", "does not say how long")],
)
def test_answers_that_are_not_the_file_are_refused(liar: LyingServer, how: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UpsError, match=words):
        planned(f"{liar.url}/{how}/d.h5", tmp_path).fetch()
    assert not (tmp_path / "d.h5").exists()


def test_a_file_that_grows_without_a_tag_is_had_whole(liar: LyingServer, tmp_path: Path) -> None:
    (path,) = planned(f"{liar.url}/growing/d.h5", tmp_path).fetch()
    assert path.read_bytes() == CONTENT


def test_a_link_to_nothing_is_not_replaced(liar: LyingServer, tmp_path: Path) -> None:
    (tmp_path / "d.h5").symlink_to(tmp_path / "none")
    with pytest.raises(DataError, match="is a link to what is not there"):
        planned(f"{liar.url}/fine/d.h5", tmp_path).fetch()
    assert (tmp_path / "d.h5").is_symlink()


def test_only_the_bytes_that_an_answer_names_are_taken_from_it(liar: LyingServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be fetched"):
        planned(f"{liar.url}/misnamed/d.h5", tmp_path).fetch()
    assert not (tmp_path / "d.h5").exists()


def test_file_addresses_are_unquoted(tmp_path: Path) -> None:
    place = tmp_path / "my disk é#1%20"
    assert local_path(place.as_uri()) == local_path(f"file://localhost{place.as_uri()[7:]}") == place
    for wrong in ("file://disk/x", "file:///a%00b"):
        with pytest.raises(DataError, match=r"another machine|%00"):
            wanted(wrong, HASTY)


def test_a_zarr_folder_of_a_store_is_fetched_as_one_and_markers_are_left_out(tmp_path: Path) -> None:
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe({"/zoo/d.zarr/.zgroup": b"{}", "/zoo/d.zarr/u/.zarray": b"{}", "/zoo/d.zarr/u/0.0": b"1"})
    for number, address in enumerate(("memory://zoo/d.zarr/", "memory://zoo/")):
        fetched = planned(address, tmp_path / str(number))
        paths = fetched.fetch()
        assert len(paths) == 3
        assert fetched.data(paths) == (tmp_path / str(number) / "d.zarr",)
    for hidden in (".bashrc", "a/.ups-fetch/b", "..", "/a", "a/../b"):
        with pytest.raises(DataError, match="is hidden or leads out"):
            relative_path(hidden, "s3://b/")
