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


def from_memory() -> DataError:
    """A reader's own words for what a library could not do for want of memory."""
    try:
        try:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        except OSError as low:
            raise DataError("u.hdf5 could not be read.") from low
    except DataError as error:
        return error


class NotStoredError(DataError):
    ending = Ending.STORAGE


def not_stored() -> DataError:
    try:
        try:
            raise OSError(errno.EIO, "the checkpoint of step 2 was not saved: std::bad_alloc")
        except OSError as low:
            raise NotStoredError("the last checkpoint was not saved; free the disk and resume.") from low
    except DataError as error:
        return error


# What really came of a training under a limit on its address space, and what libraries and drivers say.
SHORT: list[tuple[BaseException, str]] = [
    (RuntimeError("could not create a primitive"), "host"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory"), "host"),
    (RuntimeError("std::bad_alloc"), "host"),
    (RuntimeError("$ Torch: unable to mmap memory: you tried to mmap 4GB."), "host"),
    (RuntimeError("unable to write to file </torch_12_3>: No space left on device (28)"), "host"),
    (RuntimeError("DataLoader worker (pid 3) is killed by signal: Bus error. It is possible that dataloader's workers "
                  "are out of shared memory. Please try to raise your shared memory limit."), "host"),
    (RuntimeError("Caught _ArrayMemoryError in DataLoader worker process 0.\nUnable to allocate 49.5 MiB"), "host"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "host"),
    (OSError("Can't read data (memory allocation failed for raw data buffer)"), "host"),
    (MemoryError("Unable to allocate 49.5 MiB for an array with shape (32768, 198) and data type float64"), "host"),
    (SystemError("error return without exception set: out of memory"), "host"),
    (from_memory(), "host"),
    (not_stored(), "host"),
    (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "device"),
    (RuntimeError("CUDA error: out of memory"), "device"),
    (RuntimeError("CUDA driver error: out of memory"), "device"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "device"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), "device"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), "device"),
    (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "device"),
    (RuntimeError("NCCL error: unhandled cuda error. Cuda failure 'out of memory'"), "device"),
]  # fmt: skip
# Words that are also those of memory, of something else.
NOT_SHORT: list[BaseException] = [
    ImportError("/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasGemmEx`"),
    RuntimeError("expected memory format channels_last"),
    RuntimeError("Cannot allocate buffer larger than kint32max for StringOutputStream"),
    RuntimeError("you tried to share memory with a view"),
    KeyError("out of memory"),
    ConfigError("train.microbatch: the model ran out of memory before; choose another."),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError("Unable to synchronously create dataset (file allocation failed)"),
    NotStoredError("the last checkpoint was not saved; free the disk and resume."),
    ValueError("could not create a primitive"),
]
# Said for want of memory, and otherwise too.
PERHAPS: list[BaseException] = [
    RuntimeError("can't start new thread"),
    RuntimeError("Resource temporarily unavailable"),
    RuntimeError("could not create a primitive descriptor for the matmul primitive. Run workload with environment …"),
    RuntimeError("could not create a memory object"),
    RuntimeError("could not execute a primitive"),
    RuntimeError("could not parse FRAGMENT"),
    ImportError("_conv.so: failed to map segment from shared object"),
    BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
]


@pytest.mark.parametrize(("error", "where"), SHORT, ids=lambda v: str(v)[:40])
def test_every_way_of_saying_that_memory_ran_out_is_out_of_memory_and_says_whose(
    error: BaseException, where: str
) -> None:
    kind = classify(error)
    assert kind.short is not None
    assert (kind.ending, kind.short.where, kind.first_hand) == (Ending.OOM, where, True)
    record = Failure.of(error, rank=1, step=3, phase="forward", microbatch=8)
    assert record.memory == where
    if error.__cause__ is not None:
        assert f"({type(error.__cause__).__name__}: " in record.sentence, "what it was raised from"
    assert f"rank 1, forward of step 3: out of {where} memory: " in record.verdict().cause


@pytest.mark.parametrize("error", NOT_SHORT, ids=lambda v: str(v)[:40])
def test_words_about_memory_that_is_not_short_are_not_taken_for_it(error: BaseException) -> None:
    assert classify(error).short is None
    assert classify(error).ending != Ending.OOM


@pytest.mark.parametrize("error", PERHAPS, ids=lambda v: str(v)[:40])
def test_what_may_have_another_reason_counts_where_a_limit_has_been_reached(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert classify(error).ending != Ending.OOM
    monkeypatch.setattr("ups.host_memory.address_space", lambda: (1_750_000_000, 1_800_000_000))
    assert classify(error).ending == Ending.OOM
    sentence = Failure.of(error, rank=0, step=0, phase="start").sentence
    assert "1.75 GB of the 1.80 GB that ulimit -v allows" in sentence
    assert all(classify(other).ending != Ending.OOM for other in NOT_SHORT), "the limit alone says nothing"


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
