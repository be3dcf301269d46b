"""Facts of compiled steps: what collected values tell is what hooks of PyTorch tell of the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import watchglass
from waiting import until
from watchglass import Mode, ModuleKind
from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled import steps as compiled_steps
from watchglass.capture.compiled.collecting import Collected, Collector, ObservedLoss, Updater, ValuePart
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.membership import membership_of
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.records import DeclaredFact, facts

ROOT = Place("", "Classifier", 0, kind=ModuleKind.CONTAINER)
DENSE = Place("dense", "Linear", 1, kind=ModuleKind.LINEAR)
WEIGHT, BIAS = (ParameterPlace(f"dense.{leaf}", leaf, DENSE) for leaf in ("weight", "bias"))
SGD = Updater("SGD", (facts.UpdateGroup(lr=0.1, weight_decay=0.0),))


class Loop:
    """A loop of no framework, that collects what it is told."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.hook = watchglass.Hook(path, strict=True, **{"save_interval": 1, **settings})
        self.steps = CompiledSteps(self.hook.port)
        self.delivery = StepDelivery(self.hook.port, "toy", self.steps)
        self.collector = Collector()
        self.collected: list[int] = []

    @contextmanager
    def step(
        self, loss: Any, mode: Mode = Mode.TRAIN, updaters: Mapping[int, Updater] | None = None, **numbers: Any
    ) -> Iterator[Callable[..., None]]:
        """A step with this loss; adds values to it if any are collected."""
        step = self.steps.begin(mode)
        with self.collector.frame() as values:

            def add(part: ValuePart, value: Any, name: str = "", place: Place = ROOT, **more: Any) -> None:
                self.collector.add(Collected(part, name, place, **more), value)

            yield add
        if step is not None:
            self.collected.append(step.mode_step)
            self.delivery.save(step, values, self.collector.known, updaters)
        self.steps.end({"loss": loss, **numbers})


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.dense(inputs)
        return outputs


def _copy(tensor: Any) -> Any:
    return tensor.detach().numpy().copy()


def _train_both(tmp_path: Path, batches: list[Any], optimize: Any, updater: Updater) -> tuple[Any, Any]:
    """Runs of the same training: by hooks of PyTorch, and by values collected around it."""
    runs = []
    for collecting in (False, True):
        model, path = Classifier(), tmp_path / f"run_{collecting}"
        optimizer = optimize(model.parameters())
        if not collecting:
            with watchglass.watch(model, run=path, save_interval=1):
                for inputs, labels in batches:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(inputs), labels).backward()
                    optimizer.step()
                model.eval()
                with torch.no_grad():
                    nn.functional.cross_entropy(model(batches[0][0]), batches[0][1])
            runs.append(watchglass.open_run(path))
            continue
        loop = Loop(path)
        places = {"dense.weight": WEIGHT, "dense.bias": BIAS}
        with loop.hook:
            for number, (inputs, labels) in enumerate([*batches, batches[0]]):
                optimizer.zero_grad()
                logits = model(inputs)
                loss = nn.functional.cross_entropy(logits, labels)
                call = ObservedLoss(
                    "cross_entropy", tuple(logits.shape), tuple(labels.shape), ("float32", "int64"), by_class=True,
                    operation="weighted_sum" if number < len(batches) else None,
                )  # fmt: skip
                mode = Mode.TRAIN if number < len(batches) else Mode.EVAL
                with loop.step(float(loss.detach()), mode, {0: updater}) as add:
                    add(ValuePart.BATCH, _copy(inputs), "0")
                    add(ValuePart.INPUT, _copy(inputs), "0", DENSE)
                    add(ValuePart.OUTPUT, _copy(logits), "", DENSE)
                    add(ValuePart.PREDICTIONS, _copy(logits), "prediction", call=call)
                    add(ValuePart.LABELS, _copy(labels), "label", call=call)
                    if mode is Mode.EVAL:
                        continue
                    loss.backward()
                    for name, parameter in model.named_parameters():
                        add(ValuePart.BEFORE, _copy(parameter), name, DENSE, parameter=places[name])
                        add(ValuePart.GRADIENT, _copy(parameter.grad), name, DENSE, parameter=places[name])
                    optimizer.step()
                    for name, parameter in model.named_parameters():
                        add(ValuePart.AFTER, _copy(parameter), name, DENSE, parameter=places[name])
                        state = optimizer.state[parameter]
                        if "exp_avg_sq" in state:
                            add(ValuePart.MOMENT, _copy(state["exp_avg_sq"]), name, DENSE, parameter=places[name])
                    add(ValuePart.UPDATES, float(number + 1), "iterations")
        runs.append(watchglass.open_run(path))
    return runs[0], runs[1]


