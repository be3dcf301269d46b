"""Optimizers of optax: with what settings they were made, which model they update, what they hold."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from watchglass.capture.compiled.collecting import Updater
from watchglass.capture.jax.tracing import TRACING, Optimizer, traced
from watchglass.capture.jax.trees import named_leaves, words_of
from watchglass.capture.port import Port
from watchglass.records import facts

#: Optimizers by name, as rules call them.
FACTORIES = {
    "adam": "Adam", "adamw": "AdamW", "nadam": "NAdam", "nadamw": "NAdam", "adamax": "Adamax", "adamaxw": "Adamax",
    "amsgrad": "Adam", "radam": "RAdam", "sgd": "SGD", "noisy_sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad",
    "adadelta": "Adadelta", "adafactor": "Adafactor", "lion": "Lion", "lamb": "Lamb", "lars": "Lars", "rprop": "Rprop",
    "novograd": "NovoGrad", "yogi": "Yogi", "adabelief": "AdaBelief", "adan": "Adan",
}  # fmt: skip
#: Transformations that clip gradients, and the field of the fact that has their limit.
CLIPS = {"clip_by_global_norm": "max_norm", "clip": "clip_value"}
#: Arguments under another name than that of other frameworks.
_RENAMED = {"learning_rate": "lr"}
#: Steps whose learning rates a schedule is asked for at once.
_AHEAD = 1024


class MadeOptimizer(Optimizer):
    """How an optimizer was made.

    Args:
        kind: Its type, as rules call it.
        settings: Its arguments by name.
        injected: Whether its learning rate is a part of its state, where the script may change it.
    """

    def __init__(self, kind: str, settings: dict[str, Any], *, injected: bool = False) -> None:
        super().__init__(kind)
        rate = None if injected else settings.get("learning_rate")
        self._schedule = rate if callable(rate) else None
        self._constant = None if rate is None or callable(rate) else float(rate)
        self._rates: tuple[int, list[float]] = (0, [])
        found = {_RENAMED.get(name, name): _plain(value) for name, value in settings.items()}
        if "b1" in found and "b2" in found:
            found["betas"] = [found.pop("b1"), found.pop("b2")]
        self._settings = {name: value for name, value in found.items() if value is not None}

    def rate(self, step: int) -> float | None:
        """The learning rate of an update, by its number."""
        if self._schedule is None:
            return self._constant
        first, rates = self._rates
        if not 0 <= step - first < len(rates):
            self._rates = first, rates = step, self._ask(step)
        return rates[step - first] if rates else None

    def updater(self, step: int) -> Updater:
        """Its type and settings, with the learning rate of a step."""
        found = self._settings.get
        betas = found("betas")
        group = facts.UpdateGroup(
            self.rate(step), found("weight_decay"), self.kind == "AdamW", found("eps"), betas[1] if betas else None
        )
        return Updater(self.kind, (group,))

    def fact(self, model: int | None) -> facts.OptimizerSettings:
        """Its settings, of the first step."""
        settings = dict(self._settings)
        if self._schedule is not None:
            first = self.rate(0)
            settings |= {} if first is None else {"lr": first}
        return facts.OptimizerSettings(type=self.kind, groups=(settings,), model=model)

    def _ask(self, step: int) -> list[float]:
        try:
            with TRACING.inside():
                rates = jax.vmap(self._schedule)(np.arange(step, step + _AHEAD))
            return [float(rate) for rate in np.broadcast_to(np.asarray(rates, np.float64), (_AHEAD,))]
        except Exception:  # a schedule of the script that JAX cannot trace
            self._schedule = None
            return []


class ObservedUpdate:
    """``update`` of an optimizer. Pickled, it is the original alone.

    Args:
        original: The function.
        made: How the optimizer was made; None if that is not known here.
    """

    def __init__(self, original: Callable[..., Any], made: MadeOptimizer | None) -> None:
        self._original, self._made = original, made
        functools.update_wrapper(self, original)

    def __call__(self, updates: Any, state: Any, params: Any = None, **more: Any) -> Any:
        """What the original returns."""
        result = self._original(updates, state, params, **more)
        if TRACING.traces or TRACING.collector.active:  # also in a condition, whose values cannot be collected
            TRACING.optimized(self._made, updates, variables_of(result[1], updates))
        return result

    def __reduce__(self) -> Any:
        return operator.getitem, ((self._original,), 0)


def making(original: Callable[..., Any], kind: str, port: Port) -> Callable[..., Any]:
    """A function that makes an optimizer, given the original."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        optimizer = original(*args, **kwargs)
        if TRACING.watching is None or TRACING.busy or traced(args, kwargs):
            return optimizer
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        made = MadeOptimizer(kind, dict(bound.arguments))
        TRACING.made(made)
        return optimizer._replace(update=ObservedUpdate(optimizer.update, made))

    return make


def injecting(original: Callable[..., Any]) -> Callable[..., Any]:
    """``optax.inject_hyperparams``, given the original: the learning rate is in the state of such an optimizer."""

    @functools.wraps(original)
    def inject(inner_factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        factory, kind = original(inner_factory, *args, **kwargs), FACTORIES.get(getattr(inner_factory, "__name__", ""))

        @functools.wraps(factory)
        def make(*more: Any, **named: Any) -> Any:
            with TRACING.inside():
                optimizer = factory(*more, **named)
            made = None
            if TRACING.watching is not None and not traced(more, named):
                if kind is not None:
                    bound = inspect.signature(inner_factory).bind(*more, **named)
                    bound.apply_defaults()
                    made = MadeOptimizer(kind, dict(bound.arguments), injected=True)
                TRACING.made(made)
            return optimizer._replace(update=ObservedUpdate(optimizer.update, made))

        return make

    return inject


def clipping(original: Callable[..., Any], name: str, limit: str, port: Port) -> Callable[..., Any]:
    """A function that makes a transformation that clips, given the original."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if TRACING.watching is not None and not TRACING.busy and not traced(args, kwargs):
            value = next(iter((*args, *kwargs.values())), None)
            if isinstance(value, (int, float)):
                clip = facts.Clip(name, **{limit: float(value)})  # type: ignore[arg-type]  # a field that is a number
                port.records.carried.add_fact(clip, "optax")
        return original(*args, **kwargs)

    return make


def variables_of(state: Any, updates: Any) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """What an optimizer holds for each parameter: its name, the path of the parameter, the array.

    Args:
        state: Its state.
        updates: A tree of the structure of the parameters.
    """
    structure = jax.tree_util.tree_structure(updates)

    def is_like(node: Any) -> bool:
        return bool(jax.tree_util.tree_structure(node) == structure)

    for path, node in jax.tree_util.tree_flatten_with_path(state, is_leaf=is_like)[0]:
        name = words_of(path)[-1] if path else ""
        if is_like(node) and structure.num_leaves:
            for parameter, leaf in named_leaves(node):
                yield name, parameter, leaf
        elif name in ("learning_rate", "count"):
            yield name, (), node


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and value.size == 1:
        return float(value.item())
    return None
