"""Rates, groups, skipped steps, and Muon against its definition and torch's own."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from homunculus.errors import HomunculusError
from homunculus.train.muon import Muon, orthogonal
from homunculus.train.optimiser import Optimiser, Settings, is_decayed, is_hidden, make_optimiser, rate_at

GO, SKIP = torch.tensor(0.0), torch.tensor(1.0)


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.kernel = nn.Conv2d(1, 4, 2)
        self.hidden = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:  # [b 4]
        x = x + self.embedding(torch.tensor(0)) + self.kernel(torch.ones(1, 1, 2, 2)).flatten()
        return self.head(self.norm(torch.tanh(self.hidden(x))))


def stepped(optimiser: Optimiser, toy: Toy, seed: int, skip: Tensor = GO, poison: float = 0.0) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    toy(x).square().mean().backward()
    for parameter in toy.parameters():
        parameter.grad += poison
    optimiser.step(0.01, skip)


@given(st.integers(2, 3000), st.integers(0, 500), st.floats(0, 1))
def test_the_rate_rises_to_its_peak_and_falls_to_its_end(steps, warmup, final):
    settings = Settings(steps, rate=2.0, warmup=warmup, final=final)
    rates = [rate_at(step, settings) for step in range(steps)]
    peak = min(warmup, steps)
    assert all(a < b for a, b in pairwise(rates[:peak]))
    assert all(a >= b for a, b in pairwise(rates[peak:]))
    assert all(0 <= rate <= 2.0 for rate in rates)
    if warmup < steps - 1:
        assert rates[warmup] == 2.0
        assert rates[-1] == pytest.approx(2.0 * final, abs=1e-12)


def test_halfway_down_the_rate_is_the_mean_of_peak_and_end():
    assert rate_at(150, Settings(201, rate=1.0, warmup=100, final=0.2)) == pytest.approx(0.6)


def test_what_decays_and_what_is_hidden():
    named = dict(Toy().named_parameters())
    assert {n for n, p in named.items() if is_decayed(n, p)} == {"kernel.weight", "hidden.weight", "head.weight"}
    assert {n for n, p in named.items() if is_hidden(n, p)} == {"hidden.weight"}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_matrices_decay(kind):
    toy = Toy()
    optimiser = make_optimiser(dict(toy.named_parameters()), Settings(10, decay=0.5, optimiser=kind))
    before = {name: parameter.clone() for name, parameter in toy.named_parameters()}
    for parameter in toy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step(0.1, GO)  # without a gradient only decay is left: 1 - 0.1 * 0.5
    for name, parameter in toy.named_parameters():
        kept = 0.95 if is_decayed(name, parameter) else 1.0
        torch.testing.assert_close(parameter, before[name] * kept)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_regression_is_learnt(kind):
    truth = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    settings = Settings(400, rate=0.02, warmup=20, decay=0.0, optimiser=kind)
    optimiser = make_optimiser(dict(model.named_parameters()), settings)
    losses = []
    for step in range(settings.steps):
        x = torch.randn(64, 6)
        loss = (model(x) - truth(x).detach()).square().mean()
        loss.backward()
        optimiser.step(rate_at(step, settings), GO)
        losses.append(loss.item())
    assert sum(losses[-20:]) < 0.01 * sum(losses[:20])


@pytest.mark.parametrize("shape", [(3, 16, 64), (2, 64, 16), (1, 32, 32)])
def test_steps_of_muon_are_nearly_orthogonal(shape):
    matrices = torch.randn(shape) * torch.tensor([1e-4, 1.0, 1e4])[: shape[0], None, None]
    made = orthogonal(matrices)
    values = torch.linalg.svdvals(made)
    true = torch.linalg.svd(matrices, full_matrices=False)
    inside = torch.einsum("nij,nij->n", made, true.U @ true.Vh) / min(shape[1:])
    assert (inside > 0.7).all(), "the nearest orthogonal matrix"
    if shape[1] != shape[2]:  # a square random matrix has singular values near 0, which five iterations do not lift
        assert ((values > 0.6) & (values < 1.3)).all()


def test_muon_is_that_of_torch():
    ours = [nn.Parameter(torch.randn(8, 24)) for _ in range(3)] + [nn.Parameter(torch.randn(24, 8))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    before = [p.detach().clone() for p in ours]
    mine = Muon(ours, rate=0.02, decay=0.1)
    reference = torch.optim.Muon(
        theirs, lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b, start in zip(ours, theirs, before, strict=True):  # theirs iterates in bfloat16: 8 bits
        assert (a - b).norm() < 0.02 * (b - start).norm()


def test_a_step_of_muon_is_as_large_as_one_of_adamw():
    matrix = nn.Parameter(torch.zeros(64, 256))
    matrix.grad = torch.randn(64, 256) * 1e-3
    Muon([matrix], rate=1.0).step()
    assert matrix.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_skipped_step_leaves_no_trace(kind, poison):
    toys = [Toy(), Toy()]
    toys[1].load_state_dict(toys[0].state_dict())
    optimisers = [make_optimiser(dict(t.named_parameters()), Settings(10, optimiser=kind)) for t in toys]
    stepped(optimisers[0], toys[0], 0)
    stepped(optimisers[1], toys[1], 0)
    stepped(optimisers[1], toys[1], 1, SKIP, poison)
    stepped(optimisers[0], toys[0], 2)
    stepped(optimisers[1], toys[1], 2)
    for a, b in zip(toys[0].parameters(), toys[1].parameters(), strict=True):
        assert torch.equal(a, b)
    one, other = optimisers[0].state(), optimisers[1].state()
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_state_is_all_there_is_to_know(kind):
    toy, again = Toy(), Toy()
    optimiser = make_optimiser(dict(toy.named_parameters()), Settings(10, optimiser=kind))
    for seed in range(3):
        stepped(optimiser, toy, seed)
    again.load_state_dict(toy.state_dict())
    resumed = make_optimiser(dict(again.named_parameters()), Settings(10, optimiser=kind))
    resumed.load({key: value.clone() for key, value in optimiser.state().items()})
    stepped(optimiser, toy, 3)
    stepped(resumed, again, 3)
    for a, b in zip(toy.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_other_parameters_is_refused():
    optimiser = make_optimiser(dict(nn.Linear(1, 1).named_parameters()), Settings(10))
    with pytest.raises(HomunculusError, match=r"knows 'other', which does not learn"):
        optimiser.load({"other/step": torch.zeros(())})


@pytest.mark.parametrize("wrong", [{"optimiser": "sgd"}, {"dtype": "float16"}, {"rate": 0.0}, {"final": 2.0}])
def test_settings_are_checked(wrong):
    with pytest.raises(HomunculusError):
        Settings(10, **wrong)


def test_nothing_to_learn_is_said():
    with pytest.raises(HomunculusError, match="nothing to learn"):
        make_optimiser({}, Settings(10))