def _batches(number: int = 20, rows: int = 16) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(rows, 4, generator=generator) for _ in range(number)]
    return [(each, each.argmax(1) % 3) for each in inputs]


def _facts(run: Any, kind: type[DeclaredFact], without: tuple[str, ...] = ()) -> list[Any]:
    found = []
    for fact in run.facts(kind.KIND):
        data = {name: value for name, value in fact.data.items() if name not in without}
        found.append((fact.global_step, data))
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("optimize", "updater"),
    [
        (lambda parameters: torch.optim.SGD(parameters, 0.1), SGD),
        (
            lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1),
            Updater("AdamW", (facts.UpdateGroup(0.01, 0.1, True, 1e-8, 0.999),)),
        ),
    ],
    ids=["SGD", "AdamW"],
)
def test_facts_are_those_of_hooks_of_pytorch(tmp_path: Path, optimize: Any, updater: Updater) -> None:
    by_hooks, collected = _train_both(tmp_path, _batches(), optimize, updater)
    kinds: dict[type[DeclaredFact], tuple[str, ...]] = {
        facts.ComputedLoss: (), facts.OutputSketch: (), facts.TargetSketch: (), facts.InputSketch: (),
        facts.Initialization: (), facts.UpdateSample: (), facts.BatchInputs: ("iterations", "same_tensor", "part"),
    }  # fmt: skip
    for kind, without in kinds.items():
        one, other = _facts(by_hooks, kind, without), _facts(collected, kind, without)
        assert one, kind
        assert _same(one, other), f"{kind.__name__}:\n{one[-1]}\n{other[-1]}"
    for mode in ("train", "eval"):
        for name in ("accuracy", "rows_seen_in_training") if mode == "eval" else ("accuracy",):
            shares = [run.scalars(name, mode=mode) for run in (by_hooks, collected)]
            assert len(shares[0][1]), name
            assert _same(*(list(map(float, each[1])) for each in shares)), name
            assert _same(*(list(map(int, each[0])) for each in shares)), name


def _places(run: Any) -> list[tuple[int, str, str, str, str]]:
    found = run.facts("first_bad_module")
    return [
        (each.global_step, each.data["level"], each.data["where"], each.data.get("module", ""), each.data["sentence"])
        for each in found
    ]


def _bad_step(add: Callable[..., None], *, at: str = "", kernel: float = 1.0, gradient: float = 1.0) -> None:
    """A step of three layers: a value is NaN from ``at`` on."""
    block, first, second = (
        Place(path, kind, index)
        for index, (path, kind) in enumerate((("block", "Block"), ("block.first", "Dense"), ("block.second", "Dense")))
    )
    order = ("batch", "block", "block.first", "block.second", "predictions", "loss")
    bad = order.index(at) if at else len(order)

    def value(name: str) -> Any:
        return np.full((4, 2), math.nan if order.index(name) >= bad else 1.0, np.float32)

    parameter = ParameterPlace("block.first.kernel", "kernel", first, unit_axis=-1)
    last = ParameterPlace("block.second.kernel", "kernel", second, unit_axis=-1)
    call = ObservedLoss("mse_loss", (4, 2), (4, 2), ("float32", "float32"))
    add(ValuePart.BATCH, value("batch"), "0")
    add(ValuePart.INPUT, value("block"), "0", first)
    add(ValuePart.OUTPUT, value("block.first"), "", first)
    add(ValuePart.INPUT, value("block.first"), "0", second)
    add(ValuePart.OUTPUT, value("block.second"), "", second)
    # An interceptor sees both when the outer module returns.
    add(ValuePart.INPUT, value("batch"), "0", block)
    add(ValuePart.OUTPUT, value("block.second"), "", block)
    add(ValuePart.PREDICTIONS, value("predictions"), "prediction", call=call)
    add(ValuePart.LABELS, np.ones((4, 2), np.float32), "label", call=call)
    for place, each in ((parameter, kernel), (last, 1.0)):
        values = np.full((2, 2), each, np.float32)
        add(ValuePart.BEFORE, values, place.name, place.place, parameter=place)
        add(ValuePart.GRADIENT, np.full((2, 2), gradient, np.float32), place.name, place.place, parameter=place)
        add(ValuePart.AFTER, values, place.name, place.place, parameter=place)


