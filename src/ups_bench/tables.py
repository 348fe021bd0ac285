"""`ups bench tables`: the tables of the README and of docs/, written from what was measured between marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.parsing import read_record, read_text
from ups.types import OURS, DataError, counted
from ups_bench import ledger
from ups_bench.beyond_tables import PICTURE, draw, tables_beyond
from ups_bench.cells import circumstances, command_of, commits, markdown, older, score_cell, shown
from ups_bench.rows import PUBLISHED, ROWS, BenchRow, PublishedNumber, beyond, rows_in
from ups_bench.seeds import SeedSpread, further_seed, pairs_expected, pairs_held, spread_of

ENGINE, GROWTH, SPEED = (Path(f"benchmarks/{name}.json") for name in ("engine", "growth", "speed"))
DOCUMENTS = (Path("README.md"), Path("docs/benchmarks.md"), Path("docs/speed.md"))
MARK = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end of table -->\n", re.DOTALL)
COMMANDS = {
    "engine": "ups bench engine --json benchmarks/engine.json",
    "growth": "ups bench growth --json benchmarks/growth.json",
    "speed": "ups bench speed --device cuda --json benchmarks/speed.json",
}
# The ratios of benchmarks/engine.json in words, and whether more is better.
RATIOS = {
    "engine over bare loop": ("a step of `Trainer` over a bare loop with the same mathematics", False),
    "protections on over off": ("every protection on over off, two ranks", False),
    "blocked over whole save": ("time the loop is held up by a save over the whole save", False),
    "two ranks": ("two ranks with a core each over twice one rank", True),
}


def bench_tables(home: Path, check: bool, say: Callable[[str], None]) -> int:
    """Write the tables of the documents in `home` anew, or only say which differ: 1 where any does."""
    tables = tables_of(home)
    differing = []
    for name in DOCUMENTS:
        path = home / name
        old = document(path)
        new = filled(path, old, tables)
        if new != old:
            differing.append(str(name))
            if not check:
                write_atomic(path, new)
    if not check:
        draw(home / PICTURE, ledger.read(home / ledger.LEDGER))
    if not differing:
        say("every table says what was measured.")
    elif check:
        say(f"{' and '.join(differing)}: a table is not what was measured; `ups bench tables` writes it anew.")
    else:
        say(f"written: {', '.join(differing)}")
    return int(check and bool(differing))


def tables_of(home: Path) -> dict[str, str]:
    """Every table by name, from the files of measurements in `home`."""
    rows = rows_in(home / ROWS, home / PUBLISHED)
    entries = ledger.read(home / ledger.LEDGER)
    return {
        "accuracy": accuracy_table(rows, entries),
        "beside": beside_table(rows, entries),
        "headlines": headline_table(rows, entries),
        "engine": engine_table(home / ENGINE),
        "growth": growth_table(home / GROWTH),
        **tables_beyond(rows, beyond(home), entries),
        "speed": speed_table(home / SPEED),
        "kernels": kernels_table(home / SPEED),
    }


def document(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); run the command in the repository.") from None


def filled(path: Path, text: str, tables: Mapping[str, str]) -> str:
    """A document with its tables; a DataError for a mark that names none, or is not closed."""
    for name in re.findall(r"<!-- table (.*?) -->", text):
        if name not in tables:
            raise DataError(f"{path}: asks for a table '{name}'; there are {', '.join(tables)}.")
    if len(MARK.findall(text)) != text.count("<!-- table "):
        raise DataError(f"{path}: a table has no '<!-- end of table -->' behind it; put it back.")
    return MARK.sub(lambda m: f"<!-- table {m[1]} -->\n{tables[m[1]]}<!-- end of table -->\n", text)


def accuracy_table(rows: Mapping[str, BenchRow], entries: Sequence[ledger.LedgerEntry]) -> str:
    """Every row: ours, what a further seed would give, what is published, and the command."""
    header = ("row", "ours (interval)", "another seed", "re-tuned FNO", "ours / that", "training, steps", "command")
    lines, spread = [], spread_of(rows, entries)
    for row in rows.values():
        runs, known = shown(entries, row), row.published
        published = published_cell(known)
        if not runs:
            lines.append((f"`{row.name}`", "not measured", "–", published, "–", "–", f"`{row.command(row.minutes)}`"))
            continue
        ratio = _over(runs, known.best)
        scores = _scores(runs, OURS)
        command = command_of(row, runs, by_steps=True)
        cells = (score_cell(scores), _another(runs, spread), published, ratio, _cost(runs, OURS), command)
        lines.append((f"`{row.name}`", *cells))
    notes = [f"`{row.name}`: {row.published.note}" for row in rows.values() if row.published.note]
    notes = [f"To know before comparing: {'; '.join(notes)}."] if notes else []
    return markdown(header, lines) + "".join(f"\n{words}\n" for words in (*notes, *_repeated(rows, entries, spread)))


def published_cell(known: PublishedNumber) -> str:
    """The re-tuned FNO's error; where that of the paper is the lesser, to which the ratio is, that too."""
    words = "–" if known.retuned is None else f"{known.retuned:.2e}"
    return words + (f" (paper {known.paper:.2e})" if known.paper is not None and known.paper == known.best else "")


