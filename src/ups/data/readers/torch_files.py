"""PyTorch's .pt and .pth files: a tensor, or tensors by name, memory-mapped; nothing but tensors is ever unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.readers.array_dims import VALUES
from ups.data.readers.arrays import APART, DAMAGE, ArrayStore, Kept, Variable, Where, is_small
from ups.data.readers.assemble import open_arrays
from ups.data.source import Reader, Source, check_claim
from ups.definition import Definition
from ups.files import starts_with
from ups.lazy_imports import torch
from ups.parsing import number_of
from ups.types import Array, DataError, TaskSpec, counted

SUFFIXES = (".pt", ".pth")


class TorchStore(ArrayStore):
    """The tensors of one file; few files stay mapped at a time."""

    def read(self, key: str, where: Where) -> Array:
        return np.array(Kept.get(self.path, key, lambda: dict(_tensors(self.path))[key])[where])


def is_torch(path: Path) -> bool:
    """Whether a path is a .pt or .pth file by its name and its first bytes; never raises."""
    return path.suffix.lower() in SUFFIXES and starts_with(path, b"PK\x03\x04", b"\x80")


def open_torch(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over one file; a lone tensor is called `values`."""
    lists: dict[str, str] = {}
    arrays = dict(_tensors(path, lists))
    check_claim(path, sum(array.nbytes for array in arrays.values()), path.stat().st_size)
    variables = [
        Variable(k, k, a.shape, a.dtype, content=np.array(a) if is_small(a.shape) else None) for k, a in arrays.items()
    ]
    ignored = {name.strip("/") for name in definition.ignore} & set(lists)
    others = tuple(name for name in definition.ignore if name.strip("/") not in ignored)
    source = open_arrays(TorchStore(path), variables, replace(definition, ignore=others))
    unread = [f"{name} is {what}, which is not read" for name, what in lists.items() if name not in ignored]
    source.notes = (*source.notes, *(f"{words}; save torch.stack of it, or, {APART}" for words in unread))
    return source


def _tensors(path: Path, lists: dict[str, str] | None = None) -> Iterator[tuple[str, Array]]:
    """Each tensor as an array; those inside others are named `outer/inner`. `lists` gets the names of lists of tensors,
    which are no arrays, and what they are; DataError where there is nothing else."""
    try:
        content = _load(path)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: holds Python objects that are not tensors, which are not opened; save a tensor or a dict of "
            "tensors with torch.save."
        ) from error
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read, the file is damaged; fetch or write it again.") from error
    stack, opened, whole, lists = [("", content)], set(), False, {} if lists is None else lists
    while stack:
        name, value = stack.pop(0)
        if id(value) in opened:
            raise DataError(f"{path}: '{name}' holds itself; save a tensor or a dict of tensors with torch.save.")
        if isinstance(value, torch.Tensor):
            whole = whole or value.ndim > 1
            yield name or VALUES, _array(value, f"{path}: {name or 'the tensor'}")
        elif isinstance(value, dict):
            opened.add(id(value))
            stack += [(f"{name}/{key}" if name else str(key), below) for key, below in value.items()]
        elif isinstance(value, (int, float)):
            number = number_of(value)
            if number is None:
                raise DataError(f"{path}: {name} is a whole number too large for any float; save a smaller one.")
            yield name, np.asarray(number, np.float64)
        elif isinstance(value, list) and value and all(isinstance(v, (int, float, str)) for v in value):
            yield name, np.asarray(value)
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            lists[name or "it"] = f"a list of {counted(len(value), 'tensor')}"
    if lists and not whole:
        name, what = next(iter(lists.items()))
        raise DataError(f"{path}: {name} is {what}, which is not read; save torch.stack of them, or, {APART}.")


def _load(path: Path) -> Any:
    if starts_with(path, b"PK\x03\x04"):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return torch.load(path, map_location="cpu", weights_only=True)


def _array(tensor: Any, where: str) -> Array:
    """The numbers of a tensor; a DataError, which begins with `where`, for one that does not hold each of them."""
    kinds = {
        "nested": tensor.is_nested,
        "sparse": tensor.layout != torch.strided,
        "quantised": tensor.is_quantized,
        "without numbers (on the device meta)": tensor.is_meta,
    }
    odd = next((kind for kind, is_one in kinds.items() if is_one), None)
    if odd is not None:
        raise DataError(f"{where} is {odd}; save a dense tensor of plain numbers with torch.save.")
    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        array: Array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    except (TypeError, RuntimeError) as error:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise DataError(f"{where} is of type {kind}, which is not read; save it as float32.") from error
    return array


READER = Reader(is_torch, open_torch, suffixes=SUFFIXES)
