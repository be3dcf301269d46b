"""VanishingGradient: gradients that shrink over the layers, and what takes from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, constant_loss, training
from watchglass.config import RuleSpec
from watchglass.diagnose import diagnose
from watchglass.evaluate import replay
from watchglass.records import ModuleKind
from watchglass.records.facts import ForwardLayers
from watchglass.rules import capture_for, find_rule
from watchglass.rules.graph.forward import ForwardGraph
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestVanishingGradient(RuleSuite):
    rule = find_rule("VanishingGradient")
    modules: ClassVar = {**MODULES, "bend": ModuleKind.SATURATING, "curve": ModuleKind.SATURATING}

    def sick(self) -> Sequence[Step]:
        return training(60, loss=constant_loss(2.3), gradient=lambda n, i: 1e-2 * 1e-3 ** (2 - i))

    def healthy(self) -> Sequence[Step]:
        # A modest slope over the layers, and everything small at convergence, the first layer most of all.
        return training(600, gradient=lambda n, i: 1e-2 * 0.1 ** (2 - i) * 0.98**n)


class TestVanishingGradientInRealRuns(RealRuns):
    rule = "VanishingGradient"
    cause = "deep_saturating_activations"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(nn.Sigmoid if sick else nn.ReLU, depth=8), watch, rate=0.01, optimizer=torch.optim.Adam)


class TestDepthInRealRuns(RealRuns):
    rule = "VanishingGradient"
    cause = "vanishing_over_depth"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Weights of Kaiming's scheme keep the size of gradients, but not the differences between inputs."""
        model = classifier(depth=24 if sick else 3)
        for layer in model[:-1:2]:
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        fit(model, watch, rate=0.02 if sick else 0.1, steps=72)


class TestTinyFactorInRealRuns(RealRuns):
    rule = "VanishingGradient"
    cause = "loss_scaled_down"

    def train(self, watch: Watch, *, sick: bool) -> None:
        factor = 1e-5 if sick else 0.5
        fit(classifier(), watch, loss=lambda outputs, labels: F.cross_entropy(outputs, labels) * factor)


class TestTinyFactorOfAHandwrittenLossInRealRuns(RealRuns):
    rule = "VanishingGradient"
    cause = "loss_scaled_down"

    def train(self, watch: Watch, *, sick: bool) -> None:
        factor = 1e-7 if sick else 0.5
        fit(classifier(), watch, loss=lambda outputs, labels: factor * (outputs - F.one_hot(labels, 4)).square().mean())


class TestTinyFactorInHalfRealRuns(RealRuns):
    rule = "VanishingGradient"
    cause = "gradient_underflow"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """In float16, what a factor leaves of the gradients has no precision."""
        model, factor = classifier(), 1e-5 if sick else 0.5
        model.forward = torch.autocast("cpu", torch.float16, enabled=sick)(model.forward)
        fit(model, watch, loss=lambda outputs, labels: F.cross_entropy(outputs.float(), labels) * factor)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_mean_over_many_and_a_scaled_loss_have_no_tiny_factor(run_path: Path, scaled: bool) -> None:
    """Tiny targets make the gradients tiny here."""
    model, scaler = classifier(), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    for parameter in model.parameters():
        parameter.detach().mul_(1e-2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rules = [RuleSpec("VanishingGradient")]
    with watchglass.watch(model, run=run_path, strict=True, save_interval=1, **capture_for(rules)):
        for _ in range(40):
            loss = model(torch.randn(512, 16)).square().sum() / 2048
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    (finding,) = replay(run_path, rules).findings
    assert "multiplies" not in finding.message


def test_the_factor_of_a_loss_is_recorded_without_that_of_a_scaler(run_path: Path) -> None:
    """Tiny gradients are those of a norm that was clipped while it was scaled."""
    operations = [{"operation": "nll_loss", "shape": [], "of": [], "reduction": "mean", "elements": 64, "rows": 8}]
    term = {"coefficient": 0.25, "kind": "data", "whole": True, "operations": operations}
    graph = {"terms": [term], "terms_count": 1, "complete": True, "opaque": [], "batch": 8, "unreached": None}
    steps = [
        replace(step, scalars={**step.scalars, "loss_scale": 65536.0})
        for step in training(
            60, loss=constant_loss(2.3), gradient=lambda n, i: 1e-9, facts={0: {"loss_graph": graph}}
        )
    ]  # fmt: skip
    (finding,) = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("VanishingGradient")]).findings
    assert "at most" in finding.message
    assert "multiplies" not in finding.message


