"""FrozenByMistake: frozen layers at random weights."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, update
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def run(frozen: str, random: np.random.Generator) -> list[Step]:
    """A trained layer beside one that the optimizer holds frozen, with the weights of a kind."""
    bound = 1 / math.sqrt(32)
    kinds = {
        "uniform": random.uniform(-bound, bound, (64, 32)),
        "trained": random.uniform(-bound, bound, (64, 32)) + 0.02 * random.normal(size=(64, 32)),
    }
    held = {"optimizer": {"frozen": {"count": 1, "names": ["stem.weight"]}}}
    membership = {"optimizers": held, "drawn": ["stem.weight"]}
    weight = kinds[frozen].astype(np.float32)
    return [
        Step(
            scalars={"loss": 1.0},
            statistics={"stem.weight": weight, "readout.weight": random.normal(size=(8, 8)).astype(np.float32)},
            facts={"membership": membership} if step == 0 else {},
        )
        for step in range(20)
    ]


def short_of_captures(thawed: int | None = None) -> list[Step]:
    """A run whose captures end long before it does; at one of its evaluations some parameters may be unfrozen."""
    captured = run("uniform", np.random.default_rng(0))
    late = [Step(scalars={"loss": 1.0}, facts=flags(0) if step == thawed else {}) for step in range(180)]
    captured[0] = dataclasses.replace(captured[0], facts={**captured[0].facts, **flags(1)})
    return [*captured, *late]


def flags(frozen: int) -> dict[str, Any]:
    return {"training_flags": {"model": "Net", "training": True, "frozen_parameters": frozen}}


def stack(trained: bool, names: tuple[str, str] = ("stem.weight", "body.weight")) -> list[Step]:
    """Two layers that are copies of one another, as those of a transformer; one of them may be trained."""
    first, second = names
    random = np.random.default_rng(0)
    bound = 1 / math.sqrt(32)
    weight = random.uniform(-bound, bound, (64, 32)).astype(np.float32)
    frozen = [first] if trained else [first, second]
    held = {"optimizer": {"frozen": {"count": len(frozen), "names": frozen}}}
    membership = {"optimizers": held, "drawn": frozen}
    row = {"identical_rows": 0.0, "constant": False, "std": float(weight.std()), "shape": [64, 32]}
    initialization = {"tensors": {first: row, second: row}}
    return [
        Step(
            scalars={"loss": 1.0},
            statistics={
                first: weight,
                second: weight + np.float32(0.01 * step * trained),
                "readout.weight": random.normal(size=(8, 8)).astype(np.float32),
            },
            facts={"membership": membership, "initialization": initialization} if step == 0 else {},
        )
        for step in range(20)
    ]


class TestFrozenByMistake(RuleSuite):
    rule = find_rule("FrozenByMistake")

    def sick(self) -> Sequence[Step]:
        return run("uniform", np.random.default_rng(0))

    def healthy(self) -> Sequence[Step]:
        return run("trained", np.random.default_rng(0))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        layers = stack(trained=True, names=("layers.0.linear.weight", "layers.1.linear.weight"))
        return [short_of_captures(), stack(trained=False), layers, run("uniform", np.random.default_rng(0))[:2]]

    def test_weights_that_are_unfrozen_after_the_last_capture_are_not_reported(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path, short_of_captures(thawed=100))) == []

    def test_copies_of_trained_weights_are_not_reported(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path, stack(trained=True))) == []


class TestFrozenByMistakeInRealRuns(RealRuns):
    rule = "FrozenByMistake"
    cause = "frozen_by_mistake"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A frozen layer in the middle; the twin's were trained before."""
        model = classifier()
        if not sick:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            for _ in range(60):
                update(model, optimizer, *batch())
        model[2].requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
        watch(model)
        for _ in range(40):
            update(model, optimizer, *batch())


