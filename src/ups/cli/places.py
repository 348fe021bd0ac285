"""Where commands write: a path that is printed as a line of its own, for scripts to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ups.files import one_line


def _printed(_: Any, path: Path | None) -> None:
    if path is not None:
        one_line(path)


Place = Annotated[Path, Parameter(validator=_printed)]
