"""The only training loop: data → forward, backward → vote → reduce → clip → step → average → log → validate → save."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ups.engine.attempt import MEMORY, OTHER, Attempt, MemoryStop, give_up, together
from ups.engine.control import Word
from ups.engine.dist import Dist
from ups.engine.graph import Pace, Prefetch, graphed
from ups.engine.keeping import Keeper
from ups.engine.meter import Meter
from ups.engine.optim import Ema, Optimizer, clip, schedule
from ups.engine.parallelize import parallelize
from ups.engine.preemption import STOP, Preempted, StopFlag
from ups.engine.probe import probe
from ups.engine.profile import profile
from ups.engine.stage import Batches, Stage, Tracker
from ups.engine.store import Nowhere, Store
from ups.engine.train import DivergenceError, Outcome, Progress, TrainConfig, peak_memory
from ups.engine.validation import measured
from ups.heartbeat import PHASES, Pulse
from ups.tensors import Window

PATIENCE = 2.0  # seconds after which even slow steps are logged
RETRIES = 2  # at one microbatch size; the first repeats it as it was, for memory may have been short for a moment


class Trainer:
    """Trains a stage within a budget, from the newest checkpoint if there is one; then its module holds the best
    averaged weights. At the same seed, data, ranks and number of steps the result is the same bits, interrupted,
    out of memory for a moment, or not."""

    def __init__(
        self,
        config: TrainConfig,
        stage: Stage,
        batches: Batches,
        dist: Dist | None = None,
        store: Store | None = None,
        trackers: Sequence[Tracker] = (),
        report: Callable[[Progress], None] = lambda progress: None,  # noqa: ARG005
        pulse: Pulse | None = None,
        stop: StopFlag = STOP,
        limit: int | None = None,
    ) -> None:
        self.config, self.stage, self.batches, self.trackers, self.report = config, stage, batches, trackers, report
        self.dist, self.store, self.stop = dist or Dist(), store or Nowhere(), stop
        self.pulse = pulse or Pulse(None, self.dist.rank)
        self.dist.control.waiting = self.pulse.wait
        device = self.dist.device
        self.module = stage.module
        self.parallel = parallelize(self.module, config, self.dist)
        shares = self.parallel.parameters
        rates = (config.lr, config.weight_decay, config.betas)
        self.optimizer = Optimizer(self.module, config.optimizer, *rates, shares)
        self.ema = Ema(self.parallel.parameters, config.ema)
        self.meter, self.pace = Meter(device), Pace(device)
        alone = self.dist.world == 1 and self.dist.config.strategy == "ddp" and config.activations == "keep"
        self.graph = graphed(self._whole_step, config.graph, device, alone, self._say)
        self.microbatch = min((n for n in (config.microbatch, limit) if n is not None), default=None)
        self.step = self.samples = self.validations = self.best_step = self.recovered = 0
        self.score, self.last_score, self.loss, self.speed = math.inf, math.nan, math.nan, math.nan
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}
        self.terms: dict[str, Tensor] = {}
        self.earlier, self.clock = 0.0, 0.0  # seconds spent before this process; rank 0's clock at the last vote
        self.born = time.perf_counter()
        self.moved = False  # whether the step under way has begun to change weights
        self.keeper = Keeper(self)
        self.profile = profile(stage.name, self.dist.rank, device, config.steps, self._say)
        self.waited = self.input_wait = 0.0  # seconds waited for windows; their share of the time since the last log
        self.logged, self.saved = (0, 0, 0.0, 0.0), (0, 0.0)

    def fit(self) -> Outcome:
        """Train until the budget is used up."""
        torch.manual_seed(self.config.seed + self.dist.rank)
        self.keeper.handshake()
        together(self, "start", self.keeper.resume)
        probe(self)
        self.born = time.perf_counter()
        self.clock = self.dist.agree(self._seconds())
        self.logged, self.saved = (self.step, self.samples, self.clock, 0.0), (self.step, self.clock)
        self.pulse.note(self.microbatch or math.ceil(self.batches.count(0) / self.dist.world))
        if self.config.validate_first and not self.history:
            self._validate()
        with Prefetch(self.batches.batch, self.step, self.dist.device, self.config.prefetch) as windows:
            while (progress := self.config.progress(self.step, self.clock)) < 1:
                self._tune(progress)
                stop = self._step(windows, progress)
                if self._log_due():
                    self._log()
                progress = self.config.progress(self.step, self.clock)
                if progress < 1 and self._validation_due(progress):
                    self._validate()
                if self.config.drift_every and self.step % self.config.drift_every == 0:
                    self.keeper.check_drift()
                if stop:
                    self._leave()
                if progress < 1 and self._checkpoint_due():
                    self._checkpoint()
        return self._finish()

    def weights(self, keep: bool = True) -> dict[str, Tensor]:
        """The module's whole state on the CPU, as one process would hold it, for ranks that `keep`; all must ask."""
        return self.keeper.weights(keep)

    def _tune(self, progress: float) -> None:
        """Tell the step its learning rate and the weight of its average, through tensors a graph can read."""
        c = self.config
        self.optimizer.lr.fill_(c.lr * schedule(progress, c.warmup, c.min_lr))
        self.ema.weight.fill_(self.ema.ramp(self.step))

    def _step(self, windows: Prefetch, progress: float) -> bool:
        """One optimizer step by all ranks or by none: repeated on the same batch until each got through it.

        True if a rank was asked to stop. A failure after the weights began to move cannot be repeated.
        """
        held: list[Window] = []
        generators = self.keeper.generators()
        tries = 0
        while True:
            self.moved = False
            with Attempt(self.pulse, self.step) as attempt:
                self.pulse.beat("data", self.step)
                held = held or [self._next(windows, progress)]
                self.graph(held[0]) if self.graph else self._compute(held[0])
            if attempt.error is not None and not self.parallel.gated:
                raise attempt.error  # the others are inside a collective already, where no vote can reach them
            words = self._vote(attempt)
            if all(word.ok for word in words):
                break
            tries = self._again(words, attempt, tries)
            self.keeper.set_generators(generators)
        if not self.graph:
            self._commit(held[0])
        self.pace.step()
        self.step += 1
        self.samples += self.batches.count(self.step - 1)
        self.profile(self.step)
        return any(word.stop for word in words)

    def _next(self, windows: Prefetch, progress: float) -> Window:
        """The window of this step. Waiting for it counts where the device has run out of work meanwhile."""
        began = time.perf_counter()
        window = self.stage.view(windows.get(), progress)
        if self.pace.idle():
            self.waited += time.perf_counter() - began
        return window

    def _vote(self, attempt: Attempt) -> list[Word]:
        """Every rank's word on an attempt; rank 0's clock becomes everyone's."""
        mark = 0 if attempt.error is not None else self.parallel.mark()
        self.pulse.beat("vote", self.step)
        words = self.dist.control.finish(attempt.word(self.stop.raised, self._seconds(), mark))
        self.clock = words[0].clock
        return words

    def _again(self, words: Sequence[Word], attempt: Attempt, tries: int) -> int:
        """After a common no: clear up; memory that was short is met by trying again, then by smaller microbatches."""
        self.parallel.recover()
        if self.moved or any(word.kind == OTHER for word in words):
            give_up(self.dist, attempt)
        rank, word = next((r, w) for r, w in enumerate(words) if w.kind == MEMORY)
        where = f"rank {rank} in phase '{PHASES[word.phase]}' of step {self.step}"
        self.recovered, tries = self.recovered + 1, tries + 1
        share = math.ceil(self.batches.count(self.step) / self.dist.world)
        size = min(self.microbatch or share, share)
        if tries >= RETRIES:
            if size == 1:
                raise MemoryStop(
                    f"out of memory on {where} with one sample at a time; use a smaller model or grid, "
                    "train.activations recompute, or strategy fsdp on more ranks.",
                    PHASES[word.phase],
                    mine=rank == self.dist.rank,
                )
            self.microbatch, tries = max(1, size // 2), 0
            self.pulse.note(self.microbatch)
        if self.dist.device.type == "cuda":
            torch.cuda.empty_cache()
        self._say(f"out of memory on {where}; the same batch again in microbatches of {self.microbatch or share}.")
        return tries

    def _whole_step(self, window: Window) -> None:
        """Nothing here waits for the device or decides by a tensor's value: a graph can hold it."""
        self._compute(window)
        self._commit(window)

    def _compute(self, window: Window) -> None:
        """This rank's gradient of the mean loss over the samples of all ranks, a microbatch at a time.

        Every rank runs as many microbatches as the fullest; one that has no sample left runs one that counts nothing.
        """
        self.optimizer.zero_grad()
        count = self.batches.count(self.step)
        share = math.ceil(count / self.dist.world)
        size = min(self.microbatch or share, share)
        parts = [(part, len(part) * self.dist.world / count) for part in window.split(size)]
        parts += [(window.rows(0, 1), 0.0)] * (math.ceil(share / size) - len(parts))
        self.terms = {}
        for i, (part, weight) in enumerate(parts):
            self.parallel.begin(last=i == len(parts) - 1)
            self.pulse.beat("forward")
            with self._precision():
                losses = self.stage.loss(part)
            terms = {f"term/{name}": value.float() for name, value in losses.items()}
            if weight != 1:
                terms = {name: value * weight for name, value in terms.items()}
            loss = functools.reduce(torch.add, terms.values())
            self.pulse.beat("backward")
            # A loss that is not finite makes every gradient so, on every rank once they are reduced.
            poison = loss.detach() - loss.detach()
            loss.backward(1 + poison)  # type: ignore[no-untyped-call]
            for name, value in {"loss": loss, **terms}.items():
                self.terms[name] = self.terms[name] + value.detach() if name in self.terms else value.detach()

    def _commit(self, window: Window) -> None:
        """Reduce the gradients and move the weights: the activations are gone, and a failure cannot be repeated."""
        self.pulse.beat("reduce")
        self.parallel.collect()
        gradients = self.optimizer.gradients()
        norm = self.parallel.norm(gradients)
        self.pulse.beat("step")
        self.moved = True
        if self.config.clip:
            clip(list(gradients.values()), norm, self.config.clip)
        ok = torch.isfinite(norm)
        self.optimizer.step(ok)
        self.ema.update(ok)
        self.meter.add(window.task.name, {**self.terms, "gradient": norm}, ok)

    def _precision(self) -> AbstractContextManager[Any]:
        on = self.config.precision == "bf16"
        return torch.autocast(self.dist.device.type, torch.bfloat16) if on else nullcontext()

    def _log(self) -> None:
        """Read the meter, tell everyone, and stop if too many steps in a row were not finite."""
        self.pulse.beat("log")
        values = self.meter.read(self.dist)
        step, samples, then, waited = self.logged
        worst, skipped = self.meter.skipped()
        if self.step > step:
            self.loss = values.get("loss", math.nan)
            spent = max(self._seconds() - then, 1e-9)
            self.speed, self.input_wait = (self.samples - samples) / spent, (self.waited - waited) / spent
            counts = {"input_wait": self.input_wait, "skipped": skipped, "recovered": self.recovered}
            self._track({**values, "lr": float(self.optimizer.lr), "samples_per_second": self.speed, **counts})
        self.logged = (self.step, self.samples, self.clock, self.waited)
        self.report(self._status())
        if worst > self.config.max_bad:
            raise DivergenceError(
                f"stage '{self.stage.name}': loss or gradient was not a finite number for {worst} steps in a row "
                f"before step {self.step}; lower train.lr, or look for bad values in the data with `ups data validate`."
            )

    def _validate(self) -> None:
        """Measure the averaged weights, and keep a copy of them if no others were better."""
        self._log()
        sums = together(self, "validate", lambda: measured(self), RETRIES)
        means = {name: total / max(count, 1) for name, (total, count) in self.dist.sums(sums).items()}
        score = self.last_score = self.stage.score(means)
        if score < self.score or not self.best:
            self.score, self.best_step = score if math.isfinite(score) else math.inf, self.step
            self.best = {name: t.clone() for name, t in self.ema.average.items()}
        self.history.append({"step": self.step, "seconds": self._seconds(), "loss": self.loss, **means, "score": score})
        self._track({f"validation/{name}": value for name, value in {**means, "score": score}.items()})
        self.report(self._status())
        self.logged = (self.step, self.samples, self._seconds(), self.waited)

    def _finish(self) -> Outcome:
        self.profile.end(self.step)
        if not self.history or self.history[-1]["step"] != self.step:
            self._validate()
        self._checkpoint(must=True)
        self.pulse.beat("finish", self.step)
        self.keeper.take_best()
        self.module.eval()
        seconds, c = self._seconds(), self.config
        by_steps = c.steps is not None and self.step >= c.steps
        verdict = f"finished: {self.step} steps" if by_steps else f"finished: {c.seconds:g} s, {self.step} steps"
        _, skipped = self.meter.skipped()
        counts = (self.score, self.best_step, skipped, self.recovered)
        memory = peak_memory(self.dist.device)
        wait = self.waited / max(seconds - self.earlier, 1e-9)
        return Outcome(self.step, seconds, self.samples, *counts, memory, verdict, wait, self.history)

    def _leave(self) -> None:
        """Save at the step where all ranks are, and go."""
        self._checkpoint(must=True)
        signal = self.stop.signal or "another rank's signal"
        raise Preempted(f"stage '{self.stage.name}' was stopped by {signal} at step {self.step}; --resume goes on.")

    def _checkpoint(self, must: bool = False) -> None:
        """Save everything that the next step depends on, once; `must`: wait until it is there."""
        if self.saved[0] != self.step or self.step == 0:
            self._log()
            self.keeper.check_drift()
            self.pulse.beat("save", self.step)
            self.keeper.save()
            self.saved = (self.step, self.clock)
        if must:
            self.pulse.beat("save", self.step)
            self.keeper.wait()

    def _seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.born

    def _log_due(self) -> bool:
        return self.step - self.logged[0] >= self.config.log_every or self.clock - self.logged[2] > PATIENCE

    def _validation_due(self, progress: float) -> bool:
        every = self.config.validate_every
        if isinstance(every, int):
            return every > 0 and self.step % every == 0
        done, self.validations = self.validations, int(progress / every + 1e-9) if every else 0
        return self.validations > done

    def _checkpoint_due(self) -> bool:
        c, (step, then) = self.config, self.saved
        by_steps = c.checkpoint_steps is not None and self.step - step >= c.checkpoint_steps
        return by_steps or (c.checkpoint_seconds is not None and self.clock - then >= c.checkpoint_seconds)

    def _track(self, values: Mapping[str, float | str]) -> None:
        if self.dist.leads:
            for tracker in self.trackers:
                tracker.log(self.step, {f"{self.stage.name}/{name}": value for name, value in values.items()})

    def _say(self, sentence: str) -> None:
        self._track({"note": sentence})
        self.report(self._status(sentence))

    def _status(self, note: str = "") -> Progress:
        seconds, lr = self._seconds(), float(self.optimizer.lr)
        part = min(self.config.progress(self.step, seconds), 1.0)
        eta = seconds * (1 - part) / part if part else math.inf
        memory = peak_memory(self.dist.device)
        name, loss, score = self.stage.name, self.loss, self.last_score
        return Progress(name, self.step, part, seconds, eta, loss, score, lr, self.speed, self.input_wait, memory, note)
