"""A file from a server that lies: whole, of one version and as published, or one sentence and nothing in its place."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lying_server import LyingServer, serving

from ups.progress import Progress
from ups.types import DataError
from ups_fleet.fetch import pieces
from ups_fleet.fetch.download import Download, Wanted
from ups_fleet.fetch.fetch import plan, wanted
from ups_fleet.fetch.http_file import HttpFile
from ups_fleet.fetch.patience import Patience, TransientError, retry_after

HASTY = Patience(tries=5, first=0.01, longest=0.05, longest_requested=1.0, stall=0.3, least=1)
SIZE = 1_000_003
CONTENT = random.Random(1).randbytes(SIZE)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(scope="module")
def liar() -> Iterator[LyingServer]:
    with serving() as liar:
        liar.files["a.bin"] = CONTENT
        yield liar


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch, liar: LyingServer) -> None:
    monkeypatch.setattr(pieces, "SMALLEST", 1 << 16)
    liar.count.clear()
    liar.seen.clear()
    liar.sent, liar.slow, liar.elsewhere = 0, 0.0, ""


def fetch(liar: LyingServer, how: str, folder: Path, md5: str = "", notes: list[str] | None = None) -> Path:
    """The file with this behaviour, fetched to a folder over three connections."""
    said: list[str] = [] if notes is None else notes

    def report(progress: Progress) -> None:
        if progress.note:
            said.append(progress.note)

    file = HttpFile(f"{liar.url}/{how}/a.bin", HASTY)
    return Download(Wanted(file, "a.bin", md5), folder, report, 3, HASTY).fetch()


@pytest.mark.parametrize("how", ["fine", "busy", "cut", "hang", "rangeless", "chunked", "tagless", "flaky"])
def test_what_arrives_is_the_file_to_the_bit_whatever_the_server_does(
    liar: LyingServer, how: str, tmp_path: Path
) -> None:
    path = fetch(liar, how, tmp_path, MD5)
    assert path == tmp_path / "a.bin"
    assert path.read_bytes() == CONTENT
    left = [file.name for file in (tmp_path / ".ups-fetch").iterdir()]
    assert sorted(left) == ["a.bin.json", "a.bin.lock"]


def test_a_file_that_was_fetched_is_not_fetched_again_until_somebody_touches_it(
    liar: LyingServer, tmp_path: Path
) -> None:
    path = fetch(liar, "fine", tmp_path)
    asked = len(liar.seen)
    fetch(liar, "fine", tmp_path)
    assert len(liar.seen) == asked
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="is there already and is another file"):
        fetch(liar, "fine", tmp_path)
    assert path.read_bytes() == CONTENT[:-1]  # it is the user's
    path.write_bytes(CONTENT)
    notes: list[str] = []
    fetch(liar, "fine", tmp_path, MD5, notes)
    assert notes == ["is there already, and is compared"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("corrupt", "twice"),
        ("down", "could not be fetched"),
        ("denied", "denies access"),
        ("absent", "does not exist"),
        ("circle", "redirects more than 10 times"),
        ("page", "web page in the place of the file"),
        ("restless", "changes while it is fetched"),
        ("boasting", "could not be fetched"),
    ],
)
def test_what_cannot_be_had_is_one_sentence_and_nothing_in_its_place(
    liar: LyingServer, how: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words) as error:
        fetch(liar, how, tmp_path, MD5)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a.bin").exists()


def test_an_answer_without_a_length_is_taken_only_where_its_checksum_is_known(
    liar: LyingServer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="does not say how long"):
        fetch(liar, "endless", tmp_path)
    with pytest.raises(DataError, match="twice"):
        fetch(liar, "endless", tmp_path, MD5)


def test_a_page_that_says_it_is_data_is_known_by_its_beginning(liar: LyingServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="web page"):
        plan([f"{liar.url}/page/sly.bin"], tmp_path, lambda _: None, patience=HASTY).fetch()


def test_a_server_that_asks_for_hours_is_not_waited_for(liar: LyingServer, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(DataError, match="left alone for 7200 s"):
        plan([f"{liar.url}/down/later.bin"], tmp_path, lambda _: None, patience=HASTY).fetch()
    assert time.monotonic() - began < 60
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("3") == 3.0
    assert retry_after("soon") == 0.0
    waits = [HASTY.pause(failures, 0.0) for failures in range(1, 20)]
    assert max(waits) <= HASTY.longest
    assert min(waits) >= HASTY.first / 2
    assert HASTY.pause(1, 0.7) >= 0.7
    with pytest.raises(TransientError):
        HASTY.wait(HASTY.tries, TransientError("x"), threading.Event())


def test_a_file_that_changes_in_the_middle_is_never_stitched_of_two_versions(liar: LyingServer, tmp_path: Path) -> None:
    notes: list[str] = []
    path = fetch(liar, "changing", tmp_path, notes=notes)
    assert path.read_bytes() == bytes(reversed(CONTENT))
    assert any("has changed on the server" in note for note in notes)


def test_what_an_earlier_fetch_left_of_another_version_is_not_used(tmp_path: Path) -> None:
    other = bytes(reversed(CONTENT))
    with serving() as second:
        second.files["a.bin"], second.tags["a.bin"] = other, "older"
        half = HttpFile(f"{second.url}/cut/a.bin", Patience(tries=1, stall=0.3))
        with pytest.raises(DataError, match="what has come is kept"):
            Download(Wanted(half, "a.bin"), tmp_path, lambda _: None, 2, half.patience).fetch()
        assert (tmp_path / ".ups-fetch" / "a.bin.part").exists()
        second.files["a.bin"], second.tags["a.bin"] = CONTENT, "newer"
        path = Download(Wanted(HttpFile(f"{second.url}/cut/a.bin", HASTY), "a.bin"), tmp_path, lambda _: None).fetch()
    assert path.read_bytes() == CONTENT


def test_redirects_send_no_login_to_another_host_and_never_leave_https(liar: LyingServer, tmp_path: Path) -> None:
    with serving() as other:
        other.files["a.bin"] = CONTENT
        liar.elsewhere = f"{other.url.replace('127.0.0.1', 'localhost')}/fine/"
        url = liar.url.replace("http://", "http://somebody:hunter22@") + "/redirect/a.bin"
        path = plan([url], tmp_path, lambda _: None, patience=HASTY).fetch()[0]
        assert path.read_bytes() == CONTENT
        assert all("Authorization" in headers for _, headers in liar.seen)
        assert other.seen
        assert not any("Authorization" in headers for _, headers in other.seen)
    assert "hunter22" not in "".join(p.read_text(errors="ignore") for p in tmp_path.rglob("*.json"))
    file = HttpFile("https://example.org/a", HASTY)
    headers = {"Location": "http://example.org/a"}
    with pytest.raises(DataError, match="from https to http"):
        file._next("https://example.org/a", headers)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no http address"):
        file._next("https://example.org/a", {"Location": "file:///etc/passwd"})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/named/file", "/fine/..%2f..%2fa.bin", "/fine/..\\..\\a.bin"])
def test_no_name_that_a_server_or_an_address_gives_leads_out_of_the_folder(
    liar: LyingServer, path: str, tmp_path: Path
) -> None:
    liar.files["file"] = liar.files["..\\..\\a.bin"] = liar.files["../../a.bin"] = CONTENT
    there = tmp_path / "deep" / "deeper"
    fetched = plan([liar.url + path], there, lambda _: None, patience=HASTY).fetch()[0]
    assert fetched.parent == there
    assert fetched.name in ("a.bin", "escaped.bin")


def test_addresses_without_a_name_for_a_file_are_refused(liar: LyingServer, tmp_path: Path) -> None:
    liar.files[""] = CONTENT
    with pytest.raises(DataError, match="no name that a file could have"):
        plan([f"{liar.url}/fine/"], tmp_path, lambda _: None, patience=HASTY)
    with pytest.raises(DataError, match="no name that a file could have"):
        wanted("file:///", HASTY)


FETCH = """
import sys
from pathlib import Path
from ups_fleet.fetch import pieces
from ups_fleet.fetch.fetch import plan
pieces.SMALLEST = 1 << 16
plan([sys.argv[1]], Path(sys.argv[2]), lambda p: print(p.note or "", flush=True), 2).fetch()
"""


def begin(url: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FETCH, url, str(folder)], stdout=subprocess.PIPE, text=True)


def test_a_kill_loses_at_most_the_pieces_under_way(liar: LyingServer, tmp_path: Path) -> None:
    liar.slow = 0.02
    record = tmp_path / ".ups-fetch" / "a.bin.pieces"
    child = begin(f"{liar.url}/fine/a.bin", tmp_path)
    deadline = time.monotonic() + 120
    while not record.exists() or record.read_bytes().count(b"\n") < 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = record.read_bytes().count(b"\n") - 1
    assert not (tmp_path / "a.bin").exists()
    liar.sent, liar.slow = 0, 0.0
    notes: list[str] = []
    assert fetch(liar, "fine", tmp_path, MD5, notes).read_bytes() == CONTENT
    lost = 2 * (1 << 16)  # and what the server was still sending to the one that was killed
    assert liar.sent <= SIZE - kept * (1 << 16) + lost
    assert notes[0].startswith("goes on from")


def test_two_fetches_of_one_file_do_not_fight(liar: LyingServer, tmp_path: Path) -> None:
    liar.slow = 0.005
    children = [begin(f"{liar.url}/fine/a.bin", tmp_path) for _ in range(2)]
    words = [child.communicate(timeout=600)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert liar.sent < 1.5 * SIZE
    assert sum("waited for" in text for text in words) <= 1


def test_a_damaged_disk_is_noticed_before_the_file_gets_its_name(
    liar: LyingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = pieces.Pieces.verify

    def rotten(self: pieces.Pieces, kinds: tuple[str, ...]) -> dict[str, str]:
        if not damaged:
            damaged.append(True)
            with self.path.open("r+b") as file:
                file.seek(70_000)
                file.write(b"rotten")
        return healthy(self, kinds)

    damaged: list[bool] = []
    monkeypatch.setattr(pieces.Pieces, "verify", rotten)
    notes: list[str] = []
    assert fetch(liar, "fine", tmp_path, notes=notes).read_bytes() == CONTENT
    assert any("not read back" in note for note in notes)
    assert liar.sent <= SIZE + 2 * (1 << 16)


SMALL_DISK = """
import subprocess, sys
from pathlib import Path
place = Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", place], check=True)
from ups_fleet.fetch.fetch import plan
from ups.types import DataError
try:
    plan([sys.argv[1]], place, lambda p: None).fetch()
except DataError as error:
    print(error)
print(sum(1 for path in place.rglob("*")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_is_too_small_is_told_before_a_byte_is_fetched(liar: LyingServer, tmp_path: Path) -> None:
    words = ["unshare", "-m", sys.executable, "-c", SMALL_DISK, f"{liar.url}/fine/a.bin", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if "unshare" in ended.stderr:
        pytest.skip("no mount namespaces here")
    assert "are free there" in ended.stdout, ended.stderr
    assert ended.stdout.endswith("0\n")
    assert liar.sent < 10, "a byte tells the size, and may be asked for again"