def _repeated(
    rows: Mapping[str, BenchRow], entries: Sequence[ledger.LedgerEntry], spread: SeedSpread | None
) -> list[str]:
    """What to expect of whoever runs a row again: how often the number of one seed lies in the interval of another, and
    how often where the spread of the other rows has it."""
    seeds = [scores for row in rows.values() if len(scores := _scores(shown(entries, row), OURS)) > 1]
    held, pairs = pairs_held(seeds)
    if not pairs:
        return []
    what = f"{counted(len(seeds), 'row')} of more than one seed, each seed against the interval of every other"
    words = [f"Run again: of {what}, {held} of {counted(pairs, 'number')} lie in it, {pairs - held} do not."]
    if spread is not None:
        held, pairs = pairs_expected([[score.value for score in scores] for scores in seeds])
        what = f"{100 * spread.deviation:.1f} % ({spread.freedom} degrees of freedom)"
        others = f"by that of all rows but its own, {held} of {counted(pairs, 'number')} lie where another seed says"
        words.append(f"The spread that rows have in common from seed to seed: {what}; {others}.")
    return words


def _another(runs: Sequence[ledger.LedgerEntry], spread: SeedSpread | None) -> str:
    """Where one more seed is to be expected; a dash where nothing says it."""
    span = further_seed([score.value for score in _scores(runs, OURS)], spread)
    return f"{span[0]:.2e} – {span[1]:.2e}" if span is not None else "–"


def beside_table(rows: Mapping[str, BenchRow], entries: Sequence[ledger.LedgerEntry]) -> str:
    """The rows with an FNO of as many parameters, trained by the same command for as long."""
    lines = []
    for row, runs in _with_fno(rows, entries):
        cells = (score_cell(_scores(runs, OURS)), score_cell(_scores(runs, "fno")), f"{_over_fno(runs):.2f}")
        lines.append((f"`{row.name}`", *cells, _cost(runs, OURS), _cost(runs, "fno"), command_of(row, runs)))
    if not lines:
        return "No row in the ledger has an FNO beside it yet.\n"
    return markdown(("row", "ours (interval)", "FNO (interval)", "ours / that", "ours", "FNO", "command"), lines)


def _with_fno(
    rows: Mapping[str, BenchRow], entries: Sequence[ledger.LedgerEntry]
) -> list[tuple[BenchRow, list[ledger.LedgerEntry]]]:
    known = [entry for entry in entries if entry.score(OURS) is not None and entry.score("fno") is not None]
    return [(row, runs) for row in rows.values() if (runs := shown(known, row))]


def _over_fno(runs: Sequence[ledger.LedgerEntry]) -> float:
    ours, theirs = (sum(score.value for score in _scores(runs, name)) for name in (OURS, "fno"))
    return ours / theirs


