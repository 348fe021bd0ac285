"""Parts: a simulator is made of them, each with its own header, and one can be replaced without touching the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from safetensors.torch import load_file
from small_simulators import awaken, condition, frames, simulator, window
from torch import Tensor, nn

from ups.models import Blueprint, CodecConfig, OperatorConfig, Part, Simulator, artifact, assemble
from ups.models.inherit import rebuilt
from ups.models.simulator import CORE
from ups.physics import TASKS
from ups.tensors import Condition
from ups.types import ConfigError, DataError


@dataclasses.dataclass(frozen=True)
class ShiftConfig:
    start: float = 0.5


class Shift(Part):
    """Moves every decoded frame by a number."""

    Config: ClassVar[type] = ShiftConfig

    def __init__(self, config: ShiftConfig) -> None:
        super().__init__()
        self.config, self.by = config, nn.Parameter(torch.tensor(config.start))

    @classmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        assert list(blueprint.parts) == ["codec", "operator"], "parts are built in their order"
        return cls(config)

    def refine_frame(self, frame: Tensor, condition: Condition) -> Tensor:  # noqa: ARG002
        return frame + self.by


KINDS = {**CORE, "shift": Shift}
CONFIGS = {"codec": CodecConfig(dim=8), "operator": OperatorConfig(width=16, depth=1, heads=2)}
TASK, GRID = TASKS["burgers1d"], {"burgers1d": (32,)}


def shifted() -> Simulator:
    return assemble([TASK], {**CONFIGS, "shift": ShiftConfig()}, shapes=GRID, kinds=KINDS).eval()


def test_another_part_changes_no_weight_of_the_others_and_refines_what_they_say() -> None:
    plain, more = assemble([TASK], CONFIGS, shapes=GRID).eval(), shifted()
    ours, theirs = more.state_dict(), plain.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    plain.config = more.config = dataclasses.replace(plain.config, guard=False)
    asked = window(frames("burgers1d"), condition("burgers1d"))
    torch.testing.assert_close(more.simulate(asked, 2), plain.simulate(asked, 2) + 0.5)
    points = torch.tensor([[0.1], [0.7]])
    torch.testing.assert_close(more.simulate(asked, 2, points), plain.simulate(asked, 2, points) + 0.5)
    more.idle = frozenset({"shift"})
    assert torch.equal(more.simulate(asked, 2), plain.simulate(asked, 2)), "it waits for its stage"


def test_only_parts_that_are_there_can_be_idle() -> None:
    sim = shifted()
    sim.idle = frozenset({"shift"})
    with pytest.raises(ConfigError, match=r"no part 'shfit' to be idle; its parts are codec, operator, shift\."):
        sim.idle = frozenset({"shift", "shfit"})
    assert sim.idle == {"shift"}, "what was said before still holds"
    sim.idle = "shift"  # one name is not a set of letters
    assert sim.idle == {"shift"}


def test_a_part_of_any_kind_is_saved_and_loaded_and_one_nobody_knows_is_refused(tmp_path: Path) -> None:
    sim = shifted()
    sim.origins["shift"] = {"provenance": {"stage": "shift"}, "needs": ["codec"]}
    path = sim.save(tmp_path / "shifted.safetensors")
    again = Simulator.load(path, kinds=KINDS)
    assert list(again.parts) == ["codec", "operator", "shift"]
    assert again.origins["shift"]["provenance"] == {"stage": "shift"}
    asked = window(frames("burgers1d"), condition("burgers1d"))
    assert torch.equal(again.simulate(asked, 2), sim.simulate(asked, 2))
    with pytest.raises(DataError, match="knows no part 'shift'"):
        Simulator.load(path)


def test_a_replaced_part_leaves_every_bit_of_the_others_and_what_lost_its_company_is_told(tmp_path: Path) -> None:
    first, second = simulator("burgers1d"), simulator("burgers1d", seed=7)
    for sim in (first, second):
        awaken(sim)
        sim.origins = {"codec": {"provenance": {"run": "a"}}, "operator": {"needs": ["codec"]}}
    one, other = first.save(tmp_path / "one"), second.save(tmp_path / "other")
    mixed = artifact.replace_part(one, "codec", other, tmp_path / "mixed.safetensors")
    was, theirs, now = load_file(one), load_file(other), load_file(mixed)
    assert all(torch.equal(now[n], was[n]) for n in was if not n.startswith("codec."))
    assert all(torch.equal(now[n], theirs[n]) for n in was if n.startswith("codec."))
    headers = [artifact.read(path)[0]["parts"] for path in (one, mixed)]
    assert headers[0]["operator"] == headers[1]["operator"], "its header is its own"
    assert artifact.strangers(headers[0]) == []
    assert "'operator' was trained beside another 'codec'" in artifact.strangers(headers[1])[0]
    assert artifact.strangers(artifact.read(artifact.replace_part(mixed, "codec", one))[0]["parts"]) == []
    with pytest.raises(DataError, match="other tasks"):
        artifact.replace_part(one, "codec", simulator("diffsorp1d").save(tmp_path / "foreign"))
    with pytest.raises(DataError, match="has no part 'prior'"):
        artifact.replace_part(one, "prior", other)
    with pytest.raises(DataError, match="'operator' is another network"):
        artifact.replace_part(str(one), "operator", str(simulator("burgers1d", width=64).save(tmp_path / "wide")))


def test_a_part_rebuilt_around_its_weights_is_the_same_and_draws_no_random_number() -> None:
    sim = simulator("burgers1d")
    awaken(sim)
    before = torch.get_rng_state()
    part = rebuilt(sim, "operator", sim.operator.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(part.parameters(), sim.operator.parameters(), strict=True))
