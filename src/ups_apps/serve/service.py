"""The service: what stands at which address, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from ups.types import UpsError, data_size
from ups.version import __version__
from ups_apps.serve.computing import Computing, status_of
from ups_apps.serve.guard import SUBPROTOCOL
from ups_apps.serve.limits import BusyError, ServiceLimits
from ups_apps.serve.meters import Meters
from ups_apps.serve.packets import packed, unpacked
from ups_apps.serve.questions import (
    ARRAYS,
    JSON,
    NPZ,
    RolloutAnswer,
    RolloutQuestion,
    as_json,
    as_npz,
    asked,
    from_json,
    from_npz,
    question_of,
)
from ups_apps.serve.shelf import Shelf, warm
from ups_apps.serve.streaming import FrameStream

REFUSALS = {
    401: "The token is missing or wrong",
    403: "A page of another origin asks",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is neither JSON nor .npz",
    421: "Another name than one of this machine",
    422: "What is asked for has no answer; the sentence says what to do",
    429: "Too many wait; come again after a second",
    503: "The machine has not the memory, or the service ends",
    504: "It takes longer than the service gives",
}
MOST_TEXT = 8 << 20  # bytes of a body of JSON, which takes several times as much in memory
BODIES = 4  # times the largest body that all bodies together may be
ERRORS = (UpsError, MemoryError, torch.OutOfMemoryError)


class Refusal(BaseModel):
    """Why there is no answer, in one sentence."""

    error: str


class RefusalError(Exception):
    """An answer that is a refusal, with its status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class Service:
    """What the handlers of a service share."""

    shelf: Shelf
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    meters: Meters = field(default_factory=Meters)

    def __post_init__(self) -> None:
        self.computing = Computing(self.limits, self.meters)
        self.arriving = 0  # bytes of the bodies of all requests that are not answered yet

    async def tasks(self) -> Response:
        """Each task that can be asked for, with its grid, its fields and the ranges of its training."""
        return json_of({"tasks": self.shelf.cards()})

    async def health(self) -> Response:
        """That the service is there, and what it holds."""
        return json_of({"status": "ok", "version": __version__, "simulators": len(self.shelf.simulators)})

    async def metrics(self) -> Response:
        """Numbers of this service for Prometheus."""
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")

    async def rollout(self, request: Request) -> Response:
        """Continue a state, or solve a steady task: what `sim.rollout` and `sim.solve` answer.

        JSON in the body, or an .npz file with the arrays u0, inputs and points, and all else as JSON in an array of
        text named `question`. With `Accept: application/x-npz` the answer is an .npz file too.
        """

        sizes: list[int] = []

        async def answered() -> Response:
            question, arrays = await self._read(request, sizes)
            loop = asyncio.get_running_loop()
            put = await loop.run_in_executor(None, asked, self.shelf, self.limits, question, arrays)
            answer = await self.computing.answer(put, request.is_disconnected)
            packing = NPZ in request.headers.get("accept", "")
            write = as_npz if packing else as_json
            body = await loop.run_in_executor(None, lambda: write(put.given_back(answer)))
            return Response(body, media_type=NPZ if packing else JSON)

        try:
            return await refusing(answered)
        finally:
            self.arriving -= sum(sizes)

    async def _read(self, request: Request, sizes: list[int]) -> tuple[RolloutQuestion, Mapping[str, Any]]:
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, NPZ):
            raise RefusalError(415, f"the body is {kind[:60]}, but must be {JSON} or {NPZ}.")
        body = await self._body(request, min(self.limits.body, MOST_TEXT if kind == JSON else self.limits.body), sizes)
        loop = asyncio.get_running_loop()
        if kind == JSON:
            return await loop.run_in_executor(None, from_json, body)
        return await loop.run_in_executor(None, from_npz, body, self.limits)

    async def _body(self, request: Request, most: int, sizes: list[int]) -> bytes:
        """The body of a request, as long as it is not too large and comes in time; `sizes` are those of its pieces.

        One that is too large is read to its end, or four times as far, for who still sends does not listen.
        """
        pieces, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self.limits.arrival):
                async for piece in request.stream():
                    size += len(piece)
                    if size > 4 * most:
                        break
                    if size <= most and self.arriving <= BODIES * self.limits.body:
                        pieces.append(piece)
                        sizes.append(len(piece))
                        self.arriving += len(piece)
        except TimeoutError:
            raise RefusalError(408, f"the body did not come within {self.limits.arrival:g} s; send it again.") from None
        except ClientDisconnect:
            raise RefusalError(408, "the connection closed before the body had come.") from None
        if size > most:
            hint = f"send less, or {NPZ}." if most < self.limits.body else "send less."
            raise RefusalError(413, f"the body is larger than {data_size(most)}; {hint}")
        if size > sum(map(len, pieces)):
            raise BusyError("too many large requests come at once; come again in a second.")
        return b"".join(pieces)

    async def stream(self, socket: WebSocket) -> None:
        """Frames as they are computed: a packet with the question and its arrays in, packets with frames out."""

        async def packets(about: dict[str, Any], arrays: Mapping[str, Any]) -> Any:
            arrays = {name: values for name, values in arrays.items() if name in ARRAYS}
            put = await asyncio.get_running_loop().run_in_executor(
                None, asked, self.shelf, self.limits, question_of(about), arrays
            )
            running = FrameStream(put)
            self.meters.add("ups_frames_total", put.request.steps)
            return running.packets, running.stop

        await self.streaming(socket, packets)

    async def streaming(
        self, socket: WebSocket, begin: Callable[..., Awaitable[Any]], threads: ThreadPoolExecutor | None = None
    ) -> None:
        """Send what `begin(about, arrays)` of the first message makes: packets, and how they are stopped."""
        offered = socket.headers.get("sec-websocket-protocol", "").split(",")
        own = [word for each in offered if (word := each.strip()) and not word.startswith(SUBPROTOCOL)]
        await socket.accept(own[0] if own else None)
        stop, closed = _nothing, asyncio.create_task(_nothing_yet())
        try:
            async with asyncio.timeout(self.limits.arrival):
                message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            closed = asyncio.create_task(_until_closed(socket))
            about, arrays = unpacked(message.get("bytes") or (message.get("text") or "").encode())
            make, stop = await begin(about, arrays)
            async with aclosing(self.computing.each(make, threads)) as packets:
                async for packet in packets:
                    if closed.done() or not await _sent(socket, packet):
                        return
        except ERRORS as error:
            await _sent(socket, packed({"problem": sentence_of(error), "status": status_of(error)}))
        except TimeoutError:
            await _sent(socket, packed({"problem": "no question came.", "status": 408}))
        finally:
            stop()
            closed.cancel()
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close()


