"""`ups config`: show and explain configuration."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from ups.screen import waiting
from ups.streams import delivered

config = App(name="config", help="Show and explain configuration.")


@config.command(usage="Usage: ups config show [FILE] [--KEY.OF.CONFIG VALUE ...]")
def show(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> int:
    """Print a whole config: FILE, its bases, the flags and every default.

    FILE is a YAML config; without one, the defaults alone. Any key is a flag, with dots for the levels, for example
    `--data.burgers.seed 1`. What counts for all stages stands once under `train`, what networks have in common under
    `model.network`, and a section below shows only what differs there. What is printed is a config file itself.
    """
    from ups.config import file_and_flags, fingerprint, load, shown

    file, overrides = file_and_flags(arguments)
    with waiting(f"reading {file}" if file else "reading the defaults"):
        from ups.run.config import run_config

        resolved = load(run_config(), file, overrides)
    print(shown(resolved), end="")
    print(f"# fingerprint {fingerprint(resolved)}")
    return delivered()


@config.command
def schema() -> int:
    """Print the JSON schema of a config: every key, its type, its default, and what it is for."""
    import json

    with waiting("reading the defaults"):
        from ups.run.config import run_config

    print(json.dumps(run_config().model_json_schema(), indent=2, ensure_ascii=False))
    return delivered()
