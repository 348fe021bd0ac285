"""The only training loop: data → forward, backward → clip → step → average → log → validate → checkpoint."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ups.engine.checkpoint import Nowhere, Saved, Store, random_state, set_random_state
from ups.engine.dist import Dist
from ups.engine.graph import Pace, Prefetch, graphed
from ups.engine.meter import Meter
from ups.engine.optim import Ema, Optimizer, clip, copy_into, schedule, total_norm
from ups.engine.train import DivergenceError, Outcome, Progress, TrainConfig, peak_memory
from ups.tensors import Losses, Window
from ups.types import DataError

PATIENCE = 2.0  # seconds after which even slow steps are logged


class Stage(Protocol):
    """What is learnt. `loss` gives named terms, already weighted, whose sum is minimised; it decides nothing by the
    value of a tensor. `evaluate` measures in physical space; its "score" is what "best" means, lower being better."""

    @property
    def name(self) -> str: ...
    @property
    def module(self) -> nn.Module: ...
    def loss(self, window: Window) -> Losses: ...
    def evaluate(self, windows: Iterable[Window]) -> dict[str, float]: ...


class Tracker(Protocol):
    """Where numbers and notes go. It never raises into the training."""

    def log(self, step: int, values: Mapping[str, float | str]) -> None: ...
    def close(self) -> None: ...


class Batches(Protocol):
    """The data. `batch` is a pure function of the step, safe to call from another thread; so a resumed run sees what
    the uninterrupted one would have seen."""

    def batch(self, step: int) -> Window: ...
    def validation(self) -> Iterable[Window]: ...


class Trainer:
    """Trains a stage within a budget, from the newest checkpoint if there is one; then its module holds the best
    averaged weights. At the same seed, data and number of steps the result is the same bits, interrupted or not."""

    def __init__(
        self,
        config: TrainConfig,
        stage: Stage,
        batches: Batches,
        dist: Dist | None = None,
        store: Store | None = None,
        trackers: Sequence[Tracker] = (),
        report: Callable[[Progress], None] = lambda progress: None,  # noqa: ARG005
    ) -> None:
        self.config, self.stage, self.batches, self.trackers, self.report = config, stage, batches, trackers, report
        self.dist, self.store = dist or Dist(), store or Nowhere()
        device = self.dist.device
        self.module = stage.module.to(device)
        if config.compile:
            self.module.compile()
        self.optimizer = Optimizer(self.module, config.optimizer, config.lr, config.weight_decay, config.betas)
        self.ema = Ema(self.module, config.ema)
        self.meter, self.pace = Meter(device), Pace(device)
        self.update = graphed(self._update, config.graph, device, self._say)
        self.step = self.samples = self.validations = self.best_step = 0
        self.score, self.last_score, self.loss, self.speed = math.inf, math.nan, math.nan, math.nan
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}
        self.earlier = 0.0  # seconds spent before this process
        self.born = time.perf_counter()
        self.logged, self.saved = (0, 0, self.born), (0, self.born)

    def fit(self) -> Outcome:
        """Train until the budget is used up."""
        torch.manual_seed(self.config.seed)
        self._resume()
        self.born = time.perf_counter()
        self.logged, self.saved = (self.step, self.samples, self.born), (self.step, self.born)
        with Prefetch(self.batches.batch, self.step, self.dist.device, self.config.prefetch) as windows:
            progress = self._progress()
            while progress < 1:
                self._tune(progress)
                window = windows.get()
                self.update(window)
                self.pace.step()
                self.step += 1
                self.samples += len(window) * self.dist.world
                progress = self._progress()
                if self._log_due():
                    self._log()
                if progress < 1 and self._validation_due(progress):
                    self._validate()
                if progress < 1 and self._checkpoint_due():
                    self._checkpoint()
        return self._finish()

    def _tune(self, progress: float) -> None:
        """Tell the step its learning rate and the weight of its average, through tensors a graph can read."""
        c = self.config
        self.optimizer.lr.fill_(c.lr * schedule(progress, c.warmup, c.min_lr))
        self.ema.weight.fill_(self.ema.ramp(self.step))

    def _update(self, window: Window) -> None:
        """One optimizer step. Nothing here waits for the device or decides by a tensor's value: a graph can hold it."""
        self.optimizer.zero_grad()
        terms = self._backward(window)
        gradients = self.optimizer.gradients()
        self.dist.average(gradients, len(window))
        norm = total_norm(gradients)
        if self.config.clip:
            clip(gradients, norm, self.config.clip)
        ok = self.dist.min(torch.isfinite(norm + terms["loss"]))
        self.optimizer.step(ok)
        self.ema.update(ok)
        self.meter.add(window.task.name, {**terms, "gradient": norm}, ok)

    def _backward(self, window: Window) -> dict[str, Tensor]:
        """Gradients of the mean loss over the window's samples, a microbatch at a time; the terms' means."""
        size, sums = self.config.microbatch or len(window), dict[str, Tensor]()
        for part in window.split(size) if size < len(window) else (window,):
            with self._precision():
                losses = self.stage.loss(part)
            terms = {f"term/{name}": value.float() for name, value in losses.items()}
            if len(part) < len(window):
                terms = {name: value * (len(part) / len(window)) for name, value in terms.items()}
            loss = functools.reduce(torch.add, terms.values())
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": loss, **terms}.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        return sums

    def _precision(self) -> AbstractContextManager[Any]:
        on = self.config.precision == "bf16"
        return torch.autocast(self.dist.device.type, torch.bfloat16) if on else nullcontext()

    def _log(self) -> None:
        """Read the meter, tell everyone, and stop if too many steps in a row were not finite."""
        values, now = self.meter.read(), time.perf_counter()
        step, samples, then = self.logged
        worst, skipped = self.meter.skipped()
        if self.step > step:
            self.loss = values.get("loss", math.nan)
            self.speed = (self.samples - samples) / max(now - then, 1e-9)
            self._track(
                {**values, "lr": float(self.optimizer.lr), "samples_per_second": self.speed, "skipped": skipped}
            )
        self.logged = (self.step, self.samples, time.perf_counter())
        self.report(self._status())
        if worst > self.config.max_bad:
            raise DivergenceError(
                f"stage '{self.stage.name}': loss or gradient was not a finite number for {worst} steps in a row "
                f"before step {self.step}; lower train.lr, or look for bad values in the data with `ups data validate`."
            )

    def _validate(self) -> None:
        """Measure the averaged weights, and keep a copy of them if no others were better."""
        self._log()
        modes = [(m, m.training) for m in self.module.modules()]
        self.module.eval()
        with torch.no_grad(), self.ema.swapped():
            values = self.stage.evaluate(w.to(self.dist.device) for w in self.batches.validation())
            score = self.last_score = self.dist.agree(float(values["score"]))
            if score < self.score or not self.best:
                self.score, self.best_step = score if math.isfinite(score) else math.inf, self.step
                self.best = {name: p.detach().clone() for name, p in self.ema.weights.items()}
        for module, mode in modes:
            module.training = mode
        self.history.append({"step": self.step, "seconds": self._seconds(), "loss": self.loss, **values})
        self._track({f"validation/{name}": value for name, value in values.items()})
        self.report(self._status())
        self.logged = (self.step, self.samples, time.perf_counter())

    def _finish(self) -> Outcome:
        if not self.history or self.history[-1]["step"] != self.step:
            self._validate()
        if self.saved[0] != self.step:
            self._checkpoint(must=True)
        copy_into(self.ema.weights, self.best, "weight")
        self.module.eval()
        seconds, c = self._seconds(), self.config
        by_steps = c.steps is not None and self.step >= c.steps
        verdict = f"finished: {self.step} steps" if by_steps else f"finished: {c.seconds:g} s, {self.step} steps"
        _, skipped = self.meter.skipped()
        memory = peak_memory(self.dist.device)
        return Outcome(
            self.step, seconds, self.samples, self.score, self.best_step, skipped, memory, verdict, self.history
        )

    def _checkpoint(self, must: bool = False) -> None:
        """Save everything that the next step depends on. A full disk is a note, except at the end."""
        self._log()
        generators, facts = random_state(self.dist.device)
        module = {name: t for name, t in self.module.state_dict().items() if isinstance(t, Tensor)}
        optimizer, average = self.optimizer.state_dict(), self.ema.state_dict()
        parts = {"module": module, "optimizer": optimizer, "ema": average, "best": self.best, "random": generators}
        tensors = {f"{part}/{name}": t for part, held in parts.items() for name, t in held.items()}
        try:
            self.store.save(Saved(self.step, tensors, {**self._facts(), "random": facts}))
        except OSError as error:
            if must:
                raise DataError(
                    f"the last checkpoint could not be saved ({error}); free the disk and resume."
                ) from error
            self._say(f"the checkpoint of step {self.step} could not be saved ({error}); training goes on.")
        self.saved = (self.step, time.perf_counter())

    def _facts(self) -> dict[str, Any]:
        names = ("step", "samples", "validations", "best_step", "score", "last_score", "history")
        return {
            "stage": self.stage.name,
            "seconds": self._seconds(),
            "bad": self.meter.bad.tolist(),
            **{name: getattr(self, name) for name in names},
        }

    def _resume(self) -> None:
        saved = self.store.latest()
        if saved is None:
            return
        for part, ours in (("module", self.module.state_dict()), ("optimizer", self.optimizer.state_dict())):
            copy_into({n: t for n, t in ours.items() if isinstance(t, Tensor)}, saved.part(part), part)
        self.ema.load_state_dict(saved.part("ema"))
        self.best = {name: t.to(self.dist.device) for name, t in saved.part("best").items()}
        facts = dict(saved.facts)
        set_random_state(saved.part("random"), facts.pop("random"), self.dist.device)
        self.meter.bad.copy_(torch.tensor(facts.pop("bad")))
        self.earlier = facts.pop("seconds")
        facts.pop("stage")
        for name, value in facts.items():
            setattr(self, name, value)
        self._say(f"stage '{self.stage.name}' goes on from the checkpoint of step {self.step}.")

    def _seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.born

    def _progress(self) -> float:
        """The part of the budget used, by rank 0's clock."""
        return self.config.progress(self.step, self.dist.agree(self._seconds()))

    def _log_due(self) -> bool:
        return self.step - self.logged[0] >= self.config.log_every or time.perf_counter() - self.logged[2] > PATIENCE

    def _validation_due(self, progress: float) -> bool:
        every = self.config.validate_every
        if isinstance(every, int):
            return every > 0 and self.step % every == 0
        done, self.validations = self.validations, int(progress / every + 1e-9) if every else 0
        return self.validations > done

    def _checkpoint_due(self) -> bool:
        c, (step, then) = self.config, self.saved
        by_steps = c.checkpoint_steps is not None and self.step - step >= c.checkpoint_steps
        now = self.dist.agree(time.perf_counter())
        return by_steps or (c.checkpoint_seconds is not None and now - then >= c.checkpoint_seconds)

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
        return Progress(
            self.stage.name, self.step, part, seconds, eta, self.loss, self.last_score, lr, self.speed, memory, note
        )
