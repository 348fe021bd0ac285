"""Typed configuration: strict keys, `base:` files, dotted overrides, one-sentence errors, a stable fingerprint."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from ups.config_shared import overridden, shortened, spread, whole, without_shared
from ups.config_values import (
    Key,
    counted_as_numbers,
    home_of,
    keys_of,
    picked,
    seen_from,
    seen_from_here,
    unnamed_in,
    with_paths,
)
from ups.parsing import TwiceError, not_yaml, parse_yaml, read_text
from ups.types import ConfigError, UpsError, nearest

Lay = Callable[[dict[str, Any], Path], None]  # lays the content of a file over that of its base files
# Kinds of errors, as pydantic names them.
GROUPS = ("model_type", "dict_type", "dataclass_type")
LISTS = ("tuple_type", "list_type")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
BASES = 20  # files that `base:` may name one after the other


class _Described(GenerateJsonSchema):
    """Schemas with the docstrings of keys. They are read from the source here, and not whenever a config is imported,
    which would take half a second of the start of every command."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _explained(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _explained(schema["cls"], super().dataclass_schema(schema))


def _explained(kind: type, schema: JsonSchemaValue) -> JsonSchemaValue:
    """A schema of a class in which every key has its docstring, that of the class nearest to it."""
    for each in kind.__mro__:
        for name, text in _docs_in(each.__module__).get(each.__name__, {}).items():
            if name in schema.get("properties", {}):
                schema["properties"][name].setdefault("description", text)
    return schema


@functools.cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    """The docstrings of attributes, by class, of a module."""
    if module.partition(".")[0] in ("builtins", "pydantic"):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    docs: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            rows = docs.setdefault(node.name, {})
            for pair in itertools.pairwise(node.body):
                match pair:
                    case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                        rows[name] = inspect.cleandoc(text)
    return docs


