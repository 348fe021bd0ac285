"""The only training loop: data → forward, backward → vote → reduce → clip → step → average → log → validate → save."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ups.engine.checkpoint.store import NoStore, StateStore
from ups.engine.checkpoint.training_checkpoint import TrainingCheckpoint
from ups.engine.graph import Graphs, Pace, Prefetch, graphed
from ups.engine.learner import Learner
from ups.engine.meter import Stopwatch, peak_memory
from ups.engine.preemption import STOP, Preempted, StopFlag
from ups.engine.probe import probe
from ups.engine.profile import UNTRACED, Traced
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.parallelize import parallelize
from ups.engine.ranks.vote import RETRIES, StepVote
from ups.engine.ranks.weight_sync import WeightSync
from ups.engine.stage import Learnable, RankBatches, Tracker
from ups.engine.state import TrainingState
from ups.engine.stragglers import Stragglers
from ups.engine.train import DivergenceError, Outcome, TrainConfig
from ups.engine.validation import Timetable, measure
from ups.heartbeat import Pulse
from ups.progress import OnTraining, TrainingProgress
from ups.tensors import Window

PATIENCE = 2.0  # seconds after which even slow steps are logged


class Trainer:
    """Trains a stage within a budget, from the newest checkpoint if there is one; then its module holds the best
    averaged weights. At the same seed, data, ranks and number of steps the result is the same bits, interrupted,
    out of memory for a moment, or not.

    `state` is where the training is: pass one to look at it from elsewhere too. `limit` is the largest microbatch that
    is known to fit in memory.
    """

    def __init__(
        self,
        config: TrainConfig,
        stage: Learnable,
        batches: RankBatches,
        dist: Dist | None = None,
        store: StateStore | None = None,
        trackers: Sequence[Tracker] = (),
        report: OnTraining = lambda progress: None,  # noqa: ARG005
        pulse: Pulse | None = None,
        stop: StopFlag = STOP,
        limit: int | None = None,
        state: TrainingState | None = None,
        traced: Traced = UNTRACED,
    ) -> None:
        self.state = state or TrainingState()
        self.config, self.stage, self.batches, self.trackers, self.report = config, stage, batches, trackers, report
        self.dist, self.stop = dist or Dist(), stop
        self.pulse = pulse or Pulse(None, self.dist.rank)
        self.dist.control.waiting = self.pulse.wait
        self.modes = [(m, m.training) for m in stage.module.modules()]
        self.parallel = parallelize(stage.module, config, self.dist)
        self.learner = Learner(config, stage, self.parallel, self.dist, self.state, self.pulse, batches.count)
        self.pace = Pace(self.dist.device)
        self.graph: Graphs | None = graphed(self.learner, config.graph, self._say)
        self.limits = (config.microbatch, limit)
        self.state.take_at_most(*self.limits)
        self.vote = StepVote(
            self.dist, self.parallel, self.pulse, self.state, stop, self._say, self._seconds, batches.count
        )
        self.drift = WeightSync(self.dist, self.parallel.digests, self.learner, config.on_drift == "mend", self._say)
        self.stragglers = Stragglers(self.dist, self.pulse, config.straggler, self._say)
        self.checkpoint = TrainingCheckpoint(self.learner, store or NoStore(), self._say)
        self.timetable = Timetable(config, self.state, batches.frames(), getattr(stage, "rollouts", 1))
        self.profile = traced.of(stage.name, self.dist.rank, self.dist.device, config.steps, self._say)
        self.watch = Stopwatch()
        self.loss = self.speed = math.nan
        self.earlier, self.born = 0.0, time.perf_counter()  # seconds of training before this process; its beginning
        self.validating = 0.0  # seconds of this process since then in which it validated
        self.waited = self.input_wait = 0.0  # seconds waited for windows; their share of the time since the last log
        self.logged, self.saved = (0, 0, 0.0, 0.0), (0, 0.0)

    @property
    def step(self) -> int:
        return self.state.step

    def fit(self) -> Outcome:
        """Train until the budget is used up."""
        state = self.state
        self._start()
        if self.config.validate_first and not state.history:
            self._validate()
        with Prefetch(self.batches.batch, state.step, self.dist.device, self.config.prefetch) as windows:
            while (progress := self.config.progress(state.step, state.seconds)) < 1:
                self.learner.tune(progress)
                began = time.perf_counter()
                stop = self._step(windows, progress)
                self.watch.add("steps", time.perf_counter() - began)
                if self._log_due():
                    self._log()
                progress = self.config.progress(state.step, state.seconds)
                if progress < 1 and self.timetable.due(progress):
                    self._validate()
                if self.config.drift_every and state.step % self.config.drift_every == 0:
                    self._check_drift()
                if stop:
                    self._leave()
                if progress < 1 and self._checkpoint_due():
                    self._checkpoint()
        return self._finish()

    def weights(self, keep: bool = True) -> dict[str, Tensor]:
        """The module's whole state on the CPU, as one process would hold it, for ranks that `keep`; all must ask."""
        return self.learner.weights(keep)

    def release(self) -> None:
        """Leave the module as it was found, its weights apart: no hook, no gradient, nothing recomputed or compiled.

        Another trainer may then go on with the same module. A sharded one cannot be put together again: it is of no
        use after its training, and its weights come from `weights()`.
        """
        self.graph = None
        self.parallel.release()
        for module, mode in self.modes:
            module.training = mode

    def _start(self) -> None:
        """Refuse ranks that would train different things, go on from a checkpoint, find the microbatch that fits."""
        state, shapes = self.state, " ".join(f"{n}{tuple(p.shape)}" for n, p in self.stage.module.named_parameters())
        torch.manual_seed(self.config.seed + self.dist.rank)
        self.dist.handshake(
            {
                "stage": self.stage.name,
                "training config": self.config,
                "parallel config": self.dist.config,
                "parameters of the model": f"{len(shapes.split())} tensors, digest {zlib.crc32(shapes.encode()):08x}",
                "size of a batch": self.batches.count(0),
                "version of torch": torch.__version__,
            }
        )
        with self.watch("resume"):
            resumed = self.vote.together("start", self.checkpoint.resume)
        self.earlier = state.seconds
        state.take_at_most(*self.limits)  # a checkpoint may be older than what is known of memory
        if resumed:
            self._say(f"stage '{self.stage.name}' goes on from the checkpoint of step {state.step}.")
        with self.watch("probe"):
            probe(self.learner, self.batches, self.vote, self.graph)
        self.born, self.validating = time.perf_counter(), 0.0
        state.seconds = self.dist.agree(self._seconds())
        self.logged, self.saved = (state.step, state.samples, state.seconds, 0.0), (state.step, state.seconds)
        self.stragglers.start(state.step)
        self.pulse.note(state.microbatch or math.ceil(self.batches.count(0) / self.dist.world))

    def _step(self, windows: Prefetch, progress: float) -> bool:
        """One optimizer step by all ranks or by none: repeated on the same batch until each got through it.

        True if a rank was asked to stop. A failure after that, when the weights move, cannot be repeated.
        """
        state, learner = self.state, self.graph or self.learner
        batch: list[Window] = []  # the same window in every attempt

        def attempt() -> None:
            self.pulse.beat("data", state.step)
            if not batch:
                batch.append(self._next(windows, progress))
            with self.stragglers.clock:
                learner.compute(batch[0])

        stop = self.vote.repeated(attempt)
        learner.commit(batch[0])
        self.pace.step()
        state.step += 1
        state.samples += self.batches.count(state.step - 1)
        self.profile(state.step)
        return stop

    def _next(self, windows: Prefetch, progress: float) -> Window:
        """The window of this step. Waiting for it counts where the device has run out of work meanwhile."""
        began = time.perf_counter()
        window = self.stage.view(windows.get(), progress)
        if self.pace.idle():
            self.waited += time.perf_counter() - began
        return window

    def _log(self) -> None:
        """Read the meter, tell everyone, and stop if too many steps in a row were not finite, or all that there are."""
        self.pulse.beat("log")
        with self.watch("steps"):  # the last ones, which the device is still at and the meter would wait for
            self.pace.finish()
        with self.watch("logging"):
            worst = self._tell()
        over = self.config.progress(self.state.step, self.state.seconds) >= 1
        if worst > self.config.max_bad or (over and worst == self.state.step > 0):
            raise DivergenceError.after(self.stage.name, worst, self.state.step)

    def _tell(self) -> int:
        """The numbers since the last line of the log; how many steps in a row were not finite at worst."""
        state, meter = self.state, self.learner.meter
        step, samples, then, waited = self.logged
        mine = self.stragglers.mine(state.step, self.watch.seconds.get("steps", 0.0))
        values, of_ranks = meter.read(self.dist, mine)
        values |= self.stragglers.judge(of_ranks, state.step)
        worst, skipped = meter.skipped()
        if state.step > step:
            self.loss = values.get("loss", math.nan)
            spent = max(self._seconds() - then, 1e-9)
            self.speed, self.input_wait = (state.samples - samples) / spent, (self.waited - waited) / spent
            values |= {"lr": float(self.learner.optimizer.lr), "samples_per_second": self.speed}
            values |= {"input_wait": self.input_wait, "skipped": skipped, "recovered": state.recovered}
            self._track({**values, "mended": len(state.mended)})
        self.logged = (state.step, state.samples, state.seconds, self.waited)
        self.report(self._status())
        return worst

    def _validate(self) -> None:
        """Measure the averaged weights, and keep a copy of them if no others were better."""
        self._log()
        began, state = time.perf_counter(), self.state
        with self.watch("validation"):
            means = self._means()
        self.validating += time.perf_counter() - began
        score = self.stage.score(means)
        if state.scored(score, first=not self.learner.best):
            self.learner.best = {name: value.clone() for name, value in self.learner.ema.average.items()}
        row = {"step": state.step, "seconds": self._seconds(), "loss": self.loss, **means, "score": score}
        state.history.append(row)
        self._track({f"validation/{name}": value for name, value in {**means, "score": score}.items()})
        self.report(self._status())
        state.seconds = self.dist.agree(self._seconds())  # what is due by the clock is due on all ranks
        self.logged = (state.step, state.samples, state.seconds, self.waited)

    def _means(self) -> dict[str, float]:
        """What a validation measures, over the rows of all ranks."""
        state, began = self.state, time.perf_counter()

        def mine() -> dict[str, tuple[float, float]]:
            windows = self.batches.validation(state.step)
            return measure(self.stage, windows, self.learner.ema, self.dist, self.pulse, self._say)

        sums = self.dist.sums(self.vote.together("validate", mine, RETRIES))
        if self.timetable.timed:
            seconds = self.dist.agree(time.perf_counter() - began)
            self.timetable.took(seconds, self.config.progress(state.step, state.seconds))
        return {name: total / max(count, 1) for name, (total, count) in sums.items()}

    def _finish(self) -> Outcome:
        state = self.state
        self.profile.end(state.step)
        if not state.history or state.history[-1]["step"] != state.step:
            self._validate()
        self._checkpoint(must=True)
        self.pulse.beat("finish", state.step)
        self.learner.take_best()
        self.stage.module.eval()
        seconds = self._seconds()
        _, skipped = self.learner.meter.skipped()
        self.watch.add("steps", -self.waited)
        return Outcome(
            steps=state.step,
            seconds=seconds,
            samples=state.samples,
            score=state.score,
            best_step=state.best_step,
            skipped=skipped,
            recovered=state.recovered,
            mended=state.mended,
            stragglers=self.stragglers.named,
            memory=peak_memory(self.dist.device),
            verdict=self.config.verdict(state.step, self.validating),
            input_wait=self.waited / max(seconds - self.earlier, 1e-9),
            history=state.history,
            phases={**self.watch.seconds, "data wait": self.waited},
        )

    def _leave(self) -> None:
        """Save at the step where all ranks are, and go."""
        self._checkpoint(must=True)
        signal, step = self.stop.signal or "another rank's signal", self.state.step
        raise Preempted(f"stage '{self.stage.name}' was stopped by {signal} at step {step}; --resume goes on.")

    def _checkpoint(self, must: bool = False) -> None:
        """Save everything that the next step depends on, once; `must`: wait until it is there."""
        step = self.state.step
        if self.saved[0] != step or step == 0:
            self._log()
            self._check_drift()
            self.pulse.beat("save", step)
            with self.watch("checkpoints"):
                self.checkpoint.save()
            self.saved = (step, self.state.seconds)
        if must:
            self.pulse.beat("save", step)
            with self.watch("checkpoints"):
                self.checkpoint.wait()

    def _check_drift(self) -> None:
        """Prove that all ranks hold the same weights, moments and averages."""
        if self.dist.world > 1:
            with self.watch("drift"):
                self.drift.check()

    def _seconds(self) -> float:
        """Seconds of training so far, validations left out."""
        return self.earlier + time.perf_counter() - self.born - self.validating

    def _log_due(self) -> bool:
        step, _, then, _ = self.logged
        return self.state.step - step >= self.config.log_every or self.state.seconds - then > PATIENCE

    def _checkpoint_due(self) -> bool:
        c, (step, then) = self.config, self.saved
        by_steps = c.checkpoint_steps is not None and self.state.step - step >= c.checkpoint_steps
        return by_steps or (c.checkpoint_seconds is not None and self.state.seconds - then >= c.checkpoint_seconds)

    def _track(self, values: Mapping[str, float | str]) -> None:
        if self.dist.leads:
            for tracker in self.trackers:
                tracker.log(self.state.step, {f"{self.stage.name}/{name}": value for name, value in values.items()})

    def _say(self, sentence: str) -> None:
        self._track({"note": sentence})
        self.report(self._status(sentence))

    def _status(self, note: str = "") -> TrainingProgress:
        state, seconds = self.state, self._seconds()
        fraction = min(self.config.progress(state.step, seconds), 1.0)
        return TrainingProgress(
            stage=self.stage.name,
            step=state.step,
            fraction=fraction,
            seconds=seconds,
            eta=seconds * (1 - fraction) / fraction if fraction else math.inf,
            loss=self.loss,
            score=state.last_score,
            lr=float(self.learner.optimizer.lr),
            samples_per_second=self.speed,
            input_wait=self.input_wait,
            memory=peak_memory(self.dist.device),
            note=note,
        )