class Adapted(nn.Module):
    """A frozen linear layer with a trained update of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.base(inputs) + self.up(self.down(inputs))
        return outputs


class TestALoadedBaseInRealRuns(RealRuns):
    """Adapters on a base that still looks fresh; the twin has loaded it."""

    rule = "FrozenByMistake"
    cause = "frozen_by_mistake"

    def train(self, watch: Watch, *, sick: bool) -> None:
        base, state = classifier(), classifier().state_dict()
        watch(base)
        if not sick:
            base.load_state_dict({name: value for name, value in state.items() if name != "6.bias"}, strict=False)
        for at in (0, 2, 4):
            base[at] = Adapted(base[at])
        optimizer = torch.optim.Adam([each for each in base.parameters() if each.requires_grad], lr=1e-2)
        for _ in range(40):
            update(base, optimizer, *batch())


@contextmanager
def watched_process(run: Path) -> Iterator[None]:
    """All models are watched from the start, as under a launcher."""
    with Hook(run, save_interval=1, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=True)
        yield


def adapters_on(base: nn.Sequential) -> None:
    """Train adapters of a frozen base for a few steps."""
    for at in (0, 2, 4):
        base[at] = Adapted(base[at])
    optimizer = torch.optim.Adam([each for each in base.parameters() if each.requires_grad], lr=1e-2)
    for _ in range(20):
        update(base, optimizer, *batch())


def by_safetensors(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(state, file)
    safetensors.load_model(base, file)


def assigned(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    base.load_state_dict(state, assign=True)


def by_data(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    for name, weight in base.named_parameters():
        weight.data.copy_(state[name])


def in_place(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    with torch.no_grad():
        for name, weight in base.named_parameters():
            weight.copy_(state[name])


def new_data(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    for name, weight in base.named_parameters():
        weight.data = state[name]


def new_parameters(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    """As `from_pretrained` of transformers does."""
    for name, module in base.named_modules():
        for own in list(module._parameters):
            setattr(module, own, nn.Parameter(state[f"{name}.{own}"]))


def into_empty(base: nn.Module, state: dict[str, torch.Tensor], file: Path) -> None:
    base.to_empty(device="cpu")
    base.load_state_dict(state)


LOADERS = (by_safetensors, assigned, by_data, in_place, new_data, new_parameters, into_empty)
Load = Callable[[nn.Module, dict[str, torch.Tensor], Path], None]


def normal_state(file: Path) -> dict[str, torch.Tensor]:
    """Read from a file; what a few steps of training leave of a fresh base still looks fresh."""
    torch.save({name: torch.randn_like(each) * 0.02 for name, each in classifier().state_dict().items()}, file)
    state: dict[str, torch.Tensor] = torch.load(file)
    return state


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("watched", ["before the model is made", "when the model is made", "when it is loaded"])
def test_a_loaded_base_is_not_reported_however_it_was_loaded(run_path: Path, load: Load, watched: str) -> None:
    torch.manual_seed(0)
    state, file = normal_state(run_path.parent / "base"), run_path.parent / "base.safetensors"
    with ExitStack() as watching:
        if watched == "before the model is made":
            watching.enter_context(watched_process(run_path))
        base = classifier()
        if watched == "when the model is made":
            watching.enter_context(watchglass.watch(base, run=run_path, save_interval=1, strict=True))
        load(base, state, file)
        if watched == "when it is loaded":
            watching.enter_context(watchglass.watch(base, run=run_path, save_interval=1, strict=True))
        adapters_on(base)
    assert replay(run_path, [RuleSpec("FrozenByMistake")]).findings == ()


def drawn_again(base: nn.Module) -> nn.Module:
    for weight in base.parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
    return base


@pytest.mark.parametrize("made", [drawn_again, copy.deepcopy, nn.Module.double])
def test_a_random_base_is_reported_however_it_was_made(run_path: Path, made: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    with watched_process(run_path):
        base = made(classifier()).float()
        adapters_on(base)
    (found,) = replay(run_path, [RuleSpec("FrozenByMistake")]).findings
    assert found.tensors == ("0.base.weight", "2.base.weight", "4.base.weight")


def test_an_embedding_of_which_training_used_some_rows_is_not_reported(run_path: Path) -> None:
    torch.manual_seed(0)
    with watched_process(run_path):
        tables = nn.ModuleList([nn.Embedding(64, 16), nn.Embedding(64, 16)])
        before = torch.optim.SGD(tables.parameters(), lr=0.01)
        for _ in range(4):
            before.zero_grad()
            sum(table(torch.randint(0, 64, (32,))).square().mean() for table in tables).backward()
            before.step()
        tables.requires_grad_(False)
        head = nn.Linear(16, 4)
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
        for _ in range(20):
            tokens = torch.randint(0, 64, (32,))
            loss = F.cross_entropy(head(tables[0](tokens) + tables[1](tokens)), tokens % 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert replay(run_path, [RuleSpec("FrozenByMistake")]).findings == ()


def test_what_a_script_did_not_find_in_the_state_still_looks_fresh(run_path: Path) -> None:
    torch.manual_seed(0)
    base = classifier()
    with watchglass.watch(base, run=run_path, save_interval=1):
        base.load_state_dict({"2.weight": torch.randn(16, 16)}, strict=False)
        base[:-1].requires_grad_(False)
        optimizer = torch.optim.Adam(base[-1].parameters(), lr=1e-2)
        for _ in range(20):
            update(base, optimizer, *batch())
    (found,) = replay(run_path, [RuleSpec("FrozenByMistake")]).findings
    assert found.tensors == ("0.weight", "4.weight")


def test_weights_that_are_unfrozen_and_in_no_optimizer_are_not_reported(run_path: Path) -> None:
    torch.manual_seed(0)
    model = classifier()
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05)
    with watchglass.watch(model, run=run_path, save_interval=1, strict=True):
        for number in range(40):
            model[2].requires_grad_(number >= 10)
            update(model, optimizer, *batch())
    assert replay(run_path, [RuleSpec("FrozenByMistake")]).findings == ()


@pytest.mark.parametrize("pretrained", [False, True])
def test_layers_of_a_group_whose_rate_is_zero_are_reported_unless_they_are_pretrained(
    run_path: Path, pretrained: bool
) -> None:
    torch.manual_seed(0)
    model = classifier()
    if pretrained:
        before = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(60):
            update(model, before, *batch())
    groups = [{"params": model[:3].parameters(), "lr": 0.0}, {"params": model[3:].parameters()}]
    optimizer = torch.optim.Adam(groups, lr=0.001)
    with watchglass.watch(model, run=run_path, save_interval=1, strict=True):
        for _ in range(12):
            update(model, optimizer, *batch())
    found = replay(run_path, [RuleSpec("FrozenByMistake"), RuleSpec("UnchangedTensor")]).findings
    assert "UnchangedTensor" in {finding.rule for finding in found}
    serious = [finding for finding in found if finding.severity is not Severity.INFO]
    assert [(each.tensors, each.symptoms) for each in serious] == (
        [] if pretrained else [(("0.weight", "2.weight"), ("group_rate_is_zero",))]
    )


@pytest.mark.parametrize(("frozen", "filtered"), [(0, True), (0, False), (2, True)])
def test_a_first_layer_that_the_script_leaves_out_is_an_info(run_path: Path, frozen: int, *, filtered: bool) -> None:
    with watched_process(run_path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), *[nn.Linear(16, 16) for _ in range(4)], nn.Linear(16, 4))
        model[frozen].requires_grad_(False)
        optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad or not filtered])
        for _ in range(40):
            update(model, optimizer, *batch())
    (finding,) = replay(run_path, [RuleSpec("FrozenByMistake")]).findings
    assert finding.severity is (Severity.INFO if filtered and frozen == 0 else Severity.WARNING)
