"""What a request asks, from its JSON, its .npz file or its packet to a `Request` of a simulator, and back."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ups.models.questions import UserArrays, to_continue, to_solve
from ups.models.request import Answer, Request
from ups.types import Array, ConfigError, data_size
from ups_apps.serve.limits import ServiceLimits
from ups_apps.serve.shelf import Shelf, Shelved

NPZ, JSON = "application/x-npz", "application/json"
ARRAYS = ("u0", "inputs", "points")
MOST_JSON = 4_000_000  # numbers of an answer in JSON

Numbers = list[Any]


class RolloutQuestion(BaseModel):
    """A state to be continued, or what drives a steady task to be solved: as `sim.rollout` and `sim.solve` take it."""

    model_config = ConfigDict(extra="forbid")

    task: str | None = Field(None, description="which task, where several are known")
    simulator: str | None = Field(None, description="which simulator, where several know the task")
    u0: Numbers | None = Field(
        None, description="the state, (*S, C), (B, *S, C) or (B, K, *S, C); one channel may be left out"
    )
    inputs: Numbers | None = Field(None, description="what drives the task, (*S, C_in) or (B, *S, C_in)")
    steps: int = Field(1, ge=1, description="how many frames follow")
    params: dict[str, float | str | list[float]] | None = Field(None, description="parameters by name")
    dt: float | list[float] | None = Field(None, description="the time of a step, or of each")
    periodic: list[bool] | list[str] | None = Field(None, description="the axes that wrap")
    points: Numbers | None = Field(None, description="places (P, n) to be answered there instead of on the grid")
    ensemble: int | None = Field(None, ge=1, description="so many draws")
    seed: int = Field(0, ge=0, description="the same seed, the same draws")
    error: bool = Field(False, description="also estimate the relative error of each frame")
    stop_at: float | None = Field(None, description="the estimated error from which on frames are left out")


class RolloutAnswer(BaseModel):
    """Frames in physical units, and what there is to say of them. What is no number is null."""

    task: str
    simulator: str
    channels: list[str]
    times: list[float] = Field(description="of the frames, after the state")
    frames: Numbers = Field(
        description="as the state came, with an axis of steps (none of a steady task); members first"
    )
    errors: Numbers | None = Field(None, description="estimated relative errors, a number a step")
    left_range_at: list[int | None] = Field(description="of each sample, the step at which it leaves what training saw")
    remarks: list[str] = Field(description="sentences that sim.rollout would warn of")


@dataclass(frozen=True)
class Asked:
    """A question to one simulator: the arrays as they came, and the request that follows from them."""

    held: Shelved
    arrays: UserArrays
    request: Request
    points: Any

    @property
    def samples(self) -> int:
        """How many rollouts there are, members of an ensemble apart."""
        return len(self.request.window)

    def given_back(self, answer: Answer) -> dict[str, Any]:
        """What is answered, in arrays and plain values."""
        frames = np.asarray(self.arrays.given_back(answer.frames, self.points, self.request.ensemble))
        errors = None if answer.errors is None else self.arrays.kind.per_step(answer.errors, self.arrays.times)
        task = self.request.window.task
        return {
            "task": task.name,
            "simulator": self.held.name,
            "channels": list(task.channels),
            "times": np.asarray(self.arrays.times, float),
            "frames": frames,
            "errors": None if errors is None else np.asarray(errors),
            "left_range_at": answer.left_range_at,
            "remarks": [*self.arrays.remarks, *answer.remarks],
        }


def question_of(values: Mapping[str, Any]) -> RolloutQuestion:
    """What is asked, from plain values; a ConfigError that names the first that is wrong."""
    try:
        return RolloutQuestion.model_validate(values)
    except ValidationError as error:
        raise _refused(error) from None


def from_json(body: bytes) -> tuple[RolloutQuestion, dict[str, Any]]:
    """The question of a body of JSON, and its arrays as lists."""
    try:
        question = RolloutQuestion.model_validate_json(body)
    except ValidationError as error:
        raise _refused(error) from None
    lists = {name: getattr(question, name) for name in ARRAYS}
    return question, {name: _array(name, values) for name, values in lists.items() if values is not None}


def _array(name: str, values: Numbers) -> Array:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise ValueError(array.dtype)
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} is no array of numbers: give lists of equal length, in one another.") from None
    return array.astype(np.float32 if array.dtype.kind != "f" else array.dtype)


def _refused(error: ValidationError) -> ConfigError:
    """The first of what a model complains of, as a sentence."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(word)[:40] for word in first["loc"])
    return ConfigError(f"{place or 'the body'}: {first['msg'][:200]}; see /docs or /openapi.json.")


