"""StageModule: a stage as a LightningModule; the simulator that its checkpoints hold."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ups.config import fingerprint
from ups.engine.learner import matrix_products
from ups.engine.meter import Meter
from ups.engine.optim import Ema, HostAdamW, Optimizer, trained
from ups.engine.ranks.dist import Dist
from ups.engine.state import TrainingState
from ups.engine.train import DivergenceError
from ups.engine.validation import add_rows, measure
from ups.heartbeat import Pulse
from ups.models import Simulator, artifact
from ups.models.inherit import inherit
from ups.run.check import new_simulator
from ups.run.config import RunConfig
from ups.run.data.statistics import measured
from ups.run.load import part_kinds
from ups.run.order import fit_stage
from ups.stages import STAGES, Stage
from ups.types import ConfigError, DataError
from ups_fleet.lightning.stage_data import Batch, StageData, configured


class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer as one of torch's: the same numbers to the bit."""

    def __init__(self, engine: Optimizer) -> None:
        super().__init__([{"params": list(engine.named.values())}], {"lr": engine.base})
        self.engine = engine

    def step(self, closure: Any = None) -> Any:
        value = None if closure is None else closure()
        self.engine.lr.fill_(self.param_groups[0]["lr"])
        self.engine.step(torch.tensor(bool(self.engine.gradients()), device=self.engine.lr.device))
        return value

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "moments": dict(self.engine.state_dict())}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        moments, own = state_dict.get("moments", {}), self.engine.state_dict()
        if moments.keys() != own.keys():
            raise ConfigError(
                "the checkpoint was saved by another optimizer, or of another model; use the config it was made with."
            )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "moments"})
        for name, value in own.items():
            value.copy_(moments[name])


