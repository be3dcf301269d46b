"""Training runs for tests of rules, made of numbers: what each step of a small network would record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Mode, ModuleKind
from watchglass.testing import Step

#: A network with two hidden layers; names that nothing else uses.
_LINEAR, _RECTIFIER = ModuleKind.LINEAR, ModuleKind.RECTIFIER
MODULES = {"stem": _LINEAR, "bend": _RECTIFIER, "middle": _LINEAR, "curve": _RECTIFIER, "readout": _LINEAR}
LAYERS = ("stem", "middle", "readout")
#: Captured at first, then rarely: what a budget makes of it.
SPARSE: Callable[[int], bool] = lambda step: step < 16 or step % 32 == 0  # noqa: E731
ALWAYS: Callable[[int], bool] = lambda step: True  # noqa: E731

Scale = Callable[[int, int], float]


def constant(value: float) -> Scale:
    """The same for every step and layer."""
    return lambda step, layer: value


GRADIENT, RATIO, WEIGHT = constant(1e-2), constant(1e-3), constant(0.1)


def training(
    steps: int,
    *,
    loss: Callable[[int], float] = lambda step: 2.3 * 0.99**step + 0.01,
    gradient: Scale = GRADIENT,
    ratio: Scale = RATIO,
    weight: Scale = WEIGHT,
    rate: Callable[[int], float] = lambda step: 0.1,
    due: Callable[[int], bool] = SPARSE,
    dead: Callable[[int, int], float] = lambda step, layer: 0.0,
    facts: Mapping[int, Mapping[str, Mapping[str, Any]]] | None = None,
    noise: float = 0.1,
    change: Callable[[int, dict[str, NDArray[Any]]], None] | None = None,
) -> list[Step]:
    """Steps of a training run whose losses, gradients and updates follow the given courses.

    Args:
        steps: How many.
        loss: By step.
        gradient: Spread of the gradients by step and layer.
        ratio: Update over weight by step and layer.
        weight: Spread of the weights by step and layer.
        rate: Learning rate by step.
        due: Which steps are captured.
        dead: Share of units that are dead by step and hidden layer; further ones are zero by chance.
        facts: By step, kind -> data.
        noise: Of the loss, relative.
        change: Changes the tensors of a captured step in place.
    """
    random = np.random.default_rng(7)
    weights = {name: random.normal(size=(16, 16)) for name in LAYERS}
    made = []
    for step in range(steps):
        value = loss(step) * float(np.exp(noise * random.normal()))
        norm = float(np.sqrt(sum((gradient(step, i) * 16) ** 2 for i in range(3)))) * float(
            np.exp(random.normal() * 0.3)
        )
        scalars = {"loss": value, "learning_rate": rate(step), "gradient_norm": norm}
        arrays: dict[str, NDArray[Any]] = {}
        units: dict[str, NDArray[np.bool_]] = {}
        for i, name in enumerate(LAYERS):
            update = random.normal(size=(16, 16)) * ratio(step, i)
            if due(step):
                scale = weight(step, i)
                arrays[f"{name}.weight"] = weights[name] * scale
                arrays[f"gradient/{name}.weight"] = random.normal(size=(16, 16)) * gradient(step, i)
                arrays[f"update/{name}.weight"] = update * scale
                arrays[f"{name}.output"] = random.normal(size=(32, 16))
            weights[name] = weights[name] + update
        if due(step):
            for i, name in enumerate(("bend", "curve")):
                units[f"{name}.output"] = (np.arange(16) < dead(step, i) * 16) | (random.random(16) < 0.3)
                arrays[f"{name}.output"] = np.maximum(random.normal(size=(64, 16)), 0)
        if change is not None and due(step):
            change(step, arrays)
        small = {name: array.astype(np.float32) for name, array in arrays.items()}
        made.append(
            Step(scalars=scalars, statistics=small, units=units, facts=(facts or {}).get(step, {}), weight=32.0)
        )
    return made


def evaluation(loss: float, batches: int = 2) -> list[Step]:
    """An evaluation with a mean loss."""
    return [Step(scalars={"loss": loss}, mode=Mode.EVAL, weight=32.0) for _ in range(batches)]


def with_evaluations(steps: list[Step], loss: Callable[[int], float], every: int = 20) -> list[Step]:
    """``steps`` with an evaluation after every so many."""
    made: list[Step] = []
    for number, step in enumerate(steps):
        made.append(step)
        if number % every == every - 1:
            made += evaluation(loss(number))
    return made


def of_model(steps: list[Step], model: int) -> list[Step]:
    """The same steps as those of another model, with the names that its series and tensors have then."""
    name = f"model_{model + 1}"

    def named(tensor: str) -> str:
        kind, _, path = tensor.rpartition("/")
        return f"{kind}/{name}.{path}" if kind else f"{name}.{path}"

    return [
        replace(
            step,
            scalars={f"{name}/{each}" if each in _OF_MODEL else each: value for each, value in step.scalars.items()},
            statistics={named(each): value for each, value in step.statistics.items()},
            units={named(each): value for each, value in step.units.items()},
            model=model,
        )
        for step in steps
    ]


def in_turns(*models: list[Step]) -> list[Step]:
    """A step of each model, one after another: a GAN, a teacher and a student."""
    return [step for turn in zip_longest(*models) for step in turn if step is not None]


#: Scalars that a model has, beside those of the script.
_OF_MODEL = ("loss", "gradient_norm", "accuracy")


def modules(models: int) -> dict[str, ModuleKind]:
    """:data:`MODULES` of so many models."""
    others = {f"model_{n}.{path}": kind for n in range(2, models + 1) for path, kind in MODULES.items()}
    return {**MODULES, **others}


def constant_loss(value: float) -> Callable[[int], float]:
    """A loss that stays where it is."""
    return lambda step: value


def initialization(same: tuple[str, ...]) -> dict[str, object]:
    """The fact about the initial weights, of which those of some layers are all the same."""
    rows = {
        f"{name}.weight": {
            "identical_rows": 1.0 if name in same else 1 / 16, "constant": name in same, "std": 0.1, "fan_in": 16,
            "fan_out": 16, "shape": [16, 16],
        }
        for name in ("stem", "middle", "readout")
    }  # fmt: skip
    return {"tensors": rows}


def update_sample(*, since: int | None = 8, group: Mapping[str, Any] | None = None, **columns: Any) -> dict[str, Any]:
    """Data of the fact about a sample of updates of the layers, as a healthy run has it but for these columns.

    Args:
        since: Steps since the sample before.
        group: Settings of the optimizer that differ from those of plain SGD.
        columns: Values for all layers, or one for each.
    """
    usual: dict[str, Any] = {
        "layer": [0, 1, 2], "kind": "linear", "dims": 2, "dtype": "float32", "group": 0, "elements": 256,
        "update": 1e-4, "weight": 0.1, "gradient": 1e-3,
        "cosine_gradient": -0.9, "cosine_weight": 0.01, "gradient_weight": 0.01, "cosine_previous": 0.2, "moved": 5e-4,
        "cosine_moved": 0.3, "unchanged": 0.0, "unmoved": 0.0, "zero_gradient": 0.0, "decay": 0.0,
        "below_epsilon": None, "tiny_moment": None, "zero_moment": None, "gradient_over_moment": None,
    }  # fmt: skip
    settings = {"lr": 0.1, "weight_decay": 0.0, "decoupled": False, "eps": None, "maximize": False, **(group or {})}
    rows = {
        name: list(value) if isinstance(value, (list, tuple)) else [value] * len(LAYERS)
        for name, value in {**usual, **columns}.items()
    }
    names = [f"{name}.weight" for name in LAYERS]
    return {"optimizer": "SGD", "since": since, "groups": [settings], "tensors": names, **rows}


def sampled(steps: int, sample: Callable[[int], Mapping[str, Any]], **course: Any) -> list[Step]:
    """:func:`training` with a sample of updates at every eighth step.

    Args:
        steps: How many.
        sample: Arguments of :func:`update_sample` by step.
        course: Arguments of :func:`training`.
    """
    facts = {step: {"update_sample": update_sample(**sample(step))} for step in range(0, steps, 8)}
    for step, more in course.pop("facts", {}).items():
        facts[step] = {**facts.get(step, {}), **more}
    return training(steps, facts=facts, **course)
