"""YAML and JSON that nobody vouches for: of bounded size and depth, no key twice, nothing but plain values."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

LARGEST_TEXT = 2**20  # bytes of a config or of a record that a person may have written
DEEPEST = 100  # brackets within each other
LARGEST_TREE = 100_000  # values of a YAML document with everything that its aliases repeat


class TwiceError(yaml.constructor.ConstructorError):
    """A key that stands twice, so that one of its values would silently be lost."""


class Plain(yaml.SafeLoader):
    """YAML without tags that make objects, without a key that stands twice, and without aliases that grow for ever."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _weigh(node, {}, set())
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise TwiceError(problem=key.value, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """What a YAML text says; a yaml.YAMLError, whatever is wrong with it."""
    if len(text) > LARGEST_TEXT or _depth(text) > DEEPEST:  # the parser takes a time that grows with their square
        raise yaml.YAMLError("it is too large or nested too deeply")
    try:
        return yaml.load(text, Plain)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # a date that is none, a number of thousands of digits
        raise yaml.YAMLError(str(error)) from None


def parse_json(text: str | bytes, *, nan: bool = True) -> Any:
    """What a JSON text says; a ValueError, whatever is wrong with it. `nan`: whether NaN may stand in it."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=float if nan else _no_nan)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """A text file of at most `most` bytes; an OSError or ValueError where it cannot be read, or is no such file."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most / 1e6:.0f} MB")
    return content.decode()


def _depth(text: str) -> int:
    """The most brackets that are open at a time; those in words count too."""
    steps = (1 if mark in "[{" else -1 for mark in re.findall(r"[\[\]{}]", text))
    return max(itertools.accumulate(steps), default=0)


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
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' stands twice in it")
    return values


def _no_nan(word: str) -> float:
    if word == "NaN":
        raise ValueError("it holds a NaN")
    return float(word)