class Config(BaseModel):
    """A config: unknown keys are errors, values never change after loading, and no text is taken for a number."""

    # Keys that change how a result is reached and not what it is: no part of the fingerprint. A dataclass that is part
    # of a config may name such keys too.
    incidental: ClassVar[frozenset[str]] = frozenset()
    # Keys that change nothing of what is learnt: a run may go on with others.
    after_training: ClassVar[frozenset[str]] = frozenset()
    # Keys that are the name of a run, by which its folder is called: a folder that was renamed holds the same run.
    names: ClassVar[frozenset[str]] = frozenset()
    # Keys that name files or folders, and whether a text there is a path.
    located: ClassVar[Mapping[str, Callable[[str], bool]]] = {}
    # Keys that are written once for several sections, as `train` for all stages: each with the class of the sections it
    # is for. A section has a key of this name, or is itself what the key says; it holds only what differs.
    shared: ClassVar[Mapping[str, type]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The JSON schema of this config, in which every key says what it is for."""
        return super().model_json_schema(*args, **{"schema_generator": _Described, **kwargs})

    @model_validator(mode="before")
    @classmethod
    def _for_all(cls, values: Any) -> Any:
        """What is said of all sections together fills in what each does not say itself."""
        return whole(cls, values) if cls.shared and isinstance(values, dict) else values

    @field_validator("*", mode="wrap")
    @classmethod
    def _in_its_place(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """An error of a part becomes one of validation, to which the key and the file are added."""
        try:
            return check(value)
        except UpsError as error:
            raise ValueError(str(error)) from None


class HomedConfig(Config):
    """A config with paths. Relative ones in a file count from the file's own folder, those on the command line from the
    current folder. Once it is loaded, all of them count from the current folder."""

    incidental = frozenset({"home"})

    home: str | None = None
    """The folder from which all relative paths in this file count but `out`; by default its own."""


C = TypeVar("C", bound=Config)


def load(model: type[C], path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> C:
    """A config from a YAML file and what is said on the command line.

    Args:
        model: The class of the config.
        path: The file; those that its `base:` names are read first. None: defaults and overrides alone.
        overrides: Values by dotted key, such as `{"a.b": 1}`; they replace those of files. A text is read as YAML.

    Raises:
        ConfigError: A file, key or value is wrong: one sentence that names the first of them.
    """
    values, origin = _laid(model, path, overrides or {})
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        first = first_of(error)
        flags = _blamed(model, path, overrides or {}, first)
        raise ConfigError(sentence_of(model, first, origin, flags)) from None
    for key, value in counted_as_numbers(values, config):
        where = _where(key, origin)
        raise ConfigError(f"{where} is {str(value).lower()}, but must be a number.")
    return config


def _laid(
    model: type[BaseModel], path: Path | None, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[Key, str]]:
    """The values of a file and of the overrides on it, and where each key came from."""
    values: dict[str, Any] = {"home": os.getcwd()} if issubclass(model, HomedConfig) else {}
    origin: dict[Key, str] = {}
    if path is not None:
        home = os.path.abspath(str(overrides["home"])) if overrides.get("home") else None

        def lay(content: dict[str, Any], file: Path) -> None:
            placed = from_here(model, content, file, home if file == path else None)
            _give_way(model, values, placed, origin)
            _merge(values, placed, (), str(file), origin)

        _read(path, lay, seen=())
    _give_way(model, values, _nested(overrides), origin)
    for dotted, value in overrides.items():
        _set(values, tuple(dotted.split(".")), value, _flag(dotted), origin)
    return values, origin


def _give_way(model: type[BaseModel], values: dict[str, Any], new: Mapping[str, Any], origin: dict[Key, str]) -> None:
    """Forget what earlier files said of single sections where `new`, a later file or flags, says it of all of them."""
    for key in overridden(model, values, new):
        node: Any = values
        for part in key[:-1]:
            node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(key[-1], None)
        _forget(key, origin)


def _forget(key: Key, origin: dict[Key, str]) -> None:
    for below in [known for known in origin if known[: len(key)] == key]:
        del origin[below]


def giving_way(model: type[BaseModel], flags: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides `flags` without those of single sections that the overrides `later` say of all sections."""
    gone = {".".join(key) for key in overridden(model, {}, _nested(later))}
    return {dotted: value for dotted, value in flags.items() if dotted not in gone}


def _nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for dotted, value in overrides.items():
        _set(values, tuple(dotted.split(".")), value, _flag(dotted), {})
    return values


def _flag(dotted: str) -> str:
    return f"--{dotted.removeprefix('params.')}"


def first_of(error: ValidationError) -> ErrorDetails:
    """The one error of a validation that is reported.

    A misspelt key goes before others, for it explains a key that is missing. Of a value that may be a word or a group
    of keys, and is a group, it is the error inside the group and not that the group is no word.
    """
    first = min(error.errors(), key=lambda e: e["type"] not in UNKNOWN)
    for *above, kind in (e["loc"] for e in error.errors() if e["loc"]):
        word, depth = kind == "str" or str(kind).startswith("literal["), len(above)
        if word and list(first["loc"][:depth]) == above:
            of_value = [e for e in error.errors() if list(e["loc"][:depth]) == above]
            inside = first if first["type"] in UNKNOWN else max(of_value, key=lambda e: len(e["loc"]))
            return {**inside, "loc": (*above, *inside["loc"][depth + 1 :])}
    return first


def _blamed(model: type[BaseModel], path: Path | None, overrides: Mapping[str, Any], error: ErrorDetails) -> str:
    """The flag that causes an error of a whole group of keys: without it there is none. Empty where no flag does."""
    at = tuple(str(part) for part in error["loc"])
    for dotted in overrides:
        key = tuple(dotted.split("."))
        if path is None or key[: len(at)] != at or key == at:
            continue
        try:
            others = {name: value for name, value in overrides.items() if name != dotted}
            model.model_validate(_laid(model, path, others)[0])
        except ValidationError as other:
            if first_of(other)["loc"] == error["loc"]:
                continue
        return _flag(dotted)
    return ""


def file_and_flags(arguments: tuple[str, ...]) -> tuple[Path | None, dict[str, str]]:
    """The words `[FILE] --a.b VALUE --c=VALUE …` of a command line as a path, or None, and values by dotted key."""
    rest = list(arguments)
    file = Path(rest.pop(0)) if rest and not rest[0].startswith("--") else None
    flags: dict[str, str] = {}
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--") or not (equals or rest):
            raise ConfigError(f"'{flag}' is not a flag with a value; write --KEY VALUE.")
        flags[flag[2:]] = value if equals else rest.pop(0)
    return file, flags


def _read(path: Path, lay: Lay, seen: Sequence[Path]) -> None:
    """Call `lay` with the content of each file that `base:` names, the lowest first, then with that of `path`; `seen`
    are the files that led to it."""
    path = path.resolve() if seen else path
    if path.resolve() in (p.resolve() for p in seen):
        chain = " → ".join(str(p) for p in (*seen, path))
        raise ConfigError(f"{seen[0]}: its base files name each other in a circle ({chain}); remove one `base:`.")
    if len(seen) > BASES:
        raise ConfigError(
            f"{seen[0]}: more than {BASES} base files follow one another from it; lay some of them together."
        )
    try:
        if seen and not path.is_file() and path.exists():
            raise ConfigError(f"{path}: is named as base by {seen[-1]}, but is no file; name a YAML file.")
        text = read_text(path)
    except FileNotFoundError:
        named_by = f" (named as base by {seen[-1]})" if seen else ""
        raise ConfigError(f"{path}: there is no such config file{named_by}; check the path.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a text file ({error}); name a YAML file.") from None
    try:
        content = parse_yaml(text)
    except TwiceError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"{path}: '{error.problem}' stands twice in one group (line {line}); keep one.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        what = f" ({' '.join(str(getattr(error, 'problem', None) or error).split())[:200]})"
        raise ConfigError(f"{path}: is not valid YAML{where}{what}; mend the line and try again.") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold keys and values, not a {type(content).__name__}.")
    if (base := content.pop("base", None)) is not None:
        _read(path.parent / str(base), lay, (*seen, path))
    lay(content, path)


def from_here(model: type[BaseModel], content: dict[str, Any], path: Path, home: str | None = None) -> dict[str, Any]:
    """The content of the config file `path`, its relative paths made to count from the current folder.

    Args:
        model: The class of the config, which says which keys are paths.
        content: What was read from the file.
        path: The file.
        home: The folder that paths in it count from; by default the one it names itself (`home:`), or its own.
    """
    if not issubclass(model, HomedConfig) or not isinstance(content.get("home", ""), str | None):
        return content
    home = home_of(path, home or content.get("home"))
    return {**with_paths(model, content, seen_from_here(home)), "home": home}


def _merge(into: dict[str, Any], new: Mapping[Any, Any], at: Key, source: str, origin: dict[Key, str]) -> None:
    for key, value in new.items():
        here = (*at, str(key))
        if not (isinstance(value, dict) and isinstance(into.get(str(key)), dict)):
            into[str(key)] = {} if isinstance(value, dict) else value
            origin[here] = source
        if isinstance(value, dict):
            _merge(into[str(key)], value, here, source, origin)


def as_flag(value: Any) -> Any:
    """A value that can be given as an override: there a text is read as YAML, so a text or a path is quoted here, lest
    `12` or `true` become a number or a bool."""
    return json.dumps(str(value), ensure_ascii=False) if isinstance(value, str | Path) else value


def _set(values: dict[str, Any], key: Key, value: Any, source: str, origin: dict[Key, str]) -> None:
    node = values
    for depth, part in enumerate(key[:-1]):
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: '{'.'.join(key[: depth + 1])}' is a value, not a group of keys.")
        node = child
    try:
        node[key[-1]] = parse_yaml(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        raise ConfigError(f"{source}: '{value}' {not_yaml(str(value))}.") from None
    _forget(key, origin)  # a group takes the place of the one before
    origin[key] = source


def sentence_of(model: type[BaseModel], error: ErrorDetails, origin: Mapping[Key, str], flag: str) -> str:
    """An error of validation in one sentence: the key, where it came from, what is wrong, and the nearest valid name.

    Args:
        model: The class of the config.
        error: What pydantic says.
        origin: The file or flag that each key came from.
        flag: The flag that causes the error of a group of keys; empty where there is none.
    """
    loc = tuple(str(part) for part in error["loc"])
    source, where = _origin(loc, origin), flag or _where(loc, origin)
    if error["type"] in UNKNOWN:
        valid = list(keys_of(model, loc[:-1]))
        known = f"the keys here are {', '.join(valid)}." if valid else "there are no keys here; leave it out."
        return f"{where} is not a known key; {nearest(loc[-1], valid, known)}"
    if error["type"] == "missing":
        return f"{where} is missing; add it."
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        return text if source == "the flags" and not flag else f"{where}: {text}"
    if error["type"] in GROUPS:
        return f"{where} must be a group of keys, not {error['input']!r:.80}."
    if error["type"] in LISTS and isinstance(error["input"], str | int | float):
        return f"{where}: must be a list, such as [{error['input']}], not {error['input']!r:.80}."
    got = "" if isinstance(error["input"], dict) else f", not {error['input']!r:.80}"
    return f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}{got}."


def _where(loc: Key, origin: Mapping[Key, str]) -> str:
    """A key and where it came from, as a sentence begins."""
    source = _origin(loc, origin)
    return source if source.startswith("--") or not loc else f"{source}: '{'.'.join(loc)}'"


def _origin(loc: Key, origin: Mapping[Key, str]) -> str:
    """Where a key came from: its own source, else that of the nearest key above it, else of what stands below it."""
    for n in range(len(loc), 0, -1):
        if loc[:n] in origin:
            return origin[loc[:n]]
    below = {source for key, source in origin.items() if key[: len(loc)] == loc}
    return ", ".join(sorted(source for source in below if not source.startswith("--"))) or "the flags"


def dump(config: Config) -> str:
    """The whole config as YAML, defaults included, each section with all of its keys: what a run folder keeps."""
    return _as_yaml(without_shared(type(config), _plain(config)))


def shown(config: Config) -> str:
    """The whole config as YAML, of each section only what differs from a shared one: what `ups config show` prints."""
    return _as_yaml(shortened(type(config), _plain(config)))


def _as_yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _plain(config: Config, without: dict[str, Any] | None = None) -> dict[str, Any]:
    """The values of a config, with paths that count from its home, wherever the current folder is."""
    home = getattr(config, "home", None) or os.curdir
    return as_seen_from(home, type(config), config.model_dump(mode="json", exclude=without))


def as_seen_from(home: str, model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a config, with paths that count from `home` and not from the current folder."""
    return dict(with_paths(model, values, seen_from(home)))


def rehomed(config: C, home: str) -> C:
    """The same config, its relative paths counted from another folder."""
    values = with_paths(type(config), _plain(config), seen_from_here(home))
    return type(config).model_validate({**values, "home": home})


def fingerprint(config: Config, path: Path | None = None, defaults: Mapping[str, Any] | None = None) -> str:
    """A short hash of the values that decide what a result is, whatever their order and the files they came from.

    Args:
        config: The config; its incidental keys are left out.
        path: Its file. Then only keys that this file and its bases set are hashed, and those whose value is not what
            `defaults` says: the hash stays when a key is added to the program, and changes when a default does.
        defaults: Recorded default values, by dotted key as `unnamed` writes them.
    """
    values = _deciding(config)
    if path is not None:
        left_out = unnamed(config, path)
        values = picked(values, spread(type(config), _laid(type(config), path, {})[0]))
        changed = {key: value for key, value in left_out.items() if (defaults or {}).get(key, value) != value}
        values |= {"changed defaults": changed} if changed else {}
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unnamed(config: Config, path: Path) -> dict[str, Any]:
    """The values that the file of a config leaves to defaults, by dotted key; `*` stands for the name of a data set."""
    named = spread(type(config), _laid(type(config), path, {})[0])
    return {
        ".".join(("data", "*", *at[2:]) if at[0] == "data" else at): value
        for at, value in unnamed_in(_deciding(config), named)
    }


def _deciding(config: Config) -> dict[str, Any]:
    """The values of a config that decide what its result is."""
    return without_shared(type(config), _plain(config, without=_incidental(config)))


def _incidental(section: Any) -> dict[str, Any]:
    """The incidental keys of a config and of the sections within it, as pydantic takes them."""
    fields = vars(section) if dataclasses.is_dataclass(section) else {}
    within = dict(section) if isinstance(section, Config) else fields
    inner = {name: _incidental(value) for name, value in within.items()}
    own = {name: True for kind in type(section).__mro__ for name in vars(kind).get("incidental", ())}
    return {name: keys for name, keys in inner.items() if keys} | own


def incidental_keys(section: Any) -> set[str]:
    """The incidental keys of a config and of the sections within it, dotted: `operator.train.log_every`."""
    return set(_dotted(_incidental(section)))


def _dotted(keys: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name, inner in keys.items():
        yield from _dotted(inner, f"{at}{name}.") if isinstance(inner, dict) else (f"{at}{name}",)
