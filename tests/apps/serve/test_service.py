"""A service answers what sim.rollout answers, whoever asks beside it, and refuses the rest in one sentence."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from small_service import listening, saved, simulator

from ups.models import Simulator
from ups_apps.serve import RemoteSimulator, ServiceError
from ups_apps.serve.limits import ServiceLimits
from ups_apps.serve.packets import packed, unpacked
from ups_apps.serve.service import Service, app_of
from ups_apps.serve.shelf import Shelf, Shelved

LIMITS = ServiceLimits(body=1 << 20, steps=200, members=4, answer=1 << 20, seconds=20, waiting=4, arrival=2.0)
NU = {"nu": 0.01}


class Running(NamedTuple):
    address: str
    service: Service
    simulator: Simulator
    drawing: Simulator

    @property
    def client(self) -> RemoteSimulator:
        return RemoteSimulator(self.address)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    plain, drawing = simulator("burgers1d", "reacdiff2d", "darcy2d"), simulator("burgers1d", draws=True, seed=1)
    shelf = Shelf([])
    for name, one in (("plain", plain), ("drawing", drawing)):
        shelf.simulators[name] = Shelved(name, tmp_path_factory.mktemp(name), one)
    service = Service(shelf, LIMITS)
    with listening(app_of(service), service) as address:
        yield Running(address, service, plain, drawing)


def state(samples: int = 0, seed: int = 0) -> Any:
    shape = (samples, 32, 1) if samples else (32, 1)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def post(address: str, body: bytes, kind: str = "application/json", **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{address}/v1/rollout", body, {"Content-Type": kind, **headers})
    try:
        with urllib.request.urlopen(request, timeout=200) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def asked(address: str, **question: Any) -> tuple[int, dict[str, Any]]:
    return post(address, json.dumps({"task": "burgers1d", "simulator": "plain", "params": NU, **question}).encode())


def test_an_answer_is_that_of_sim_rollout_to_the_bit(running: Running) -> None:
    u0, client = state(2), running.client
    frames = client.rollout(u0, 5, task="burgers1d", simulator="plain", params=NU)
    assert np.array_equal(frames, running.simulator.rollout(u0, 5, NU, task="burgers1d"))
    answer = client.answer(u0=u0, steps=3, task="burgers1d", simulator="plain", params=NU, error=True)
    frames, errors = running.simulator.rollout(u0, 3, NU, task="burgers1d", error=True)
    assert np.array_equal(answer["frames"], frames)
    assert np.array_equal(answer["errors"], errors)
    assert np.allclose(answer["times"], 0.01 * np.arange(1, 4))
    members = client.rollout(u0, 2, task="burgers1d", simulator="drawing", params=NU, ensemble=3, seed=5)
    assert np.array_equal(members, running.drawing.rollout(u0, 2, NU, ensemble=3, seed=5))
    medium = np.random.default_rng(1).random((16, 16)).astype(np.float32)
    solved = client.solve(medium, task="darcy2d", params={"beta": 0.01})
    assert np.array_equal(solved, running.simulator.solve(medium, {"beta": 0.01}, "darcy2d"))


def test_json_and_npz_say_the_same(running: Running) -> None:
    u0 = state()
    status, answer = asked(running.address, u0=u0.tolist(), steps=4)
    assert status == 200
    assert np.array_equal(
        np.float32(answer["frames"]), running.client.rollout(u0, 4, task="burgers1d", simulator="plain", params=NU)
    )


def test_what_sim_rollout_would_warn_of_is_remarked_on(running: Running) -> None:
    _, answer = asked(running.address, u0=state().tolist(), params={"nu": 7.0})
    assert any("outside the trained range" in sentence for sentence in answer["remarks"])


def connected(running: Running) -> Any:
    client = pytest.importorskip("websockets.sync.client")
    return client.connect(running.address.replace("http", "ws") + "/v1/stream", max_size=None)


def streamed(running: Running, u0: Any, **question: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    with connected(running) as channel:
        channel.send(packed({"task": "burgers1d", "params": NU, **question}, u0=u0))
        pairs = [unpacked(message) for message in channel]
    return [about for about, _ in pairs], [arrays for _, arrays in pairs]


def test_a_stream_gives_the_frames_of_sim_rollout_to_the_bit_with_the_signs_of_its_error(running: Running) -> None:
    u0 = state()
    abouts, arrays = streamed(running, u0, simulator="plain", steps=6, error=True)
    frames = np.stack([each["frame"] for each in arrays if "frame" in each])
    expected, errors = running.simulator.rollout(u0, 6, NU, task="burgers1d", error=True)
    assert np.array_equal(frames, expected)
    assert [about["error"] for about in abouts if about.get("step")] == errors.tolist()
    assert {"mass", "range of u"} <= set(abouts[1]["laws"])
    assert abouts[-1]["done"] is True


def test_a_stream_of_an_ensemble_ends_with_the_band_of_its_members(running: Running) -> None:
    u0 = state()
    _, arrays = streamed(running, u0, simulator="drawing", steps=2, ensemble=4, seed=3)
    members = running.drawing.rollout(u0, 2, NU, ensemble=4, seed=3)
    low, high = ([each[name] for each in arrays if name in each] for name in ("low", "high"))
    assert np.allclose(low, np.quantile(members, 0.05, 0), atol=1e-6)
    assert np.allclose(high, np.quantile(members, 0.95, 0), atol=1e-6)
    frames = [each["frame"] for each in arrays if "frame" in each]
    assert np.array_equal(np.stack(frames), running.drawing.rollout(u0, 2, NU)), "the mean needs no draws"


def test_requests_that_wait_are_computed_as_one_and_answered_each_for_itself(running: Running) -> None:
    computing, open_again = running.service.computing, threading.Event()
    computing.rollouts.submit(open_again.wait)
    before = running.service.meters.values["ups_batches_total", ""]
    states = [state(samples=1 + i % 2, seed=i) for i in range(4)]
    states[1] = 1e4 * states[1]
    with ThreadPoolExecutor(4) as pool:
        ask = {"task": "burgers1d", "simulator": "plain", "params": NU}
        waiting = [
            pool.submit(lambda u: RemoteSimulator(running.address).answer(u0=u, steps=3, **ask), u) for u in states
        ]
        while running.service.meters.values["ups_waiting", ""] < 4:
            time.sleep(0.01)
        open_again.set()
        answers = [one.result() for one in waiting]
    # The first of them had been taken already when the others came.
    assert running.service.meters.values["ups_batches_total", ""] - before in (1, 2)
    for u, answer in zip(states, answers, strict=True):
        alone = running.client.answer(u0=u, steps=3, **ask)
        assert np.allclose(answer["frames"], alone["frames"], rtol=1e-5, atol=1e-5)
        assert answer["remarks"] == alone["remarks"]
        assert answer["left_range_at"] == alone["left_range_at"]


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


GOOD = state().tolist()
HOSTILE: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"{",
    "a number": b"1",
    "deep": b'{"u0":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no text": b"\xff\xfe",
    "no state": {},
    "NaN": b'{"task":"burgers1d","simulator":"plain","params":{"nu":0.01},"u0":[NaN,1,2,3]}',
    "infinite": {"u0": [float("inf")] * 32},
    "ragged": {"u0": [[1.0], [1.0, 2.0]]},
    "words": {"u0": ["a"] * 32},
    "null in it": {"u0": [None] * 32},
    "a huge number": {"u0": [10**400] * 32},
    "another shape": {"u0": [[[[[1.0]]]]]},
    "empty": {"u0": []},
    "a billion steps": {"u0": GOOD, "steps": 10**9},
    "more steps than can be said": {"u0": GOOD, "steps": 10**30},
    "no step": {"u0": GOOD, "steps": 0},
    "half a step": {"u0": GOOD, "steps": 1.5},
    "unknown task": {"u0": GOOD, "task": "chess"},
    "unknown simulator": {"u0": GOOD, "simulator": "../../etc"},
    "unknown key": {"u0": GOOD, "path": "/etc/passwd"},
    "unknown parameter": {"u0": GOOD, "params": {"mu": 1.0}},
    "no parameter": {"u0": GOOD, "params": {}},
    "NaN for a parameter": b'{"task":"burgers1d","simulator":"plain","params":{"nu":NaN},"u0":[1,2,3,4,5,6,7,8]}',
    "no time": {"u0": GOOD, "dt": 0},
    "time backwards": {"u0": GOOD, "dt": [-1.0]},
    "draws of what does not draw": {"u0": GOOD, "ensemble": 2},
    "many members": {"u0": GOOD, "simulator": "drawing", "ensemble": 10**9},
    "a negative seed": {"u0": GOOD, "seed": -1},
    "walls of no axis": {"u0": GOOD, "periodic": ["q"]},
    "an answer too large": {"u0": state(400).tolist(), "steps": 199},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_refused_in_one_sentence(running: Running, name: str) -> None:
    body = HOSTILE[name]
    refused = post(running.address, body) if isinstance(body, bytes) else asked(running.address, **body)
    assert refused[0] == 422, refused
    assert 10 < len(refused[1]["error"]) < 500
    assert "\n" not in refused[1]["error"]


def test_what_is_no_body_for_it_is_refused(running: Running) -> None:
    address, kind = running.address, "application/x-npz"
    bomb = npz(question=np.array("{}"), u0=np.zeros(3 * 10**5))
    lying = bytearray(npz(u0=np.zeros(4)))
    place = lying.index(b"(4,)")
    lying[place : place + 4] = b"(9,)"
    assert post(address, b"{}", "text/html")[0] == 415
    assert post(address, b" " * (2 << 20))[0] == 413
    for body in (
        b"",
        b"PK",
        bytes(lying),
        npz(other=np.zeros(3)),
        npz(u0=np.array([object()])),
        npz(question=np.array("[")),
    ):
        assert post(address, body, kind)[0] == 422
    assert post(address, bomb, kind)[0] == 413
    packed_bomb = io.BytesIO()
    np.savez_compressed(packed_bomb, u0=np.zeros(3 * 10**5))
    assert "unpacks to more" in post(address, packed_bomb.getvalue(), kind)[1]["error"]


def test_a_stream_refuses_what_is_no_question(running: Running) -> None:
    for message in (b"", b"\xff" * 40, b"\x04\x00\x00\x00[[[[", packed({}, u0=state()), "words"):
        with connected(running) as channel:
            channel.send(message)
            about, _ = unpacked(channel.recv(timeout=200))
        assert about["problem"]
    many = [about for about in streamed(running, state(3), simulator="plain")[0] if "problem" in about]
    assert "one sample" in many[0]["problem"]


def test_a_stream_that_nobody_reads_any_more_ends(running: Running) -> None:
    with connected(running) as channel:
        question = {"task": "burgers1d", "simulator": "plain", "params": NU, "steps": 200}
        channel.send(packed(question, u0=state()))
        channel.recv(timeout=200)
    for _ in range(10_000):
        if running.service.computing.streams == 0:
            break
        time.sleep(0.01)
    assert running.service.computing.streams == 0


def test_where_too_many_wait_the_next_is_told_to_come_again_and_those_that_left_are_not_computed(
    running: Running,
) -> None:
    open_again = threading.Event()
    running.service.computing.rollouts.submit(open_again.wait)
    body = json.dumps({"task": "burgers1d", "simulator": "plain", "params": NU, "u0": GOOD}).encode()
    place = running.address[7:]
    channels = [http.client.HTTPConnection(place, timeout=200) for _ in range(5)]
    for i, channel in enumerate(channels):
        channel.request("POST", "/v1/rollout", body, {"Content-Type": "application/json"})
        while running.service.meters.values["ups_waiting", ""] < i + 1:
            time.sleep(0.01)
    request = urllib.request.Request(f"{running.address}/v1/rollout", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=200)
    assert refused.value.code == 429
    assert refused.value.headers["Retry-After"] == "1"
    refused.value.close()
    for channel in channels:
        channel.close()
    while running.service.meters.values["ups_waiting", ""]:
        time.sleep(0.05)
    open_again.set()
    assert asked(running.address, u0=GOOD)[0] == 200


def test_a_body_that_drips_or_breaks_off_holds_nobody_up(running: Running) -> None:
    host, port = running.address[7:].split(":")
    head = (
        f"POST /v1/rollout HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    )
    with socket.create_connection((host, int(port))) as broken:
        broken.sendall(head.encode())
    with socket.create_connection((host, int(port))) as slow:
        slow.settimeout(10)
        slow.sendall(head.encode())
        assert asked(running.address, u0=GOOD)[0] == 200, "another is answered meanwhile"
        assert b" 408 " in slow.recv(1000).splitlines()[0]


def test_a_request_that_takes_too_long_is_ended(running: Running) -> None:
    shelf = Shelf([])
    shelf.simulators["plain"] = running.service.shelf.simulators["plain"]
    service = Service(shelf, ServiceLimits(steps=10**6, seconds=0.05))
    with listening(app_of(service), service) as address:
        status, answer = asked(address, u0=GOOD, steps=10**5)
    assert status == 504
    assert "longer" in answer["error"]


def test_an_artifact_that_is_replaced_changes_no_answer_of_a_running_service(tmp_path: Path) -> None:
    path, u0 = saved(simulator("burgers1d"), tmp_path, "one"), state()
    service = Service(Shelf([path]))
    with listening(app_of(service), service) as address:
        before = RemoteSimulator(address).rollout(u0, 3, params=NU)
        saved(simulator("burgers1d", seed=9), tmp_path, "one")
        assert np.array_equal(RemoteSimulator(address).rollout(u0, 3, params=NU), before)
        path.unlink()
        assert np.array_equal(RemoteSimulator(address).rollout(u0, 3, params=NU), before)
    saved(simulator("burgers1d", seed=9), tmp_path, "one")
    service = Service(Shelf([path]))
    with listening(app_of(service), service) as address:
        assert not np.array_equal(RemoteSimulator(address).rollout(u0, 3, params=NU), before)


def test_no_page_of_the_world_reaches_a_service_of_this_machine(running: Running) -> None:
    body = json.dumps({"task": "burgers1d", "simulator": "plain", "params": NU, "u0": GOOD}).encode()
    assert post(running.address, body, Origin="http://evil.example")[0] == 403
    assert post(running.address, body, Origin="null")[0] == 403
    assert post(running.address, body, Host="evil.example")[0] == 421
    assert post(running.address, body, Host="[::1")[0] == 400
    assert post(running.address, body, Origin=running.address)[0] == 200
    client = pytest.importorskip("websockets.sync.client")
    with pytest.raises(Exception, match="403"):
        client.connect(running.address.replace("http", "ws") + "/v1/stream", origin="http://evil.example")


def test_beyond_this_machine_nothing_is_answered_without_the_token(running: Running) -> None:
    token = "a-token-of-this-test"
    service = Service(running.service.shelf)
    with listening(app_of(service), service, token, "0.0.0.0") as address:
        for other in (None, "", "a-token-of-this-tesu", "é"):
            with pytest.raises((ServiceError, UnicodeEncodeError)) as refused:
                RemoteSimulator(address, other).tasks()
            assert getattr(refused.value, "status", 401) == 401
        assert [task["name"] for task in RemoteSimulator(address, token).tasks()][:2] == ["burgers1d", "reacdiff2d"]
        with urllib.request.urlopen(f"{address}/health", timeout=200) as answer:
            assert json.load(answer)["status"] == "ok"


def test_metrics_are_lines_that_prometheus_reads(running: Running) -> None:
    asked(running.address, u0=GOOD)
    with urllib.request.urlopen(f"{running.address}/metrics", timeout=200) as answer:
        lines = answer.read().decode().splitlines()
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
    assert 'ups_requests_total{path="/v1/rollout",status="200"}' in " ".join(lines)
    assert float(next(line for line in lines if line.startswith("ups_frames_total")).split()[1]) > 0


def test_the_service_describes_itself(running: Running) -> None:
    with urllib.request.urlopen(f"{running.address}/openapi.json", timeout=200) as answer:
        about = json.load(answer)
    assert {"/v1/rollout", "/v1/tasks", "/health", "/metrics"} <= set(about["paths"])
    question = about["paths"]["/v1/rollout"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"u0", "steps", "params", "ensemble"} <= set(question["properties"])
    (card, *_) = running.client.tasks()
    assert card["params"][0]["lo"] == pytest.approx(0.005)
    assert card["shape"] == [32]
