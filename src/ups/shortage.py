"""Tells from an exception or a log whether memory ran out, and whether the host's or the device's; no torch."""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ups.host_memory import cramped

Where = Literal["host", "device"]

# What only a device says. Its allocator, then the libraries that ask it for a workspace.
_DEVICE = re.compile(
    r"(CUDA|HIP|MPS backend|XPU)\b.{0,40}out of memory|cudaErrorMemoryAllocation|Cuda failure.{0,6}'?out of memory"
    r"|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND)\w*_ALLOC(ATION)?_FAILED|CUFFT_ALLOC_FAILED|CUDNN\w*ALLOCATION_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED.{0,40}cublasCreate|CUDNN_STATUS_NOT_INITIALIZED.{0,40}cudnnCreate"
)
# What nobody says but for want of memory on the host; a "static TLS block" is full of libraries, not of data.
_HOST = re.compile(
    r"DefaultCPUAllocator|[Cc]an(no|')t allocate memory(?! in static TLS)|[Nn]ot enough memory|std::bad_alloc"
    r"|[Uu]nable to (allocate|mmap) (\d|memory)|memory allocation (failed|error|of \d+ bytes failed)"
    r"|[Ff]ailed to allocate (\d|memory|buffer)|[Oo]ut of memory|[Ii]nsufficient memory|OpenBLAS.{0,40}malloc failed"
    r"|out of shared memory|unable to allocate shared memory|unable to (write to|resize) file </torch_"
)
# oneDNN has described this operation already: what is left is to make room for its code and its workspace.
_PRIMITIVE = re.compile(r"could not create a primitive(?! descriptor)")
# What is said for want of memory, and otherwise too: it counts where a limit on memory has been reached.
_PERHAPS = re.compile(
    r"could not create a (primitive descriptor|memory|stream|descriptor)|could not execute a primitive"
    r"|can't start new thread|[Tt]hread creation failed|pthread_create.{0,20}failed|Resource temporarily unavailable"
    r"|failed to map segment from shared object|could not parse|unable to (mmap|map|resize)"
)
# What an interpreter or a library prints before it gives up without an exception.
_LAST_WORDS = re.compile(r"std::bad_alloc|DefaultCPUAllocator|Out of memory|Cannot allocate memory|^MemoryError", re.M)
# Nothing else is said in the words of somebody's library: a KeyError may quote any text.
_KINDS = (RuntimeError, OSError, ImportError, SystemError, BufferError, zlib.error)


@dataclass(frozen=True)
class Shortage:
    """Whose memory ran out, and how that is known where the exception itself does not say it."""

    where: Where
    evidence: str = ""


def shortage(error: BaseException) -> Shortage | None:
    """The want of memory that an exception is about, or was raised from; None where it is about something else."""
    for link in _causes(error):
        reason = _said_by(link)
        if reason is None:
            continue
        if link is error:
            return reason
        words = f"{type(link).__name__}: {' '.join(str(link).split())[:200]}"
        return Shortage(reason.where, f"{words}; {reason.evidence}" if reason.evidence else words)
    return None


def _said_by(link: BaseException) -> Shortage | None:
    """The want of memory that this exception itself is about."""
    names = {kind.__name__ for kind in type(link).__mro__}
    text = str(link)
    if "OutOfMemoryError" in names:
        return Shortage("device")  # torch's name for what a device's allocator says; the host's is a RuntimeError
    if isinstance(link, MemoryError) or (isinstance(link, OSError) and link.errno == errno.ENOMEM):
        return Shortage("host")
    if not isinstance(link, _KINDS):
        return None
    if _DEVICE.search(text):
        return Shortage("device")
    if _HOST.search(text) or _PRIMITIVE.search(text):
        return Shortage("host")
    again = isinstance(link, OSError) and link.errno == errno.EAGAIN
    if (again or _PERHAPS.search(text)) and (evidence := cramped()):
        return Shortage("host", evidence)
    return None


def last_words(log: str) -> str:
    """What the end of a process's log says of memory that ran out, in its own words; empty where it says nothing."""
    return next(iter(reversed([match[0] for match in _LAST_WORDS.finditer(log)])), "")


def remedy(where: str) -> str:
    """What to do where memory does not suffice for a single sample."""
    common = "use a smaller model or grid, train.activations recompute, or strategy fsdp on more ranks"
    if where == "device":
        return f"{common}."
    return f"{common}, fewer loader workers, or give the job more memory (ulimit -v, its container, its machine)."


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