@pytest.mark.parametrize(
    ("at", "where", "module", "sentence"),
    [
        ("batch", "input", "", "the data given to the model itself (Classifier) is not finite"),
        (
            "block", "forward", "block",
            "block (Block) made values that are not finite before it called block.first (Dense)",
        ),
        (
            "block.first", "forward", "block.first",
            "block.first (Dense) turned finite inputs (largest magnitude 1) into values that are not finite",
        ),
        (
            "block.second", "forward", "block.second",
            "block.second (Dense) turned finite inputs (largest magnitude 1) into values that are not finite",
        ),
        ("predictions", "loss", "", "all modules are finite, the predictions given to mse_loss are not finite"),
        ("loss", "loss", "", "all modules are finite (largest output magnitude 1), the result of mse_loss is not"),
    ],
)  # fmt: skip
def test_a_captured_step_names_the_first_value_that_is_not_finite(
    tmp_path: Path, at: str, where: str, module: str, sentence: str
) -> None:
    loop = Loop(tmp_path / "run")
    with loop.hook:
        for number in range(4):
            with loop.step(math.nan if number == 2 else 1.0, updaters={0: SGD}) as add:
                _bad_step(add, at=at if number == 2 else "")
    run = watchglass.open_run(tmp_path / "run")
    assert _places(run) == [(2, "step", where, module, sentence)]
    assert [(each.global_step, each.data["value"]) for each in run.facts("nonfinite_loss")] == [(2, "nan")]


