"""Compares units in any spelling, and refuses files of one task whose units differ."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ups.data.source import Source
from ups.types import DataError

# A line is one unit. Spellings of three letters and more may be in large or small letters; M and m are not the same.
SPELLINGS = """
s sec secs second seconds
ms msec millisecond milliseconds
us µs μs microsecond microseconds
ns nanosecond nanoseconds
min mins minute minutes
h hr hrs hour hours
d day days
week weeks
month months
yr year years
m meter meters metre metres
cm centimeter centimeters centimetre centimetres
mm millimeter millimeters millimetre millimetres
km kilometer kilometers kilometre kilometres
kg kilogram kilograms
g gram grams
K kelvin kelvins degK degKelvin
degC C celsius degCelsius
degF F fahrenheit degFahrenheit
degree degrees deg ° degree_north degrees_north degree_east degrees_east degree_N degrees_N degree_E degrees_E
rad radian radians
Pa pascal pascals
hPa mbar mb millibar millibars hectopascal hectopascals
N newton newtons
J joule joules
W watt watts
V volt volts
A ampere amperes amp amps
mol mole moles
Hz hertz
% percent
1 dimensionless unitless nondimensional
"""
UNSAID = ("", "-", "?", "none", "n/a", "unknown", "undefined")
WORD = 5  # letters from which on a spelling is a word, large or small
KNOWN = {word: line.split()[0] for line in SPELLINGS.strip().splitlines() for word in line.split()}
FOLDED = {word.lower(): unit for word, unit in KNOWN.items() if len(word) > 2}
DEGREES = re.compile(r"(?:\bdeg(?:rees?)?|°)[ _]*(?=(?:[CKF]|celsius|kelvin|fahrenheit)\b)", re.IGNORECASE)
TIMES = r"\s+|(?<!\*)\*(?!\*)|[.·⋅]"
BELOW = re.compile(r"/\s*\(([^()]*)\)")
FACTOR = re.compile(r"(/|\*|[.·⋅]|)\s*([^\W\d]+|°|%|1(?![\d.e]))(?:(?:\*\*|\^)?([-−+]?\d{1,3}))?\s*")


def units_of_all(sources: Iterable[Source]) -> dict[str, str]:
    """The units that any of some sources names; DataError where two name different ones for the same thing."""
    named: dict[str, tuple[str, Source]] = {}
    for source in sources:
        for name, unit in source.units.items():
            first, where = named.setdefault(name, (unit, source))
            if unit != first and unit_of(unit) != unit_of(first):
                raise DataError(
                    f"{source.path}: its {name} is in '{_short(unit)}', but in {where.path} of the same task it is in "
                    f"'{_short(first)}'; write both in one unit, or correct the attribute `units` that is wrong."
                )
    return {name: unit for name, (unit, _) in named.items()}


def check_units(sources: Sequence[Source]) -> None:
    """DataError where two sources whose tasks are called the same name different units for the same thing."""
    for name in dict.fromkeys(source.task.name for source in sources):
        units_of_all(source for source in sources if source.task.name == name)


def stated(attribute: object, is_time: bool = False) -> str:
    """The unit that an attribute `units` names, of times without the date from which they count; "" if it says none."""
    text = " ".join(str(attribute).replace("\0", " ").split())
    text = re.split(r"\bsince\b", text, maxsplit=1, flags=re.IGNORECASE)[0].strip() if is_time else text
    return "" if text.lower() in UNSAID else text


@functools.lru_cache(1024)
def unit_of(text: str) -> object:
    """A unit, equal to that of other spellings (`m/s`, `m s-1`, `meters per second`); the text where it is unknown."""
    plain = DEGREES.sub("deg", re.sub(r"\bper\b", "/", text.strip("[] ")))
    plain = BELOW.sub(lambda match: "".join(f"/{part}" for part in re.split(TIMES, match[1].strip())), plain)
    powers: Counter[str] = Counter()
    at = 0
    while at < len(plain):
        factor = FACTOR.match(plain, at)
        if factor is None:
            return " ".join(plain.split())
        power = int((factor[3] or "1").replace("−", "-"))
        powers[_symbol(factor[2])] += -power if factor[1] == "/" else power
        at = factor.end()
    return frozenset((symbol, power) for symbol, power in powers.items() if power and symbol != "1")


def _symbol(word: str) -> str:
    """The symbol of a unit that is spelled so."""
    small = word.lower()
    return KNOWN.get(word) or FOLDED.get(small) or (small if len(word) >= WORD else word)


def _short(unit: str) -> str:
    return unit if len(unit) <= 40 else f"{unit[:39]}…"
