"""The frames of one rollout as they are computed: each a packet, with the signs of its error."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ups.models.limits import departed_of, in_words
from ups.models.request import Answer, Request
from ups.models.simulator import Simulator
from ups.models.stepping import Stepping
from ups.models.trust import error_model, relative_spread, signs_of
from ups.progress import reporting
from ups.tensors import Window
from ups.types import Array, ConfigError
from ups_apps.serve.limits import OverdueError
from ups_apps.serve.packets import packed
from ups_apps.serve.questions import Asked

BAND = (0.05, 0.95)  # of the members of an ensemble lie within what is shown of them


@dataclass
class FrameStream:
    """The packets of one question. `stop` ends whatever is computed of it between two steps."""

    question: Asked
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Nobody listens any more."""
        self.stopped.set()

    def _tell(self, _: float) -> None:
        if self.stopped.is_set():
            raise OverdueError("nobody listens any more.")

    def packets(self) -> Iterator[bytes]:
        """First what is unlike training, then a packet for each frame, then for each what an ensemble says of it, and
        at last one with `done`."""
        request, simulator = self.question.request, self.question.held.simulator
        window = request.window
        if len(window) != 1 or request.points is not None or request.stop_at is not None:
            raise ConfigError("a stream is of one sample on a grid and to its end; ask for others by POST /v1/rollout.")
        yield packed({"step": 0, "remarks": list(self.question.arrays.remarks)})
        if window.task.steady:
            remarks = yield from self._whole(replace(request, ensemble=None), mean=True)
        else:
            remarks = yield from _stepped(simulator, window, request.steps, request.error)
        if request.ensemble is not None:
            remarks += yield from self._whole(replace(request, error=False), mean=False)
        left = next((r for r in remarks if isinstance(r, int)), None)
        yield packed({"done": True, "left": left, "remarks": [r for r in remarks if isinstance(r, str)]})

    def _whole(self, request: Request, mean: bool) -> Generator[bytes, None, list[str | int]]:
        """A whole answer: the frames themselves, or what its members say of them."""
        with reporting(self._tell):
            self._tell(0.0)
            answer: Answer = self.question.held.simulator.answer(request)
        members = answer.frames[:, 0]
        for i in range(members.shape[1]):
            about: dict[str, Any] = {"step": i + 1}
            if mean:
                about |= {} if answer.errors is None else {"error": _number(answer.errors[0, i])}
                yield packed(about, frame=_array(members[0, i]))
            else:
                low, high = torch.quantile(members[:, i].float(), torch.tensor(BAND).to(members), dim=0)
                spread = members[:, i].float().std(0, correction=0)
                wide = relative_spread(members[:, i : i + 1].transpose(0, 1)[0].unsqueeze(1), request.window.mask)
                about["wide"] = _number(wide[0])
                yield packed(about, low=_array(low), high=_array(high), spread=_array(spread))
        return list(answer.remarks)


def _stepped(simulator: Simulator, window: Window, steps: int, error: bool) -> Generator[bytes, None, list[str | int]]:
    """Packets of the frames of a rollout, and afterwards what there is to say of all of them."""
    model = error_model(simulator, window.task, window.grid.periodic) if error else None
    frames: list[Tensor] = []
    mask = None if window.mask is None else ~window.mask[0].unsqueeze(-1)
    for i, signs in enumerate(_frames(simulator, window, steps, error, frames)):
        about: dict[str, Any] = {"step": i + 1}
        laws = {name[4:]: _number(value[0]) for name, value in signs.items() if name.startswith("law ")}
        about |= {"laws": laws} if laws else {}
        about |= {"error": _number(model(signs)[0])} if model is not None else {}
        frame = frames[-1][0]
        yield packed(about, frame=_array(frame if mask is None else frame.masked_fill(mask, torch.nan)))
    left = departed_of(simulator, window, torch.stack(frames, 1).unsqueeze(0))
    words = in_words(left, 1, window.task)
    return [*([words] if words else []), *([left[0].step] if left else [])]


def _frames(
    simulator: Simulator, window: Window, steps: int, error: bool, frames: list[Tensor]
) -> Iterator[Mapping[str, Tensor]]:
    """The signs after each step of a rollout without draws, whose frames are added to `frames`. Where a part draws and
    nobody asks for the error, there are none: they would need an ensemble."""
    if error or not any(part.draws for part in simulator.awake(window.task)):
        made: Iterator[Mapping[str, Tensor]] = signs_of(simulator, window, steps, frames=frames)
    else:
        made = _plain(simulator, window, steps, frames)
    while True:
        with torch.no_grad():  # not around a yield, where it would hold for whoever comes next in this thread
            signs = next(made, None)
        if signs is None:
            return
        yield signs


def _plain(simulator: Simulator, window: Window, steps: int, frames: list[Tensor]) -> Iterator[Mapping[str, Tensor]]:
    stepping = Stepping(simulator, window)
    z = stepping.start()
    for i in range(steps):
        z, frame = stepping.step(z, i)
        frames.append(frame)
        yield {}


def _number(value: Tensor) -> float | None:
    """A number for JSON, which knows none that is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy()
    return array
