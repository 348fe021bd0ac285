"""Splits by sample id: made by a named convention, recorded as JSON, proven disjoint and complete."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ups.files import write_named
from ups.parsing import read_record
from ups.types import ConfigError, DataError, counted

PartName = Literal["train", "valid", "test"]
PARTS: tuple[PartName, ...] = ("train", "valid", "test")
FRACTIONS = (0.8, 0.1, 0.1)  # of train, valid and test, unless others are asked for
IN_TIME = "in time"  # the convention that divides the frames of each trajectory
AS_GIVEN = "as given"  # how the convention of a split begins that the data bring
FEW_TRAJECTORIES = 60  # below so many, larger parts than a tenth are for validation and testing
VALID_OF_FEW = 0.2  # the part of what is for training, where a split brings no validation and few trajectories
# What else folders of the parts are called.
SPELLINGS: dict[str, PartName] = {
    **{part: part for part in PARTS},
    **dict.fromkeys(("training",), "train"),
    **dict.fromkeys(("val", "validation", "dev"), "valid"),
    **dict.fromkeys(("testing",), "test"),
}


@dataclass(frozen=True)
class Split:
    """Which sample is for what; `fractions` are those of train, valid and test, `digest` stands for the set of ids."""

    convention: str
    seed: int
    fractions: tuple[float, float, float]
    digest: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]

    def part(self, name: str) -> tuple[str, ...]:
        """The ids of one part; an empty or unknown part is an error: no other is used instead."""
        if name not in PARTS:
            raise ConfigError(f"there is no split '{name}'; choose train, valid or test.")
        ids: tuple[str, ...] = getattr(self, name)
        if not ids:
            empty = f"the {name} part of this {self.convention} split is empty"
            share = self.fractions[PARTS.index(name)]
            if self.convention == IN_TIME and share > 0:
                few = f"there are too few frames for a share of {share:g}"
                raise DataError(f"{empty}: {few}; give longer trajectories, or several of them.")
            raise DataError(f"{empty}; give it a fraction above 0.")
        return ids

    def check(self, ids: Sequence[str]) -> None:
        """Prove that the parts are disjoint and together are exactly `ids`."""
        parts = self.train + self.valid + self.test
        if len(set(parts)) != len(parts):
            twice = next(name for name, times in Counter(parts).items() if times > 1)
            raise DataError(f"sample {twice} is in the split more than once; make the split again.")
        if self.digest != digest(parts):
            raise DataError("the ids of this split are not those it was recorded with; make the split again.")
        if self.digest != digest(ids):
            raise DataError(
                f"this split was recorded for {len(parts)} other samples, not for these {len(ids)}; make a new split."
            )

    def save(self, path: Path) -> None:
        """Write the record; the file appears whole or not at all."""
        write_named(path, json.dumps(asdict(self), indent=1) + "\n", "choose another --out")

    @classmethod
    def load(cls, path: Path, ids: Sequence[str]) -> Split:
        """A recorded split, refused if it is damaged or does not belong to these samples."""
        try:
            record = read_record(path)
            lists: dict[str, Any] = {key: tuple(value) for key, value in record.items() if isinstance(value, list)}
            split = cls(**{**record, **lists})
            split.check(ids)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        except OSError as error:
            raise DataError(f"{path}: the split cannot be read ({error.strerror}); check the path.") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{path}: is not a recorded split; make the split again.") from None
        return split


# A convention is an order: the test part is cut off its front, then the validation part, and the rest is for training.
#
# `seeded` orders by a hash of (seed, id). Counts are exact, the order in which files list their samples does not
# matter, and growing a data set moves only the few samples near the two cuts. In `FILE/NAME` the name comes first:
# files made from one seed at several parameters hold the same initial states, and what is trained on at one value
# must not be tested at another.
# PDEBench itself has no validation part and selects models on the test part. Its test part is kept to the sample, and
# validation is cut from what it trains on; fractions (0.9, 0, 0.1) are PDEBench's own.
CONVENTIONS: Mapping[str, Callable[[Sequence[str], int], list[str]]] = {
    "seeded": lambda ids, seed: sorted(ids, key=lambda name: _draws(seed, name)),
    "pdebench-first": lambda ids, seed: list(ids),  # noqa: ARG005  (single-array files)
    "pdebench-last": lambda ids, seed: sorted(ids, reverse=True),  # noqa: ARG005  (group-per-sample files)
}


def _draws(seed: int, name: str) -> bytes:
    """A draw for the last part of a name, then one for all of it."""
    last = name.rpartition("/")[2]
    first = _draw(seed, last)
    return first + (first if last == name else _draw(seed, name))


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def make_split(
    ids: Sequence[str],
    convention: str = "seeded",
    fractions: tuple[float, float, float] = FRACTIONS,
    seed: int = 0,
    strata: Sequence[object] = (),
) -> Split:
    """Cut `ids` into train, valid and test, each in the order of `ids`.

    valid and test get `floor(n · fraction)` samples, at least one if the fraction is not 0; train gets the rest.
    `strata`, one label per sample (the parameters it was made with), asks for that within each label alone, so that
    every part has all of them; labels with too few samples are cut together.
    """
    if len(set(strata)) > 1:
        return _stratified(ids, convention, fractions, seed, strata)
    if convention not in CONVENTIONS:
        raise ConfigError(f"there is no split convention '{convention}'; choose one of {', '.join(CONVENTIONS)}.")
    if not (all(f >= 0 for f in fractions) and abs(sum(fractions) - 1) <= 1e-9):
        raise ConfigError(f"split fractions {fractions} must be train, valid and test, none negative, with sum 1.")
    if len(set(ids)) != len(ids):
        raise DataError("sample ids repeat, so they cannot be split; check the files that were joined.")
    # The small addend keeps 100 · 0.29 = 28.999… from losing a sample to rounding.
    valid, test = (max(1, int(len(ids) * f + 1e-9)) if f > 0 else 0 for f in fractions[1:])
    if len(ids) - valid - test < (fractions[0] > 0):
        raise DataError(
            f"{counted(len(ids), 'sample')} {'is' if len(ids) == 1 else 'are'} too few for train, valid and test of "
            f"{fractions}; make more samples, or divide "
            "the frames of each in a config: `split: {time: [0.75, 0.1, 0.15]}`."
        )
    order = CONVENTIONS[convention](ids, seed)
    where = dict.fromkeys(order, "train") | dict.fromkeys(order[:test], "test")
    where |= dict.fromkeys(order[test : test + valid], "valid")
    return given_split(ids, where, convention, fractions, seed)


def parts_of(ids: Sequence[str]) -> dict[str, str] | None:
    """The part of each id, where all begin with the name of one, `train/…`, and some are for training; else None."""
    where: dict[str, str] = {name: SPELLINGS.get(name.split("/")[0].lower(), "") for name in ids}
    return where if all(where.values()) and "train" in where.values() else None


def as_given(
    ids: Sequence[str],
    where: Mapping[str, str],
    fractions: tuple[float, float, float],
    seed: int,
    strata: Sequence[object] = (),
) -> Split:
    """The split in which each id is in the part that `where` names. Parts that no id is in are cut from what is for
    training alone, so that what is given for testing tests, and nothing else does."""
    missing = [part for part in PARTS if part not in where.values()]
    if not missing:
        return given_split(ids, where, AS_GIVEN)
    rows = [row for row, name in enumerate(ids) if where[name] == "train"]
    whole = sum(fractions[PARTS.index(part)] for part in ("train", *missing))
    if not (fractions[0] > 0 and whole > 0) or len(rows) <= len(missing):
        parts = " and ".join(missing)
        raise DataError(
            f"the data bring a split without {parts}, and of {counted(len(rows), 'sample')} for training none would be "
            f"left beside {parts}; give files for {parts}, or other fractions."
        )
    train, valid, test = (
        share / whole if part in ("train", *missing) else 0.0 for part, share in zip(PARTS, fractions, strict=True)
    )
    if missing == ["valid"] and len(rows) < FEW_TRAJECTORIES and fractions == FRACTIONS:
        train, valid = 1 - VALID_OF_FEW, VALID_OF_FEW
    labels = [strata[row] for row in rows] if strata else ()
    cut = make_split([ids[row] for row in rows], "seeded", (train, valid, test), seed, labels)
    where = {**where, **{name: part for part in missing for name in cut.part(part)}}
    return given_split(ids, where, f"{AS_GIVEN}, {' and '.join(missing)} cut from train", fractions, seed)


def given_split(
    ids: Sequence[str],
    where: Mapping[str, str],
    convention: str,
    fractions: tuple[float, float, float] = (0.0, 0.0, 0.0),
    seed: int = 0,
) -> Split:
    """The split in which each id is in the part that `where` names, in the order of `ids`."""
    cut = {part: tuple(name for name in ids if where[name] == part) for part in PARTS}
    split = Split(convention, seed, fractions, digest(ids), cut["train"], cut["valid"], cut["test"])
    split.check(ids)
    return split


def held_out(
    ids: Sequence[str],
    out: Sequence[bool],
    convention: str,
    fractions: tuple[float, float, float],
    seed: int,
    starts: Sequence[str] = (),
) -> Split:
    """The samples marked in `out` are for testing; the others are for training and validation.

    `starts` names what each sample begins from, its own id by default. Starts that are on both sides are divided too:
    what is begun from at other values in training is not tested, and the other way round, and such samples are in no
    part.
    """
    if all(out) or not any(out):
        which = "all" if all(out) else "none"
        raise DataError(f"{which} of the {len(ids)} samples have the parameters to hold out; name others.")
    train, valid, test = fractions
    whole = train + valid
    rows = list(zip(ids, out, starts or ids, strict=True))
    sides = [dict.fromkeys(start for _, aside, start in rows if aside is side) for side in (True, False)]
    shared = [start for start in sides[0] if start in sides[1]]
    if shared and not test:
        raise ConfigError("split.fractions leave nothing for testing of starts that all values share; give test some.")
    if not whole:
        raise ConfigError("split.fractions leave nothing for training; give train and valid a share.")
    tested = set[str]()
    if shared:
        why = "initial states that values to hold out share with the others"
        tested = set(_cut_starts(shared, convention, fractions, seed, why).test)
    rest = [start for start in sides[1] if start not in tested]
    why = "initial states left for training and validation" if shared else "samples with other values"
    inner = _cut_starts(rest, convention, (train / whole, valid / whole, 0.0), seed, why)
    where = {name: "test" for name, held, start in rows if held and (start in tested or start not in sides[1])}
    part = dict.fromkeys(inner.train, "train") | dict.fromkeys(inner.valid, "valid")
    where |= {name: part[start] for name, held, start in rows if not held and start in part}
    return given_split([name for name in ids if name in where], where, f"{convention}, held out", fractions, seed)


def _cut_starts(
    starts: Sequence[str], convention: str, fractions: tuple[float, float, float], seed: int, what: str
) -> Split:
    """Split by initial state; a DataError that calls them `what` where they are too few."""
    try:
        return make_split(starts, convention, fractions, seed)
    except DataError:
        parts = " and ".join(part for part, share in zip(PARTS, fractions, strict=True) if share > 0)
        raise DataError(
            f"split.hold_out: the {what} are {len(starts)}, too few to be divided into {parts} by split.fractions; "
            "hold out other values, or make more samples."
        ) from None


def _stratified(
    ids: Sequence[str],
    convention: str,
    fractions: tuple[float, float, float],
    seed: int,
    strata: Sequence[object],
) -> Split:
    groups: dict[object, list[str]] = {}
    for name, label in zip(ids, strata, strict=True):
        groups.setdefault(label, []).append(name)
    few = sum(f > 0 for f in fractions)
    cuts = [members for members in groups.values() if len(members) >= few]
    if rare := [name for members in groups.values() if len(members) < few for name in members]:
        cuts = [*cuts, rare] if len(rare) >= few or not cuts else [[*cuts[0], *rare], *cuts[1:]]
    where: dict[str, str] = {}
    for members in cuts:
        inner = make_split(members, convention, fractions, seed)
        where |= {name: part for part in PARTS for name in getattr(inner, part)}
    return given_split(ids, where, convention, fractions, seed)


def digest(ids: Sequence[str]) -> str:
    """A hash of a set of ids, whatever their order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]
