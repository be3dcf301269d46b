"""Which modules are routers, and how the load of their experts is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured_parts import Stage
from watchglass.capture.pytorch.tensors.routers import Routers
from watchglass.records import UnitKind

EXPERTS, WIDTH = 4, 6


class Mixture(nn.Module):
    """As most models have it: a linear gate beside a list of experts."""

    def __init__(self, top_k: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward() for _ in range(EXPERTS))
        self.shared_expert_gate = nn.Linear(WIDTH, 1)
        self.top_k = top_k

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, -1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            mixed = mixed + share * expert(x)
        return mixed + self.shared_expert_gate(x).sigmoid()  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, EXPERTS)
        self.down_proj = nn.Linear(EXPERTS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)))  # type: ignore[no-any-return]


class TopKRouter(nn.Module):
    """Says itself how many experts there are, and returns which ones it chose, some of them none."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = EXPERTS, 2
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Any:
        logits = x @ self.weight.T
        chosen = torch.tensor([[0, 1], [0, -1], [1, 9]])
        return {"scores": logits.topk(2, -1).values, "logits": logits, "chosen": chosen}


class Sparse(nn.Module):
    def __init__(self, router: nn.Module, experts: Any = None) -> None:
        super().__init__()
        self.mixer = router
        if experts is not None:
            self.experts = experts

    def forward(self, x: Tensor) -> Any:
        return self.mixer(x)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(5))


def saved(run: Path, model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    with Stage(run, [Routers], model, collections=["router"]) as stage:
        stage.call(model, x)
        assert all(stage.tags(name) == ("router",) for name in stage.names)
        return {name: stage.only(name) for name in stage.names}


def test_a_gate_beside_experts_is_a_router_and_nothing_else_is(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(Mixture())
    found = saved(run_path, model, x)
    assert sorted(found) == ["0.gate.router_load", "0.gate.router_logits"]
    logits = model[0].gate(x)
    assert torch.equal(found["0.gate.router_logits"], logits)
    expected = torch.bincount(logits.topk(2, -1).indices.flatten(), minlength=EXPERTS) / 6
    assert torch.equal(found["0.gate.router_load"], expected)


def test_choices_that_a_router_returns_count_as_they_are(run_path: Path, x: Tensor) -> None:
    found = saved(run_path, Sparse(TopKRouter()), x)
    assert sorted(found) == ["mixer.router_load", "mixer.router_logits"]
    # Two of the six choices are of no expert: dropped tokens.
    assert found["mixer.router_load"].tolist() == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("name", "experts", "is_router"),
    [
        ("router", nn.ModuleList(nn.Identity() for _ in range(EXPERTS)), True),
        ("gating", nn.ModuleList(nn.Identity() for _ in range(EXPERTS)), True),
        ("gateway", nn.ModuleList(nn.Identity() for _ in range(EXPERTS)), True),
        ("gateway", nn.ModuleList(nn.Identity() for _ in range(EXPERTS + 1)), False),
        ("router", None, False),
        ("router", nn.ModuleList(nn.Identity() for _ in range(EXPERTS + 1)), False),
    ],
)
def test_the_name_and_the_number_of_experts_must_agree(
    name: str, experts: Any, is_router: bool, run_path: Path, x: Tensor
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(WIDTH, EXPERTS))
            if experts is not None:
                self.experts = experts

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, name)(x)  # type: ignore[no-any-return]

    assert bool(saved(run_path, Model(), x)) is is_router


class Expert(nn.Linear):
    pass


class Named(nn.Module):
    """Experts that are known by their names, a router with another name, and as many classes as experts."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 2)
        self.expert_a, self.expert_b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.shared_expert = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(-1)
        mixed = weights[:, :1] * self.expert_a(x) + weights[:, 1:] * self.expert_b(x)
        return self.head(mixed + self.shared_expert(x))  # type: ignore[no-any-return]


class Listed(nn.Module):
    """Experts that are known by their class."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = nn.ModuleList(Expert(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.choose = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.choose(x).argmax(-1)
        return torch.stack([expert(x) for expert in self.bank])[chosen, torch.arange(len(x))]


@pytest.mark.parametrize(("model", "name"), [(Named, "score"), (Listed, "choose")])
def test_a_module_that_runs_before_experts_is_their_router(
    model: type[nn.Module], name: str, run_path: Path, x: Tensor
) -> None:
    assert sorted(saved(run_path, model(), x)) == [f"{name}.router_load", f"{name}.router_logits"]


def test_routers_of_fused_experts_and_of_a_second_model_are_found(run_path: Path, x: Tensor) -> None:
    class Fused(nn.Module):
        num_local_experts = EXPERTS

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(WIDTH, EXPERTS)
            self.experts = Fused()

        def forward(self, x: Tensor) -> Tensor:
            return self.router(x)  # type: ignore[no-any-return]

    model = Model()
    with Stage(run_path, [Routers], nn.Linear(2, 2), model, collections=["router"]) as stage:
        stage.call(model, x)
        load = stage.only("model_2.router.router_load")
    # All experts may be mixed if no number is given.
    assert torch.allclose(load, model.router(x).softmax(-1).mean(0))


@pytest.mark.parametrize("softmax", [False, True])
def test_a_mixture_of_all_experts_has_the_mean_of_its_shares(run_path: Path, x: Tensor, softmax: bool) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.selector = nn.Sequential(nn.Linear(WIDTH, EXPERTS), *([nn.Softmax(-1)] if softmax else []))
            self.branches = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(EXPERTS))

        def forward(self, x: Tensor) -> Tensor:
            return self.selector(x)  # type: ignore[no-any-return]

    model = Sparse(Mixed())
    model.mixer.selector[0].bias.data[2] = -20.0
    with Stage(run_path, [Routers], model, collections=["router"]) as stage:
        stage.call(model, x)
        load = stage.only("mixer.selector.router_load")
        ((_, kind, unused),) = stage.units()
    shares = model.mixer.selector(x)
    assert torch.allclose(load, (shares if softmax else shares.softmax(-1)).mean(0))
    assert (kind, unused.tolist()) == (UnitKind.UNUSED, [False, False, True, False])


def test_without_a_collection_nothing_is_computed(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(Mixture())
    with Stage(run_path, [Routers], model, collections=["outputs"]) as stage:
        stage.call(model, x)
    assert not stage.names
