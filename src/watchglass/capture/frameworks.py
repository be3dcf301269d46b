"""The one table of known frameworks; the rest of capture names none of them.

A member writes its :class:`~watchglass.capture.loops.Loop`, :class:`~watchglass.capture.arrays.Arrays` or
:class:`~watchglass.capture.modules.Modules`, and a line of :data:`FRAMEWORKS`; docs/adapters.md writes whole ones.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from watchglass.lazy_imports import named

_log = logging.getLogger("watchglass")


class HiddenPart(NamedTuple):
    """A part of some scripts that cannot be seen.

    Attributes:
        where: Where it is, as a phrase.
        reason: What is said of it, with the cure, as a sentence without full stop; ``{name}`` is the function.
    """

    where: str
    reason: str

    def of(self, name: str) -> str:
        """What is said of a function."""
        return self.reason.format(name=name)


class Entry(NamedTuple):
    """What a framework brings; each part is ``"package.module:Class"``, imported at first use, or "".

    Attributes:
        module: The module whose import makes it known, if that is another than the key: a package may import its loop
            when it is first used.
        loop: Its :class:`Loop`.
        arrays: Its :class:`Arrays`.
        modules: Its :class:`Modules`.
        over: Import names of the frameworks that it stands on.
        drives: Whether its loop opens the steps; else it advises the loop of the framework below.
        discovers: Whether it finds the loops of a process, so that ``watchglass run`` needs no change to the script.
        add: Else, what a script must add, as a clause.
        meaningless: Kinds of facts that have no meaning there, and why, as a clause.
        hidden: What cannot be seen of some scripts.
    """

    loop: str = ""
    arrays: str = ""
    modules: str = ""
    over: tuple[str, ...] = ()
    drives: bool = True
    discovers: bool = False
    add: str = ""
    module: str = ""
    meaningless: Mapping[str, str] = {}
    hidden: tuple[HiddenPart, ...] = ()


#: Kinds of facts without a meaning where a step is a function, and its gradients are values that it returns.
_OF_FUNCTIONS = dict[str, str](
    leftover_gradients="gradients are values, and none is left over",
    calls="no call of the script computes or applies gradients by itself",
    unheld_parameters="gradients exist for what is asked for alone",
    training_flags="whether a model is trained is an argument, and no state of modules",
    allocator="the framework reserves memory, and says nothing of what is free of it",
    tensor_reads="reads inside a compiled step do not exist",
    rank_gradients="a compiled step averages gradients itself",
)
#: The same facts for Keras, but without ``training_flags``: the mode is an argument of each call of a layer.
_OF_KERAS = {kind: why for kind, why in _OF_FUNCTIONS.items() if kind != "training_flags"}
#: The same of trees.
_OF_TREES = dict.fromkeys(
    (
        "allocator", "calls", "forward_graph", "gradient_noise", "initialization", "leftover_gradients", "loss_graph",
        "membership", "rank_gradients", "running_statistics", "tensor_reads", "token_targets", "training_flags",
        "unheld_parameters", "update_sample",
    ),
    "trees have no layers, and are not updated",
)  # fmt: skip

_PYTORCH = "watchglass.capture.pytorch"
_TENSORFLOW = "watchglass.capture.tensorflow"
_JAX = "watchglass.capture.jax"

#: Frameworks by import name. Each is listed below those that it stands on: if several know a model, the lowest drives.
FRAMEWORKS = {
    "torch": Entry(
        loop=f"{_PYTORCH}:PyTorchLoop",
        arrays=f"{_PYTORCH}:PyTorchArrays",
        modules=f"{_PYTORCH}:PyTorchModules",
        discovers=True,
    ),
    "accelerate": Entry(
        loop="watchglass.capture.accelerate:AcceleratorLoop",
        over=("torch",),
        drives=False,
        discovers=True,
        module="accelerate.accelerator",
    ),
    "transformers": Entry(
        loop="watchglass.capture.transformers:TrainerLoop",
        over=("torch",),
        drives=False,
        discovers=True,
        module="transformers.trainer",
    ),
    "lightning": Entry(
        loop="watchglass.capture.lightning:LightningLoop",
        over=("torch",),
        drives=False,
        discovers=True,
        module="lightning.pytorch.trainer.trainer",
    ),
    "pytorch_lightning": Entry(
        loop="watchglass.capture.lightning:PyTorchLightningLoop",
        over=("torch",),
        drives=False,
        discovers=True,
        module="pytorch_lightning.trainer.trainer",
    ),
    "tensorflow": Entry(
        loop=f"{_TENSORFLOW}:TensorFlowLoop",
        arrays=f"{_TENSORFLOW}:TensorFlowArrays",
        modules=f"{_TENSORFLOW}:TensorFlowModules",
        discovers=True,
        meaningless=_OF_FUNCTIONS,
        hidden=(
            HiddenPart(
                "steps in a loop of TensorFlow, as over `tf.range`, inside a `tf.function`",
                "steps inside {name} are not recorded: it trains in a loop of TensorFlow, which runs without Python; "
                "put one step into a tf.function, and call that from a loop of Python",
            ),
        ),
    ),
    "jax": Entry(
        loop=f"{_JAX}:JaxLoop",
        arrays=f"{_JAX}:JaxArrays",
        discovers=True,
        meaningless=_OF_FUNCTIONS,
        add=(
            "make each step by one function that jax.jit returns once watchglass is there, or watchglass.jax.jit, with "
            "jax.grad or jax.value_and_grad in it and not inside while_loop, fori_loop, cond, pmap or shard_map"
        ),
        hidden=(
            HiddenPart(
                "functions that were jitted before watchglass was there or compiled ahead of time, `pmap`, and loops "
                "of JAX outside of `jax.jit`",
                "the gradient of {name} is computed in a function that was jitted before watchglass was there or "
                "compiled ahead of time (lower().compile()), or in pmap or a loop of JAX outside of jax.jit; make each "
                "step by one call of what jax.jit, or watchglass.jax.jit, returns",
            ),
            HiddenPart(
                "gradients inside `while_loop`, `fori_loop`, `cond`, `pmap` or `shard_map` in a jitted function",
                "steps inside {name} are not recorded: it computes its gradient inside a loop, a condition or a "
                "mapping of JAX that values cannot leave (while_loop, fori_loop, cond, pmap, shard_map); jit a "
                "function that makes one step, or loop by jax.lax.scan",
            ),
        ),
    ),
    "optax": Entry(loop="watchglass.capture.optax:OptaxLoop", over=("jax",), drives=False, discovers=True),
    "flax": Entry(loop="watchglass.capture.flax:FlaxLoop", over=("jax",), drives=False, discovers=True),
    "equinox": Entry(loop="watchglass.capture.equinox:EquinoxLoop", over=("jax",), drives=False, discovers=True),
    "keras": Entry(
        loop="watchglass.capture.keras:KerasLoop",
        modules="watchglass.capture.keras:KerasModules",
        over=("torch", "tensorflow", "jax"),
        discovers=True,
        meaningless=_OF_KERAS,
        hidden=(
            HiddenPart(
                "waits for data of `fit` on TensorFlow",
                "on TensorFlow, Keras reads a data set inside its compiled functions",
            ),
            HiddenPart(
                "tensors of a model that PyTorch compiles, with `jit_compile=True`",
                "its compiler makes other numbers of it, unlike jit_compile=False",
            ),
        ),
    ),
    "xgboost": Entry(
        loop="watchglass.capture.xgboost:XGBoostLoop",
        add="give callbacks=[watchglass.callback('xgboost')] to xgboost.train, xgboost.cv or the estimator",
        meaningless=_OF_TREES,
    ),
}


def named_by(module: str) -> str:
    """The key of the framework that the import of a module makes known."""
    return next(name for name, entry in FRAMEWORKS.items() if (entry.module or name) == module)


def members(part: str) -> Iterator[Any]:
    """Members of one contract, ``"loop"``, ``"arrays"`` or ``"modules"``, of imported frameworks, the outermost first.

    A framework that a process has not imported has made no object.
    """
    return (member(getattr(entry, part)) for entry in usable(part))


def imported(part: str) -> Iterator[Entry]:
    """Entries of imported frameworks that bring a part, the outermost first."""
    entries = ((name, FRAMEWORKS[name]) for name in reversed(FRAMEWORKS))
    return (entry for name, entry in entries if getattr(entry, part) and (entry.module or name) in sys.modules)


def usable(part: str) -> Iterator[Entry]:
    """Those of :func:`imported` whose part can be made: an adapter may not support the release of its framework."""
    return (entry for entry in imported(part) if _can_be_made(getattr(entry, part)))


@functools.cache
def _can_be_made(home: str) -> bool:
    try:
        member(home)
    except Exception as error:
        _log.warning("watchglass: %s cannot be used: %s: %s", home.partition(":")[0], type(error).__name__, error)
        return False
    return True


@functools.cache
def member(home: str) -> Any:
    """What an entry names, made at first use.

    Raises:
        ImportError: The framework is not installed.
    """
    return named(home)()