def _stack(derivative: float, *, rectified: bool = False) -> list[Step]:
    """Six layers of unit gain with activations that are functions, of a given derivative, and so no modules."""
    random = np.random.default_rng(3)
    names = [f"part{i}" for i in range(6)]
    steps = []
    for _ in range(10):
        arrays = {}
        for i, name in enumerate(names):
            arrays[f"{name}.weight"] = random.normal(size=(32, 32)) / np.sqrt(32)
            arrays[f"gradient/{name}.weight"] = random.normal(size=(32, 32)) * derivative ** (5 - i)
        units = {f"{name}.input.0": [False] * 32 for name in names[1:]} if rectified else {}
        small = {name: array.astype(np.float32) for name, array in arrays.items()}
        steps.append(Step(scalars={"loss": 2.3, "learning_rate": 0.1}, statistics=small, units=units))
    return steps


@pytest.mark.parametrize(
    ("derivative", "rectified", "cause"),
    [
        (0.2, False, "deep_saturating_activations"),
        (0.2, True, "vanishing_over_depth"),
    ],
)
def test_functional_sigmoids_show_in_what_they_take_from_the_gradient(
    run_path: Path, derivative: float, rectified: bool, cause: str
) -> None:
    modules = {f"part{i}": ModuleKind.LINEAR for i in range(6)}
    run = build_run(run_path, _stack(derivative, rectified=rectified), modules=modules)
    (diagnosis,) = diagnose(replay(run).findings)
    assert diagnosis.causes[0].cause.id == cause


@pytest.mark.parametrize(("residuals", "deep"), [(0, True), (6, False)])
def test_depth_without_shortcuts_is_evidence(run_path: Path, residuals: int, deep: bool) -> None:
    steps = _stack(0.05, rectified=True)
    graph = {"depth": 12, "residuals": residuals, "normalizations": 0}
    steps[0] = replace(steps[0], facts={"forward_graph": graph})
    run = build_run(run_path, steps, modules={f"part{i}": ModuleKind.LINEAR for i in range(6)})
    (finding,) = [finding for finding in replay(run).findings if finding.rule == "VanishingGradient"]
    assert ("deep_and_plain" in finding.evidence["symptoms"]) is deep
    assert ("12 layers follow each other" in finding.message) is deep


@pytest.mark.parametrize(
    ("share", "loss", "depth", "found"),
    [
        (1e-2, 2.3, 12, True),
        (1e-2, 1.6, 12, False),
        (2e-3, 1.6, 12, True),
        (2e-3, 0.7, 12, False),
        (1e-2, 2.3, 4, False),
        (5e-2, 2.3, 12, False),
    ],
)
def test_a_structure_that_shrinks_gradients_explains_a_loss_that_falls_little(
    run_path: Path, share: float, loss: float, depth: int, found: bool
) -> None:
    graph = {"depth": depth, "residuals": 0, "normalizations": 0}
    steps = training(
        60,
        loss=lambda n: max(loss, 2.3 - 0.05 * n),
        gradient=lambda n, i: 1e-2 * share ** ((2 - i) / 2),
        facts={0: {"forward_graph": graph}},
    )
    modules = dict.fromkeys(("stem", "middle", "readout"), ModuleKind.LINEAR)
    findings = replay(build_run(run_path, steps, modules=modules), [RuleSpec("VanishingGradient")]).findings
    assert bool(findings) is found


