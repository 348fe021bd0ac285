"""Whole numbers on the command line: refuses 1.5, which the parser would cut down to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is not a whole number.") from None


Whole = Annotated[int, Parameter(converter=_whole)]
