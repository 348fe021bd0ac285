"""Trajectories that are there twice: the same first, middle and last frame, in one file or in two."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import numpy as np

from ups.data.source import Source


def fingerprints(source: Source, ids: Collection[str] | None = None) -> dict[str, str]:
    """A hash per sample id (of `ids` alone where they are given), from its first, middle and last frame, in the numbers
    that training sees: a trajectory has one hash in whatever format, precision and byte order it is stored."""
    result = {}
    for index, name in enumerate(source.ids):
        if ids is not None and name not in ids:
            continue
        last = len(source.times_of(index)) - 1
        digest = hashlib.sha256()
        for t in sorted({0, last // 2, last}):
            with np.errstate(over="ignore"):
                frame = source.read(index, slice(t, t + 1)).astype("<f4")
            digest.update((frame + np.float32(0)).tobytes())  # a zero has no sign
        result[name] = digest.hexdigest()[:16]
    return result


def duplicates(sources: Iterable[Source]) -> list[tuple[str, str]]:
    """Pairs `(sample, its earlier twin)`, each written `file:id`, within and across files."""
    seen: dict[str, str] = {}
    pairs = []
    for source in sources:
        for name, digest in fingerprints(source).items():
            label = f"{source.path.name}:{name}"
            if digest in seen:
                pairs.append((label, seen[digest]))
            seen.setdefault(digest, label)
    return pairs