@pytest.mark.parametrize(("rate", "cause"), [(0.3, "learning_rate_too_high"), (1e-3, "vanishing_over_depth")])
def test_a_rate_far_above_usual_ones_is_named_before_what_it_leaves(run_path: Path, rate: float, cause: str) -> None:
    steps = training(60, loss=constant_loss(2.3), gradient=lambda n, i: 1e-2 * 1e-3 ** (2 - i))
    optimizer = {"type": "Adam", "groups": [{"lr": rate, "eps": 1e-8}]}
    steps[0] = replace(steps[0], facts={**steps[0].facts, "optimizer": optimizer})
    steps = [replace(step, scalars={**step.scalars, "learning_rate": rate}) for step in steps]
    modules = dict.fromkeys(("stem", "middle", "readout"), ModuleKind.RECTIFIER)
    findings = replay(build_run(run_path, steps, modules=modules), [RuleSpec("VanishingGradient")]).findings
    assert diagnose(findings)[0].causes[0].cause.id == cause


#: A block of attention and a feed-forward layer, each with a shortcut around it, and a head with tanh.
_BLOCK = ["query", "key", "value", "mixed", "wide", "narrow", "pooler", "classifier"]
_WAYS = [
    [0, 3, "scale product softmax"], [1, 3, "scale product softmax"], [2, 3, "product"],
    [3, 4, "layer_norm residual"], [4, 5, "gelu"], [5, 6, "layer_norm residual"], [6, 7, "tanh"],
]  # fmt: skip


def _attending(gradients: Sequence[float], ways: list[list[object]] = _WAYS) -> list[Step]:
    """A run of :data:`_BLOCK` with these gradients of its layers, and with these operations between them."""
    kinds = dict.fromkeys({name for way in ways for name in str(way[2]).split()}, "activates")
    graph = {
        "layers": [[f"{name}.weight", "linear", 16, 16] for name in _BLOCK], "layers_count": len(_BLOCK),
        "pairs": ways, "pairs_count": len(ways), "kinds": kinds, "complete": True, "depth": 6,
        "residuals": sum("residual" in str(way[2]) for way in ways), "normalizations": 2,
    }  # fmt: skip
    random = np.random.default_rng(3)
    steps = []
    for number in range(20):
        arrays = {
            f"gradient/{name}.weight": (random.normal(size=(16, 16)) * size).astype(np.float32)
            for name, size in zip(_BLOCK, gradients, strict=True)
        }
        facts = {"forward_graph": graph} if number == 0 else {}
        steps.append(Step(scalars={"loss": 1.1, "learning_rate": 3e-4}, statistics=arrays, facts=facts))
    return steps


@pytest.mark.parametrize(
    ("gradients", "found"),
    [
        # Even attention: queries and keys get next to nothing. Small weights of the head take from all layers alike.
        ([1e-7, 1e-7, 3e-5, 3e-5, 2e-5, 2e-5, 3e-3, 1e-1], False),
        # Nothing comes through the feed-forward layer, which the shortcut should lead around.
        ([1e-10, 1e-10, 1e-8, 1e-8, 2e-4, 1e-4, 3e-3, 1e-1], True),
    ],
)
def test_queries_keys_and_a_head_are_not_compared_in_a_model_with_shortcuts(
    run_path: Path, gradients: list[float], found: bool
) -> None:
    run = build_run(run_path, _attending(gradients), modules=dict.fromkeys(_BLOCK, ModuleKind.LINEAR))
    findings = replay(run, [RuleSpec("VanishingGradient")]).findings
    assert [finding.tensors for finding in findings] == (
        [("gradient/value.weight", "gradient/wide.weight")] if found else []
    )


@pytest.mark.parametrize(
    ("between", "kinds"),
    [
        (["tanh", "tanh", "tanh", "tanh", "tanh", "tanh", "tanh"], "tanh"),
        (["relu", "relu", "relu", "relu", "relu", "relu", "tanh"], ""),
        (["sigmoid product"] * 7, ""),
    ],
)
def test_saturating_activations_count_if_gradients_must_pass_several(
    run_path: Path, between: list[str], kinds: str
) -> None:
    ways: list[list[object]] = [[at, at + 1, names] for at, names in enumerate(between)]
    steps = _attending([1e-6, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-2, 1e-2], ways)
    run = build_run(run_path, steps, modules={**dict.fromkeys(_BLOCK, ModuleKind.LINEAR), "end": ModuleKind.SATURATING})
    (finding,) = [
        each for each in replay(run, [RuleSpec("VanishingGradient")]).findings if "depth" in str(each.evidence)
    ]
    assert finding.evidence.get("saturating", "") == kinds


