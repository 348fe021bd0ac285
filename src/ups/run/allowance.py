"""How long the stages of a run may train that has so many minutes for everything, judging included."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ups.data.trajectories import Trajectories
from ups.engine.train import VALIDATION_SHARE
from ups.engine.validation import FORWARD_OF_STEP
from ups.eval.baselines import BASELINES
from ups.models import Simulator
from ups.models.stepping import Stepping
from ups.progress import Say
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.run.judging.calibrate import TRAJECTORIES
from ups.types import counted, duration

LEAST = 0.25  # of the seconds that its config gives a stage, which it has however long the rest takes
ROWS = 4  # trajectories of which a step is timed
JUDGED = 1.5  # times what its rollouts take, that judging takes: with the codec alone, rivals and metrics
AROUND = 4.0  # seconds of loading, drawing and writing, on a processor that nobody else uses
FEW, ENOUGH = 100, 400  # steps below which training is said to be short, and what is proposed then
SOLVED = 0.05  # of our training, that a baseline takes which is solved for


@dataclass(frozen=True)
class Waiting:
    """What a run takes beside the steps of its training, in seconds, and what one of them takes."""

    validation: float
    judging: float
    step: float

    @classmethod
    def measured(cls, config: RunConfig, simulator: Simulator, sets: Sequence[DataSet]) -> Waiting:
        """From a step of a rollout of each task: validation, calibration and judging are so many of them."""
        device, given = simulator.dt.device, config.evaluation.given_to(simulator.context)
        modes = [(module, module.training) for module in simulator.modules()]
        simulator.eval()
        began, mine = time.perf_counter(), time.thread_time()
        validated = judged = step = 0.0
        for data in sets:
            valid, test = data.parts("valid"), data.parts("test")
            seconds = max((_seconds(simulator, part, given, device) for part in (*valid, *test)), default=0.0)
            few = TRAJECTORIES[device.type == "cuda"]
            validated += seconds * sum(_steps(part, given) for part in valid)
            calibrated = seconds * sum(_steps(part, given, few) for part in valid)
            judged += calibrated + JUDGED * seconds * sum(_steps(part, given) for part in test)
            stage = config.stage(config.plan[-1])
            step = max(step, FORWARD_OF_STEP * seconds * stage.batch_of(data.task.name))
        for module, mode in modes:
            module.training = mode
        busy = max(1.0, (time.perf_counter() - began) / max(time.thread_time() - mine, 1e-9))  # with the work of others
        return cls(validated, AROUND * busy + judged, step)


def _steps(part: Trajectories, given: int, most: int | None = None) -> int:
    """Steps of whole rollouts of the trajectories of a part, or of so many of them."""
    return len(part) if part.task.steady else int((part.lengths[:most] - given).clip(min=0).sum())


@torch.no_grad()
def _seconds(simulator: Simulator, part: Trajectories, given: int, device: torch.device) -> float:
    """Seconds of a step of a trajectory."""
    rows = np.flatnonzero(part.task.steady | (part.lengths > given))[:ROWS].tolist()
    if not rows:
        return 0.0
    stepping = Stepping(simulator, part.window(rows, [0] * len(rows), given, 1).to(device))
    z = stepping.start()
    stepping.step(z, 0)  # tables and kernels are made at first use
    began = time.perf_counter()
    float(stepping.step(z, 0)[1].sum())  # waits for a GPU
    return (time.perf_counter() - began) / len(rows)


class Allowance:
    """The seconds that each stage may train, so that a run with a report is over in time.

    Args:
        config: Of the run; its stages share what is left as the seconds in it say, and none has more.
        waiting: What else there is to do.
        began: When the minutes began, by the wall clock.
        minutes: For everything.
    """

    def __init__(self, config: RunConfig, waiting: Waiting, began: float, minutes: float) -> None:
        self.waiting, self.began, self.minutes = waiting, began, minutes
        wanted = {name: config.stage(name).train.seconds for name in config.plan}
        self.left = {name: seconds for name, seconds in wanted.items() if seconds is not None}
        rivals = (SOLVED if BASELINES[name].solved else 1.0 for name in config.evaluation.baselines)
        self.beside = sum(rivals)  # training of rivals, in that of ours

    def seconds(self, name: str, say: Say) -> float | None:
        """Of the stage that is trained next; None where its config counts steps. A word where they are few."""
        if name not in self.left:
            return None
        spent = time.time() - self.began
        shares = shared(60 * self.minutes - spent, self.waiting, self.beside, self.left)
        del self.left[name]
        if not self.left:
            for words in self.remarks(spent, shares[name]):
                say(words)
        return shares[name]

    def remarks(self, spent: float, training: float) -> list[str]:
        """A sentence where so many seconds of training are few; the last stage is what takes them."""
        w, whole = self.waiting, 60 * self.minutes
        after = max(w.validation, VALIDATION_SHARE * training) + w.judging
        late, steps = spent + training + after - whole, training / w.step if w.step else math.inf
        if late <= 0.1 * whole and steps >= FEW:
            return []
        enough = (spent + after + (1 + VALIDATION_SHARE + self.beside) * max(ENOUGH * w.step, whole / 2)) / 60
        rounded = float(f"{math.ceil(10 * enough) / 10:.2g}") if enough < 10 else math.ceil(enough)
        room = f", {counted(round(steps), 'step')} or so" if math.isfinite(steps) else ""
        over = f", and all of it about {duration(whole + late)}" if late > 0.1 * whole else ""
        return [
            f"{self.minutes:g} minutes are short: {duration(spent)} went before training, judging will take about "
            f"{duration(w.judging)}, so training takes {duration(training)}{room}{over}; minutes={rounded:g} would "
            "be enough."
        ]


def shared(left: float, waiting: Waiting, beside: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """The seconds of each stage when so many are `left`: in the proportions of what is `wanted`, neither more than that
    nor less than LEAST of it. Validations take at least one's time and at most a part of that of training."""
    free = left - waiting.judging
    training = min(free / (1 + VALIDATION_SHARE + beside), (free - waiting.validation) / (1 + beside))
    part = min(1.0, max(LEAST, training / sum(wanted.values())))
    return {name: part * seconds for name, seconds in wanted.items()}
