"""The optimizer, its schedule, the clipping and the average against their formulas."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ups.engine import one_pass
from ups.engine.muon import Muon
from ups.engine.one_pass import OnePass
from ups.engine.optim import Ema, HostAdamW, Optimizer, clip, decays, move_towards, trained
from ups.engine.train import RivalTrainConfig, TrainConfig
from ups.types import ConfigError

OK, BAD = torch.tensor(True), torch.tensor(False)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16))


def give_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def test_the_host_moves_weights_to_the_bits_of_torch_s_own_fused_adamw() -> None:
    ours, theirs = net(), net()
    member = Optimizer(ours, lr=1e-2, weight_decay=0.1).members[0]
    other = Optimizer(theirs, lr=1e-2, weight_decay=0.1).members[0]
    assert isinstance(member, HostAdamW)
    assert isinstance(other, HostAdamW)
    torchs = other.of_torch()
    pairs: list[tuple[nn.Module, Any]] = [(ours, member), (theirs, torchs)]
    for step in range(5):
        for module, optimizer in pairs:
            give_gradients(module, seed=step)
            optimizer.step()
        for rate in (member.lr, other.lr):
            rate.fill_(1e-2 / (step + 2))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    state = torchs.state_dict()["state"]
    assert [len(values) for values in state.values()] == [3] * len(state)


def test_the_rate_of_a_rival_may_be_halved_instead_as_steplr_does() -> None:
    """As torch's own: every 60 of 300 epochs."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    theirs = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.5)
    ours = RivalTrainConfig(steps=300, warmup=0.0, halvings=4)
    for epoch in range(300):
        assert ours.share((epoch + 0.5) / 300) == theirs.get_last_lr()[0]
        optimizer.step()
        theirs.step()
    assert ours.share(1.0) == 0.5**4


def test_the_rate_rises_in_a_line_and_falls_in_a_cosine_to_its_floor() -> None:
    floor, zero = (TrainConfig(steps=1, warmup=0.1, min_lr=least).share for least in (0.01, 0.0))
    assert floor(0.0) == pytest.approx(0.01)
    assert floor(0.05) == pytest.approx((1 + 0.01) / 2)
    assert floor(0.1) == pytest.approx(1.0)
    assert zero(0.55) == pytest.approx(0.5)
    assert zero(0.325) == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))
    assert floor(1.0) == floor(1.7) == pytest.approx(0.01)
    assert TrainConfig(steps=1, warmup=0.0).share(0.0) == 1.0


def test_weight_decay_spares_norms_biases_embeddings_and_scales() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.norm, self.words = nn.Linear(4, 4), nn.LayerNorm((4, 4)), nn.Embedding(3, 4)
            self.layer_scale, self.relative_bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(2, 5))
            self.filter = nn.Conv2d(2, 2, 3)

    held = {name for name, decayed in decays(Net()).items() if decayed}
    assert held == {"line.weight", "filter.weight"}


def test_adamw_moves_the_weights_as_its_formula_says() -> None:
    module, lr, decay, (b1, b2) = nn.Linear(3, 2, bias=False), 0.01, 0.1, (0.9, 0.95)
    theta = module.weight.detach().clone().double()
    optimizer = Optimizer(module, "adamw", lr, decay, (b1, b2))
    m = v = torch.zeros_like(theta)
    for t in range(1, 6):
        give_gradients(module, t)
        assert module.weight.grad is not None
        g = module.weight.grad.double()
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        theta = theta * (1 - lr * decay) - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-8)
        optimizer.step(OK)
    assert torch.allclose(module.weight.double(), theta, atol=1e-6)


