"""The report: every number in both files, verdicts that tell the truth, a page that needs no network."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from grids import grid_of
from ups.eval.ensembles import EnsembleScores
from ups.eval.error_estimates import ErrorScores
from ups.eval.intervals import number
from ups.eval.learning import LearningCurve, curves_of
from ups.eval.remarks import codec_complaints, losses_of_old, means_of_few, rollouts_lost, rollouts_outside
from ups.eval.report import Report
from ups.eval.results import Cost, DataFact, Scored, TaskResult, points_of, read_results
from ups.eval.rollout import EvalProtocol, evaluate, persistence, reconstruct
from ups.eval.sections import drawn_section, learning_section, spectrum_remark
from ups.eval.training_facts import DrawCount, StageFact
from ups.eval.trust_sections import _verdict as verdict_on_estimates
from ups.eval.trust_sections import errors_section
from ups.physics import TASKS
from ups.tensors import Window
from ups.types import DataError, TaskSpec

P = EvalProtocol("A", 2)
# 37 of 111 steps of 8 windows each: 296 samples of 80 windows, 3.7 epochs; the other task is never finished once.
DRAWN = (
    DrawCount("operator", "burgers1d", 37, 111, 0.3, 296, 80),
    DrawCount("operator", "reacdiff2d", 74, 111, 0.7, 592, 999),
)
TRAINED = Cost(params=170_000, steps=2000, seconds=80.5, device="cpu")


def window(task: TaskSpec, samples: int = 6, cells: int = 16, ahead: int = 5) -> Window:
    rng = torch.Generator().manual_seed(0)
    shape = (samples, 2 + ahead, *(cells,) * task.ndim, len(task.channels))
    values = 1 + torch.randn(shape, generator=rng).cumsum(1)
    inputs, params = torch.zeros(samples, *shape[2:-1], 0), torch.zeros(samples, 1)
    ids = tuple(map(str, range(samples)))
    dt = torch.full((samples,), 0.1)
    return Window(
        task, values[:, :2], values[:, 2:], inputs, params, dt, grid_of(inputs, task.periodic, (1.0,) * task.ndim), ids
    )


class Oracle:
    """The truth, disturbed: a fake of known quality."""

    def __init__(self, truth: Window, error: float | Tensor, name: str = "ups") -> None:
        self.truth, self.error, self.name = truth, error, name

    def predict(self, _: Window, steps: int) -> Tensor:
        truth = self.truth.targets[:, :steps]
        return truth + self.error * truth.flip(2)


@dataclass
class Fixed:
    """A forecast that is known."""

    frames: Tensor
    name: str

    def predict(self, _: Window, steps: int) -> Tensor:
        return self.frames[:, :steps]


def result(task: str, error: float = 0.01, cost: Cost = TRAINED, codec: float = 0.001) -> TaskResult:
    w = window(TASKS[task])
    return TaskResult(
        ours=Scored(evaluate(Oracle(w, error), [w], P), cost),
        persistence=Scored(evaluate(persistence, [w], P)),
        baselines=(Scored(evaluate(Oracle(w, 0.2, "fno"), [w], P), Cost(500_000, 900, 80.0, "cpu")),),
        reconstruction=Scored(reconstruct(lambda window, _: window.targets * (1 + codec), "cpu", [w], P)),
        beyond=(Scored(evaluate(Oracle(w, 0.03), [w], P, split="test, 32 cells (zero-shot)"), cost),),
    )


def report(*tasks: TaskResult) -> Report:
    data = (DataFact("burgers1d", "1D_Burgers_Sols_Nu0.01.hdf5", "ab12", "80/10/10", "16", 7, "nu = 0.01"),)
    return Report("A run", tasks, "train:\n  steps: 2000 # <fast>\n", "f00d", 7, data, drawn=DRAWN)


class Parsed(HTMLParser):
    """Text of a page, what it would fetch, and whether its tags close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.fetched, self.open = [], [], []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action") and v]
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path, Path]:
    made = report(result("burgers1d"), result("reacdiff2d"))
    return made, *made.write(tmp_path_factory.mktemp("run"))


def test_the_page_holds_every_number_and_fetches_nothing(written: tuple[Report, Path, Path]) -> None:
    made, page, results = written
    html = page.read_text()
    parsed = Parsed(html)
    assert parsed.open == []
    assert all(source.startswith(("data:", "#")) for source in parsed.fetched)
    assert not re.search(r"@import|url\(", html)
    cells = set(parsed.text)
    rows = json.loads(results.read_text())
    assert len(rows) > 150
    for row in rows:
        assert number(float(row["value"])) in cells, row
    embedded = json.loads(re.search(r'<script type="application/json" id="records">(.*?)</script>', html, re.S)[1])
    assert embedded == rows
    assert "steps: 2000 # &lt;fast&gt;" in html
    assert html.count('class="film"') == 2
    assert made.headline()[1][-1] == "learnt"


