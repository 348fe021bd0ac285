"""Where a service computes: a thread for whole rollouts, batched across requests, and one for frames of streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from ups.models.ensembles import ROWS
from ups.models.request import Answer
from ups.progress import reporting
from ups.tensors import Window
from ups.types import ConfigError, UpsError
from ups_apps.serve.limits import BusyError, OverdueError, ServiceLimits
from ups_apps.serve.meters import Meters
from ups_apps.serve.questions import Asked

Given = TypeVar("Given")
NUMBERS = 2**24  # of the frames of a batch, so that nobody waits long for the others in it


@dataclass(eq=False)
class Job:
    """A request that waits for its answer; `gone` where nobody does any more."""

    question: Asked
    future: asyncio.Future[Answer]
    deadline: float
    gone: bool = False
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        request = self.question.request
        # Draws are numbered by their place in a batch, so what draws is computed by itself.
        alone = request.ensemble is not None or request.error or request.stop_at is not None
        places = request.points is not None
        self.key = id(self) if alone or places else (self.question.held.name, request.window.task.name, request.steps)
        self.key = (self.key, request.window.kind, request.window.inputs.shape[1:])

    @property
    def over(self) -> bool:
        """Whether there is no point in going on."""
        return self.gone or time.monotonic() > self.deadline


class Computing:
    """The threads of a service. All that waits stands in one row; what can be computed together is."""

    def __init__(self, limits: ServiceLimits, meters: Meters) -> None:
        self.limits, self.meters, self.closing = limits, meters, False
        names = ("rollouts", "frames", "solutions")
        threads = (ThreadPoolExecutor(1, thread_name_prefix=f"ups-{name}") for name in names)
        self.rollouts, self.frames, self.solutions = threads
        self.row: list[Job] = []
        self.running: set[asyncio.Task[None]] = set()
        self.streams = 0

    def close(self) -> None:
        """Stop between two steps of whatever is computed."""
        self.closing = True
        for threads in (self.rollouts, self.frames, self.solutions):
            threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, question: Asked, is_gone: Callable[[], Any]) -> Answer:
        """The answer to a question; BusyError where too many wait, OverdueError where it takes too long."""
        if self.closing:
            raise BusyError("the service ends.")
        if len(self.row) >= self.limits.waiting:
            raise BusyError(f"{len(self.row)} requests are waiting; come again in a second.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        job = Job(question, future, time.monotonic() + self.limits.seconds)
        self.row.append(job)
        self.meters.add("ups_waiting")
        if not self.running:
            task = asyncio.create_task(self._work())
            self.running.add(task)
            task.add_done_callback(self.running.discard)
        try:
            while not future.done():
                await asyncio.wait({future}, timeout=0.5)
                if not future.done() and await is_gone():
                    raise OverdueError("nobody waits for the answer any more.")
            return future.result()
        finally:
            job.gone = True
            if job in self.row:
                self.row.remove(job)
            self.meters.add("ups_waiting", -1)

    async def _work(self) -> None:
        """Answer all that waits, batch after batch."""
        loop = asyncio.get_running_loop()
        while self.row:
            jobs = self._together()
            outcome = loop.run_in_executor(self.rollouts, self._answers, jobs)
            (answers,) = await asyncio.gather(outcome, return_exceptions=True)
            if isinstance(answers, UpsError | MemoryError | torch.OutOfMemoryError) and len(jobs) > 1:
                self.row[:0] = [job for job in jobs if not job.over]  # what is wrong with one is not with the others
                for job in jobs:
                    job.key = (id(job), job.key)
                answers = OverdueError("it took too long.")
                jobs = [job for job in jobs if job.over]
            for i, job in enumerate(jobs):
                if not job.future.done():
                    if isinstance(answers, BaseException):
                        job.future.set_exception(answers)
                    else:
                        job.future.set_result(answers[i])

    def _together(self) -> list[Job]:
        """The first that waits, and those after it that are of its kind; they are taken out of the row."""
        first, samples = self.row[0], 0
        jobs: list[Job] = []
        each = first.question.request.window.context[0, 0].numel() * first.question.request.steps
        most = max(1, min(self.limits.batch, ROWS, NUMBERS // each))
        for job in list(self.row):
            if job.key == first.key and (not jobs or samples + job.question.samples <= most):
                jobs.append(job)
                samples += job.question.samples
                self.row.remove(job)
        return jobs

    def _answers(self, jobs: Sequence[Job]) -> list[Answer]:
        """The answers to questions of one kind, computed as one."""

        def tell(_: float) -> None:
            if self.closing or all(job.over for job in jobs):
                raise OverdueError(
                    f"the answer takes longer than the {self.limits.seconds:g} s that this service gives to one; ask "
                    "for fewer steps, samples or members."
                )

        first = jobs[0].question
        with reporting(tell):
            tell(0.0)
            window = Window.join([job.question.request.window for job in jobs])
            answer = first.held.simulator.answer(replace(first.request, window=window))
        self.meters.add("ups_batches_total")
        self.meters.add("ups_batched_requests_total", len(jobs))
        self.meters.add("ups_frames_total", len(window) * first.request.steps * (first.request.ensemble or 1))
        answers, begin = list[Answer](), 0
        for job in jobs:
            rows = answer if len(jobs) == 1 else answer.rows(begin, begin + job.question.samples, window.task)
            answers.append(rows)
            begin += job.question.samples
        return answers

    async def each(self, make: Callable[[], Iterator[Given]], threads: ThreadPoolExecutor | None = None) -> Any:
        """What an iterator gives, one after the other, each computed in the thread of frames or another: those of
        several streams in turn."""
        if self.streams >= self.limits.streams:
            raise BusyError(f"{self.streams} streams are open; come again when one has ended.")
        loop, nothing = asyncio.get_running_loop(), object()
        self.streams += 1
        self.meters.add("ups_streams")
        try:
            values = await loop.run_in_executor(threads or self.frames, make)
            while True:
                waiting = loop.run_in_executor(threads or self.frames, partial(next, values, nothing))
                try:
                    value = await asyncio.wait_for(waiting, self.limits.seconds)
                except TimeoutError:
                    raise OverdueError(f"a frame takes longer than {self.limits.seconds:g} s.") from None
                if value is nothing:
                    return
                yield value
        finally:
            self.streams -= 1
            self.meters.add("ups_streams", -1)


def status_of(error: BaseException) -> int:
    """The status of an answer that is an error's sentence."""
    kinds: tuple[tuple[type[BaseException], int], ...] = (
        (BusyError, 429),
        (OverdueError, 504),
        (ConfigError, 422),
        (UpsError, 422),
    )
    return next((status for kind, status in kinds if isinstance(error, kind)), 503)