def test_weights_that_were_bad_before_are_no_fault_of_the_first_layer(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    with loop.hook:
        for number in range(3):
            with loop.step(math.nan if number == 2 else 1.0, updaters={0: SGD}) as add:
                _bad_step(add, at="block.first" if number == 2 else "", kernel=math.inf if number == 2 else 1.0)
    ((step, level, where, module, sentence),) = _places(watchglass.open_run(tmp_path / "run"))
    assert (step, level, where, module) == (2, "step", "weights", "block.first")
    assert sentence == "block.first.kernel was already not finite before this forward: SGD last updated it at step 1"


def test_a_gradient_of_a_finite_loss_is_named_unless_its_update_is_skipped(tmp_path: Path) -> None:
    for skips in (False, True):
        loop = Loop(tmp_path / f"run_{skips}")
        with loop.hook:
            for number in range(3):
                with loop.step(1.0, updaters={0: Updater("SGD", skips=skips)}) as add:
                    _bad_step(add, gradient=math.nan if number == 1 else 1.0)
        run = watchglass.open_run(tmp_path / f"run_{skips}")
        if skips:
            assert not _places(run)
            assert [each.global_step for each in run.facts("step_skipped")] == [1]
            assert not run.facts("nonfinite_gradients")
        else:
            sentence = "the gradient of block.second.kernel is the first in backward order that is not finite"
            assert _places(run) == [(1, "step", "backward", "block.second", sentence)]
            assert not run.facts("step_skipped")


@pytest.mark.parametrize("late", [False, True])
def test_after_a_failure_at_which_nothing_was_due_the_next_steps_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    read: list[float] = []

    def on_its_way(value: float) -> DeferredNumbers:
        def resolve() -> float:
            read.append(value)
            return float(value)

        return DeferredNumbers(resolve)

    if late:
        monkeypatch.setattr(compiled_steps, "number_of", on_its_way)
    loop = Loop(tmp_path / "run", save_interval=1000)
    with loop.hook:
        for number in range(80):
            bad = number >= 40
            # One of a device, which only the recorder's thread reads.
            loss = (np.float32 if late else float)(math.nan if bad else 1.0)
            with loop.step(loss, updaters={0: SGD}) as add:
                _bad_step(add, at="block.first" if bad else "", kernel=math.nan if bad else 1.0)
            if late and number == 60:
                loop.hook.port.flush()
                until(lambda: any(map(math.isnan, read)))
    run = watchglass.open_run(tmp_path / "run")
    ((step, level, where, module, sentence),) = _places(run)
    assert (level, where, module) == ("next_steps", "weights", "block.first")
    # The recorder's thread may read the loss on its own, before it is waited for.
    assert 41 < step <= 61 if late else step == 41
    assert sentence == (
        f"block.first.kernel was already not finite before the forward of step {step}: "
        f"SGD last updated it at step {step - 1}"
    )
    (examined,) = run.facts("modules_examined")
    assert examined.global_step == step
    # Known at once, or as soon as the recorder's thread has looked.
    assert loop.collected == [0, 41] if not late else loop.collected[:2] == [0, step]


def test_steps_are_collected_no_longer_than_the_limit(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", save_interval=1000)
    most = loop.hook.port.limits.next_steps
    with loop.hook:
        for number in range(most + 80):
            with loop.step(math.nan if number == 40 else 1.0) as add:
                _bad_step(add)
    assert loop.collected == [0, *range(41, 41 + most)]
    run = watchglass.open_run(tmp_path / "run")
    assert not _places(run)
    assert [each.data["steps"] for each in run.facts("modules_examined")] == [most]
    assert list(run.scalars("loss")[0]) == list(range(most + 80))


def test_moving_averages_are_compared_with_what_a_module_normalises(tmp_path: Path) -> None:
    place = Place("norm", "BatchNorm1d", 0, kind=ModuleKind.NORMALIZATION)
    runs = []
    for collecting in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential()
        model.add_module("norm", nn.BatchNorm1d(4))
        optimizer, path = torch.optim.SGD(model.parameters(), 0.1), tmp_path / f"run_{collecting}"
        loop = Loop(path) if collecting else None
        batches = [3 + 2 * inputs for inputs, _ in _batches(9)]
        if loop is None:
            with watchglass.watch(model, run=path, save_interval=1):
                for inputs in batches:
                    optimizer.zero_grad()
                    (model(inputs) ** 3).mean().backward()
                    optimizer.step()
        else:
            with loop.hook:
                for inputs in batches:
                    norm: Any = model.get_submodule("norm")
                    model(inputs)
                    with loop.step(1.0) as add:
                        add(ValuePart.INPUT, _copy(inputs), "0", place)
                        about = facts.NormalizationState(training=True, momentum=norm.momentum)
                        add(ValuePart.MEAN, _copy(norm.running_mean), "running_mean", place, normalization=about)
                        add(ValuePart.VARIANCE, _copy(norm.running_var), "running_var", place)
        runs.append(watchglass.open_run(path))
    found = []
    for run in runs:
        rows = _facts(run, facts.NormalizationStatistics)
        known = [{name: each for name, each in row["modules"][0].items() if name != "batches"}
                 for _, row in rows]  # fmt: skip
        found.append([([step for step, _ in rows]), known])
    assert found[0][0] == [0, 1, 3, 7]
    assert _same(*found), found


def test_parameters_of_optimizers_are_compared_as_of_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], 0.1)
    with watchglass.watch(model, run=tmp_path, save_interval=1):
        for inputs, _ in _batches(2):
            optimizer.zero_grad()
            model[2](model[1](model[0](inputs).detach())).mean().backward()
            optimizer.step()
    (seen,) = watchglass.open_run(tmp_path).facts(facts.Membership)
    names = [name for name, _ in model.named_parameters()]
    given = {name: not name.startswith("0") for name in names if not name.startswith("1")}
    found = membership_of({"SGD": given}, names, [name for name in names if not name.startswith("0")])
    assert found is not None
    assert found.of_stepped == seen.of_stepped
    assert replace(found, stepped=seen.stepped, optimizers=seen.optimizers, twice=seen.twice) == seen
    assert membership_of({}, names, names) is None