def test_the_contents_lead_to_every_section(written: tuple[Report, Path, Path]) -> None:
    html = written[1].read_text()
    links = re.findall(r'<a href="#([^"]+)">', html)
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names)), "a name that is there twice leads to one of the two"
    assert links == re.findall(r'<section id="([^"]+)">', html)
    assert len(set(links)) == len(links) > 5


def test_learning_curves_are_those_of_the_log_each_step_as_it_was_last(tmp_path: Path) -> None:
    rows = [{"step": 1, "codec/loss": 4.0}, {"step": 2, "codec/loss": 3.0}, {"step": 2, "codec/loss": 2.0}]
    rows += [{"step": 2, "codec/validation/score": 0.5, "codec/validation/burgers1d loss": 9.0}]
    rows += [{"step": 1, "operator/loss": None}, {"step": 3, "operator/loss": 1.0, "operator/term/loss": 7.0}]
    text = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '\n{"step": 4, "operator/lo')
    curves = curves_of(tmp_path / "metrics.jsonl")
    assert curves == [
        LearningCurve("codec", "loss", (1, 2), (4.0, 2.0)),
        LearningCurve("codec", "validation/score", (2,), (0.5,)),
        LearningCurve("operator", "loss", (3,), (1.0,)),
    ]
    section = learning_section(curves)
    assert [caption for caption, _ in section.pictures] == ["Stage codec.", "Stage operator."]
    assert curves_of(tmp_path / "nowhere") == []


def test_a_spectrum_that_departs_is_remarked_on_from_its_first_wavenumber() -> None:
    truth = np.array([1.0, 0.5, 0.1, 0.01, 1e-12])
    assert "At no wavenumber" in spectrum_remark(truth, truth * [1.2, 0.8, 1.9, 0.6, 1e9])
    low = spectrum_remark(truth, truth * [1, 1, 0.4, 0.1, 1])
    assert low.startswith("From wavenumber 3 on the prediction departs: it holds less than half of the truth's power")
    assert f"{100 * 0.11 / 1.61:.2f} %" in low
    assert "wavenumber 1 on the prediction departs: it holds more than twice" in spectrum_remark(truth, truth * 2.1**2)


def test_a_task_that_further_training_made_worse_is_named() -> None:
    w = window(TASKS["burgers1d"])
    better, same = (Scored(evaluate(Oracle(w, error, "before"), [w], P)) for error in (0.001, 0.0101))
    worse = replace(result("burgers1d"), baselines=(better,))
    made = report(worse)
    (said,) = (sentence for sentence in made.remarks() if "burgers1d got WORSE: nRMSE" in sentence)
    assert "on the same trajectories; train on more" in said
    assert "got WORSE" in made.page().sections[0].verdict
    assert not any("got WORSE" in s for s in report(replace(worse, baselines=(same,))).remarks())
    one = window(TASKS["burgers1d"], samples=1)
    ours, old = (Scored(evaluate(Oracle(one, error, "before"), [one], P)) for error in (0.1, 0.001))
    (few,) = losses_of_old(replace(worse, ours=ours, baselines=(old,)))
    assert "on the same trajectories (on 1 trajectory only); train" in few, "no confidence is claimed"


@pytest.mark.parametrize(("linear", "good"), [(0.005, False), (0.02, True)])
def test_a_task_is_not_learnt_where_a_linear_model_foretells_it_better(linear: float, good: bool) -> None:
    w, made = window(TASKS["burgers1d"]), result("burgers1d")
    other = Scored(evaluate(Oracle(w, linear, "linear"), [w], P))
    shown = report(replace(made, baselines=(*made.baselines, other)))
    error = number(other.evaluation.score)
    wanted = f"NOT LEARNT: worse than a linear model ({error}) after 2000 training steps"
    assert shown.headline()[1][-1] == ("learnt" if good else wanted)
    assert shown.page().lead.endswith("every task is learnt." if good else "NOTHING is learnt.")
    assert shown.find("burgers1d", "ups", "learnt", "verdict").value == float(good)
    assert (wanted in shown.page().sections[0].verdict) != good
    assert shown.per_trajectory()[0].verdict == shown.headline()[1][-1]


def test_rollouts_that_leave_the_truth_are_named_with_their_frame_and_their_error_and_count() -> None:
    w, made = window(TASKS["burgers1d"], samples=12, ahead=5), result("burgers1d")
    frames = 1.01 * w.targets
    for sample, first, value in ((3, 2, 1e7), (4, 4, torch.inf), (5, 0, 1e5), (9, 1, 1e6), (11, 1, 1e6)):
        frames[sample, first:] = value
    frames[3, 4] = 1e30
    lost, still = evaluate(Fixed(frames, "ups"), [w], P), evaluate(persistence, [w], P)
    task = replace(made, ours=Scored(lost, TRAINED), persistence=Scored(still), reconstruction=None, baselines=())
    (said,) = rollouts_lost(task)
    assert said.startswith(
        "burgers1d: 5 rollouts of 12 left the truth for good: 3 from predicted frame 3 on, where its"
    )
    assert re.search(r"error is \d\.\d+e\+06 times the truth, later \S+e\+(29|30) times; 4 from", said)
    assert "; 4 from predicted frame 5 on, where it is not finite; 5 from predicted frame 1 on" in said
    assert said.endswith(", and 2 more. They count in every mean as they are.")
    assert lost.score == np.inf, "nothing is hidden"
    assert said in report(task).remarks()
    assert said in report(task).page().sections[0].verdict
    assert rollouts_lost(made) == []