@pytest.mark.parametrize(
    ("graph", "loss", "facts", "found"),
    [
        ({"depth": 12}, 2.3, {}, True),
        ({"depth": 4}, 2.3, {}, False),
        ({"depth": 12, "residuals": 5}, 2.3, {}, False),
        ({"depth": 12, "normalizations": 12}, 2.3, {}, False),
        ({"depth": 12}, 1.6, {}, False),
        # A rate at which nothing learns.
        ({"depth": 12}, 2.3, {"optimizer": {"type": "Adam", "groups": [{"lr": 1e-8, "eps": 1e-8}]}}, False),
    ],
)
def test_a_deep_model_that_learns_nothing_is_too_deep_although_gradients_reach_its_first_layers(
    run_path: Path, graph: dict[str, int], loss: float, facts: dict[str, Any], found: bool
) -> None:
    whole = {"forward_graph": {"residuals": 0, "normalizations": 0, **graph}, **facts}
    rate = facts["optimizer"]["groups"][0]["lr"] if facts else 0.1
    steps = training(80, loss=lambda n: max(loss, 2.3 - 0.02 * n), noise=0.01, facts={0: whole}, rate=lambda n: rate)
    modules = dict.fromkeys(("stem", "middle", "readout"), ModuleKind.LINEAR)
    findings = replay(build_run(run_path, steps, modules=modules), [RuleSpec("VanishingGradient")]).findings
    assert [finding.evidence["symptoms"] for finding in findings] == ([["deep_and_plain"]] if found else [])


@pytest.mark.parametrize(
    ("ways", "length"),
    [
        ([(at, at + 1) for at in range(19)], 20),
        # A concatenation with the result of the second layer leads around the others.
        ([*((at, at + 1) for at in range(19)), (1, 18)], 4),
    ],
)
def test_a_very_deep_model_is_too_deep_unless_it_learns_well(
    run_path: Path, ways: list[tuple[int, int]], length: int
) -> None:
    layers = [[f"{at}.weight", "linear", 16, 16] for at in range(20)]
    graph = {
        "layers": layers, "layers_count": 20, "pairs": [[*way, "relu"] for way in ways], "pairs_count": len(ways),
        "complete": True, "depth": 20, "residuals": 0, "normalizations": 0,
    }  # fmt: skip
    assert ForwardGraph(ForwardLayers.from_data(graph) or ForwardLayers()).shortest() == length
    modules = dict.fromkeys(("stem", "middle", "readout"), ModuleKind.LINEAR)
    found = []
    for lowest in (1.6, 0.9):
        steps = training(
            80, loss=lambda n, low=lowest: max(low, 2.3 - 0.03 * n), noise=0.01, facts={0: {"forward_graph": graph}}
        )  # fmt: skip
        run = build_run(run_path.with_name(str(lowest)), steps, modules=modules)
        found.append(bool(replay(run, [RuleSpec("VanishingGradient")]).findings))
    assert found == [length > 16, False]


@pytest.mark.parametrize(
    ("dtype", "scale", "cause"),
    [
        (np.float16, {}, "gradient_underflow"),
        (np.float16, {"loss_scale": {"scale": 1024.0, "before": 512.0}}, "dying_relu"),
        (np.float32, {}, "dying_relu"),
    ],
)
def test_zero_gradients_of_unscaled_float16_are_an_underflow(
    run_path: Path, dtype: type[np.floating[Any]], scale: dict[str, Any], cause: str
) -> None:
    steps = [
        replace(
            step,
            statistics={
                name: array.astype(dtype) if name.endswith(".output") else array
                for name, array in step.statistics.items()
            },
        )
        for step in training(60, loss=constant_loss(2.3), gradient=lambda n, i: 1e-4 if i else 0.0, facts={0: scale})
    ]
    run = build_run(run_path, steps, modules=MODULES)
    assert diagnose(replay(run, [RuleSpec("VanishingGradient")]).findings)[0].causes[0].cause.id == cause