class StageModule(LightningModule):
    """A stage of a run as Lightning trains it, with the optimizer, schedule, clipping and average of `ups run`.

    It is built when the training begins, for the data of its `StageData`. Its checkpoints hold all that
    `simulator_of` needs; the weights that are validated and kept are the averaged ones.
    """

    def __init__(self, config: RunConfig | str | Path, stage: str) -> None:
        super().__init__()
        self.config, self.name = configured(config, stage), stage
        self.train_config = self.config.stage(stage).train
        self.simulator: Simulator | None = None
        self.learnt: Stage | None = None
        self.ema: Ema | None = None
        self.average: Mapping[str, Tensor] = {}  # of a checkpoint that was loaded
        self.best: dict[str, Tensor] = {}  # the averaged weights of the best score; none before a validation
        self.meter: Meter | None = None  # counts steps that were not finite
        self.finite = True
        self.sums: dict[str, tuple[float, float]] = {}
        self._swapped = ExitStack()

    @property
    def stage(self) -> Stage:
        if self.learnt is None:
            raise ConfigError("the stage is built when its training begins; call trainer.fit(module, data) first.")
        return self.learnt

    @property
    def state(self) -> TrainingState:
        """Where the training is, as far as validations go: the score of the best, and all there were."""
        self.data.state.step = self.trainer.global_step
        return self.data.state

    @property
    def dist(self) -> Dist:
        """This rank among Lightning's."""
        return Dist(self.trainer.global_rank, self.trainer.world_size, self.device)

    @property
    def data(self) -> StageData:
        data = self.trainer.datamodule
        if not isinstance(data, StageData):
            raise ConfigError("a StageModule is trained on a StageData; call trainer.fit(module, StageData(…)).")
        return data

    def setup(self, stage: str) -> None:  # noqa: ARG002
        if self.learnt is not None:
            return
        config, data = self.config, self.data
        parent, sets = data.parent, data.sets
        simulator = new_simulator(config, sets, parent)
        for each in sets:
            simulator.learn_statistics(each.task, measured(each))
        if parent is not None:
            inherit(simulator, parent)
        kind, learnt = STAGES[self.name], parent.learnt if parent is not None else frozenset()
        simulator.idle = frozenset(simulator.parts) - learnt - {kind.makes}
        simulator.origins |= {name: parent.origins[name] for name in learnt if parent is not None}
        self.simulator, self.learnt = simulator, kind(simulator, config.stage(self.name))
        inherited = parent.codec.tasks if parent is not None and kind.makes in learnt else ()
        learns = [each for each in sets if kind.learns(each.task)]
        fit_stage(self.learnt, config, learns, torch.device("cpu"), inherited)

    def configure_optimizers(self) -> Any:
        c, module = self.train_config, self.stage.module
        if self._is_sharded and c.optimizer == "muon":
            raise ConfigError("optimizer muon needs whole matrices, and FSDP cuts them; use adamw, or strategy ddp.")
        engine = Optimizer(module, c.optimizer, c.lr, c.weight_decay, c.betas)
        optimizer: Any = engine.members[0] if self._is_sharded else EngineOptimizer(engine)
        optimizer = optimizer.of_torch() if isinstance(optimizer, HostAdamW) else optimizer
        steps = c.steps or 1
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: c.share(step / steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    @property
    def _is_sharded(self) -> bool:
        """Whether FSDP holds the weights: it saves the state of torch's own optimizers alone."""
        return hasattr(self.trainer.strategy.model, "clip_grad_norm_")

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:  # noqa: ARG002
        return Batch(batch.window.to(device))

    def on_train_start(self) -> None:
        torch.manual_seed(self.train_config.seed + self.trainer.global_rank)
        self.ema, self.meter = Ema(trained(self.stage.module), self.train_config.ema), Meter(self.device)
        for name, value in self.average.items():
            if name in self.ema.average and self.ema.average[name].shape == value.shape:
                self.ema.average[name].copy_(value)

    def on_train_epoch_start(self) -> None:
        assert self.simulator is not None
        self.simulator.eval()
        self.stage.module.train()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """The mean loss over the samples of all ranks, once Lightning has averaged what each has made of its own."""
        world, count = self.trainer.world_size, self.config.stage(self.name).batch_of(batch.window.task.name)
        window = self.stage.view(batch.window, self.trainer.global_step / (self.train_config.steps or 1))
        weight = len(window) * world / count
        terms = {f"term/{name}": weight * value.float() for name, value in self.stage.loss(window).items()}
        loss: Tensor = functools.reduce(torch.add, terms.values())
        rows = {f"{self.name}/{name}": value.detach() for name, value in {"loss": loss, **terms}.items()}
        self.log_dict(rows, on_step=True, sync_dist=world > 1, batch_size=len(window))
        return loss

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip by the norm of all gradients; where that is no finite number, the step moves nothing."""
        most = self.train_config.clip or float("inf")
        moved = [p for group in optimizer.param_groups for p in group["params"]]
        own = self.trainer.strategy.model
        norm = own.clip_grad_norm_(most) if self._is_sharded else torch.nn.utils.clip_grad_norm_(moved, most)
        assert self.meter is not None
        ok = torch.isfinite(norm)
        self.meter.add(self.name, {}, ok)
        self.finite = bool(ok)
        if not self.finite:
            worst = self.meter.skipped()[0]
            if worst > self.train_config.max_bad:
                raise DivergenceError.after(self.name, worst, self.trainer.global_step)
            for p in moved:
                p.grad = None

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:  # noqa: ARG002
        step = self.trainer.global_step
        with matrix_products(self.train_config, self.device.type):  # the closure computes loss and gradients
            optimizer.step(closure=optimizer_closure)
        assert self.ema is not None
        self.ema.weight.fill_(self.ema.ramp(step))
        self.ema.update(torch.tensor(self.finite, device=self.ema.weight.device))

    def on_validation_start(self) -> None:
        self.sums = {}
        if self.ema is not None:
            self._swapped.enter_context(self.ema.swapped())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Sums over this rank's rows of a window."""
        add_rows(self.sums, self.stage, batch.window, self.dist)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking or self.train_config.validate_first:
            self._judge(self.sums)

    def _judge(self, sums: Mapping[str, tuple[float, float]]) -> None:
        """Keep the averaged weights if no others were better; called with what this rank has summed."""
        rows = torch.tensor([sums[name] for name in sorted(sums)], dtype=torch.float64, device=self.device)
        total = self.trainer.strategy.reduce(rows, reduce_op="sum")
        means = {name: float(t / max(n, 1)) for name, (t, n) in zip(sorted(sums), total, strict=True)}
        score, state = self.stage.score(means), self.state
        if state.scored(score, first=not self.best):
            weights = trained(self.stage.module)  # in a validation they are the averaged ones
            self.best = {name: p.detach().clone() for name, p in weights.items()}
        state.history.append({"step": state.step, **means, "score": score})
        if self.trainer.validating:
            values = {**means, "score": score}.items()
            self.log_dict({f"{self.name}/validation/{name}": value for name, value in values})

    def on_validation_end(self) -> None:
        self._swapped.close()

    def on_train_end(self) -> None:
        """Validate where the last steps were not, as `ups run` does; not where ranks hold pieces of the weights."""
        history = self.state.history
        if self.ema is None or (history and history[-1]["step"] == self.trainer.global_step):
            return
        if self._is_sharded and self.trainer.world_size > 1:
            return
        windows, pulse = self.data.windows().validation(0), Pulse(None, self.trainer.global_rank)
        sums = measure(self.stage, windows, self.ema, self.dist, pulse)
        with self.ema.swapped():
            self._judge(sums)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Beside Lightning's own: what kind of simulator it is, and its averaged weights, now and where best."""
        assert self.simulator is not None
        header = json.dumps(self.simulator.header(self._provenance()))
        weights = {"average": self.ema.average if self.ema is not None else {}, "best": self.best}
        whole = {name: self._whole(held) for name, held in weights.items() if held}
        checkpoint["ups"] = {"stage": self.name, "header": header, "score": self.state.score, **whole}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        own = checkpoint.get("ups", {})
        self.average, self.best = own.get("average", {}), dict(own.get("best", {}))
        self.state.score = float(own.get("score", self.state.score))

    def save(self, path: str | Path) -> Path:
        """Write the simulator, with the best averaged weights, as `ups` reads it. Where they are sharded, save a
        checkpoint instead, and take `simulator_of` it."""
        assert self.simulator is not None
        provenance = self._provenance()
        with self._holding(self.best or (self.ema.average if self.ema is not None else {})):
            return self.simulator.save(path, provenance)

    @contextmanager
    def _holding(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, the trained weights are other ones."""
        named = {name: p for name, p in trained(self.stage.module).items() if name in values}
        with torch.no_grad():
            before = {name: p.detach().clone() for name, p in named.items()}
            for name, p in named.items():
                p.copy_(values[name])
            try:
                yield
            finally:
                for name, p in named.items():
                    p.copy_(before[name])

    def _whole(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights as one process would hold them, on the CPU; all ranks must ask."""
        own = f"simulator.{self.stage.makes}."
        with self._holding(values):
            state = self.trainer.strategy.lightning_module_state_dict()
            mine = {name.removeprefix(own): value for name, value in state.items() if name.startswith(own)}
            return {name: value.detach().to("cpu", copy=True) for name, value in mine.items() if name in values}

    def _provenance(self) -> dict[str, Any]:
        assert self.simulator is not None
        facts = {"config": fingerprint(self.config), "seed": self.config.seed, "steps": self.trainer.global_step}
        own = {"provenance": {**facts, "stage": self.name, "score": self.state.score}, "needs": list(self.stage.needs)}
        self.simulator.origins[self.stage.makes] = own
        return facts


def simulator_of(checkpoint: str | Path) -> Simulator:
    """The simulator that a Lightning checkpoint of a StageModule holds, with the best averaged weights of its stage."""
    path = Path(checkpoint)
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        own, state = held["ups"], held["state_dict"]
        makes = STAGES[own["stage"]].makes
        tensors = {name.removeprefix("simulator."): value for name, value in state.items()}
        tensors |= {f"{makes}.{name}": value for name, value in (own.get("best") or own.get("average", {})).items()}
        header = json.loads(own["header"])
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check the path.") from None
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, EOFError, UnpicklingError):
        raise DataError(f"{path}: is no checkpoint of a StageModule of ups_fleet.lightning; name another.") from None
    with tempfile.TemporaryDirectory() as folder:
        return Simulator.load(artifact.write(Path(folder), header, tensors), "cpu", part_kinds())