def headline_table(rows: Mapping[str, BenchRow], entries: Sequence[ledger.LedgerEntry]) -> str:
    """How many measured rows are how good, and of each family of rows the one that does worst beside what is published,
    short; a sentence where nothing is measured."""
    worst, ratios = dict[str, tuple[float, tuple[str, ...]]](), list[float]()
    for row in rows.values():
        if runs := shown(entries, row):
            ratio = _beside(runs, row.published.best)
            ratios += [ratio] if ratio is not None else []
            spent = ", ".join(filter(None, (f"{runs[0].minutes:g} min", circumstances(runs)))) + older(row, runs)
            words = (f"`{row.name}`", spent, score_cell(_scores(runs, OURS)), published_cell(row.published))
            line = (ratio if ratio is not None else -1.0, (*words, _over(runs, row.published.best)))
            worst[_family(row)] = max(worst.get(_family(row), line), line, key=lambda known: known[0])
    if not worst:
        return "No row is in the ledger yet.\n"
    half, quarter = (sum(ratio <= most for ratio in ratios) for most in (0.5, 0.25))
    good = f"{half} have at most half of the published FNO's error, {quarter} at most a quarter"
    header = ("row", "training", "ours (interval)", "re-tuned FNO", "ours / that")
    table = markdown(header, [line for _, line in worst.values()])
    return f"Of {len(ratios)} rows {good}.{_beside_words(rows, entries)}\n\n{table}"


def _family(row: BenchRow) -> str:
    """What rows of one task have in common: `cfd2d` of `cfd2d/m1-eta0.1`."""
    return row.name.split("/")[0]


def _beside_words(rows: Mapping[str, BenchRow], entries: Sequence[ledger.LedgerEntry]) -> str:
    """How good we are beside the FNOs that the same commands trained."""
    pairs = _with_fno(rows, entries)
    if not pairs:
        return ""
    ratios = [_over_fno(runs) for _, runs in pairs]
    families = len({_family(row) for row, _ in pairs})
    what = f" An FNO of as many parameters, trained by the same command for as long, stands beside {len(pairs)} of them"
    past = sum(bool(older(row, runs)) for row, runs in pairs)
    remark = f" ({past} of them of older settings)" if past else ""
    return f"{what}, of {families} families: ours has {min(ratios):.2f} to {max(ratios):.2f} of its error{remark}."


