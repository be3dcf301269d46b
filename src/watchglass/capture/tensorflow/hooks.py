"""Public functions of TensorFlow and Keras that report what a script does, wrapped until a port detaches."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from watchglass.capture.tensorflow.clips import CLIPS, clipped
from watchglass.capture.tensorflow.functions import key_of
from watchglass.capture.tensorflow.losses import KERAS_FUNCTIONS, NN_FUNCTIONS, of_function, of_object
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around

if TYPE_CHECKING:
    from watchglass.capture.tensorflow.eager_tapes import EagerTapes
    from watchglass.capture.tensorflow.function_calls import FunctionCalls
    from watchglass.capture.tensorflow.tape_steps import TapeSteps

#: The class of what ``tf.function`` returns.
COMPILED = type(tf.function(lambda: None))


class CompiledCalls:
    """Wraps the call of all compiled functions.

    Random numbers with a seed go on inside the function that runs. If that was the twin of one, it is the twin for
    good: else the script would get other numbers as the capture ends.

    Args:
        calls: Gets them, up to :meth:`leaves`.
    """

    def __init__(self, calls: FunctionCalls) -> None:
        self._calls: FunctionCalls | None = calls
        self._seeded = calls.seeded

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The call, given the original."""

        @functools.wraps(original)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            calls = self._calls
            if calls is not None and calls.observes():
                return calls.called(function, functools.partial(original, function), args, kwargs)
            if calls is not None and calls.is_nested(function):
                return calls.nested(function, functools.partial(original, function), args, kwargs)
            twins = self._seeded.get(function) if self._seeded and tf.executing_eagerly() else None
            twin = None if twins is None else twins.get(key_of(args, kwargs))
            if twin is None:
                return original(function, *args, **kwargs)
            return original(twin, *args, **kwargs)[0]

        return call

    def leaves(self) -> bool:
        """Nothing is watched any more; returns whether no call needs the wrapper."""
        self._calls = None
        return not self._seeded


class TensorFlowHooks:
    """Wraps functions once for a port; those of Keras when the process has imported it.

    Args:
        steps: Its port undoes it.
        calls: Gets calls of compiled functions.
        tapes: Gets all else.
    """

    def __init__(self, steps: TapeSteps, calls: FunctionCalls, tapes: EagerTapes) -> None:
        self._steps, self._tapes = steps, tapes
        self._keras = False
        # Losses call each other: the outermost call counts. By thread, as replicas are traced in threads.
        self._inside = threading.local()
        wrap, w = self._wrap, tapes
        wrap(tf.GradientTape, "__enter__", lambda a, k: w.tape_enters(), lambda a, k, r: None)
        wrap(tf.GradientTape, "__exit__", lambda a, k: True, lambda a, k, r: w.tape_exits())
        wrap(tf.GradientTape, "gradient", self._derives, self._derived)
        wrap(tf.Module, "__init__", lambda a, k: True, lambda a, k, r: steps.models.offer(a[0]))
        for name in NN_FUNCTIONS:
            self._observe_loss(tf.nn, name)
        for name in CLIPS:
            self._observe_clip(name)
        self._compiled = CompiledCalls(calls)
        self._replace(COMPILED, "__call__", self._compiled.wrap, self._compiled.leaves)
        with tf.Graph().as_default():  # a variable outside of it would begin the use of devices: no setting after it
            kind = next(each for each in type(tf.Variable(0.0, trainable=False)).__mro__ if "assign_sub" in vars(each))
        for name in ("assign", "assign_add", "assign_sub"):
            self._wrap(kind, name, lambda a, k: w.assigned(a[0]), lambda a, k, r: None)
        steps.keras = self.keras
        self.keras()

    def keras(self) -> None:
        """Wrap what Keras has, if the process has imported it since."""
        keras = sys.modules.get("keras")
        if self._keras or keras is None or not hasattr(keras, "Layer") or not hasattr(keras, "losses"):
            return
        self._keras = True
        w = self._tapes
        self._wrap(keras.Layer, "__call__", lambda a, k: w.layer_enters(a[0]), self._layer_returns)
        self._wrap(keras.layers.BatchNormalization, "call", lambda a, k: w.collects(), self._normalized)
        self._wrap(keras.losses.Loss, "__call__", self._enters_loss, self._object_returns)
        for name in KERAS_FUNCTIONS:
            self._observe_loss(keras.losses, name)
            legacy = sys.modules.get("keras._tf_keras.keras.losses")
            if legacy is not None and legacy is not keras.losses:
                self._observe_loss(legacy, name)
        kinds = {each for each in keras.optimizers.Optimizer.__mro__ if "apply" in vars(each)}
        kinds |= {each for each in (getattr(keras.optimizers, "LossScaleOptimizer", None),) if each is not None}
        for kind in kinds:
            if "apply" in vars(kind):
                self._wrap(kind, "apply", self._applies, lambda a, k, r: w.applied(a[0], r is not RAISED))
        for kind in {*kinds, keras.optimizers.Optimizer}:
            if "scale_loss" in vars(kind):
                self._wrap(kind, "scale_loss", lambda a, k: True, self._scaled)

    def _derives(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._tapes.gradient_begins()

    def _derived(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = dict(zip(("tape", "target", "sources"), args, strict=False)) | kwargs
        self._tapes.derived(given.get("target"), given.get("sources"), result)

    def _applies(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        given = dict(zip(("optimizer", "grads", "trainable_variables"), args, strict=False)) | kwargs
        return self._tapes.applies(given["optimizer"], given.get("grads"), given.get("trainable_variables"))

    def _scaled(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = dict(zip(("optimizer", "loss"), args, strict=False)) | kwargs
        if result is not RAISED:
            self._tapes.scaled(given.get("loss"), result)

    def _layer_returns(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._tapes.layer_returns(args[0], args[1:], None if result is RAISED else result)

    def _normalized(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if result is not RAISED:
            self._steps.tracing.normalized(args, kwargs)

    def _enters_loss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        depth = self._inside.depth = getattr(self._inside, "depth", 0) + 1
        return depth > 0

    def _leaves_loss(self) -> bool:
        self._inside.depth -= 1
        return not self._inside.depth

    def _object_returns(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._leaves_loss() and result is not RAISED:
            self._tapes.judged(lambda number: of_object(args[0], args[1:], kwargs, number), result)

    def _observe_loss(self, owner: Any, name: str) -> None:
        def returned(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if self._leaves_loss() and result is not RAISED:
                self._tapes.judged(lambda number: of_function(name, args, kwargs, number), result)

        if callable(getattr(owner, name, None)):
            self._wrap(owner, name, self._enters_loss, returned)

    def _observe_clip(self, name: str) -> None:
        def returned(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if result is not RAISED:
                self._tapes.clipped(lambda: clipped(name, args, kwargs, result))

        self._wrap(tf, name, lambda args, kwargs: True, returned)

    def _wrap(self, owner: Any, name: str, begin: Any, end: Any) -> None:
        self._replace(owner, name, lambda original: around(original, begin, end, bypass=self._steps.is_off))

    def _replace(
        self, owner: Any, name: str, make: Callable[[Any], Any], leaves: Callable[[], bool] = lambda: True
    ) -> None:
        original = vars(owner)[name]
        made = make(original)
        setattr(owner, name, made)

        def restore() -> None:
            if leaves() and vars(owner).get(name) is made:
                setattr(owner, name, original)

        self._steps.port.detach_with(restore)