def _nothing() -> None:
    """What stops a stream that has not begun."""


async def _nothing_yet() -> None:
    """Waits for nothing."""


async def _sent(socket: WebSocket, packet: bytes) -> bool:
    """Whether a packet could be sent: the other side may be gone."""
    try:
        await socket.send_bytes(packet)
    except (RuntimeError, WebSocketDisconnect):
        return False
    return True


async def _until_closed(socket: WebSocket) -> None:
    """Waits for the end of a connection; what else comes is thrown away."""
    with suppress(RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


def sentence_of(error: BaseException) -> str:
    """What is said of an error."""
    if isinstance(error, UpsError):
        return str(error)
    return "the memory of this machine does not suffice; ask for fewer steps, samples or members, or come again later."


async def refusing(answer: Callable[[], Awaitable[Response]]) -> Response:
    """An answer, or the refusal that stands for an error of the one who asks."""
    try:
        return await answer()
    except RefusalError as refused:
        return json_of({"error": str(refused)}, refused.status)
    except ERRORS as error:
        status = status_of(error)
        return json_of({"error": sentence_of(error)}, status, {"Retry-After": "1"} if status == 429 else None)


def json_of(values: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of JSON."""
    return Response(json.dumps(values, allow_nan=False), status, dict(headers or {}), JSON)


def app_of(service: Service, title: str = "ups serve") -> FastAPI:
    """The app of a service."""

    @asynccontextmanager
    async def life(_: FastAPI) -> Any:
        for held in service.shelf.simulators.values():
            service.computing.frames.submit(warm, held)
        yield
        service.computing.close()

    around: Callable[[FastAPI], AbstractAsyncContextManager[None]] = life
    app = FastAPI(title=title, version=__version__, lifespan=around, docs_url=None, redoc_url=None)
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": Refusal, "description": words} for status, words in REFUSALS.items()
    }
    few = {status: refusals[status] for status in (401, 403, 421)}
    app.add_api_route("/v1/tasks", service.tasks, methods=["GET"], responses=few)
    app.add_api_route("/health", service.health, methods=["GET"], responses={k: few[k] for k in (403, 421)})
    app.add_api_route("/metrics", service.metrics, methods=["GET"], responses=few, response_class=PlainTextResponse)
    body = {
        "required": True,
        "content": {JSON: {"schema": RolloutQuestion.model_json_schema()}},
    }
    app.add_api_route(
        "/v1/rollout",
        service.rollout,
        methods=["POST"],
        responses={200: {"model": RolloutAnswer}, **refusals},
        openapi_extra={"requestBody": body},
    )
    app.add_api_websocket_route("/v1/stream", service.stream)
    return app
