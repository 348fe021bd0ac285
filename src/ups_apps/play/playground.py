"""What `ups play` adds to a service: the page, its card, states to begin with, and the truth."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, WebSocket
from fastapi.responses import HTMLResponse, Response

from ups_apps.page.page import rendered
from ups_apps.play.starts import Beginning, UnseenSamples, drawn, has_equation
from ups_apps.play.truth import Truth
from ups_apps.serve.packets import ENDING, packed
from ups_apps.serve.questions import ARRAYS, asked, question_of
from ups_apps.serve.service import Service, app_of, json_of, refusing
from ups_apps.serve.shelf import about

POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Word = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=0, le=2**31)]


class Playground:
    """The page of a service."""

    def __init__(self, service: Service, stack: ExitStack, say: Any) -> None:
        self.service = service
        held = service.shelf.simulators
        self.samples = {name: UnseenSamples(one, stack, say) for name, one in held.items()}

    @property
    def title(self) -> str:
        """The names of its simulators."""
        return ", ".join(self.service.shelf.simulators)

    def app(self) -> FastAPI:
        """The app of the service and of the page."""
        app = app_of(self.service, "ups play")
        for path, handler in (
            ("/", self.page),
            ("/card", self.card),
            ("/example", self.example),
            ("/random", self.random),
        ):
            app.add_api_route(path, handler, methods=["GET"], include_in_schema=False)
        app.add_api_websocket_route("/truth", self.truth)
        return app

    async def page(self) -> Response:
        """The page itself."""
        nonce = secrets.token_urlsafe(16)
        headers = {
            "Content-Security-Policy": POLICY.format(nonce),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        return HTMLResponse(rendered(self.title, nonce=nonce), headers=headers)

    async def card(self) -> Response:
        """What the page is told of the simulators."""
        cards = self.service.shelf.cards()
        for card in cards:
            held = self.service.shelf.simulators[card["simulator"]]
            known = has_equation(held.simulator.codec.task(card["name"]))
            card |= {"random": known, "truth": known, "examples": self.samples[held.name].count(card["name"])}
            card["most"] = min(card["most"], self.service.limits.steps)
        simulators = [*self.service.shelf.simulators.values()]
        return json_of({"name": self.title, "about": about(simulators), "tasks": cards})

    async def example(self, task: Word, index: Number, simulator: Word = "") -> Response:
        """The first frames of an unseen sample."""
        held = partial(self.service.shelf.simulator, simulator or None, task)
        return await self._start(lambda: self.samples[held().name][task, index])

    async def random(self, task: Word, seed: Number, simulator: Word = "") -> Response:
        """A random draw of the equation."""
        return await self._start(lambda: drawn(self.service.shelf.simulator(simulator or None, task), task, seed))

    async def _start(self, make: Any) -> Response:
        async def answer() -> Response:
            start: Beginning = await asyncio.get_running_loop().run_in_executor(None, make)
            there = start.inputs if start.state is None else start.state[0]
            frames = 1 if start.state is None else len(start.state)
            shape = [] if there is None else list(there.shape[:-1])
            values = {"params": start.params, "dt": start.dt, "shape": shape, "frames": frames}
            return Response(packed(values, state=start.state, inputs=start.inputs), media_type=ENDING)

        return await refusing(answer)

    async def truth(self, socket: WebSocket) -> None:
        """The same question as to a stream, solved."""

        async def packets(values: dict[str, Any], arrays: Mapping[str, Any]) -> Any:
            arrays = {name: array for name, array in arrays.items() if name in ARRAYS}
            question = question_of({**values, "error": False, "ensemble": None})
            loop = asyncio.get_running_loop()
            put = await loop.run_in_executor(None, asked, self.service.shelf, self.service.limits, question, arrays)
            solved = Truth(put, dict(question.params or {}))
            return solved.packets, solved.stop

        await self.service.streaming(socket, packets, self.service.computing.solutions)
