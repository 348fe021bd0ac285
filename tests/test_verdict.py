"""Endings, failure records and verdicts: what an exception means, and that files come back as they were written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ups.types import ConfigError, DataError, UpsError
from ups.verdict import Ending, Failure, Verdict, classify, read_failures


class LostPeer(UpsError):  # noqa: N818
    pass


class DesyncError(UpsError):
    pass


class OutOfMemoryError(RuntimeError):
    pass


class StatedError(RuntimeError):
    ending = Ending.CORRUPT


KINDS = [
    (ValueError("x"), Ending.CRASH, True, False),
    (ConfigError("x"), Ending.USER, True, False),
    (LostPeer("x"), Ending.RANK_DIED, False, True),
    (LostPeer("port 1: EADDRINUSE, address already in use"), Ending.RANK_DIED, True, True),
    (DesyncError("x"), Ending.DIVERGED, True, False),
    (OutOfMemoryError("x"), Ending.OOM, True, False),
    (MemoryError(), Ending.OOM, True, False),
    (RuntimeError("CUDA error: out of memory"), Ending.OOM, True, False),
    (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"), Ending.OOM, True, False),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Ending.OOM, True, False),
    (RuntimeError("CUDA error: unspecified launch failure"), Ending.CRASH, True, True),
    (RuntimeError("[pair.cc:534] Connection closed by peer [::1]:3"), Ending.RANK_DIED, False, True),
    (RuntimeError("Timed out waiting 6000ms for recv operation"), Ending.RANK_DIED, False, True),
    (RuntimeError("shapes do not match"), Ending.CRASH, True, False),
    (ConnectionResetError(104, "reset"), Ending.RANK_DIED, False, True),
    (OSError(errno.ENOSPC, "No space left"), Ending.STORAGE, True, False),
    (OSError(errno.ENOENT, "No such file"), Ending.CRASH, True, False),
    (OSError(errno.EAGAIN, "Resource temporarily unavailable"), Ending.CRASH, True, True),
    (OSError(errno.EMFILE, "Too many open files"), Ending.CRASH, True, True),
    (KeyboardInterrupt(), Ending.INTERRUPTED, True, False),
    (StatedError("x"), Ending.CORRUPT, True, False),
]


@pytest.mark.parametrize(("error", "ending", "first_hand", "transient"), KINDS, ids=lambda v: repr(v)[:40])
def test_every_exception_has_one_meaning(
    error: BaseException, ending: Ending, first_hand: bool, transient: bool
) -> None:
    kind = classify(error)
    assert (kind.ending, kind.first_hand, kind.transient) == (ending, first_hand, transient)


def test_codes_are_distinct_documented_and_zero_is_success() -> None:
    assert len({int(ending) for ending in Ending}) == len(Ending)
    assert [ending for ending in Ending if ending == 0] == [Ending.SUCCESS]


def test_the_table_in_the_docs_is_this_table() -> None:
    text = (Path(__file__).parent.parent / "docs" / "failures.md").read_text()
    for ending in Ending:
        assert f"| {int(ending)} | `{ending.name}` | " in text


def test_an_echo_met_while_handling_the_real_error_does_not_hide_it() -> None:
    try:
        try:
            raise ValueError("the real one")
        except ValueError:
            raise LostPeer("met on the way out")  # noqa: B904  (as it happens)
    except LostPeer as error:
        record = Failure.of(error, rank=1, step=2, phase="vote")
    assert (record.kind, record.first_hand) == ("ValueError", True)
    try:
        try:
            raise RuntimeError("socket 7 is unhappy")
        except RuntimeError as low:
            raise LostPeer("a vote met a closed connection") from low
    except LostPeer as error:
        record = Failure.of(error, rank=1, step=2, phase="vote")
    assert (record.kind, record.first_hand) == ("LostPeer", False), "its own reason is not somebody's real error"


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = Failure.of(error, rank=3, step=9, phase="data", microbatch=4)
    record.write(tmp_path / "failure-3.json")
    (tmp_path / "failure-7.json").write_text('{"rank": 7}')  # from somebody else
    (tmp_path / "failure-8.json").write_text("{")
    assert read_failures(tmp_path.glob("failure-*.json")) == [record]
    assert record.sentence == "two lines"
    assert "test_verdict.py" in record.traceback


def test_a_verdict_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    verdict = Verdict(
        Ending.HANG, "it stood still.", 1, "data", 5, traceback="…", time="now", attempts=({"attempt": 1},)
    )
    verdict.write(path)
    assert Verdict.read(path) == verdict
    Verdict(Ending.SUCCESS, "done.", facts={"code": "not mine to say", "nrmse": 0.1}).write(path)
    found = Verdict.read(path)
    assert found is not None
    assert (found.ending, found.facts) == (Ending.SUCCESS, {"nrmse": 0.1})
    path.write_text('{"verdict": "FINE"}')
    assert Verdict.read(path) is None


def test_a_full_disk_is_known_through_whatever_words_it_was_put_into() -> None:
    def words(origin: BaseException) -> Ending:
        try:
            try:
                try:
                    raise origin
                except (OSError, ValueError) as error:
                    raise DataError("cannot be written") from error
            except DataError as error:
                raise DataError(f"data.burgers: {error}") from None
        except DataError as error:
            return classify(error).ending

    assert words(OSError(errno.ENOSPC, "No space left on device")) == Ending.STORAGE
    assert words(OSError(errno.EDQUOT, "Disk quota exceeded")) == Ending.STORAGE
    assert words(OSError(errno.ENOENT, "No such file or directory")) == Ending.USER
    assert words(ValueError("nothing of a disk")) == Ending.USER
    assert classify(ValueError("I/O error: No space left on device (os error 28)")).ending == Ending.STORAGE
    assert classify(DataError("your notes say: No space left on device")).ending == Ending.USER
