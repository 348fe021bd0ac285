"""Parses command-line words that hold several numbers: NAME=VALUE pairs, and shares."""

from __future__ import annotations

from ups.types import ConfigError


def assignments(text: str | None) -> dict[str, float | str]:
    """`nu=0.02,rho=1` by name; what is not a number stays a word."""
    values: dict[str, float | str] = {}
    for pair in text.split(",") if text else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise ConfigError(f"--params has '{pair}', but must be NAME=VALUE pairs, such as nu=0.02,rho=1.")
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = value
    return values


def shares(text: str | None) -> tuple[float, float, float] | None:
    """`0.8,0.1,0.1` as shares of train, valid and test; None where nothing is said."""
    if text is None:
        return None
    try:
        train, valid, test = (float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--split is '{text}', but must be three shares, such as 0.8,0.1,0.1.") from None
    return train, valid, test
