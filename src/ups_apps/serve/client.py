"""A client of a service: asks for rollouts in numpy arrays; needs numpy and nothing else of this package."""

from __future__ import annotations

import contextlib
import io
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ServiceError(RuntimeError):
    """A service refused; the text is its sentence, `status` the number of the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class RemoteSimulator:
    """`RemoteSimulator("http://127.0.0.1:8000").rollout(u0, steps=100, params={"nu": 0.01})`.

    Args:
        address: Of the service.
        token: What it wants to be sent beyond its own machine.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, address: str, token: str | None = None, timeout: float = 120.0) -> None:
        self.address, self.token, self.timeout = address.rstrip("/"), token, timeout
        self.remarks: list[str] = []  # of the last answer

    def tasks(self) -> list[dict[str, Any]]:
        """What can be asked for."""
        tasks: list[dict[str, Any]] = json.loads(self._ask("/v1/tasks"))["tasks"]
        return tasks

    def rollout(self, u0: Any, steps: int = 1, **question: Any) -> NDArray[Any]:
        """The frames after a state; `question` is what `sim.rollout` takes: params, dt, task, inputs, ensemble."""
        frames: NDArray[Any] = self.answer(u0=u0, steps=steps, **question)["frames"]
        return frames

    def solve(self, inputs: Any, **question: Any) -> NDArray[Any]:
        """The solution of a steady task."""
        frames: NDArray[Any] = self.answer(inputs=inputs, **question)["frames"]
        return frames

    def answer(self, **question: Any) -> dict[str, Any]:
        """All that is answered: frames, times, errors where they were asked for, and remarks, by name."""
        arrays = {
            name: np.asarray(question.pop(name))
            for name in ("u0", "inputs", "points")
            if question.get(name) is not None
        }
        file = io.BytesIO()
        np.savez(file, **{"question": np.array(json.dumps(question)), **arrays})  # type: ignore[arg-type]
        with np.load(io.BytesIO(self._ask("/v1/rollout", file.getvalue())), allow_pickle=False) as answer:
            values: dict[str, Any] = {name: answer[name] for name in answer.files}
        values |= json.loads(str(values.pop("about")))
        self.remarks = values["remarks"]
        return values

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.address}{path}", body)
        request.add_header("Accept", "application/x-npz, application/json")
        if body is not None:
            request.add_header("Content-Type", "application/x-npz")
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                text, status, sentence = error.read(), error.code, str(error.reason)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            sentence = str(json.loads(text)["error"])
        raise ServiceError(status, sentence)
