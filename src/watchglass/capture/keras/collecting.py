"""Collects values of one step of a model while it is traced, or while it runs where nothing is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import keras

from watchglass.capture.arrays import arrays_of
from watchglass.capture.compiled.collecting import Collected, Collector, ValuePart, Values
from watchglass.capture.compiled.keras_activations import activation_of
from watchglass.capture.compiled.keras_normalizations import averages_of
from watchglass.capture.compiled.program import TracedProgram
from watchglass.capture.compiled.reductions import ReducingArrays, reduced_values
from watchglass.capture.keras.attention import ATTENTION, seen_by
from watchglass.capture.keras.backends import Backend
from watchglass.capture.keras.losses import observed_loss
from watchglass.capture.keras.structure import KerasModules, observe_calls, variables
from watchglass.capture.keras.training_modes import MODAL, Modes, mode_of
from watchglass.capture.module_places import NOWHERE, ParameterPlace, Place
from watchglass.capture.planning.plan import Plan
from watchglass.capture.saving.module_tensors import input_tags
from watchglass.capture.saving.nested_arrays import leaves_in
from watchglass.records import ModuleKind

#: Words of activations that operations are named by.
_OPERATIONS = frozenset(("softmax", "log_softmax", "sigmoid", "tanh", "relu"))


class StepValues:
    """Collects the values of one function of a model. For the training thread.

    Nothing here raises while the step of the script runs: after a failure nothing more is collected.

    Args:
        model: The model.
        backend: Its backend.
        number: The number of the model.
        room: Bytes that copies of weights may take at one update.
        plan: What is wanted of tensors.
        on_device: Reduces its values, if they lie on a device.

    Attributes:
        known: What each value is.
        traces: How often the step was entered.
        given: What optimizers are given at each update, by their types.
        modes: How the layers ran that depend on the mode.
        means: Of the means that it updates, whether it gives weights.
        failure: What went wrong.
        programs: Read the programs of updates that were traced since the last step that was saved.
    """

    def __init__(
        self, model: Any, backend: Backend, number: int, room: int, plan: Plan,
        on_device: ReducingArrays | None,
    ) -> None:  # fmt: skip
        self._model, self._backend, self._number, self._room = model, backend, number, room
        # By optimizer, which variable's turn it is to be copied first.
        self._turns: dict[int, int] = {}
        # The latest optimizer, and step, of which the learning rate is collected.
        self._rated: tuple[Any, int] = None, 0
        self._takes_elements = plan.takes_elements
        self._on_device = on_device
        self._collector = Collector()
        self.known = self._collector.known
        self.traces = 0
        self.given: dict[str, dict[str, bool]] = {}
        self.modes: Modes = {}
        self.means: dict[str, bool] = {}
        self.failure: Exception | None = None
        self.programs: list[Callable[[Values], TracedProgram]] = []
        self._scopes: list[object] = []
        self._places: dict[int, Place] = {}
        self._parameters: dict[int, ParameterPlace] = {}
        # Names of parameters as those of an optimizer's variables begin with them.
        self._owners: dict[str, str] = {}
        self._given: dict[int, Any] = {}
        self._made: dict[int, Any] = {}
        self._losses = self._updating = 0
        # The values of the first replica, for the others.
        self._of_first: Values = {}

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step of the model that returns its values as well."""

        def collect(*args: Any) -> tuple[Any, Values]:
            self.traces += 1
            with ExitStack() as stack:
                values = stack.enter_context(self._frame())
                self._prepare(args)
                stack.enter_context(self._observed())
                result = step(*args)
            return result, dict(values)

        @functools.wraps(step)
        def collecting(*args: Any) -> Any:
            replica = self._backend.replica()
            if replica:
                # A strategy runs replicas in turns, and passes on what all of them return, so they return what the
                # first one, which has ended by now, has collected.
                return self._backend.with_values(step(*args), dict(self._of_first))
            result, values, program = self._backend.traced(collect, args)
            if program is not None and self.failure is None:
                self._keep_program(program, values)
            reduced = self._reduced(values)
            self._of_first = {} if replica is None else reduced
            return self._backend.with_values(result, dict(reduced))

        return collecting

    def _keep_program(self, program: Any, values: Values) -> None:
        known = {key: self.known[key] for key in values}
        if any(what.part is ValuePart.GRADIENT for what in known.values()):
            trained = ((each, self._place_of(each)) for each in self._model.trainable_variables)
            parameters = [(variable, place.name) for variable, place in trained if place is not None]
            self.programs.append(self._backend.read(program, values, known, parameters, self._number))

    def _reduced(self, values: Values) -> Values:
        if self._on_device is None or self.failure is not None:
            return dict(values)
        try:
            return reduced_values(self._on_device.primitives, values, self.known, self._takes_elements)
        except Exception as error:
            self.failure = error
            return dict(values)

    @contextmanager
    def _frame(self) -> Iterator[Values]:
        with self._collector.frame() as values:
            self._scopes.append(self._backend.scope())
            made, self._made = self._made, {}
            try:
                yield values
            finally:
                self._made = made
                self._scopes.pop()

    def _prepare(self, args: tuple[Any, ...]) -> None:
        model = self._model
        self._places = {id(layer): place.of(self._number) for layer, place in KerasModules().modules(model)}
        found = [(variable, place.of(self._number)) for variable, place in variables(model)]
        self._parameters = {id(variable): place for variable, place in found}
        self._owners = {variable.path.replace("/", "_"): place.name for variable, place in found}
        self._losses = 0
        self.given, self.modes = {}, {}
        self._given = {}
        if self._backend.name == "jax" and args and isinstance(args[0], tuple):
            self._given = {id(value): each for each, value in zip(model.trainable_variables, args[0][0], strict=True)}

    @contextmanager
    def _observed(self) -> Iterator[None]:
        model = self._model
        with ExitStack() as stack:
            stack.callback(observe_calls(self._shielded(self._entered), self._shielded(self._returned)))
            stack.enter_context(_method(keras.losses.Loss, "__call__", self._around_loss))
            stack.enter_context(_method(keras.metrics.Mean, "update_state", self._around_mean))
            stack.enter_context(_method(model, "compute_loss", self._around_objective))
            for layer in ATTENTION:
                stack.enter_context(_method(layer, "call", self._around_attention))
            stack.enter_context(_method(keras.layers.BatchNormalization, "call", self._around_normalization))
            for layer in MODAL:
                stack.enter_context(_method(layer, "call", self._around_modal))
            optimizers = (each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer))
            for optimizer in {id(each): each for each in optimizers}.values():
                stack.enter_context(_method(optimizer, "apply", functools.partial(self._around_apply, optimizer)))
                if self._backend.name == "jax":
                    around = functools.partial(self._around_stateless, optimizer)
                    stack.enter_context(_method(optimizer, "stateless_apply", around))
            stack.enter_context(self._backend.carrying(self._collector, self._frame))
            yield

    def _shielded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """``callback``, in the trace of a frame only; what it raises ends the collecting."""

        def run(*args: Any) -> None:
            if self.failure is None and self._scopes and self._backend.scope() == self._scopes[-1]:
                try:
                    callback(*args)
                except Exception as error:
                    self.failure = error

        return run

    def _add(self, part: ValuePart, name: str, value: Any, place: Place = NOWHERE, **more: Any) -> None:
        self._collector.add(Collected(part, name, place, model=self._number, **more), self._backend.kept(value))

    # -- layers ----------------------------------------------------------------------------------------------------

    def _entered(self, layer: Any, arguments: Any) -> None:
        place = self._places.get(id(layer))
        if place is None:
            return
        for path, array in leaves_in(arguments, self._backend.is_array):
            if self._backend.is_array(array):
                dtype = str(keras.backend.standardize_dtype(array.dtype))
                tags = input_tags(place, path, len(array.shape), dtype, outermost=place.index == 0)
                if place.index == 0:
                    self._add(ValuePart.BATCH, path, array)
                self._add(ValuePart.INPUT, path, array, place, tags=tags)

    def _returned(self, layer: Any, arguments: Any, result: Any) -> None:
        place = self._places.get(id(layer))
        if place is None:
            return
        for path, array in leaves_in(result, self._backend.is_array):
            dtype = keras.backend.standardize_dtype(array.dtype) if self._backend.is_array(array) else ""
            if not (dtype and keras.backend.is_float_dtype(dtype)):
                continue
            known = id(array) in self._made
            if known and place.index:
                continue  # a container returns the output of its last layer
            if not known:
                self._made[id(array)] = array, layer
            rectifies = place.kind is ModuleKind.RECTIFIER or activation_of(layer) is ModuleKind.RECTIFIER
            tags = ("relu_output",) if rectifies else ("model_output",) if place.index == 0 else ()
            self._add(ValuePart.OUTPUT, path, array, place, tags=tags)

    def _around_attention(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def attended() -> None:
            seen = seen_by(original, args, kwargs)
            if seen is not None:
                about, share = seen
                self._add(ValuePart.ATTENTION, str(about.queries), share, attention=about)

        self._shielded(attended)()
        return original(*args, **kwargs)

    def _around_normalization(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)

        def normalized() -> None:
            place = self._places.get(id(args[0]))
            for part, variable, about in averages_of(args, kwargs) if place is not None else ():
                self._add(part, "", self._backend.value_now(variable), place or NOWHERE, normalization=about)

        self._shielded(normalized)()
        return result

    def _around_modal(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def entered() -> None:
            place, training = self._places.get(id(args[0])), mode_of(args, kwargs)
            if place is not None and training is not None:
                _, before = self.modes.get(place.path, ("", False))
                self.modes[place.path] = place.module_type, training or before

        self._shielded(entered)()
        return original(*args, **kwargs)

    # -- losses ----------------------------------------------------------------------------------------------------

    def _around_loss(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        def judged(labels: Any, predictions: Any, weights: Any = None) -> None:
            if isinstance(labels, (dict, list, tuple)) or not hasattr(predictions, "shape"):
                return
            number = self._losses + 1
            _, maker = self._made.get(id(predictions), (None, None))
            last = getattr(getattr(maker, "activation", None), "__name__", None)
            last = {"Softmax": "softmax", "ReLU": "relu"}.get(type(maker).__name__, last)
            found = observed_loss(loss, labels, predictions, weights, last if last in _OPERATIONS else None, number)
            if found is None:
                return
            self._losses = number
            call, predictions, labels = found
            suffix = "" if number == 1 else f"_{number}"
            self._add(ValuePart.PREDICTIONS, f"prediction{suffix}", predictions, call=call)
            self._add(ValuePart.LABELS, f"label{suffix}", labels, call=call)

        self._shielded(lambda: _bound(judged, args, kwargs))()
        return original(loss, *args, **kwargs)

    def _around_mean(self, original: Callable[..., Any], mean: Any, *args: Any, **kwargs: Any) -> Any:
        self.means[mean.name] = len(args) > 1 or kwargs.get("sample_weight") is not None
        return original(mean, *args, **kwargs)

    def _around_objective(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        self._shielded(lambda: self._add(ValuePart.LOSS, "loss", value))()
        return value

    # -- updates ---------------------------------------------------------------------------------------------------

    def _around_apply(
        self, optimizer: Any, original: Callable[..., Any], grads: Any, trainable_variables: Any = None
    ) -> Any:
        if self._updating:
            return original(grads, trainable_variables)
        updated: list[tuple[Any, ParameterPlace]] = []

        def before() -> None:
            changed = self._model.trainable_variables if trainable_variables is None else trainable_variables
            collected = self._state_of(optimizer, _ACCUMULATED)
            copied = self._in_turn(optimizer, changed)
            for variable, gradient in zip(changed, grads, strict=True):
                value = self._backend.value_now(variable) if id(variable) in copied else None
                self._take_before(self._place_of(variable), value, gradient, optimizer, updated, variable, collected)

        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads = list(grads)
        self._shielded(before)()
        with self._inside_update():
            result = original(grads, trainable_variables)
        self._shielded(
            lambda: self._take_after(
                [(place, self._backend.value_after(variable)) for variable, place in updated], optimizer
            )
        )()
        return result

    def _around_stateless(
        self, optimizer: Any, original: Callable[..., Any], optimizer_variables: Any, grads: Any,
        trainable_variables: Any,
    ) -> Any:  # fmt: skip
        updated: list[tuple[Any, ParameterPlace]] = []

        def before() -> None:
            with _holding(optimizer, optimizer_variables):
                collected = self._state_of(optimizer, _ACCUMULATED)
                for value, gradient in zip(trainable_variables, grads, strict=True):
                    place = self._place_of(self._given.get(id(value)))
                    self._take_before(place, value, gradient, optimizer, updated, value, collected)

        self._shielded(before)()
        with self._inside_update():
            result = original(optimizer_variables, grads, trainable_variables)

        def after() -> None:
            new = {id(old): value for old, value in zip(trainable_variables, result[0], strict=True)}
            with _holding(optimizer, result[1]):
                self._take_after([(place, new[id(old)]) for old, place in updated], optimizer)

        self._shielded(after)()
        return result

    def _in_turn(self, optimizer: Any, variables: Sequence[Any]) -> set[int]:
        """The variables, by identity, whose copies fit into the memory for them: of others it is the turn later."""
        chosen: set[int] = set()
        begin, room = self._turns.get(id(optimizer), 0), self._room
        for variable in (*variables[begin:], *variables[:begin]):
            room -= self._backend.copied_bytes(variable)
            if room < 0:
                break
            chosen.add(id(variable))
        self._turns[id(optimizer)] = (begin + (len(chosen) or 1)) % len(variables) if variables else 0
        return chosen

    @contextmanager
    def _inside_update(self) -> Iterator[None]:
        self._updating += 1
        try:
            yield
        finally:
            self._updating -= 1

    def _place_of(self, variable: Any) -> ParameterPlace | None:
        return self._parameters.get(id(variable))

    def _take_before(
        self, place: ParameterPlace | None, value: Any, gradient: Any, optimizer: Any,
        updated: list[tuple[Any, ParameterPlace]], variable: Any, collected: dict[str, Any],
    ) -> None:  # fmt: skip
        if place is None:
            return
        self.given.setdefault(type(_innermost(optimizer)).__name__, {})[place.name] = gradient is not None
        now = self._backend.value_now
        scale = getattr(optimizer, "dynamic_scale", None)
        if (optimizer, self.traces) != self._rated:
            self._rated = optimizer, self.traces
            self._add(ValuePart.RATE, "learning_rate", now(optimizer.learning_rate))
            if scale is not None:
                self._add(ValuePart.SCALE, "loss_scale", now(scale))
        if value is not None:
            self._add(ValuePart.BEFORE, place.name, value, place.place, parameter=place)
        if gradient is None:
            return
        if value is not None:
            updated.append((variable, place))
        scale = optimizer.loss_scale_factor if scale is None else now(scale)
        gradient = gradient if scale is None else keras.ops.cast(gradient, "float32") / scale
        if place.name in collected:
            gradient = (gradient + collected[place.name]) / _innermost(optimizer).gradient_accumulation_steps
        self._add(ValuePart.GRADIENT, place.name, gradient, place.place, parameter=place)

    def _take_after(self, updated: list[tuple[ParameterPlace, Any]], optimizer: Any) -> None:
        for place, value in updated:
            self._add(ValuePart.AFTER, place.name, value, place.place, parameter=place)
        places = {place.name: place for place, _ in updated}
        for kind in ("momentum", "velocity", "velocity_hat", "average", "accumulator"):
            for name, value in self._state_of(optimizer, kind).items():
                if name in places:
                    self._add(ValuePart.STATE, f"{name}.{kind}", value, places[name].place)
                    if kind == "velocity":
                        self._add(ValuePart.MOMENT, name, value, places[name].place, parameter=places[name])
        inner = _innermost(optimizer)
        if isinstance(inner, _CORRECTED):
            self._add(ValuePart.UPDATES, "updates", self._backend.value_now(inner.iterations))

    def _state_of(self, optimizer: Any, kind: str) -> dict[str, Any]:
        """Variables of a kind that an optimizer has for each parameter, by the parameter's name."""
        owned = ((self._owners.get(each.name.removesuffix(f"_{kind}")), each) for each in optimizer.variables)
        return {
            name: self._backend.value_after(variable)
            for name, variable in owned
            if name is not None and variable.name.endswith(f"_{kind}")
        }


def reader_on_device(model: Any) -> ReducingArrays | None:
    """Who reads the variables of a model, if these lie on a device; None also while Keras has taken them away."""
    with suppress(Exception):
        for variable in model.variables:
            arrays = arrays_of(variable.value)
            if isinstance(arrays, ReducingArrays) and not arrays.on_host(variable.value):
                return arrays
    return None


#: End of the names of variables in which optimizers add gradients up.
_ACCUMULATED = "gradient_accumulator"
#: Optimizers that correct moments for their start.
_CORRECTED = (keras.optimizers.Adam, keras.optimizers.Nadam, keras.optimizers.Lamb)


def _innermost(optimizer: Any) -> Any:
    """The optimizer inside one that scales losses; else itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _holding(optimizer: Any, values: Any) -> AbstractContextManager[Any]:
    """Inside, the variables of an optimizer have these values."""
    found: AbstractContextManager[Any] = keras.StatelessScope(
        state_mapping=list(zip(optimizer.variables, values, strict=True))
    )
    return found


def _bound(function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = {"y_true": "labels", "y_pred": "predictions", "sample_weight": "weights"}
    function(*args, **{names[name]: value for name, value in kwargs.items()})


@contextmanager
def _method(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Inside, calls of a method of an object or class go through ``around(original, ...)``."""
    original = getattr(owner, name)
    own, existed = vars(owner), name in vars(owner)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    if isinstance(owner, type):
        setattr(owner, name, call)
    else:
        own[name] = call
    try:
        yield
    finally:
        if isinstance(owner, type):
            setattr(owner, name, original)
        elif existed:
            own[name] = original
        else:
            own.pop(name, None)