def test_rollouts_outside_what_training_saw_are_counted_and_the_first_is_named() -> None:
    made = result("burgers1d")
    assert rollouts_outside(made) == []
    count = len(made.ours.evaluation)
    (said,) = rollouts_outside(replace(made, left_range_at=(*[None] * (count - 2), 3, 2)))
    assert said.startswith(f"burgers1d: 2 rollouts of {count} left the range of values that training saw, first ")
    assert f"{made.ours.evaluation.ids[-1]} at predicted frame 2;" in said


def test_a_task_got_worse_only_if_by_more_than_a_twentieth_and_surely() -> None:
    w, made = window(TASKS["burgers1d"]), result("burgers1d")

    def worse(ours: Tensor | float, before: float) -> bool:
        mine, old = (evaluate(Oracle(w, error, name), [w], P) for error, name in ((ours, "ups"), (before, "before")))
        return replace(made, ours=Scored(mine, TRAINED), baselines=(Scored(old),)).got_worse

    once = torch.tensor([0.3, *[0.001] * 5])[:, None, None, None]
    assert worse(0.0107, 0.01)
    assert not worse(0.0103, 0.01), "on every trajectory, but by next to nothing"
    assert not worse(once, 0.01), "five times as large in the mean, and smaller on five of six trajectories"
    assert made.before is None, "no other baseline is what training started from"


def test_what_nobody_recorded_the_steps_of_is_judged_as_trained() -> None:
    known = replace(TRAINED, steps=-1)
    assert result("burgers1d", cost=known).verdict == ("learnt", True)
    assert result("burgers1d", 5.0, known).verdict == ("NOT LEARNT: no better than persistence", False)


def test_what_was_not_trained_is_recorded_as_not_learnt_however_small_its_error() -> None:
    for steps, learnt in ((2000, 1.0), (0, 0.0)):
        task = result("burgers1d", cost=replace(TRAINED, steps=steps))
        assert [p.number.value for p in points_of(task, task.ours) if p.number.mode == "verdict"] == [learnt]


def test_a_task_is_learnt_but_for_rollouts_that_diverge() -> None:
    w, error = window(TASKS["burgers1d"], samples=64), torch.full((64, 5, 1, 1), 0.01)
    error[7, 4] = 110.0
    ours, still = (Scored(evaluate(Oracle(w, e, name), [w], P), TRAINED) for e, name in ((error, "ups"), (9, "no")))
    task = TaskResult(ours, Scored(replace(still.evaluation, predictor="persistence")))
    assert task.verdict == ("learnt (1 of 64 rollouts diverged)", False)
    assert report(task).page().lead.endswith("every task is learnt, but some rollouts DIVERGE.")
    powers = [p.number.n for p in points_of(task, task.ours) if p.axis == "wavenumber"]
    assert set(powers) == {63}, "a spectrum is that of the others"


def test_of_a_few_values_of_a_parameter_those_are_trained_and_of_many_what_lies_between_them_too() -> None:
    made, asked = result("burgers1d"), np.array([0.05, 0.1, 0.1000005, 0.11, 0.3, 0.31])
    few, many = (replace(made, trained={"nu": values}) for values in ((0.1, 0.3), tuple(np.linspace(0.1, 0.3, 65))))
    assert few.was_trained("nu", asked).tolist() == [False, True, True, False, True, False]
    assert many.was_trained("nu", asked).tolist() == [False, True, True, True, True, False]
    assert made.was_trained("nu", asked).all(), "nobody knows better"


def test_a_forecast_is_held_against_persistence_on_the_very_samples_and_frames_alone() -> None:
    made = result("burgers1d")
    mine = made.ours.evaluation
    assert made.persistence_for(made.ours) is made.persistence
    shorter = evaluate(Oracle(window(TASKS["burgers1d"]), 0.01), [window(TASKS["burgers1d"])], EvalProtocol("A", 2, 3))
    others = (replace(mine, ids=tuple("abcdef")), replace(mine, split="valid"), shorter, made.persistence.evaluation)
    assert [made.persistence_for(Scored(other)) for other in others] == [None] * 4


def test_rollouts_far_beyond_the_truth_are_told_of_each_predictor_once_and_not_beyond_its_training() -> None:
    sizes = {name: {"10x size": np.full(3, value)} for name, value in (("ups", 2.0), ("fno", 5.0))}
    task = replace(result("burgers1d"), long=sizes)
    told = [(p.predictor, p.number.value) for e in task.entries() for p in points_of(task, e) if "10x" in p.number.name]
    assert sorted(told) == [("fno", 5.0), ("ups", 2.0)]


