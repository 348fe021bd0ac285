"""`tensorboard`: event files in `tensorboard/<stage>`, for `tensorboard --logdir <run>/tensorboard`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ups.tracking.tracker import WHOLE_RUN, Tracker, Values, by_stage, to_stderr
from ups.types import ConfigError

INSTALL = "pip install 'universal-physics-stack[tensorboard]'"


class TensorBoard(Tracker):
    """Numbers become scalars and words become texts, a run of TensorBoard for each stage.

    Each process adds files of its own; of a step that a resumed run takes again, TensorBoard shows the later one.
    """

    place = "tensorboard"
    refusals = (OSError, ValueError, RuntimeError, ImportError)

    def __init__(self, folder: Path, say: Callable[[str], None] = to_stderr) -> None:
        super().__init__(folder, say)
        self.writers: dict[str, Any] = {}
        self.step = 0

    @classmethod
    def require(cls) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(f"the tracker tensorboard needs a package that is not installed: {INSTALL}.")

    def write(self, step: int, values: Values) -> None:
        self.step = step
        for stage, named in by_stage(values).items():
            writer = self.writers.pop(stage, None) or self._opened(stage, step)
            for name, value in named.items():
                add = writer.add_text if isinstance(value, str) else writer.add_scalar
                add(name, value, step)
            writer.flush()
            self.writers[stage] = writer  # one that failed is not used again: its thread is dead

    def finish(self, ending: str) -> None:
        self.write(self.step, {"ending": ending})
        while self.writers:
            self.writers.popitem()[1].close()

    def _opened(self, stage: str, step: int) -> Any:
        """A writer of new files; what earlier files hold of this stage from `step` on is no longer shown."""
        folder = self.path if stage == WHOLE_RUN else self.path / stage
        library = importlib.import_module("torch.utils.tensorboard")
        return library.SummaryWriter(str(folder), purge_step=step, max_queue=1000, flush_secs=60)
