"""What follows training: calibrate → evaluate → gates → report, each skipped where what it left is there unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ups.engine.checkpoint.manifest import clear_leftovers
from ups.eval.gates import Gate, decide, gates_section, is_gate, missed, records_of
from ups.eval.report import Report
from ups.eval.results import ResultRecord, read_results, rows_of, write_results
from ups.eval.trajectories import PerTrajectory, main_rows
from ups.eval.trajectories import read as read_trajectories
from ups.eval.trajectories import write as write_trajectories
from ups.files import sha256
from ups.pages.replace import replace_section
from ups.progress import Say
from ups.run.config import RunConfig
from ups.run.journal import PhaseJournal, Span
from ups.run.judging.champion import Champion
from ups.run.phases import Phases
from ups.run.training import learnt_in
from ups.rundir import RunDir, RunPlace
from ups.types import OURS, DataError, Table
from ups.verdict import Ending

DEAR = 60.0  # seconds of an evaluation whose page is drawn at once, so that no kill has it done again
UNCHANGED = "what it left is there, to the byte"


@dataclass(frozen=True)
class Finish:
    """How a run ended that did all it was to do: why, the table to show and remarks on it. `report` is there where the
    simulator was judged now."""

    ending: Ending
    cause: str = "done."
    table: Table = ()
    remarks: tuple[str, ...] = ()
    report: Report | None = None


@dataclass(frozen=True)
class EvaluationLeft:
    """What an evaluation leaves: the numbers, the errors trajectory by trajectory, and the table and remarks that it
    showed; `report` where the simulator was judged now."""

    records: Sequence[ResultRecord]
    errors: Sequence[PerTrajectory]
    headline: Table
    remarks: tuple[str, ...]
    report: Report | None = None

    @classmethod
    def of(cls, report: Report) -> EvaluationLeft:
        headline = report.headline() if report.tasks else ()
        return cls(report.numbers, report.per_trajectory(), headline, report.remarks(), report)

    @property
    def simulator(self) -> str:
        """The SHA-256 of the file that was judged."""
        return next((row.simulator for row in main_rows(self.errors, OURS).values()), "")


def paused(span: Span) -> Finish:
    """The end of a run that was to go no further."""
    return Finish(Ending.PAUSED, f"ended after {span.last}, as --until asked; --resume goes on.")


@dataclass
class AfterTraining:
    """The phases after training, in one process. `judge` gives the report, also on a champion's simulator where its
    errors are not known. `always`: judge again also what was judged before."""

    config: RunConfig
    folder: RunDir
    place: RunPlace
    journal: PhaseJournal
    span: Span
    seconds: Phases
    say: Say
    calibrate: Callable[[], None]
    judge: Callable[[Champion | None], Report]
    always: bool = False

    def carry_out(self) -> Finish:
        for checkpoints in map(self.folder.checkpoints, self.config.plan):
            if checkpoints.is_dir():  # nobody saves any more
                clear_leftovers(checkpoints)
        self._calibrate()
        if self.span.ends_before("evaluate"):
            return paused(self.span)
        judged = self._evaluate()
        if self.span.ends_before("gates"):
            return paused(self.span)
        gates, report = self._gates(judged), judged.report
        cause = missed(gates)
        if not self.span.ends_before("report"):
            report = self._report(judged, gates)
        elif not cause:
            return paused(self.span)
        remarks = report.remarks() if report is not None else judged.remarks
        ending = Ending.GATE_MISSED if cause else Ending.SUCCESS
        return Finish(ending, cause or "done.", judged.headline, (*remarks, *map(_line, gates)), report)

    def _calibrate(self) -> None:
        if not self.span.wants("calibrate"):
            self.journal.skip("calibrate", f"--from {self.span.first}")
        elif trained(self.folder, self.journal) and not self.span.repeats("calibrate"):
            self.journal.skip("calibrate", UNCHANGED)
        else:
            with self.journal("calibrate") as mark:
                self.calibrate()
                mark.facts.update(simulator=sha256(self.folder.artifact("simulator")), config=self.folder.known())

    @cached_property
    def champion(self) -> Champion | None:
        """The run that this one is held against."""
        return None if self.config.champion is None else Champion.at(self.config.champion)

    def _evaluate(self) -> EvaluationLeft:
        """What the evaluation leaves, or has left."""
        before = self._before()
        if not self.span.wants("evaluate"):
            if before is None:
                raise DataError(
                    f"{self.folder.folder}: its results are not there as its evaluation left them, or do not tell how "
                    f"its champion does; write --from evaluate instead of --from {self.span.first}."
                )
            self.journal.skip("evaluate", f"--from {self.span.first}")
            return before
        if before is not None and not self.always and not self.span.repeats("evaluate"):
            self.journal.skip("evaluate", UNCHANGED)
            return before
        with self.journal("evaluate") as mark:
            judged = EvaluationLeft.of(self.judge(self.champion))
            write_trajectories(self.folder.folder, judged.errors)
            write_results(self.folder.results, rows_of(judged.records))
            dear = self.span.ends_before("report") or time.perf_counter() - mark.began > DEAR
            if judged.report is not None and dear:  # the page can be drawn only now, and a kill would take it
                judged.report.with_phases(self.seconds.rows()).write(self.folder.folder)
                self.folder.write(self.folder.phases, self.seconds.seconds)
                mark.facts.update(left=self._left())
            mark.facts.update(simulator=judged.simulator, champion=self._held_against(), config=self.folder.known())
            mark.facts.update(headline=judged.headline, remarks=judged.remarks)
        return judged

    def _before(self) -> EvaluationLeft | None:
        """What the last evaluation left, where it is of this simulator and this champion's, and all of it is there to
        the byte."""
        evaluated, now = self.journal.last("evaluate"), (self._left(), self.folder.known())
        if now not in [(row.get("left"), row.get("config")) for row in (self.journal.last("report"), evaluated)]:
            return None
        try:
            headline = tuple(tuple(map(str, row)) for row in evaluated["headline"])
            words = (headline, tuple(map(str, evaluated["remarks"])))
            judged = EvaluationLeft(read_results(self.folder.results), read_trajectories(self.folder.folder), *words)
        except (DataError, KeyError, TypeError):
            return None
        if not trained(self.folder, self.journal) or self.journal.last("calibrate")["simulator"] != judged.simulator:
            return None
        return judged if self._knows_champion(judged, evaluated) else None

    def _knows_champion(self, judged: EvaluationLeft, evaluated: Mapping[str, Any]) -> bool:
        """Whether there is nothing more to learn of the champion: it was judged with this run if it can be, or its own
        errors are of the same trajectories."""
        if self.champion is None or evaluated.get("champion") == self._held_against():
            return True
        ours = main_rows(judged.errors, OURS)
        return all(self.champion.was_judged_on(task, row.marks) for task, row in ours.items())

    def _held_against(self) -> dict[str, str]:
        """The champion in the journal."""
        return {} if self.champion is None else {"run": self.champion.folder, "simulator": self.champion.simulator}

    def _gates(self, judged: EvaluationLeft) -> tuple[Gate, ...]:
        with self.journal("gates") as mark:
            if not self.config.gates:
                mark.skip("the config has none")
                return ()
            champions = () if self.champion is None else self.champion.gates(judged.errors)
            compared = {gate.task for gate in champions}
            for task in main_rows(judged.errors, OURS) if self.champion is not None else ():
                if task not in compared:
                    self.say(f"{self.config.champion} knows no {task} like this run's, so it is no gate there.")
            gates = decide(self.config.bounds, judged.records, champions)
            mark.facts.update(gates=[_fact(gate) for gate in gates], missed=sum(not gate.passed for gate in gates))
        return gates

    def _report(self, judged: EvaluationLeft, gates: tuple[Gate, ...]) -> Report | None:
        """Write the page and the numbers; where nothing was judged, only what differs in the gates."""
        if judged.report is None:
            self._write_gates(judged.records, gates)
            return None
        self.place.require()
        report = judged.report.with_gates(gates)
        with self.journal("report") as mark:
            with self.seconds("report"):
                report.with_phases(self.seconds.rows()).write(self.folder.folder)
            report = report.with_phases(self.seconds.rows())
            write_results(self.folder.results, rows_of(report.records))
            self.folder.write(self.folder.phases, self.seconds.seconds)
            mark.facts.update(left=self._left(), config=self.folder.known())
        self.place.require()
        return report

    def _write_gates(self, records: Sequence[ResultRecord], gates: tuple[Gate, ...]) -> None:
        numbers = [record for record in records if not is_gate(record)]
        rows = rows_of([*numbers, *records_of(gates, numbers)])
        if rows == rows_of(records):
            self.journal.skip("report", UNCHANGED)
            return
        self.place.require()
        with self.journal("report") as mark:
            write_results(self.folder.results, rows)
            section = gates_section(gates)
            replace_section(self.folder.report, section.title, section if gates else None, rows)
            mark.facts.update(left=self._left(), config=self.folder.known())

    def _left(self) -> dict[str, str]:
        """The SHA-256 of what evaluation and report leave."""
        paths = (self.folder.results, self.folder.report, self.folder.trajectories)
        return {path.name: sha256(path) if path.is_file() else "" for path in paths}


def trained(folder: RunDir, journal: PhaseJournal) -> bool:
    """Whether the simulator in the folder is the one that calibration left, to the byte."""
    row, artifact = journal.last("calibrate"), folder.artifact("simulator")
    if not row or not folder.was(row.get("config")) or not artifact.is_file():
        return False
    try:
        learnt_in(folder)
    except DataError:  # the stages write it again, from their checkpoints
        return False
    return sha256(artifact) == row.get("simulator")


def require_inputs(span: Span, folder: RunDir) -> None:
    """DataError where the inputs of the first phase are missing."""
    first, needs = span.first, dict[str, Any]()
    if first in ("doctor", "estimate", "dry-run", "train"):
        needs = {"data": [folder.data]}
    elif first in ("calibrate", "evaluate"):
        needs = {"train": [folder.artifact("simulator"), folder.stages]}
    elif first in ("gates", "report"):
        needs = {"evaluate": [folder.trajectories, folder.results]}
    for phase, paths in needs.items():
        for path in (path for path in paths if not path.is_file()):
            raise DataError(f"--from {first}: {path} is not there, which phase {phase} leaves; write --from {phase}.")


def _line(gate: Gate) -> str:
    """A gate on the screen."""
    note = f" ({gate.note})" if gate.note else ""
    return f"gate {'passed' if gate.passed else 'MISSED'}: {gate.sentence}{note}."


def _fact(gate: Gate) -> Mapping[str, Any]:
    """A gate in the journal."""
    return {"gate": gate.sentence, "passed": gate.passed}