def test_the_mean_of_training_stands_behind_persistence_and_among_the_records() -> None:
    w = window(TASKS["burgers1d"])
    mean = Scored(evaluate(Fixed(torch.ones_like(w.targets), "training mean"), [w], P))
    made = report(replace(result("burgers1d"), mean=mean), result("reacdiff2d"))
    header, *rows = made.page().sections[0].table
    at = header.index("training mean")
    assert header[at - 1] == "persistence"
    assert [row[at] for row in rows] == [number(mean.evaluation.score), "–"]
    assert made.find("burgers1d", "training mean").value == mean.evaluation.score


def test_a_version_of_data_is_told_whole_or_by_a_hash_of_all_of_it() -> None:
    fact = DataFact("burgers1d", "a.hdf5", "ab12", "3", "16", 5, "")
    long, other = (replace(fact, version="0" * 30 + end).fingerprint for end in "ab")
    assert (fact.fingerprint, len(long)) == ("ab12", 12)
    assert long != other


def test_scores_of_an_ensemble_are_recorded_with_their_intervals() -> None:
    scores, (truth, drawn) = EnsembleScores(4), (torch.ones(6, 5, 16, 1), 1 + torch.randn(4, 6, 5, 16, 1))
    scores.add(drawn, torch.zeros_like(truth), truth, torch.ones(1))
    task = replace(result("burgers1d"), ensemble=scores)
    points = [p for p in points_of(task, task.ours) if p.number.name.startswith("ensemble ")]
    whole = {p.number.name: (p.number.low, p.number.high) for p in points if not p.axis}
    assert whole["ensemble crps"] == pytest.approx(scores.ends()["crps"])
    curve = [p for p in points if p.number.name == "ensemble spread at time"]
    assert [p.at for p in curve] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert [p.number.low for p in curve] == pytest.approx(scores.curve_ends()["spread"][0])


def drawn_like(width: float, centre: float, error: float) -> EnsembleScores:
    """Normal truth; members so wide and so far off; the operator alone errs by so much."""
    torch.manual_seed(0)
    truth, scores = torch.randn(8, 5, 16, 1), EnsembleScores(16)
    members = truth + centre + width * torch.randn(16, *truth.shape) + width * torch.randn(truth.shape)
    scores.add(members, truth + error, truth, torch.ones(1))
    return scores


@pytest.mark.parametrize(
    ("width", "error", "words"),
    [(0.1, 0.2, "knows more than the operator alone."), (0.1, 0.01, "WORSE than the operator alone.")],
)
def test_a_verdict_says_where_ensembles_are_worse_than_the_operator_alone(
    width: float, error: float, words: str
) -> None:
    told = report(replace(result("burgers1d"), ensemble=drawn_like(width, 0.0, error)))
    (task,), page, worse = told.tasks, told.page(), words.startswith("WORSE")
    assert any(line.endswith(f"interval: {words}") for line in told.remarks())
    assert ("but its ensembles are WORSE than the operator alone" in task.verdict[0]) == worse
    assert task.verdict[0].startswith("learnt")
    assert task.verdict[1] != worse
    assert ("ensembles are WORSE" in page.lead) == worse
    assert ("WORSE" in (page.sections[0].verdict or "")) == worse
    numbers = {r.metric: r.value for r in told.records}
    assert numbers["ensemble crps as drawn"] == numbers["ensemble crps"], "nothing stretched them"
    assert numbers["ensemble coverage as drawn"] == numbers["ensemble coverage"]


def test_an_ensemble_that_is_too_narrow_is_said_to_be() -> None:
    told = report(replace(result("burgers1d"), ensemble=drawn_like(0.05, 0.1, 1.0)))
    assert any(line.endswith("knows more than the operator alone, but too narrow.") for line in told.remarks())


@pytest.mark.parametrize(("overall", "knows"), [(0.29, False), (0.3, False), (0.31, True)])
def test_estimates_know_when_only_above_a_rank_correlation_of_three_tenths(overall: float, knows: bool) -> None:
    assert verdict_on_estimates(overall, math.nan).startswith("knows when") == knows
    assert ("and which sample" in verdict_on_estimates(0.9, overall)) == knows


def test_a_steady_task_is_not_judged_to_the_end() -> None:
    w = window(TASKS["darcy2d"], ahead=1)
    made = result("burgers1d")
    steady = replace(
        made,
        ours=Scored(evaluate(Oracle(w, 0.01), [w], P), TRAINED),
        persistence=Scored(evaluate(persistence, [w], P)),
        baselines=(),
        reconstruction=None,
        beyond=(),
    )
    made = report(steady)
    assert made.headline()[1][1] == "A (steady state)"
    section = made.page().sections[1]
    assert "6 steady states (test), predicted from their inputs." in section.text
    assert not any("Error against time" in caption for caption, _ in section.pictures)


