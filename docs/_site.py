"""Pages of the site that are not written by hand: the README, the changelog, and what the program says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FRONT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FRONT |= {"SECURITY.md": "security-policy.md"}
# What Python programs use, module by module; everything else is found through these.
OBJECTS = {
    "Make a simulator": ("ups.fit", "ups.load", "ups.jobs.fit.Data", "ups.definition.Definition"),
    "Ask it": ("ups.models.simulator.Simulator", "ups.models.request.Request", "ups.models.request.Answer"),
    "Make data": ("ups.physics.solver.Equation", "ups.types.Trajectory"),
    "Nouns": ("ups.types.TaskSpec", "ups.types.Field", "ups.types.Param", "ups.types.Dynamics", "ups.types.Grid"),
    "Mistakes": ("ups.types.UpsError", "ups.types.ConfigError", "ups.types.DataError", "ups.types.PhysicsError"),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for name, page in FRONT.items():
        files.append(File.generated(config, page, content=moved((ROOT / name).read_text())))
    for page, content in (("commands.md", commands()), ("keys.md", keys()), ("python.md", python())):
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links of pages to those of the root."""
    for name, page in FRONT.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The one script that the theme would ask another site for, by ours."""
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{'../' * page.url.count('/')}javascripts/worker_in_frame.js")


def moved(text: str) -> str:
    """A page of the root, with links as they are from `docs/`. A licence and a folder are named, not linked."""
    for name, page in FRONT.items():
        text = text.replace(f"]({name}", f"]({page}")
    text = text.replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\((?:LICENSE|benchmarks|configs|tests|src)[^)]*\)", r"`\1`", text)


def commands() -> str:
    """The help of every command."""
    from ups.cli.app import app

    text = app.generate_docs(recursive=True, heading_level=1, usage_name="ups")
    text = re.sub(r"^(ups(?: \w+)*?) (\w+) \2 ", r"\1 \2 ", text, flags=re.M)  # a usage that names its command again
    text = re.sub(r"^## Table of Contents\n.*?(?=^\*\*)", "", text, flags=re.M | re.S)  # the page has one beside it
    return re.sub(r"^# .*", "# Commands", text, count=1)


def keys() -> str:
    """Every key of a run's config."""
    from ups.run.config import run_config

    schema = run_config().model_json_schema()
    rows = [
        "# Keys of a config",
        "Every key of a run's YAML file is a flag of `ups run` as well: `--model.operator.size small`. "
        "`ups config show` prints a whole config. What counts for all stages stands once under `train`, what "
        "networks have in common under `model.network`.",
    ]
    rows.append(_table("", schema))
    for name, inner, parent in _sections(schema, schema["$defs"]):
        rows += [f"## `{name}`", _sentence(inner.get("description") or parent), _table(name, inner)]
    return "\n\n".join(rows) + "\n"


def _sections(part: dict[str, Any], defs: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    for key, about in part.get("properties", {}).items():
        inner = _inner(about, defs)
        if inner is None:
            continue
        name = f"{above}{key}{'.NAME' if 'additionalProperties' in about else ''}"
        yield name, inner, about.get("description", "")
        yield from _sections(inner, defs, f"{name}.")


def _inner(about: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any] | None:
    """The section that a key holds, or None where it holds a value."""
    options = [about, *about.get("anyOf", ()), *about.get("allOf", ()), about.get("additionalProperties")]
    for one in options:
        if isinstance(one, dict) and "$ref" in one:
            inner = defs[one["$ref"].rpartition("/")[2]]
            return inner if "properties" in inner else None
    return None


def _table(above: str, part: dict[str, Any]) -> str:
    rows = ["| key | what it is | default |", "|---|---|---|"]
    for key, about in part.get("properties", {}).items():
        default = about.get("default", "")
        choices = next((one["enum"] for one in (about, *about.get("anyOf", ())) if "enum" in one), ())
        what = _sentence(about.get("description", "")) + (f" One of {', '.join(map(str, choices))}." if choices else "")
        shown = "" if isinstance(default, (dict, list)) or default in ("", None) else f"`{default}`"
        rows.append(f"| `{key}` | {what.replace('|', chr(92) + '|')} | {shown} |")
    return "\n".join(rows)


def _sentence(text: str) -> str:
    return " ".join(text.split())


def python() -> str:
    """What Python programs use, from its docstrings."""
    rows = ["# Python"]
    for title, names in OBJECTS.items():
        rows.append(f"## {title}")
        rows += [f"::: {name}" for name in names]
    return "\n\n".join(rows) + "\n"