def test_units_of_a_kernel_are_its_last_axis(tmp_path: Path) -> None:
    kernel = ParameterPlace("conv.kernel", "kernel", Place("conv", "Conv", 0), unit_axis=-1)
    weights = np.random.default_rng(0).normal(size=(3, 3, 4, 8)).astype(np.float32)
    weights[..., 4:] = weights[..., :1]
    loop = Loop(tmp_path / "run")
    with loop.hook, loop.step(1.0) as add:
        add(ValuePart.BEFORE, weights, kernel.name, kernel.place, parameter=kernel)
    (fact,) = watchglass.open_run(tmp_path / "run").facts("initialization")
    row = fact.data["tensors"]["conv.kernel"]
    assert (row["shape"], row["fan_in"], row["fan_out"]) == ([8, 4, 3, 3], 36, 72)
    assert row["identical_rows"] == pytest.approx(4 / 7)
    assert row["std"] == pytest.approx(float(weights.std()))


def test_a_loss_scale_is_recorded_when_it_changes(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    with loop.hook:
        for scale in (1024.0, 1024.0, 512.0):
            with loop.step(1.0) as add:
                add(ValuePart.SCALE, np.float32(scale), "loss_scale")
                add(ValuePart.RATE, np.float32(0.25), "learning_rate")
    run = watchglass.open_run(tmp_path / "run")
    assert list(run.scalars("loss_scale")[1]) == [1024.0, 1024.0, 512.0]
    assert list(run.scalars("learning_rate")[1]) == [0.25] * 3
    changes = [(each.global_step, each.data["scale"], each.data.get("before")) for each in run.facts("loss_scale")]
    assert changes == [(0, 1024.0, None), (2, 512.0, 1024.0)]


def test_clips_are_counted_with_the_norm_before_them(tmp_path: Path) -> None:
    own = facts.Clip("global_clipnorm", max_norm=2.0)
    each = facts.Clip("clipnorm", max_norm=2.0, norm_of="each variable")
    scripts = facts.Clip("clip_by_global_norm", max_norm=0.5)
    loop = Loop(tmp_path / "run")
    updater = Updater("SGD", clips=(own, each))
    for number in range(34):
        with loop.step(1.0, updaters={0: updater, 1: SGD}) as add:
            add(ValuePart.GRADIENT, np.full((2, 2), float(number % 2 + 1)), "dense.weight", DENSE, parameter=WEIGHT)
            add(ValuePart.CLIPPED, np.array(float(number % 2)), "norm", model=1, clip=scripts)
    loop.hook.close()
    run = watchglass.open_run(tmp_path / "run")
    found = {
        name: [(clip.calls, clip.compared, clip.exceeded) for clip in run.facts(facts.Clip) if clip.function == name]
        for name in ("global_clipnorm", "clipnorm", "clip_by_global_norm")
    }
    assert found == {
        "global_clipnorm": [(1, 1, 0), (32, 32, 16)],
        "clipnorm": [(1, 0, 0), (32, 0, 0)],
        "clip_by_global_norm": [(1, 1, 0), (32, 32, 16)],
    }
    assert run.scalars("gradient_norm_before_clip")[1].tolist() == [2.0, 4.0] * 17
    assert run.scalars("model_2/gradient_norm_before_clip")[1].tolist() == [0.0, 1.0] * 17


def test_a_number_of_the_loop_counts_more_than_one_of_collected_values(tmp_path: Path) -> None:
    call = ObservedLoss("cross_entropy", (4, 2), (4,), ("float32", "int64"), by_class=True)
    loop = Loop(tmp_path / "run")
    with loop.hook:
        given: list[dict[str, Any]] = [{}, {"accuracy": 0.125}]
        for numbers in given:
            with loop.step(1.0, **numbers) as add:
                add(ValuePart.PREDICTIONS, np.eye(2, dtype=np.float32)[[0, 1, 1, 1]], "prediction", call=call)
                add(ValuePart.LABELS, np.array([0, 1, 0, 1]), "label", call=call)
    assert list(watchglass.open_run(tmp_path / "run").scalars("accuracy")[1]) == [0.75, 0.125]


def test_an_update_without_an_optimizer_is_sampled_too(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    weights = np.ones((3, 4), np.float32)
    with loop.hook:
        for _ in range(2):
            gradient = np.full_like(weights, 0.5)
            with loop.step(1.0) as add:
                for part, value in (
                    (ValuePart.BEFORE, weights), (ValuePart.GRADIENT, gradient), (ValuePart.AFTER, weights - gradient),
                ):  # fmt: skip
                    add(part, value, WEIGHT.name, DENSE, parameter=WEIGHT)
            weights = weights - gradient
    (fact,) = watchglass.open_run(tmp_path / "run").facts("update_sample")
    assert fact.data["optimizer"] == "ScriptOptimizer"
    assert fact.data["cosine_gradient"] == [-1.0]
    assert fact.data["groups"] == [{"decoupled": False, "maximize": False}]


def _language_model(path: Path, moved: int, sees: float) -> list[Any]:
    """Facts of a model of tokens, whose labels are the tokens this many positions on."""
    loop = Loop(path)
    embedding = Place("tokens", "Embed", 1, kind=ModuleKind.EMBEDDING)
    generator = np.random.default_rng(0)
    shape = (8, 12, 20)
    call = ObservedLoss("cross_entropy", shape, shape[:2], ("float32", "int32"), by_class=True)
    with loop.hook:
        for _ in range(4):
            text = generator.integers(20, size=(8, 14)).astype(np.int32)
            tokens, labels = text[:, :12], text[:, moved : moved + 12]
            with loop.step(1.0) as add:
                add(ValuePart.INPUT, tokens, "0", embedding)
                add(ValuePart.ATTENTION, np.float32(sees), "12", attention=facts.SeenByAttention(12, 12))
                add(ValuePart.ATTENTION, np.float32(sees), "12", attention=facts.SeenByAttention(12, 12))
                add(ValuePart.PREDICTIONS, np.eye(20, dtype=np.float32)[tokens.reshape(-1)], "prediction", call=call)
                add(ValuePart.LABELS, labels.reshape(-1), "label", call=call)
                add(ValuePart.GRADIENT, np.ones((4, 3), np.float32), "dense.weight", DENSE, parameter=WEIGHT)
    return [fact.data for fact in watchglass.open_run(path).facts("token_targets")]


@pytest.mark.parametrize(("moved", "place", "right"), [(0, "same", 1.0), (1, "next", 0.0), (2, "second", 0.0)])
def test_labels_are_compared_with_tokens(tmp_path: Path, moved: int, place: str, right: float) -> None:
    found = _language_model(tmp_path / "run", moved, 0.0)
    assert len(found) == 4  # the first three captured steps, and the fourth
    (loss,) = found[0]["losses"]
    assert loss["agreeing"][place] == 1.0
    assert max(share for name, share in loss["agreeing"].items() if name != place) < 0.3
    assert (loss["judged"], loss["length"]) == (96, 12)
    assert loss["right"] == pytest.approx(right, abs=0.2)
    assert found[0]["embedded"] == 1


def test_alike_calls_of_attention_are_counted(tmp_path: Path) -> None:
    (call,) = _language_model(tmp_path / "run", 1, 1.0)[0]["attention"]
    assert (call["queries"], call["next"], call["calls"]) == (12, 1.0, 2)
