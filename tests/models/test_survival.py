"""A simulator answers the same wherever it goes: copied, pickled, in threads, after a fork, compiled."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import torch
from torch import Tensor

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.physics import TASKS

STATE = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))


def moving() -> Simulator:
    """A simulator that changes states, though it has learnt nothing."""
    operator = OperatorConfig(width=16, depth=1, heads=2, modes=4)
    sim = build([TASKS["burgers1d"]], CodecConfig(dim=8), operator, shapes={"burgers1d": (16,)}).eval()
    generator = torch.Generator().manual_seed(0)
    for p in sim.operator.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return sim


def answer(sim: Simulator) -> Tensor:
    frames: Tensor = sim.rollout(STATE, 3, params={"nu": 1.0})
    return frames


def test_copies_answer_to_the_bit_and_are_their_own() -> None:
    sim = moving()
    truth = answer(sim)
    assert (truth[:, -1] - STATE).abs().max() > 1e-2, "something happens"
    for other in (copy.deepcopy(sim), pickle.loads(pickle.dumps(sim))):
        assert torch.equal(answer(other), truth)
        assert other.operator.codec[0] is other.codec, "a copy has no part of the original"
        other.learn_corners({"burgers1d": (0.5,)})
        with torch.no_grad():
            other.operator.head.bias += 1
        assert torch.equal(answer(sim), truth)


def test_threads_that_ask_at_once_are_answered_to_the_bit() -> None:
    sim, answers = moving(), [STATE] * 4

    def ask(i: int) -> None:
        answers[i] = answer(sim)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, answer(sim)) for one in answers)


def test_a_forked_process_answers_to_the_bit() -> None:
    sim = moving()
    truth, (read, write) = answer(sim), os.pipe()
    child = os.fork()
    if child == 0:
        same = b"0"
        try:
            same = b"1" if torch.equal(answer(sim), truth) else b"0"
        finally:
            os.write(write, same)
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0


def test_a_compiled_simulator_answers_as_before_by_its_compiled_networks() -> None:
    sim, calls = moving(), list[str]()
    truth = answer(sim)

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        calls.append("compiled")
        return graph

    sim.compile(backend=backend)
    assert torch.equal(answer(sim), truth)
    assert calls
