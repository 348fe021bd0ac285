"""Parses untrusted YAML and JSON: bounded size and depth, no key twice, nothing but plain values."""

from __future__ import annotations

import copy
import errno
import functools
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml

LARGEST_TEXT = 2**20  # bytes of a config or of a record that a person may have written
REMEMBERED = 2**14  # characters of a YAML text whose values are kept for the next who reads it
LARGEST_RECORD = 2**26  # bytes of a record that a program has written
LOG_END = 1 << 17  # bytes of a log that are looked at for its last rows
DEEPEST = 100  # brackets, or indented blocks, within each other
LARGEST_TREE = 100_000  # values of a YAML document with everything that its aliases repeat

Row = dict[str, Any]


def threads_wanted(text: str) -> int:
    """What OMP_NUM_THREADS says, where it is a number, or a list of those of nested levels; 0 where it says nothing."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and len(first) < 6 else 0


def has_no_text(text: str) -> bool:
    """Whether a name has bytes that are no UTF-8, which Python holds as characters that cannot be encoded."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def not_yaml(text: str) -> str:
    """What is wrong with a value on the command line that is not valid YAML, and what to do."""
    if has_no_text(text):
        return "has bytes that are no text (UTF-8), which no config may hold; rename that file or folder"
    return "is not valid YAML; put quotes around it"


class TwiceError(yaml.constructor.ConstructorError):
    """A key that stands twice, so that one of its values would silently be lost."""


class Plain(yaml.SafeLoader):
    """YAML without tags that make objects, without a key that stands twice, and without aliases that grow for ever.

    Nor with deep nesting, for which the parser takes a time that grows with its square.
    """

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        self._require_shallow(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._require_shallow(len(self.indents))
        return bool(super().add_indent(column))

    def _require_shallow(self, depth: int) -> None:
        if depth >= DEEPEST:
            raise yaml.scanner.ScannerError(problem="it is nested too deeply", problem_mark=self.get_mark())

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _weigh(node, {}, set())
        return node

    def construct_scalar(self, node: yaml.Node) -> Any:
        """No name of a file can hold a NUL or half a character, and nothing else here needs them."""
        text = super().construct_scalar(node)  # type: ignore[arg-type]
        try:
            if isinstance(text, str) and b"\0" in os.fsencode(text):
                raise yaml.constructor.ConstructorError(problem="a text holds a NUL", problem_mark=node.start_mark)
        except UnicodeEncodeError:
            half = "a text holds half a character"
            raise yaml.constructor.ConstructorError(problem=half, problem_mark=node.start_mark) from None
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise TwiceError(problem=key.value, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse(loader: Plain, node: yaml.Node) -> None:  # noqa: ARG001
    raise yaml.constructor.ConstructorError(problem=f"{node.tag} makes no setting", problem_mark=node.start_mark)


for _kind in ("binary", "set", "omap", "pairs"):
    Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", _refuse)


def parse_yaml(text: str) -> Any:
    """What a YAML text says; a yaml.YAMLError, whatever is wrong with it."""
    if len(text) > LARGEST_TEXT:
        raise yaml.YAMLError("it is too large")
    try:
        return copy.deepcopy(_loaded(text)) if len(text) <= REMEMBERED else yaml.load(text, Plain)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # a date that is none, a number of thousands of digits
        raise yaml.YAMLError(str(error)) from None


@functools.lru_cache(maxsize=64)
def _loaded(text: str) -> Any:
    """A base of many configs is parsed once: that takes a hundred times as long as a copy."""
    return yaml.load(text, Plain)


def parse_json(text: str | bytes, *, nan: bool = True) -> Any:
    """What a JSON text says; a ValueError, whatever is wrong with it. `nan`: whether NaN may stand in it."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=float if nan else _no_nan)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_record(path: Path, *, nan: bool = True) -> dict[str, Any]:
    """The JSON object of a file that a program has written; an OSError or ValueError where it is no such thing."""
    content = _content(path, LARGEST_RECORD, stored=True)
    values = parse_json(content, nan=nan)
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    return values


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of such a file; empty where there is no such file, or something else in it."""
    try:
        return read_record(path)
    except (OSError, ValueError):
        return {}


def read_text(path: Path, most: int = LARGEST_TEXT, *, stored: bool = False) -> str:
    """A text file of at most `most` bytes; an OSError or ValueError where it cannot be read, or is no such file.
    `stored`: it must lie on a disk, for of a pipe one might wait for ever."""
    return _content(path, most, stored).decode()


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The leaves of nested groups, by dotted key; a group that is empty is one."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        leaves |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return leaves


def fields_among(values: Mapping[str, Any], blank: Any) -> dict[str, Any]:
    """The values of a record that have the name and type of a field of the dataclass `blank`; others are damage."""
    return {name: values[name] for name, value in vars(blank).items() if type(values.get(name)) is type(value)}


def rows_in(lines: Iterable[bytes]) -> Iterator[Row]:
    """The rows of a log; half a line that a kill has left is passed over."""
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def end_of(log: Path, most: int = LOG_END) -> bytes:
    """The last bytes of a log; none where it cannot be read, or is no file on a disk."""
    try:
        with _opened(log, stored=True) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except (OSError, ValueError):
        return b""


def encoded(value: object) -> object:
    """JSON has no infinity: such a number is written as a word that Python's `float` and JavaScript's `Number` read."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_of(value: Any) -> float | None:
    """A value as a number; None where it is none, or too large for one."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _opened(path: Path, stored: bool) -> BinaryIO:
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if stored else 0)), "rb")  # noqa: SIM115
    if stored and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would be waited for
        file.close()
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return file


def _content(path: Path, most: int, stored: bool) -> bytes:
    with _opened(path, stored) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most / 1e6:.0f} MB")
    return content


def _weigh(node: yaml.Node, known: dict[int, int], around: set[int]) -> int:
    """How many values a node stands for, with all that aliases repeat."""
    if id(node) in around:
        raise yaml.composer.ComposerError(problem="a value holds itself", problem_mark=node.start_mark)
    if id(node) not in known:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        size = 1 + sum(_weigh(child, known, around | {id(node)}) for child in children)
        if size > LARGEST_TREE:
            raise yaml.composer.ComposerError(problem="its aliases repeat too much", problem_mark=node.start_mark)
        known[id(node)] = size
    return known[id(node)]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"'{name}' stands twice in it")
        values[name] = value
    return values


def _no_nan(word: str) -> float:
    if word == "NaN":
        raise ValueError("it holds a NaN")
    return float(word)