def from_npz(body: bytes, limits: ServiceLimits) -> tuple[RolloutQuestion, dict[str, Any]]:
    """The question of an .npz file: arrays by their names, all else as JSON in an array of text named `question`."""
    arrays, about = {}, "{}"
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as files:
            left = limits.body
            for name in files.namelist():
                with files.open(name) as file:
                    data = file.read(left + 1)
                left -= len(data)
                if left < 0:
                    raise ConfigError(f"the file unpacks to more than {data_size(limits.body)}; send less.")
                values = _npy(data)
                if name == "question.npy":
                    about = str(values)
                else:
                    arrays[name.removesuffix(".npy")] = values
    except (
        zipfile.BadZipFile,
        ValueError,
        KeyError,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
    ):
        raise ConfigError("the body is no .npz file of arrays of numbers; write it with numpy.savez.") from None
    if unknown := sorted(set(arrays) - set(ARRAYS)):
        raise ConfigError(f"the file has an array '{unknown[0][:40]}'; those that may be are {', '.join(ARRAYS)}.")
    try:
        plain = json.loads(about)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise ConfigError("the array `question` of the file is no JSON object; write it with json.dumps.")
    return question_of(plain), arrays


def _npy(data: bytes) -> Array:
    """The array of an .npy file; a ValueError where it is none, or does not hold what it says."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    count = math.prod(shape)
    if dtype.hasobject or dtype.kind not in "fiubU" or min(shape, default=0) < 0 or dtype.itemsize < 1:
        raise ValueError(dtype)
    if len(data) - file.tell() < count * dtype.itemsize:
        raise ValueError("cut short")
    flat: Array = np.frombuffer(data, dtype, count, file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def asked(shelf: Shelf, limits: ServiceLimits, question: RolloutQuestion, arrays: Mapping[str, Any]) -> Asked:
    """A question with its arrays, put to the simulator that is meant; a ConfigError where it has no answer."""
    held = shelf.simulator(question.simulator, question.task)
    known = held.simulator.codec.tasks
    name = question.task or (next(iter(known)) if len(known) == 1 else None)
    steady = name in known and known[name].steady
    if "u0" not in arrays and not steady:
        raise ConfigError("u0 is missing: the state to be continued.")
    if "inputs" not in arrays and steady:
        raise ConfigError("inputs is missing: what drives the task, which is steady.")
    members, points = question.ensemble or 1, arrays.get("points")
    first = arrays["inputs" if steady else "u0"]
    limits.check_size(name or "the task", question.steps, 1, members)
    driven = (question.params, question.task)
    if steady:
        given = to_solve(held.simulator, first, *driven, question.periodic)
    else:
        driving = (question.dt, question.task, question.periodic, arrays.get("inputs"))
        given = to_continue(held.simulator, first, question.steps, question.params, *driving)
    places = given.places(points)
    window = given.window
    cells = window.context[:, 0, ..., 0].numel() if places is None else len(places) * len(window)
    limits.check_size(window.task.name, given.steps, cells * len(window.task.channels), members)
    ask = (question.ensemble, question.seed, None, question.error, question.stop_at)
    return Asked(held, given, Request(window, given.steps, places, *ask), points)


def as_json(values: Mapping[str, Any]) -> bytes:
    """An answer as JSON: what is not finite is null."""
    size = sum(array.size for array in values.values() if isinstance(array, np.ndarray))
    if size > MOST_JSON:
        raise ConfigError(
            f"an answer of {size} numbers is too large for JSON; send Accept: {NPZ}, or ask for fewer steps."
        )
    plain = {name: _plain(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return json.dumps(plain, allow_nan=False).encode()


def _plain(array: Array) -> Any:
    return (
        array.tolist()
        if np.isfinite(array).all()
        else np.where(np.isfinite(array), array.astype(object), np.array(None)).tolist()
    )


def as_npz(values: Mapping[str, Any]) -> bytes:
    """An answer as an .npz file: arrays by name, and all else as JSON in `about`."""
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    about = {name: value for name, value in values.items() if name not in arrays}
    file = io.BytesIO()
    np.savez(file, **{"about": np.array(json.dumps(about)), **arrays})  # type: ignore[arg-type]
    return file.getvalue()