def test_results_come_back_as_they_were(written: tuple[Report, Path, Path]) -> None:
    made, _, results = written
    assert read_results(results) == made.records
    first = made.records[0]
    assert (first.task, first.data, first.config, first.seed) == ("burgers1d", "ab12", "f00d", 7)
    assert {r.predictor for r in made.records} == {"ups", "fno", "persistence", "reconstruction", "truth"}
    assert {r.mode for r in made.records} == {"strict", "pdebench-0.1.0", "pdebench-paper", "drawn", "verdict"}
    ours, still = made.find("burgers1d", "ups"), made.find("burgers1d", "persistence")
    assert made.find("burgers1d", "ups", "nrmse-over-persistence").value == pytest.approx(ours.value / still.value)
    with pytest.raises(DataError, match="no nrmse"):
        made.find("burgers1d", "nobody")
    results.with_name("other.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match=r"not a results\.json"):
        read_results(results.with_name("other.json"))


def test_what_training_drew_is_shown_and_recorded(written: tuple[Report, Path, Path]) -> None:
    made, page, results = written
    section = drawn_section(made.drawn)
    assert section.table[1] == ("operator", "burgers1d", "37", "33.33 %", "30.00 %", "3.7", "80", "216")
    assert section.table[2][-1] == "0", "what was not drawn twice is not repeated"
    assert "What was drawn" in page.read_text()
    found = {(r.task, r.metric): r for r in read_results(results) if (r.mode, r.protocol) == ("drawn", "operator")}
    told = {name: found["burgers1d", name].value for name in ("steps-drawn", "share-drawn", "share-asked", "epochs")}
    assert told == {"steps-drawn": 37, "share-drawn": 37 / 111, "share-asked": 0.3, "epochs": 3.7}
    assert found["burgers1d", "samples-repeated"].value == 216
    assert (found["burgers1d", "epochs"].n, found["burgers1d", "epochs"].steps) == (80, 111)


def test_a_law_that_holds_for_some_trajectories_alone_is_told_with_their_number() -> None:
    task = replace(result("burgers1d"), laws={"mass": np.array([1e-6, 3e-6]), "positive": np.zeros(6)})
    rows = {p.number.name: p.number for p in points_of(task, task.ours) if p.number.name.startswith("law ")}
    assert [(rows[f"law {name}"].value, rows[f"law {name}"].n) for name in task.laws] == [(2e-6, 2), (0.0, 6)]


def test_where_the_time_went_and_what_any_stage_took_is_shown_and_recorded(tmp_path: Path) -> None:
    stages = (StageFact("codec", 1000, 60, 4.5, 0.01), StageFact("a stage of tomorrow", 2_000, 7, 1.5, float("inf")))
    phases = (("data", 12.5), ("a stage of tomorrow", 37.5))
    plain = report(result("burgers1d"))
    made = replace(plain, stages=stages, phases=phases)
    page, results = made.write(tmp_path)
    told = {s.title: s.table for s in made.page().sections}
    assert told["Cost of each stage"][2] == ("a stage of tomorrow", "2,000", "7", "1.5", "infinite")
    assert told["Where the time went"][1:] == (
        ("data", "12.5", "25.00 %"),
        ("a stage of tomorrow", "37.5", "75.00 %"),
    )
    line = "Where the time went: data 12.5 s, a stage of tomorrow 37.5 s; 50.0 s in all."
    assert made.remarks()[-1] == line
    assert not any(line.startswith("Where") for line in plain.remarks())
    records = read_results(results)
    assert [(r.metric, r.value, r.axis) for r in records if r.mode == "phase"] == [(*phase, "") for phase in phases]
    assert records[: -len(phases)] == plain.records, "nothing else changes"
    assert "Where the time went" in page.read_text()
    assert "a stage of tomorrow" in page.read_text()


def test_times_that_are_told_later_measure_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = report(result("burgers1d"))
    numbers = plain.numbers
    monkeypatch.setattr("ups.eval.results.points_of", None)
    later = plain.with_phases((("data", 12.5),)).with_gates(())
    assert later.numbers[:-1] == numbers
    assert later.numbers[-1].metric == "data"


def test_every_point_of_every_curve_is_a_record(written: tuple[Report, Path, Path]) -> None:
    _, _, results = written
    records = read_results(results)
    made = result("burgers1d")
    for who, entry in (("ups", made.ours), ("fno", made.baselines[0]), ("persistence", made.persistence)):
        e = entry.evaluation
        curve = [r for r in records if (r.task, r.predictor, r.split) == ("burgers1d", who, "test")]
        curve = [r for r in curve if r.metric == "nrmse-at-time"]
        assert [r.at for r in curve] == pytest.approx([0.1 * t for t in range(1, 6)])
        assert {r.axis for r in curve} == {"time"}
        assert [r.value for r in curve] == pytest.approx(e.errors.frames("nrmse").mean((0, 2)))
        assert all(r.low <= r.value <= r.high for r in curve)
        whole = next(r for r in records if (r.task, r.predictor, r.metric) == ("burgers1d", who, "nrmse"))
        assert np.mean([r.value for r in curve]) == pytest.approx(whole.value), "the curve's mean is the headline"
        assert (whole.axis, whole.at) == ("", 0.0)
    power = {r.at: r.value for r in records if (r.task, r.predictor, r.metric) == ("burgers1d", "truth", "power")}
    assert power == pytest.approx(dict(enumerate(made.ours.evaluation.spectra[0, 1:].sum(-1), start=1)))


def test_results_of_another_version_are_refused(written: tuple[Report, Path, Path], tmp_path: Path) -> None:
    rows = json.loads(written[2].read_text())
    for change in ({"colour": "red"}, None):
        row = {**rows[0], **change} if change else {k: v for k, v in rows[0].items() if k != "axis"}
        (tmp_path / "results.json").write_text(json.dumps([row]))
        with pytest.raises(DataError, match="evaluate the run again"):
            read_results(tmp_path / "results.json")


def test_beyond_training_each_forecast_is_held_against_persistence_on_the_same_samples() -> None:
    near, far = window(TASKS["burgers1d"]), window(TASKS["burgers1d"], samples=4, cells=32)
    split = "new trajectories, 32 cells (zero-shot)"
    beyond = tuple(Scored(evaluate(who, [far], P, split)) for who in (Oracle(far, 0.03), persistence))
    ours, still = Scored(evaluate(Oracle(near, 0.01), [near], P), TRAINED), Scored(evaluate(persistence, [near], P))
    made = report(TaskResult(ours, still, beyond=beyond, unseen=("nu = 0.5 lies outside the trained range.",)))
    found = made.find("burgers1d", "ups", "nrmse-over-persistence", split=split)
    assert found.value == pytest.approx(beyond[0].evaluation.score / beyond[1].evaluation.score)
    page = made.page()
    assert page.sections[1].table[1][:2] == (split, "ups")
    assert number(found.value) in page.sections[1].table[1]
    assert "outside the trained range" in page.sections[0].verdict
    assert not page.sections[0].good


def test_the_column_of_a_baseline_says_how_long_it_was_trained() -> None:
    assert "fno, 80 s" in report(result("burgers1d")).headline()[0]


def test_the_column_of_a_baseline_is_of_all_tasks_and_empty_for_those_that_have_none() -> None:
    one, two, none = result("burgers1d"), result("reacdiff2d"), replace(result("advection1d"), baselines=())
    (fno,) = two.baselines
    header, *rows = report(one, replace(two, baselines=(Scored(fno.evaluation, Cost(seconds=40.0)),)), none).headline()
    scores = [number(task.baselines[0].evaluation.score) for task in (one, two)]
    assert [row[header.index("fno, 60 s")] for row in rows] == [*scores, "–"], "seconds of each, in the mean"


def test_one_of_several_tasks_that_is_not_learnt_is_not_all_of_them() -> None:
    made = report(result("burgers1d", 5.0), result("reacdiff2d"))
    page = replace(made, warnings=("Trained on it.",)).page()
    assert page.lead.endswith("NOT every task is learnt.")
    assert page.sections[0].verdict.endswith("\nTrained on it."), "a warning stands beside the verdict"


def test_what_a_number_cost_and_of_which_data_it_is_are_those_of_its_own_task() -> None:
    made = report(result("burgers1d"), result("reacdiff2d", cost=replace(TRAINED, params=5)))
    params = {(r.task, r.predictor): (r.params, r.data) for r in made.records if r.predictor in ("ups", "truth")}
    assert params == {
        ("burgers1d", "ups"): (170_000, "ab12"),
        ("reacdiff2d", "ups"): (5, "unknown"),
        ("burgers1d", "truth"): (0, "ab12"),
        ("reacdiff2d", "truth"): (0, "unknown"),
    }


def test_each_predictor_is_told_trajectory_by_trajectory_but_not_the_codec_that_is_shown_the_answer() -> None:
    task = result("burgers1d")
    unnamed = replace(task.ours.evaluation, ids=())
    best = replace(unnamed, predictor="champion", marks=tuple("abcdef"))
    task = replace(task, ours=Scored(unnamed, TRAINED), champion=Scored(best), beyond=())
    rows = {row.predictor: row for row in replace(report(task), simulators={"ups": "5ha"}).per_trajectory()}
    assert list(rows) == ["ups", "fno", "persistence", "champion"]
    assert rows["champion"].marks == unnamed.marks, "of the frames that ours are judged on"
    assert rows["ups"].ids == tuple("012345")
    assert [row.simulator for row in rows.values()] == ["5ha", "", "", ""]


def test_each_of_several_channels_has_an_error_of_its_own() -> None:
    made = report(result("reacdiff2d"), result("burgers1d"))
    first, second = TASKS["reacdiff2d"].channels
    for metric in ("nrmse", "rmse"):
        apart = [made.find("reacdiff2d", "ups", f"{metric} of {channel}").value for channel in (first, second)]
        assert np.mean(apart) == pytest.approx(made.find("reacdiff2d", "ups", metric).value)
    text = made.page().sections[1].text
    one = number(made.find("reacdiff2d", "ups", f"nrmse of {first}").value)
    assert f"nRMSE of each channel: {first} {one}, {second} " in text
    assert not [r for r in made.numbers if r.task == "burgers1d" and " of " in r.metric], "one is all there are"


def test_an_estimate_that_is_always_the_same_is_not_said_to_know_when() -> None:
    same, scores = torch.full((6, 5), 0.1), ErrorScores()
    scores.add(same, torch.linspace(1.1, 2, 30).reshape(6, 5, 1, 1), torch.ones(6, 5, 1, 1))
    verdict = errors_section([replace(result("burgers1d"), errors=scores)]).table[1][-1]
    assert verdict.startswith("cannot be told")


def test_infinity_survives_the_file(tmp_path: Path) -> None:
    made = report(result("burgers1d", error=float("nan")))
    page, results = made.write(tmp_path)
    json.loads(results.read_text(), parse_constant=pytest.fail)  # a bare Infinity is no JSON
    assert np.isinf(next(r for r in read_results(results) if r.metric == "nrmse").value)
    assert "6 of 6 rollouts diverged" in page.read_text()


@pytest.mark.parametrize(
    ("error", "cost", "codec", "words"),
    [
        (5.0, TRAINED, 0.001, "NOT LEARNT: no better than persistence after 2000 training steps"),
        (5.0, Cost(170_000, 1, 0.1, "cpu"), 0.001, "NOT LEARNT: no better than persistence after 1 training step."),
        (0.01, Cost(170_000, 0, 0.0, "cpu"), 0.001, "UNTRAINED"),
        (0.01, TRAINED, 0.4, "the codec is the bottleneck"),
    ],
)
def test_what_went_wrong_is_said_plainly(error: float, cost: Cost, codec: float, words: str) -> None:
    page = report(result("burgers1d", error, cost, codec)).page()
    assert words in page.sections[0].verdict
    assert not page.sections[0].good
    assert ("UNTRAINED" in page.lead) == (cost.steps == 0)
    assert ("NOTHING is learnt" in page.lead) == (error > 1)


@pytest.mark.parametrize(("error", "learnt"), [(0.3, True), (1.2, False)])
def test_a_field_with_a_large_mean_is_learnt_only_if_more_than_the_mean_is(error: float, learnt: bool) -> None:
    """Air pressure: 30 Pa more or less beside 101 325; an error of 36 Pa is 4e-4 of it, and worse than no forecast."""
    w = window(TASKS["burgers1d"])
    waves, noise = (torch.as_tensor(np.random.default_rng(i).normal(size=w.targets.shape)) for i in range(2))
    w = replace(w, targets=101325 + 30 * waves)
    forecasts = [Fixed(w.targets + size * error * noise, name) for size, name in ((30, "ups"), (90, "persistence"))]
    ours, worse = (evaluate(forecast, [w], P) for forecast in forecasts)
    assert ours.score < 5e-4
    verdict, good = TaskResult(Scored(ours, TRAINED), Scored(worse)).verdict
    assert good is learnt
    assert verdict == "learnt" if learnt else verdict.startswith("NOT LEARNT: u is no better than its mean after")


def test_a_field_that_is_not_learnt_is_named_wherever_a_verdict_stands(tmp_path: Path) -> None:
    w = window(TASKS["reacdiff2d"])
    (bad, *_), error = (f.name for f in w.task.fields), torch.tensor([0.9, 0.01])
    ours, still = evaluate(Oracle(w, error), [w], P), evaluate(Oracle(w, torch.tensor([0.8, 4.0])), [w], P)
    made = report(TaskResult(Scored(ours, TRAINED), Scored(replace(still, predictor="persistence"))))
    words = f"learnt, but not {bad}: no better than persistence"
    assert made.headline()[1][-1] == words
    page = made.page()
    assert (page.sections[0].good, words in page.sections[0].verdict) == (False, True)
    assert "NOT every field is learnt" in page.lead
    _, results = made.write(tmp_path)
    verdicts = {r.metric: r.value for r in read_results(results) if r.mode == "verdict"}
    fields = [f"learnt of {field.name}" for field in w.task.fields]
    assert verdicts == {"learnt": 0.0, **dict(zip(fields, (0.0, 1.0), strict=True))}


def test_a_field_of_nothing_but_zeros_makes_a_mean_infinite_which_is_said_and_no_divergence() -> None:
    w = window(TASKS["burgers1d"])
    nothing = w.targets.clone()
    nothing[2] = 0
    w = replace(w, targets=nothing)
    ours, still = (evaluate(Fixed(w.targets + size, name), [w], P) for size, name in ((0.1, "ups"), (9, "persistence")))
    assert (ours.score, ours.diverged.any()) == (np.inf, False)
    (words,) = means_of_few(TaskResult(Scored(ours, TRAINED), Scored(still)))
    assert words.startswith(f"burgers1d: 1 of {len(ours)} trajectories (such as {ours.ids[2] if ours.ids else 2}) have")


def test_a_rollout_that_is_lost_is_no_field_of_zeros_and_no_mean_made_by_few() -> None:
    w, error = window(TASKS["burgers1d"]), torch.full((6, 1, 1, 1), 0.01)
    error[3] = torch.nan
    ours, still = evaluate(Oracle(w, error), [w], P), evaluate(persistence, [w], P)
    assert (ours.score, ours.diverged.tolist()) == (np.inf, [i == 3 for i in range(6)])
    assert means_of_few(TaskResult(Scored(ours, TRAINED), Scored(still))) == []


def test_a_codec_is_no_bottleneck_of_an_operator_that_was_not_trained() -> None:
    for steps, said in ((2000, 1), (0, 0)):
        assert len(codec_complaints(result("burgers1d", 0.01, replace(TRAINED, steps=steps), codec=0.4))) == said


def test_a_field_of_zeros_that_is_foretold_as_such_halves_no_error_and_is_said_to_be_left_out() -> None:
    w = window(TASKS["reacdiff2d"])
    w.targets[..., 1] = 0
    w.context[..., 1] = 0
    ours, still = evaluate(Oracle(w, 0.1), [w], P), evaluate(persistence, [w], P)
    alone = ours.errors.frames("nrmse")[..., 0]
    assert ours.score == pytest.approx(alone.mean())
    assert ours.against_time[0] == pytest.approx(alone.mean(0))
    assert ours.one_step.value == pytest.approx(alone[:, 0].mean())
    assert 0.8 < ours.per_sample("trajectory-l2").mean() / alone.mean() < 1.2
    made, zero = report(TaskResult(Scored(ours, TRAINED), Scored(still))), TASKS["reacdiff2d"].channels[1]
    assert [s for s in made.remarks() if f"{zero} is zero in all that is judged" in s]
    assert f"{zero} is zero in all that is judged" in made.page().sections[0].text
    assert evaluate(Fixed(w.targets + 1e-9, "ups"), [w], P).score == np.inf, "what is not there is predicted"


def test_a_mean_that_few_trajectories_make_is_said_to_be_theirs_and_no_fault_of_the_codec() -> None:
    """A field that dies out in one of six trajectories: any error is large beside it."""
    w = window(TASKS["burgers1d"])
    dying = w.targets.clone()
    dying[2, 1:] *= 1e-30
    w = replace(w, targets=dying)
    noise = 0.1 * torch.as_tensor(np.random.default_rng(0).normal(size=w.targets.shape))
    ours, codec, still = (
        evaluate(Fixed(w.targets + size * noise, name), [w], P)
        for size, name in ((1, "ups"), (0.001, "codec"), (9, "persistence"))
    )
    task = TaskResult(Scored(ours, TRAINED), Scored(still), reconstruction=Scored(codec))
    assert ours.score > 1e20
    assert codec_complaints(task) == []
    (words,) = means_of_few(task)
    usual = number(float(np.median(ours.per_sample())))
    assert f"burgers1d: a few trajectories make its mean error: half of them have {usual} or less" in words
    assert f"{ours.ids[2] if ours.ids else 2} has {number(ours.per_sample()[2])}" in words
    assert "There u is next to nothing in some true frames" in words
    assert words in report(task).remarks()
    assert means_of_few(result("burgers1d")) == []


def test_a_large_error_is_laid_to_a_small_field_only_where_the_field_is_small() -> None:
    w, error = window(TASKS["burgers1d"]), torch.full((6, 1, 1, 1), 0.01)
    error[3] = 5.0
    ours, still = evaluate(Oracle(w, error), [w], P), evaluate(persistence, [w], P)
    (words,) = means_of_few(TaskResult(Scored(ours, TRAINED), Scored(still)))
    assert "and 3 has" in words
    assert "next to nothing" not in words


@pytest.mark.parametrize(
    ("errors", "how"),
    [([1.5] * 6, "no"), ([0.97] * 6, "no"), ([0.6, 0.6, 0.6, 0.6, 1.5, 1.5], "not surely")],
    ids=["worse", "as_good", "worse_on_some"],
)
def test_a_forecast_not_surely_better_than_zero_is_not_learnt_even_where_persistence_is_worse(
    errors: list[float], how: str
) -> None:
    w = window(TASKS["burgers1d"])
    bad = evaluate(Oracle(w, torch.tensor(errors)[:, None, None, None]), [w], P)
    worse = evaluate(Oracle(w, 3.0, "persistence"), [w], P)
    verdict, good = TaskResult(Scored(bad, TRAINED), Scored(worse)).verdict
    assert verdict == f"NOT LEARNT: {how} better than predicting zero after 2000 training steps"
    assert not good