@pytest.mark.parametrize("count", [1, 31, 32, 1000])
def test_a_number_moves_by_the_same_bits_wherever_it_lies_in_its_tensor(count: int) -> None:
    """Of a tensor that one rank holds whole and others in pieces."""
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(count, generator=generator), torch.randn(5, count, generator=generator)

    def moved(cuts: list[int]) -> torch.Tensor:
        parts = [nn.Parameter(part.clone()) for part in start.tensor_split(cuts)]
        module = nn.ParameterList(parts)
        optimizer = Optimizer(module, "adamw", 1e-2, 0.1)
        for gradient in gradients:
            for part, g in zip(parts, gradient.tensor_split(cuts), strict=True):
                part.grad = g
            optimizer.step(OK)
        state = optimizer.state_dict()
        moments = [torch.cat([state[f"{i}/{key}"] for i in range(len(parts))]) for key in ("exp_avg", "exp_avg_sq")]
        return torch.stack((torch.cat([p.detach() for p in parts]), *moments))

    for cuts in ([1], [count // 2], [count // 3, count - 1]):
        assert torch.equal(moved(cuts), moved([]))


def test_the_learning_rate_tensor_rules_both_adamw_and_muon() -> None:
    for kind in ("adamw", "muon"):
        fast, slow = net(), net()
        start = [p.detach().clone() for p in fast.parameters()]
        for module, factor in ((fast, 1.0), (slow, 0.25)):
            optimizer = Optimizer(module, kind, 1e-3)
            optimizer.lr.fill_(1e-3 * factor)
            give_gradients(module, 0)
            optimizer.step(OK)
        for p0, a, b in zip(start, fast.parameters(), slow.parameters(), strict=True):
            assert torch.allclose(b - p0, (a - p0) / 4, rtol=2e-3, atol=1e-7), kind
            assert not torch.equal(a, p0)


def test_muon_turns_hidden_matrices_and_adamw_the_rest() -> None:
    module, reference = net(), net()
    optimizer = Optimizer(module, "muon", 1e-3, weight_decay=0.1)
    muon = torch.optim.Muon([reference[0].weight, reference[2].weight], 1e-3, 0.1, adjust_lr_fn="match_rms_adamw")
    rest = [p for p in reference.parameters() if p.ndim == 1]
    adamw = torch.optim.AdamW(rest, 1e-3, (0.9, 0.95), weight_decay=0.0)
    for step in range(3):
        for m in (module, reference):
            give_gradients(m, step)
        optimizer.step(OK)
        muon.step()
        adamw.step()
    for start, a, b in zip(net().parameters(), module.parameters(), reference.parameters(), strict=True):
        error = 0.03 if a.ndim == 2 else 1e-4  # torch turns matrices in bf16
        assert (a - b).norm() < error * (b - start).norm()
    assert "0.weight/momentum_buffer" in optimizer.state_dict()
    assert "0.bias/exp_avg" in optimizer.state_dict()


def test_muon_by_itself_leaves_all_alone_where_a_step_is_not_ok_and_a_matrix_that_was_given_nothing() -> None:
    """As part of a CUDA graph it is asked in either case; on the host the optimizer does not ask it."""
    given, other = (torch.randn(16, 24, requires_grad=True) for _ in range(2))
    muon = Muon([given, other], [0.1, 0.1])
    given.grad = torch.randn(16, 24)
    start = other.detach().clone()
    muon.step(torch.tensor(1e-2), OK)
    before, momentum = given.detach().clone(), muon.state[given]["momentum_buffer"].clone()
    given.grad = torch.full((16, 24), float("nan"))
    muon.step(torch.tensor(1e-2), BAD)
    assert torch.equal(given, before)
    assert torch.equal(muon.state[given]["momentum_buffer"], momentum)
    assert momentum.any()
    assert torch.equal(other, start)


@pytest.mark.parametrize("kind", ["adamw", "muon", "complex"])
def test_a_step_that_is_not_ok_changes_neither_weights_nor_state(kind: str) -> None:
    module = net()
    if kind == "complex":
        module.register_parameter("wave", nn.Parameter(torch.randn(3, 4, dtype=torch.cfloat)))
    optimizer = Optimizer(module, "muon" if kind == "muon" else "adamw", 1e-3, 0.1)
    give_gradients(module, 0)
    optimizer.step(OK)
    everything = {**dict(module.named_parameters()), **optimizer.state_dict()}
    before = {name: t.detach().clone() for name, t in everything.items()}
    for p in module.parameters():
        p.grad = torch.full_like(p, float("nan"))
    optimizer.step(BAD)
    for name, t in {**dict(module.named_parameters()), **optimizer.state_dict()}.items():
        assert torch.equal(t, before[name]), name


def test_complex_weights_are_trained_as_torch_trains_them() -> None:
    def make() -> nn.ParameterDict:
        return nn.ParameterDict({"wave": nn.Parameter(torch.arange(6.0).view(2, 3).to(torch.cfloat))})

    ours, theirs = make(), make()
    optimizer, adamw = (
        Optimizer(ours, lr=0.01),
        torch.optim.AdamW(theirs.parameters(), 0.01, (0.9, 0.95), weight_decay=0),
    )
    for step in range(4):
        for module in (ours, theirs):
            give_gradients(module, step)
        optimizer.step(OK)
        adamw.step()
    assert torch.allclose(ours["wave"], theirs["wave"], atol=1e-6)


def test_clipping_sees_the_true_norm() -> None:
    gradients = [torch.full((3,), 2.0), torch.full((4, 1), 1.0)]
    norm = torch.nn.utils.get_total_norm(gradients)
    assert norm.item() == pytest.approx(4.0)
    clip(gradients, norm, 1.0)
    assert torch.nn.utils.get_total_norm(gradients).item() == pytest.approx(1.0, rel=1e-5)
    small = [torch.full((4,), 0.1)]
    clip(small, torch.nn.utils.get_total_norm(small), 1.0)
    assert torch.equal(small[0], torch.full((4,), 0.1))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_clipped_step_moves_weights_as_scaled_gradients_do_and_the_next_one_is_free(kind: Any, device: str) -> None:
    ours, theirs = (nn.Linear(32, 16, device=device) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizers = [Optimizer(module, kind) for module in (ours, theirs)]
    for most in (0.5, 1e9, None):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        norm = torch.nn.utils.get_total_norm([p.grad for p in ours.parameters() if p.grad is not None])
        if most is not None:
            optimizers[0].clip(norm, most)
            clip([q.grad for q in theirs.parameters() if q.grad is not None], norm, most)
        for optimizer in optimizers:
            optimizer.step(torch.tensor(True, device=device))
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            torch.testing.assert_close(p.grad, q.grad)
        for name, value in optimizers[0].state_dict().items():
            torch.testing.assert_close(value, optimizers[1].state_dict()[name])


def test_the_average_follows_its_recurrence_and_its_ramp() -> None:
    module = nn.Linear(2, 1, bias=False)
    ema = Ema(trained(module), 0.9)
    expected = module.weight.detach().clone().double()
    for n in range(200):
        with torch.no_grad():
            module.weight.fill_(math.sin(n))
        ema.weight.fill_(ema.ramp(n))
        ema.update(OK)
        decay = min(0.9, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * math.sin(n)
    assert torch.allclose(ema.average["weight"].double(), expected, atol=1e-6)
    assert ema.ramp(0) == pytest.approx(0.9)
    assert ema.ramp(10**6) == pytest.approx(0.1)
    held = ema.average["weight"].clone()
    ema.update(BAD)
    assert torch.equal(ema.average["weight"], held)


def test_swapping_shows_the_average_and_gives_the_weights_back() -> None:
    module = nn.Linear(2, 1)
    ema = Ema(trained(module), 0.9)
    place, own, average = (
        module.weight.data_ptr(),
        module.weight.detach().clone(),
        ema.average["weight"].fill_(7.0).clone(),
    )
    with pytest.raises(ValueError, match="inside"), ema.swapped():  # noqa: PT012
        assert torch.equal(module.weight, average)
        raise ValueError("inside")
    assert torch.equal(module.weight, own)
    assert torch.equal(ema.average["weight"], average)
    assert module.weight.data_ptr() == place


def test_what_cannot_be_trained_is_refused_with_a_sentence() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter to train"):
        Optimizer(frozen)
    with pytest.raises(ConfigError, match="no weight is a matrix"):
        Optimizer(nn.Linear(2, 2), "muon")


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_in_one_pass_an_average_comes_nearer_to_the_weights_by_its_share_and_the_weights_stay(
    device: str, share: float
) -> None:
    kinds = {(7,): torch.float32, (3, 5): torch.complex64, (2, 4): torch.float64, (): torch.float32}
    average, weights = ([torch.randn(of, dtype=kinds[of], device=device) for of in kinds] for _ in range(2))
    before = [one.clone() for one in weights]
    wanted = [s + share * (w - s) for s, w in zip(average, weights, strict=True)]
    move_towards(average, weights, torch.tensor(share, device=device))
    torch.testing.assert_close(average, wanted)
    assert all(map(torch.equal, weights, before))


def adamw_in_float64(
    params: Any, gradients: Any, moments: Any, averages: Any, ok: Any, scale: Any, lr: Any, weight: Any, *numbers: Any
) -> None:
    """What the kernel of `OnePass` computes, in the place of it."""
    (b1, b2), eps, decay = numbers
    for i, (p, g, state) in enumerate(zip(params, gradients, moments, strict=True)):
        if not ok:
            continue
        g, t = g.double() / (1.0 if scale is None else scale.double()), state["step"].double() + 1
        m, v = (state[key].double() for key in ("exp_avg", "exp_avg_sq"))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        rate = lr.double()
        new = p.double() * (1 - rate * decay) - rate * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        for old, value in ((p, new), (state["exp_avg"], m), (state["exp_avg_sq"], v)):
            old.copy_(value)
        if averages is not None:
            averages[i].lerp_(p, weight)


def large_net(device: str) -> nn.Module:
    """Matrices of odd sizes, two of them with decay and one without, beside small tensors; small on a host."""
    torch.manual_seed(0)
    n = 513 if device == "cuda" else 33
    one, two, words = nn.Linear(n + 4, n), nn.Linear(n - 1, n + 7), nn.Embedding(n + 12, n - 2)
    return nn.ModuleDict({"one": one, "two": two, "words": words}).to(device)


def trained_at(
    device: str, monkeypatch: pytest.MonkeyPatch, large: int, kind: Any, steps: int = 6
) -> dict[str, torch.Tensor]:
    """All that lasts after clipped steps of which the third is left out, and in which a matrix has no gradient twice;
    tensors of `large` numbers or more go through memory once."""
    monkeypatch.setattr(one_pass, "LARGE", large)
    module = large_net(device)
    optimizer, generator = Optimizer(module, kind, 1e-2, 0.1), torch.Generator().manual_seed(1)
    ema = Ema(optimizer.named, 0.9)
    taken = [] if optimizer.one_pass is None else [*optimizer.one_pass.members]
    matrices = ["one.weight", "two.weight"] if kind == "adamw" else []
    assert taken == ([] if large > 10**6 else [*matrices, "words.weight"])
    for step in range(steps):
        optimizer.zero_grad()
        for name, p in optimizer.named.items():
            gradient = torch.randn(p.shape, generator=generator).to(device)
            p.grad = None if name == "two.weight" and step in (1, 4) else gradient * (float("nan") if step == 2 else 1)
        optimizer.lr.fill_(1e-2 / (1 + step))
        ema.weight.fill_(ema.ramp(step))
        norm = torch.nn.utils.get_total_norm(list(optimizer.gradients().values()))
        optimizer.clip(norm, 3.0)
        optimizer.step(torch.isfinite(norm), ema)
    averages = {f"{name} (averaged)": value for name, value in ema.average.items()}
    return {**{n: p.detach() for n, p in optimizer.named.items()}, **optimizer.state_dict(), **averages}


def taken_on_a_host(p: torch.Tensor) -> bool:
    return p.numel() >= one_pass.LARGE


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_large_weights_go_through_memory_once_and_are_moved_as_all_others_are(
    device: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        kernels = SimpleNamespace(adamw=adamw_in_float64)
        monkeypatch.setitem(sys.modules, "ups.engine.step_kernels", kernels)
        monkeypatch.setattr(OnePass, "takes", staticmethod(taken_on_a_host))
    ours = trained_at(device, monkeypatch, 1 << (18 if device == "cuda" else 10), kind)
    theirs = trained_at(device, monkeypatch, 10**9, kind)
    assert ours.keys() == theirs.keys()
    assert {name: float(value) for name, value in ours.items() if name.endswith("/step")} == {
        name: float(value) for name, value in theirs.items() if name.endswith("/step")
    }
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, rtol=2e-6, atol=2e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.gpu
@needs_gpu
def test_a_step_of_large_weights_can_be_a_graph() -> None:
    modules = [large_net("cuda") for _ in range(2)]
    optimizers = [Optimizer(module, "adamw", 1e-2, 0.1) for module in modules]
    averages = [Ema(optimizer.named, 0.9) for optimizer in optimizers]
    assert all(optimizer.one_pass is not None for optimizer in optimizers)
    ok, norm = torch.tensor(True, device="cuda"), torch.tensor(5.0, device="cuda")
    for optimizer in optimizers:
        for p in optimizer.named.values():
            p.grad = torch.empty_like(p)

    def step(i: int) -> None:
        optimizers[i].clip(norm, 1.0)
        optimizers[i].step(ok, averages[i])

    def give(seed: int) -> None:
        torch.manual_seed(seed)
        for p, q in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            q.grad.copy_(p.grad.normal_())
        ok.fill_(seed != 2)
        for i in range(2):
            optimizers[i].lr.fill_(1e-2 / (1 + seed))
            averages[i].weight.fill_(averages[i].ramp(seed))

    give(0)
    step(0)
    step(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(1)
    for seed in range(1, 5):
        give(seed)
        step(0)
        graph.replay()
    for name, value in optimizers[0].state_dict().items():
        assert torch.equal(value, optimizers[1].state_dict()[name]), name
    for name, p in optimizers[0].named.items():
        assert torch.equal(p, optimizers[1].named[name]), name
        assert torch.equal(averages[0].average[name], averages[1].average[name]), name
    assert float(optimizers[0].state_dict()["one.weight/step"]) == 4
