"""Compares runs in pairs on the same test trajectories, against the noise of trajectories and seeds; its page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ups.eval.intervals import number, with_interval
from ups.eval.learning import SCORE
from ups.eval.pairs import PairedDifference, difference
from ups.eval.scores import HEADLINE, SCORES
from ups.pages import Page, Section
from ups.pages.charts import Curve, chart
from ups.types import Array, ConfigError, DataError, Table, counted
from ups_fleet.run_folders.candidate import SEED, Candidate, differing


@dataclass(frozen=True)
class Side:
    """Runs of the same settings; more than one where they differ by their seed."""

    name: str
    runs: tuple[Candidate, ...]


@dataclass(frozen=True)
class Pair:
    """Two sides on one task. `gap` is the first side's error less the second's, on the trajectories of both."""

    task: str
    first: Side
    second: Side
    means: tuple[float, float]
    gap: PairedDifference
    runs: int  # of both sides together; where there are more than two, the noise of seeds is known

    @property
    def sentence(self) -> str:
        """Which is better, by how much, and whether that is significant."""
        better, worse = (self.first, self.second) if self.means[0] <= self.means[1] else (self.second, self.first)
        low, high = sorted(self.means)
        on = f"{self.task}, {counted(self.gap.n, 'trajectory')}"
        if self.means[0] == self.means[1] and self.gap.low == self.gap.high == 0:
            return f"{on}: {better.name} and {worse.name} are equal to the last digit."
        numbers = f"nRMSE {number(low)} against {number(high)}"
        if not self.gap.decidable:
            return f"{on}: too few to tell {better.name} from {worse.name} ({numbers}); no significant difference."
        if not self.gap.significant:
            return f"{on}: no significant difference between {better.name} and {worse.name} ({numbers})."
        share = f"{1 - low / high:.0%} lower" if math.isfinite(high) and high > 0 else "where the other diverges"
        words = f"{on}: {better.name} is better than {worse.name}, {share} ({numbers}), and that is significant"
        return f"{words} over {self.runs} runs." if self.runs > 2 else f"{words} on these trajectories."


@dataclass(frozen=True)
class RunComparison:
    """What there is to say of several runs. `unpaired` are sentences on what could not be compared, and why."""

    runs: tuple[Candidate, ...]
    sides: tuple[Side, ...]
    pairs: tuple[Pair, ...]
    unpaired: tuple[str, ...]

    def sentences(self) -> list[str]:
        """The result in plain words, the most important first."""
        if len(self.sides) == 1:
            return [*self._only_seeds(), *self.unpaired]
        sentences = [pair.sentence for pair in self.pairs]
        if any(pair.gap.significant and pair.runs == 2 for pair in self.pairs):
            sentences.append(
                "Each of these stands for one seed: that its simulator is better is sure, that its settings are is "
                "not; give runs of other seeds too (`ups sweep --seeds 3`)."
            )
        if len(self.pairs) > 1:
            sentences.append(f"The intervals hold together for all {len(self.pairs)} comparisons, with 95 %.")
        return [*sentences, *self.unpaired]

    def _only_seeds(self) -> list[str]:
        """Runs of the same settings differ by noise, whatever their simulators are worth."""
        sentences = []
        seeds = {str(run.settings.get(SEED)) for run in self.runs}
        what = "differ only by their seed" if len(seeds) > 1 else "have the same settings and the same seed"
        for task in tasks_of(self.runs):
            means = [run.errors[task].value for run in self.runs if task in run.errors]
            if len(means) > 1:
                spread = f"{number(float(np.mean(means)))} ± {number(float(np.std(means, ddof=1)))}"
                sentences.append(
                    f"{task}: no significant difference: the runs {what}, so what lies between them is the noise of "
                    f"training (nRMSE {spread}, mean and standard deviation of {len(means)} runs)."
                )
        return sentences

    def errors_table(self) -> Table:
        """Per task and run: the error with its interval, on all its trajectories."""
        rows = [
            ("task", "run", "state", "seed", *(SCORES[kind].title for kind in HEADLINE), "trajectories", "protocol")
        ]
        for task in tasks_of(self.runs):
            for run in (run for run in self.runs if task in run.errors):
                e = run.errors[task]
                words = with_interval(e.value, e.low, e.high, len(e.nrmse))
                seed = str(run.settings.get(SEED, "–"))
                scores = (words, number(e.median), number(e.vrmse))
                rows.append((task, run.name, run.state.word, seed, *scores, str(len(e.nrmse)), e.protocol))
        return tuple(rows)

    def pairs_table(self) -> Table:
        """Per task and pair: the difference with its interval; empty where nothing was paired."""
        rows = [("task", "first", "second", "difference of nRMSE (interval)", "p", "trajectories", "")]
        for pair in self.pairs:
            g, verdict = pair.gap, "significant" if pair.gap.significant else "not significant"
            words = f"{_signed(g.value)} ({_signed(g.low)} – {_signed(g.high)})"
            rows.append((pair.task, pair.first.name, pair.second.name, words, f"{g.p:.2g}", str(g.n), verdict))
        return tuple(rows) if len(rows) > 1 else ()

    def settings_table(self) -> Table:
        """Keys of the configs that differ; empty where none does."""
        rows = differing(self.runs)
        return (("key", *(run.name for run in self.runs)), *rows) if rows else ()


def compare(runs: Sequence[Candidate]) -> RunComparison:
    """Compare runs; a ConfigError for fewer than two, a DataError where none has errors to compare."""
    if len(runs) < 2:
        raise ConfigError("a comparison needs two runs or more; name them, for example `ups compare runs/a runs/b`.")
    if not any(run.errors for run in runs):
        raise DataError(" ".join(dict.fromkeys(run.problem for run in runs)))
    unpaired = [run.problem for run in runs if run.problem]
    sides = sides_of(runs)
    chosen, several = [], list(itertools.combinations(sides, 2))
    for task in tasks_of(runs):
        for first, second in several:
            marks, sentence = _common(task, first, second)
            unpaired += [sentence] if sentence else []
            if marks:
                chosen.append((task, first, second, marks))
    pairs = [_pair(*words, comparisons=len(chosen)) for words in chosen]
    return RunComparison(tuple(runs), tuple(sides), tuple(pairs), tuple(dict.fromkeys(unpaired)))


def tasks_of(runs: Sequence[Candidate]) -> list[str]:
    return list(dict.fromkeys(task for run in runs for task in run.errors))


def sides_of(runs: Sequence[Candidate]) -> list[Side]:
    """Runs by their settings, in the order in which they come. Several seeds are named by what sets them apart."""
    groups: dict[str, list[Candidate]] = {}
    for run in runs:
        groups.setdefault(run.side, []).append(run)
    keys = [row[0] for row in differing(runs) if runs[0].is_setting(row[0])]
    sides = []
    for members in groups.values():
        settings = ", ".join(f"{key}={members[0].value(key)}" for key in keys[:3])
        name = members[0].name if len(members) == 1 else f"{settings or members[0].name} ({len(members)} seeds)"
        sides.append(Side(name, tuple(members)))
    return sides


def _common(task: str, first: Side, second: Side) -> tuple[list[str], str]:
    """The trajectories that all runs of both sides were judged on, and what there is to say where not all were."""
    members = [run for run in (*first.runs, *second.runs) if task in run.errors]
    who = f"{first.name} and {second.name}"
    judged = [any(run in members for run in side.runs) for side in (first, second)]
    if not all(judged):
        lacking = first if not judged[0] else second
        known = all(run.problem for run in lacking.runs)  # said already
        return [], "" if known else f"{task}: {lacking.name} has no errors on it, so {who} are not compared there."
    marks = [set(run.errors[task].marks) for run in members]
    common = set.intersection(*marks)
    if len(common) == 1 and all(len(one) == 1 for one in marks):
        return [], (
            f"{task}: {who} were judged on one trajectory, the same one, which cannot tell which of them is better; "
            "judge both on more with `ups evaluate RUN --file FILE`, or leave more for the test (`data.…split`)."
        )
    if len(common) < 2:
        shared = "one trajectory alone" if common else "no trajectory"
        protocols = list(dict.fromkeys(run.errors[task].protocol for run in members))
        if len(protocols) > 1:
            return [], (
                f"{task}: {who} were judged under different protocols ({', '.join(protocols)}), so their errors are "
                "NOT compared; give both one `evaluation.protocol` and the same `evaluation.given`, and judge them "
                "again."
            )
        return [], (
            f"{task}: {who} were judged on other test data ({shared} in common), so their errors are NOT compared; "
            "judge both on one file with `ups evaluate RUN --file FILE`, or train them on the same split."
        )
    order = [mark for mark in members[0].errors[task].marks if mark in common]
    most = max(len(one) for one in marks)
    note = f"{task}: {who} are compared on the {counted(len(common), 'trajectory')} that both have, of up to {most}."
    return list(dict.fromkeys(order)), note if len(common) < most else ""


def _pair(task: str, first: Side, second: Side, marks: Sequence[str], comparisons: int) -> Pair:
    tables = [_table(task, side, marks) for side in (first, second)]
    ours, theirs = (_mean(table) for table in tables)
    gap, runs = difference(ours, theirs, comparisons), sum(len(table) for table in tables)
    if runs > 2:
        gap = _with_seeds(gap, tables)
    return Pair(task, first, second, (float(ours.mean()), float(theirs.mean())), gap, runs)


def _table(task: str, side: Side, marks: Sequence[str]) -> Array:
    """Errors `(runs, trajectories)` of a side."""
    by_run = [run.errors[task].by_mark for run in side.runs if task in run.errors]
    return np.array([[errors[mark] for mark in marks] for errors in by_run])


def _mean(table: Array) -> Array:
    return np.asarray(table.mean(0))


def _with_seeds(gap: PairedDifference, tables: Sequence[Array]) -> PairedDifference:
    """A difference must stand out of the noise of seeds too: Welch's interval, or where one side has a single run
    Student's, which takes its noise to be the other's."""
    from scipy.special import stdtr, stdtrit

    means = [table.mean(1) for table in tables]
    if not all(np.isfinite(mean).all() for mean in means):
        return gap
    counts = [len(mean) for mean in means]
    spreads = [float(mean.var(ddof=1)) if len(mean) > 1 else math.nan for mean in means]
    if min(counts) == 1:
        spreads = [max(spread for spread in spreads if not math.isnan(spread))] * 2
        freedom = float(max(counts) - 1)
    else:
        parts = [spread / count for spread, count in zip(spreads, counts, strict=True)]
        each = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
        freedom = sum(parts) ** 2 / each if each else float(sum(counts) - 2)
    error = math.sqrt(sum(spread / count for spread, count in zip(spreads, counts, strict=True)))
    value = float(means[0].mean() - means[1].mean())
    half = float(stdtrit(freedom, 1 - gap.level / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(value) / error)) if error else (1.0 if value == 0 else 0.0)
    return replace(gap, low=min(gap.low, value - half), high=max(gap.high, value + half), p=max(gap.p, p))


def _signed(value: float) -> str:
    return f"{value:+.3g}" if math.isfinite(value) else ("–" if math.isnan(value) else f"{'+' if value > 0 else '−'}∞")


MOST = 12  # runs whose curves are drawn over each other


def page_of(comparison: RunComparison) -> Page:
    """Everything there is to say of the runs."""
    names = ", ".join(run.name for run in comparison.runs)
    page = Page(f"Runs compared: {names}" if len(names) < 100 else f"{len(comparison.runs)} runs compared", "")
    page.lead = "Errors on the same test trajectories, in pairs; intervals of 95 % hold for all comparisons together."
    sentences = comparison.sentences()
    page.sections = [Section("Result", verdict="\n".join(sentences), good=not comparison.unpaired)]
    if pairs := comparison.pairs_table():
        text = "First less second: below zero, the first is better."
        page.sections.append(Section("Differences", text, pairs))
    page.sections.append(Section("Errors", table=comparison.errors_table()))
    settings = comparison.settings_table()
    page.sections.append(Section("Settings that differ", "" if settings else "None.", settings))
    page.sections += curve_sections(comparison.runs)
    rows = [("run", "state", "folder"), *((r.name, r.state.sentence, str(r.folder.folder)) for r in comparison.runs)]
    page.sections.append(Section("The runs", table=tuple(rows)))
    page.foot = "This page needs no network."
    return page


def curve_sections(runs: Sequence[Candidate]) -> list[Section]:
    """The learning curves of all runs, one chart for each stage and number."""
    kinds = dict.fromkeys((curve.stage, curve.name, curve.title) for run in runs for curve in run.curves)
    pictures = []
    for stage, name, title in kinds:
        lines = []
        for run in runs[:MOST]:
            for curve in (c for c in run.curves if (c.stage, c.name) == (stage, name)):
                lines.append(Curve(run.name, np.array(curve.steps), np.array(curve.values)))
        label = "validation score" if name == SCORE else name
        pictures.append((f"{title} against steps", chart(lines, "step", label)))
    text = f"Of the first {MOST} runs." if len(runs) > MOST else ""
    return [Section("Learning curves", text, pictures=pictures)] if pictures else []


def write_page(page: Page, path: Path) -> Path:
    """The file; a DataError where it cannot be written."""
    try:
        return page.write(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); choose another --out.") from error
