"""Facts about a booster, read from its configuration."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xgboost import Booster

from watchglass.records import facts

#: Kinds of feature importance: uses in splits, mean gain of such a split, mean number of rows that it divides.
KINDS = ("weight", "gain", "cover")
#: Most features whose names are recorded with the model.
_MAX_NAMES = 1024


def facts_of(model: Booster) -> tuple[facts.ModelDescription, facts.OptimizerSettings]:
    """A booster as it is now, and its settings."""
    config = json.loads(model.save_config())["learner"]
    booster, rate = config["gradient_booster"]["name"], _find(config["gradient_booster"], "learning_rate")
    about = facts.ModelDescription(
        roots=(booster,),
        module_types={},
        module_kinds={},
        trees=booster != "gblinear",
        objective=config["objective"]["name"],
        features=tuple(_features(model)[:_MAX_NAMES]),
    )
    return about, facts.OptimizerSettings(booster, () if rate is None else ({"lr": float(rate)},))


def kinds_of(booster: str) -> tuple[str, ...]:
    """Kinds of feature importance that a type of booster has: a linear one has its coefficients, as ``weight``."""
    return KINDS if booster != "gblinear" else KINDS[:1]


def importance(model: Booster, kind: str) -> NDArray[np.float32]:
    """Importance of every feature, as ``Booster.get_score`` gives it; 0 for a feature that nothing uses.

    Returns:
        float32[features]; float32[features, classes] of a linear booster with several classes.
    """
    names = _features(model)
    place = {name: index for index, name in enumerate(names)}
    scores = model.get_score(importance_type=kind)
    values = np.zeros((len(names), *np.shape(next(iter(scores.values()), 0.0))), np.float32)
    for name, score in scores.items():
        values[place[name]] = score
    return values


def trees_of(model: Booster, iteration: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Depths and largest node numbers of the trees of one round, float32[trees] each; none of a linear booster.

    A tree of one leaf has depth 0.
    """
    if json.loads(model.save_config())["learner"]["gradient_booster"]["name"] == "gblinear":
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    depths, largest = [], []
    for text in model[iteration : iteration + 1].get_dump():
        # A line per node: as many tabs as it lies below the root, its number, a colon.
        lines = [line for line in text.split("\n") if ":" in line]
        depths.append(max((len(line) - len(line.lstrip("\t")) for line in lines), default=0))
        largest.append(max((int(line.partition(":")[0]) for line in lines), default=0))
    return np.array(depths, np.float32), np.array(largest, np.float32)


def _features(model: Booster) -> list[str]:
    return list(model.feature_names or (f"f{index}" for index in range(model.num_features())))


def _find(config: Any, key: str) -> Any:
    """The first value of a key at any depth: its position differs between boosters."""
    if isinstance(config, list):
        return next((found for part in config if (found := _find(part, key)) is not None), None)
    if not isinstance(config, dict):
        return None
    return config[key] if key in config else _find(list(config.values()), key)
