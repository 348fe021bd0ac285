"""What follows training: calibrate → evaluate → gates → report, each skipped where what it left is there unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ups.eval.gates import Gate, decide, gates_section, is_gate, missed, records_of
from ups.eval.report import Report
from ups.eval.results import Record, read_results, rows_of, write_results
from ups.files import sha256
from ups.pages.replace import replace_section
from ups.run.config import RunConfig
from ups.run.datasets import Say
from ups.run.evaluated import Digests, Evaluated, champion_gates
from ups.run.journal import Journal, Span
from ups.run.phases import Phases
from ups.rundir import Place, RunDir
from ups.types import DataError
from ups.verdict import Ending

THERE = "what it left is there, to the byte"


@dataclass(frozen=True)
class Finish:
    """How a run that did all it was asked for ended: why, the table to show and what to say of it. `report` is there
    where the simulator was judged now."""

    ending: Ending
    cause: str = "done."
    table: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    report: Report | None = None


def paused(span: Span) -> Finish:
    """The end of a run that was to go no further."""
    return Finish(Ending.PAUSED, f"ended after {span.last}, as --until asked; --resume goes on.")


@dataclass
class Conclusion:
    """The phases after training, in one process. `judge` gives the report, beside a champion's simulator where one is
    named; `digests` what the data files of a task hold. `always`: judge again also what was judged before."""

    config: RunConfig
    folder: RunDir
    place: Place
    journal: Journal
    span: Span
    seconds: Phases
    say: Say
    calibrate: Callable[[], None]
    judge: Callable[[str], Report]
    digests: Digests
    always: bool = False

    def carry_out(self) -> Finish:
        self._calibrate()
        if self.span.ends_before("evaluate"):
            return paused(self.span)
        report, evaluated = self._evaluate()
        if self.span.ends_before("gates"):
            return paused(self.span)
        records = report.numbers if report is not None else read_results(self.folder.results)
        gates = self._gates(records, evaluated)
        cause = missed(gates)
        if not self.span.ends_before("report"):
            report = self._report(report, records, gates)
        elif not cause:
            return paused(self.span)
        remarks = report.said() if report is not None else evaluated.remarks
        lines = tuple(f"gate {'passed' if gate.passed else 'MISSED'}: {gate.sentence}." for gate in gates)
        ending = Ending.GATE_MISSED if cause else Ending.SUCCESS
        return Finish(ending, cause or "done.", evaluated.headline, (*remarks, *lines), report)

    def _calibrate(self) -> None:
        if not self.span.wants("calibrate"):
            self.journal.skip("calibrate", f"--from {self.span.first}")
        elif trained(self.folder, self.journal) and not self.span.repeats("calibrate"):
            self.journal.skip("calibrate", THERE)
        else:
            with self.journal("calibrate") as mark:
                self.calibrate()
                mark.facts.update(simulator=sha256(self.folder.artifact("simulator")), config=self.folder.known())

    def _evaluate(self) -> tuple[Report | None, Evaluated]:
        """The report, where the simulator is judged now, and what is kept of it."""
        kept = self._kept()
        if not self.span.wants("evaluate"):
            if kept is None:
                raise DataError(
                    f"{self.folder.folder}: its results are not there as its evaluation left them, or do not tell how "
                    f"its champion does; write --from evaluate instead of --from {self.span.first}."
                )
            self.journal.skip("evaluate", f"--from {self.span.first}")
            return None, kept
        if kept is not None and not self.always and not self.span.repeats("evaluate"):
            self.journal.skip("evaluate", THERE)
            return None, kept
        with self.journal("evaluate") as mark:
            champion = self._champion_to_judge()
            report = self.judge(champion)
            evaluated = Evaluated.of(report, self.folder, champion, self.digests)
            evaluated.write(self.folder)
            write_results(self.folder.results, rows_of(report.numbers))
            mark.facts.update(simulator=evaluated.simulator, config=self.folder.known())
        return report, evaluated

    def _kept(self) -> Evaluated | None:
        """What the last evaluation left, where it is of this simulator and all of it is there to the byte."""
        row, evaluated = self.journal.last("report"), Evaluated.read(self.folder)
        if evaluated is None or row.get("left") != self._left() or row.get("config") != self.folder.known():
            return None
        if not trained(self.folder, self.journal) or self.journal.last("calibrate")["simulator"] != evaluated.simulator:
            return None
        unknown = self.config.champion is not None and champion_gates(self.config.champion, evaluated)[1]
        return None if unknown else evaluated

    def _champion_to_judge(self) -> str:
        """The champion, unless it was judged on the very trajectories of the last evaluation."""
        if self.config.champion is None:
            return ""
        evaluated = Evaluated.read(self.folder)
        known = evaluated is not None and not champion_gates(self.config.champion, evaluated)[1]
        return "" if known and evaluated is not None and not evaluated.champions else self.config.champion

    def _gates(self, records: Sequence[Record], evaluated: Evaluated) -> tuple[Gate, ...]:
        with self.journal("gates") as mark:
            if not self.config.gates:
                mark.skip("the config has none")
                return ()
            champions: tuple[Gate, ...] = ()
            if self.config.champion is not None:
                champions, unknown = champion_gates(self.config.champion, evaluated)
                there = {gate.task for gate in champions}
                for task in (task for task in evaluated.tasks if task in unknown or task not in there):
                    self.say(f"{self.config.champion} knows no {task} like this run's, so it is no gate there.")
            gates = decide(self.config.bounds, records, champions)
            mark.facts.update(gates=[_fact(gate) for gate in gates], missed=sum(not gate.passed for gate in gates))
        return gates

    def _report(self, report: Report | None, records: Sequence[Record], gates: tuple[Gate, ...]) -> Report | None:
        """Write the page and the numbers; where nothing was judged, only what differs in the gates."""
        if report is None:
            self._write_gates(records, gates)
            return None
        self.place.require()
        report = report.with_gates(gates)
        with self.journal("report") as mark:
            with self.seconds("report"):
                report.with_phases(self.seconds.rows()).write(self.folder.folder)
            report = report.with_phases(self.seconds.rows())
            write_results(self.folder.results, rows_of(report.records))
            self.folder.write(self.folder.phases, self.seconds.seconds)
            mark.facts.update(left=self._left(), config=self.folder.known())
        self.place.require()
        return report

    def _write_gates(self, records: Sequence[Record], gates: tuple[Gate, ...]) -> None:
        numbers = [record for record in records if not is_gate(record)]
        rows = rows_of([*numbers, *records_of(gates, numbers)])
        if rows == rows_of(records):
            self.journal.skip("report", THERE)
            return
        self.place.require()
        with self.journal("report") as mark:
            write_results(self.folder.results, rows)
            section = gates_section(gates)
            replace_section(self.folder.report, section.title, section if gates else None, rows)
            mark.facts.update(left=self._left(), config=self.folder.known())

    def _left(self) -> dict[str, str]:
        """The SHA-256 of what evaluation and report leave."""
        paths = (self.folder.results, self.folder.report, self.folder.evaluation)
        return {path.name: sha256(path) if path.is_file() else "" for path in paths}


def trained(folder: RunDir, journal: Journal) -> bool:
    """Whether the simulator in the folder is the one that calibration left, to the byte."""
    row, artifact = journal.last("calibrate"), folder.artifact("simulator")
    if not row or row.get("config") != folder.known() or not artifact.is_file() or not folder.stages.is_file():
        return False
    return sha256(artifact) == row.get("simulator")


def require_inputs(span: Span, folder: RunDir) -> None:
    """DataError where a phase is to come first whose inputs are missing."""
    first, needs = span.first, dict[str, Any]()
    if first in ("doctor", "estimate", "dry-run", "train"):
        needs = {"data": [folder.data]}
    elif first in ("calibrate", "evaluate"):
        needs = {"train": [folder.artifact("simulator"), folder.stages]}
    elif first in ("gates", "report"):
        needs = {"evaluate": [folder.evaluation, folder.results]}
    for phase, paths in needs.items():
        for path in (path for path in paths if not path.is_file()):
            raise DataError(f"--from {first}: {path} is not there, which phase {phase} leaves; write --from {phase}.")


def _fact(gate: Gate) -> Mapping[str, Any]:
    """A gate in the journal."""
    return {"gate": gate.sentence, "passed": gate.passed}