def engine_table(path: Path) -> str:
    """The ratios of `ups bench engine`; one that misses its bar is bold."""
    try:
        numbers = read_record(path)
        lines = []
        for ratio in numbers["ratios"]:
            words, more = RATIOS[ratio["name"]]
            value, bar = float(ratio["ratio"]), float(numbers["bars"][ratio["name"]])
            shown = f"{value:.3f}" if (value >= bar if more else value <= bar) else f"**{value:.3f}**"
            lines.append((words, shown, f"{'≥' if more else '≤'} {bar:g}", str(ratio["detail"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not what `{COMMANDS['engine']}` writes ({error}); write it again.") from None
    return markdown(("what", "ratio", "bar", "seen"), lines)


GROWS = {
    "cells": "cells, in as many tokens",
    "first start": "samples on disk, from the command of the first run on them to its first step",
    "next start": "samples on disk, the next run on them",
}


def growth_table(path: Path) -> str:
    """The exponents of `ups bench growth`; one that misses its bar is bold."""
    try:
        numbers, lines = read_record(path), []
        for row in numbers["growth"]:
            bar, exponent = float(numbers["bars"][row["axis"]]), float(row["exponent"])
            shown = f"{exponent:.2f}" if exponent <= bar else f"**{exponent:.2f}**"
            steps = " – ".join(f"{1e3 * float(row['seconds'][i]):.0f}" for i in (0, -1))
            what = GROWS.get(row["axis"], str(row["axis"]))
            sizes = " – ".join(f"{float(row['sizes'][i]):g}" for i in (0, -1))
            lines.append((f"{what} (`{row['core']}`)", sizes, steps, shown, f"≤ {bar:g}"))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{path}: is not what `{COMMANDS['growth']}` writes ({error}); write it again.") from None
    return markdown(("what grows", "from – to", "milliseconds", "exponent", "bar"), lines)


def speed_table(path: Path) -> str:
    """The ratios of `ups bench speed`, one that misses its bar bold; then rates, and where and how it was measured."""
    parts, bars = _speed(path)
    if not parts:
        return f"Not measured yet: `{COMMANDS['speed']}` does it.\n"
    try:
        lines, notes = [], []
        for name, part in parts.items():
            lines += [_ratio(row, bars) for row in part["rows"]]
            lines += [(str(f["what"]), "not measured", "–", "–", str(f["why"])) for f in part["failures"]]
            about = part["provenance"]
            rates = "; ".join(f"{what}: {rate}" for what, rate in part["rates"].items())
            commit = f", commit {str(about['commit'])[:12]}" if about["commit"] else ""
            sizes = "; ".join(f"{what}: {words}" for what, words in part["what"].items())
            where = f"{about['device']}, torch {about['torch']}, {about['cores']} cores{commit}, {about['started']}"
            shown = "".join(f" {words}." for words in (sizes, rates) if words)
            notes.append(f"- **{name}** ({where}; {part['seconds']:g} s).{shown}\n")
        table = markdown(("what", "ratio", "least – most of the rounds", "bar", "seen"), lines)
    except (ValueError, KeyError, TypeError) as error:
        raise _not_speed(path, error) from None
    return f"{table}\n{''.join(notes)}"


def kernels_table(path: Path) -> str:
    """What the steps of `ups bench speed` are made of: the share of each kind of kernel."""
    parts, _ = _speed(path)
    try:
        steps = {name: spent for part in parts.values() for name, spent in part["kernels"].items()}
        kinds = list(dict.fromkeys(kind for spent in steps.values() for kind in spent["shares"]))
        lines = []
        for name, spent in steps.items():
            shares = [f"{float(spent['shares'].get(kind, 0)):.0%}" for kind in kinds]
            lines.append((name, f"{float(spent['milliseconds']):.3g}", *shares))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_speed(path, error) from None
    return markdown(("step", "ms of kernels", *kinds), lines) if lines else "Not measured yet.\n"


def _speed(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts and bars of what `ups bench speed` has written; none where it has not been run."""
    if not path.exists():
        return {}, {}
    try:
        numbers = read_record(path)
        return dict(numbers["parts"]), dict(numbers["bars"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _not_speed(path, error) from None


def _not_speed(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: is not what `{COMMANDS['speed']}` writes ({error}); write it again.")


def _ratio(row: Mapping[str, Any], bars: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the table of speed."""
    sign, bar = bars.get(row["name"], ("", 0.0))
    goal = f"{sign} {bar:g}" if sign else "–"
    if "why" in row:
        return str(row["name"]), "not measured", "–", goal, str(row["why"])
    value, low, high = (float(row[key]) for key in ("ratio", "low", "high"))
    met = value >= bar if sign == "≥" else value <= bar
    shown = f"{value:.3f}" if met or not sign else f"**{value:.3f}**"
    return str(row["name"]), shown, f"{low:.3f} – {high:.3f}", goal, str(row["seen"]) or "–"


def _scores(runs: Sequence[ledger.LedgerEntry], predictor: str) -> list[ledger.Score]:
    return [score for run in runs if (score := run.score(predictor)) is not None]


def _beside(runs: Sequence[ledger.LedgerEntry], best: float | None) -> float | None:
    """Our error, the mean over seeds, over the best that is published."""
    scores = _scores(runs, OURS)
    return None if best is None or not scores else sum(s.value for s in scores) / len(scores) / best


def _over(runs: Sequence[ledger.LedgerEntry], best: float | None) -> str:
    ratio = _beside(runs, best)
    return "–" if ratio is None else f"{ratio:.2f}" if ratio >= 0.005 else f"{ratio:.4f}"


def _cost(runs: Sequence[ledger.LedgerEntry], predictor: str) -> str:
    """Seconds and parameters of the first seed, the steps of all, and, of ours, beside what and by which versions."""
    training = runs[0].predictors[predictor]
    steps = [run.predictors[predictor].steps for run in runs]
    least = "" if min(steps) == max(steps) else f"{min(steps)} – "
    words = f"{training.seconds:.0f} s, {least}{counted(max(steps), 'step')}, {training.params / 1e6:.2f} M parameters"
    about = (circumstances(runs), commits(runs)) if predictor == OURS else ()
    return "; ".join(filter(None, (words, *about)))
