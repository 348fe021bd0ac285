"""A profile of a few steps on request: a torch.profiler trace per rank, which chrome://tracing or Perfetto show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ups.types import counted

WARM = 8  # steps before the first that is traced: allocation, autotuning and graph capture lie behind it


class NoProfile:
    """Told of every step that was taken, and of the end; makes nothing of it, where no profile was asked for."""

    def __call__(self, step: int) -> None: ...
    def end(self, step: int) -> None: ...


@dataclass(frozen=True)
class Traced:
    """How many steps of a training each rank traces, and the folder for that; 0: none."""

    steps: int = 0
    folder: Path = Path()

    def of(
        self, stage: str, rank: int, device: torch.device, last: int | None, say: Callable[[str], None]
    ) -> NoProfile:
        """Traces to `folder/stage/rank-R.json`, or does nothing."""
        path = self.folder / stage / f"rank-{rank}.json"
        return _Tracing(self.steps, path, device, last, say) if self.steps else NoProfile()


UNTRACED = Traced()


class _Tracing(NoProfile):
    """Traces `count` steps after warm-up; fewer of warm-up where the training, of `last` steps, has none to spare."""

    def __init__(
        self, count: int, path: Path, device: torch.device, last: int | None, say: Callable[[str], None]
    ) -> None:
        self.path, self.say = path, say
        self.warm = WARM if last is None else max(1, min(WARM, last - count))
        self.stop = self.warm + count if last is None else min(self.warm + count, last)
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self.kinds = kinds
        self.taken = 0  # steps by this process
        self.tracer: Any = None

    def __call__(self, step: int) -> None:
        self.taken += 1
        if self.taken == self.warm:
            self.tracer = torch.profiler.profile(activities=self.kinds, record_shapes=True)
            self.tracer.start()
        elif self.tracer is not None and self.taken == self.stop:
            self._write(step)

    def end(self, step: int) -> None:
        """Write what there is of a trace that was cut short; say so where there is none."""
        if self.tracer is not None and self.taken > self.warm:
            self._write(step)
        elif self.taken <= self.warm:
            if self.tracer is not None:
                self.tracer.stop()
            self.tracer = None
            self.say(
                f"there is no profile in {self.path}: the stage ended after {counted(self.taken, 'step')}, which "
                f"warming up takes ({self.warm}); give it more steps or time."
            )

    def _write(self, step: int) -> None:
        self.tracer.stop()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.tracer.export_chrome_trace(str(self.path))
            self.say(f"profile of steps {step - self.taken + self.warm + 1} to {step} is in {self.path}.")
        except OSError as error:  # a full disk must not end a training
            self.say(f"the profile of steps up to {step} could not be written to {self.path}: {error}.")
        self.tracer = None
