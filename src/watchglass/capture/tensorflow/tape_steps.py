"""The steps of a training run in TensorFlow: which calls and tapes make a step, and what is saved of it."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.collecting import Collected, Updater, ValuePart, Values
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.membership import OptimizedParameters
from watchglass.capture.compiled.reductions import Reduced
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.compiled.updates import SCRIPT
from watchglass.capture.frameworks import FRAMEWORKS
from watchglass.capture.hidden_steps import HiddenFunctions
from watchglass.capture.model_numbers import FrameworkNumbers
from watchglass.capture.port import Port
from watchglass.capture.tensorflow.arrays import TensorFlowArrays
from watchglass.capture.tensorflow.clips import ClippedGradients
from watchglass.capture.tensorflow.functions import FunctionAbout, key_of, look, taken
from watchglass.capture.tensorflow.losses import JudgedCall, as_collected
from watchglass.capture.tensorflow.models import TrainedModel, TrainedModels, variable_of
from watchglass.capture.tensorflow.optimizers import (
    SECOND_MOMENT,
    rate_of,
    scale_of,
    settings_of,
    states_of,
    updater_of,
    updates_before,
)
from watchglass.capture.tensorflow.profiler import TensorFlowProfiler
from watchglass.capture.tensorflow.second_traces import SecondTraces, is_of_script
from watchglass.capture.tensorflow.tracing import Doings, GraphTracing, losses_in
from watchglass.config import chosen_facts
from watchglass.record import OpenStep
from watchglass.records import Mode, Role

_log = logging.getLogger("watchglass")
(_LOOP,) = FRAMEWORKS["tensorflow"].hidden

#: A learning rate is read again after this number of steps on which nothing is due.
_RATE_EVERY = 16


@dataclass(eq=False)
class OpenTapeStep:
    """A TRAIN step that is open.

    Attributes:
        step: The step, if something of it is due.
        doings: What happens between its functions, if it is due.
        values: What twins have returned.
        before: Parameters and what they were, if it is due.
        losses: Its losses, by number of the model.
        models: TrainedModels whose gradients were taken; none before it shows that it is a training step.
        updated: Numbers of those that were changed.
        rates: Learning rates of their updates, by the same number.
    """

    step: OpenStep | None
    doings: Doings | None = None
    values: list[Values] = field(default_factory=list)
    before: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    losses: dict[int, list[Any]] = field(default_factory=dict)
    models: dict[int, TrainedModel] = field(default_factory=dict)
    updated: set[int] = field(default_factory=set)
    rates: dict[int, float | None] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all its models were changed."""
        return bool(self.models) and self.models.keys() <= self.updated


class TapeSteps:
    """Watches all loops of a process through one port. For the training thread, and replicas while they are traced.

    Args:
        port: Gets the steps.
    """

    def __init__(self, port: Port) -> None:
        self.port, self.models = port, TrainedModels(FrameworkNumbers(port.model_numbers))
        self.steps = CompiledSteps(port, TensorFlowProfiler(port))
        self.tracing = GraphTracing(self.models, port.plan)
        self._second = SecondTraces(self.tracing)
        self._delivery = StepDelivery(port, "tensorflow", self.steps)
        self._membership = OptimizedParameters("update")
        self._arrays = TensorFlowArrays()
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, FunctionAbout]] = weakref.WeakKeyDictionary()
        #: Twins that run at all calls of functions, by these and by the key of their arguments.
        self.seeded: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._open: OpenTapeStep | None = None
        self._frame = ExitStack()
        self._tapes = self._applies = 0
        self._runs = False  # a compiled function runs
        self._forward = False  # the latest forward was under no tape
        self._described: weakref.WeakSet[Any] = weakref.WeakSet()
        self._rates: dict[int, tuple[int, float | None]] = {}
        self._hidden = HiddenFunctions(port)
        guarded = port.guarded
        self._opens, self._closes = guarded(self._open_train), guarded(self._close_train)
        self._begins, self._passed = guarded(self._begin_train), guarded(self._end_pass)
        self._took, self._delivers = guarded(self._take), guarded(self._deliver)
        self._evaluated = guarded(self._end_evaluation)
        self.keras: Callable[[], None] = lambda: None
        port.on_settle.append(self._leave)
        port.detach_with(self._end)

    def _end(self) -> None:
        self._frame.close()
        self.tracing.release()
        self._second.release()

    # ------------------------------------------------------------ calls of compiled functions

    def is_off(self) -> bool:
        """Whether calls pass through: nothing is watched, we run ourselves, or a loop around TensorFlow drives."""
        guard = self.port.guard
        return not guard.active or guard.is_busy

    def observes(self) -> bool:
        """Whether a call of a compiled function may be a step."""
        return not (self.is_off() or self._runs) and self._counts_eager()

    def called(self, function: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The script calls a compiled function; returns its result."""
        abouts = self._known.get(function)
        about = None if abouts is None else abouts.get(key_of(args, kwargs))
        if about is None:
            about = self._look(function, args, kwargs)
        return self._run(about, plain, args, kwargs) if about.is_step else plain(*args, **kwargs)

    def is_nested(self, function: Any) -> bool:
        """Whether a call of a compiled function is one of the script in a trace; not those of single replicas."""
        if not self.tracing.tracing or self.is_off() or threading.get_ident() != self.port.guard.thread:
            return False
        whole = not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
        return whole and is_of_script(function)

    def nested(self, function: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function that is traced calls another one; returns its result."""
        doings = self.tracing.open[-1]
        if doings.call_nested is not None:
            return doings.call_nested(function, args, kwargs)
        count = function.experimental_get_tracing_count()
        result = plain(*args, **kwargs)
        doings.nests = True
        doings.unseen |= function.experimental_get_tracing_count() == count
        return result

    def _look(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionAbout:
        about = FunctionAbout()
        self.keras()
        if not tf.config.functions_run_eagerly() and not self.tracing.tracing:
            try:
                about = look(self._second, self.tracing, function, args, kwargs, self.port)
            except Exception as error:  # the call itself raises it to the script, if it is of the script
                _log.debug("watchglass: %s was not understood: %s", function, error)
                return about
            if about.hidden:
                self._hidden.report(_LOOP, getattr(function.python_function, "__name__", "a function"))
        self._known.setdefault(function, {})[key_of(args, kwargs)] = about
        if about.seeded and about.collecting is not None:
            self.seeded.setdefault(function, {})[key_of(args, kwargs)] = about.collecting
        return about

    def _run(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if about.trains or about.updated:
            return self._train(about, plain, args, kwargs)
        if self._tapes:
            return self._part(about, plain, args, kwargs)
        return self._evaluate(about, plain, args, kwargs)

    def _train(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if about.trains:
            if self._open is not None and (self._open.is_complete or not self._open.models):
                self._leave()
            step = None
            if about.known_whole and self._open is None:
                step = self._begins(about.first)
                if step is None:
                    return self._pass(about, plain, args, kwargs)
            self._opens(about.models, step)
        opened = self._open
        if opened is None:  # an update without a gradient that was seen
            return self._called(about, False, plain, args, kwargs)[0]
        try:
            result, values = self._called(about, opened.step is not None, plain, args, kwargs)
        except BaseException:
            self._drop()
            raise
        self._took(about, opened, result, values)
        if opened.is_complete:
            self._closes()
        return result

    def _pass(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A whole step of which nothing is due."""
        try:
            result, values = self._called(about, False, plain, args, kwargs)
        except BaseException:
            self.steps.fail()
            raise
        self._passed(about, result, values)
        return result

    def _end_pass(self, about: FunctionAbout, result: Any, values: Values) -> None:
        found = losses_in(values, self.tracing.collector.known, ValuePart.LOSS) if values else {}
        losses, rate = {}, None
        for model in about.models:
            at = about.losses[model.number]
            losses[model.number] = found.get(model.number, []) if at is None else [taken(result, at)]
            if model.number == about.first and model.optimizer is not None:
                rate = self._rate(model, due=False)
        self._end_train(about.first, losses, rate)

    def _end_train(self, first: int, losses: Mapping[int, list[Any]], rate: float | None) -> None:
        """A step is over that counts for a model; with the losses of all that it trains."""
        means = {number: _mean(found) for number, found in losses.items() if found}
        own = {"loss": means.pop(first)} if first in means else {}
        self.steps.end(own, rate=rate, model=first, others=means)

    def _part(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A forward under a tape of an eager loop."""
        opened = self._open
        result, values = self._called(about, opened is not None and opened.step is not None, plain, args, kwargs)
        if opened is not None and values:
            opened.values.append(values)
        return result

    def _evaluate(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._leave()
        mode = Mode.EVAL if about.evaluates else Mode.PREDICT
        step = self.port.guard.call(self.steps.begin, mode)
        try:
            result, values = self._called(about, step is not None, plain, args, kwargs)
        except BaseException:
            self.steps.fail()
            raise
        self._forward = not about.evaluates
        self._evaluated(about, step, result, values)
        return result

    def _called(
        self, about: FunctionAbout, due: bool, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Any, Values]:  # fmt: skip
        """The result of a function, or of its twin, with what that has collected."""
        twin = about.twin if due or about.seeded else about.losing
        if twin is not None and (due or twin not in about.ready) and twin.usable:
            about.ready.discard(twin)
            if twin.ready(*args, **kwargs):
                about.ready.add(twin)
        self._runs = True
        try:
            if twin is None or twin not in about.ready:
                return plain(*args, **kwargs), {}
            return twin(plain, *args, **kwargs)
        finally:
            self._runs = False

    def _take(self, about: FunctionAbout, opened: OpenTapeStep, result: Any, values: Values) -> None:
        """Keep what a function that trains has returned."""
        found = losses_in(values, self.tracing.collector.known, ValuePart.LOSS)
        for model in about.models:
            at = about.losses.get(model.number)
            losses = found.get(model.number, []) if at is None else [taken(result, at)]
            opened.losses.setdefault(model.number, []).extend(losses)
            opened.models[model.number] = model
        if opened.step is not None and values:
            opened.values.append(values)
        opened.updated.update(model.number for model in about.updated)
        about.known_whole = set(about.models) <= set(about.updated)

    def _end_evaluation(self, about: FunctionAbout, step: OpenStep | None, result: Any, values: Values) -> None:
        found = losses_in(values, self.tracing.collector.known, ValuePart.EVALUATED).get(about.judged, [])
        if not found and about.evaluated is not None:
            found = [taken(result, about.evaluated)]
        if step is not None and values:
            self._save(step, values)
        self.steps.end({"loss": _mean(found)} if found else {}, model=about.judged)

    # ------------------------------------------------------------ eager loops

    def tape_enters(self) -> bool:
        """A tape begins to record."""
        if not self._counts_eager():
            return False
        self.keras()
        self._tapes += 1
        if self._tapes == 1:
            opened = self._open
            if opened is not None and opened.is_complete:
                self._leave()
            elif opened is not None and not opened.models:
                self._drop()
            if self._open is None:
                self._opens((), None)
        return False

    def tape_exits(self) -> None:
        """A tape ends its recording."""
        if self._counts_eager():
            self._tapes = max(0, self._tapes - 1)

    def gradient_begins(self) -> bool:
        """Whether the end of a call of ``gradient`` is to be reported."""
        return self._counts()

    def derived(self, target: Any, sources: Any, gradients: Any) -> None:
        """A tape has computed gradients."""
        if not isinstance(gradients, (list, tuple, dict, tf.Tensor, tf.IndexedSlices)):
            return
        model = self.models.of(tf.nest.flatten(sources))
        if model is None:
            return
        if self.tracing.tracing:
            self.tracing.derived(model, target, sources, gradients)
            return
        opened = self._open
        if opened is not None and model.number in opened.updated:
            self._leave()
            opened = None
        if opened is None:
            self._open_train((model,), None)
            opened = self._open
        if opened is None:
            return
        opened.models[model.number] = model
        self._read_before(opened, (model,))
        self._describe(model)
        if opened.doings is not None:
            self.tracing.derived(model, target, sources, gradients)
            target = opened.doings.scaled.get(id(target), (target, target))[1]
        opened.losses.setdefault(model.number, []).append(tf.nest.flatten(target)[0])

    def scaled(self, loss: Any, scaled: Any) -> None:
        """An optimizer has scaled a loss."""
        if self.tracing.open and self._counts():
            self.tracing.open[-1].scaled[id(scaled)] = scaled, loss

    def clipped(self, call: Callable[[], ClippedGradients]) -> None:
        """A function that clips has returned; inside an optimizer it does what that says of itself."""
        if self.tracing.open and not self._applies and self._counts():
            self.tracing.open[-1].clips.append(call())

    def applies(self, optimizer: Any, gradients: Any, variables: Any) -> bool:
        """An optimizer is about to change variables."""
        if not self._counts():
            return False
        self._applies += 1
        if self._applies > 1 or variables is None:
            return True
        pairs = [(variable_of(each), grad) for each, grad in zip(variables, gradients, strict=False)]
        pairs = [pair for pair in pairs if pair[0] is not None]
        for model in self.models.owners(variable for variable, _ in pairs):
            model.optimizer = optimizer
            if not self.tracing.tracing and self._open is not None:
                self._open.updated.add(model.number)
                self._read_before(self._open, (model,))
        if self.tracing.open:
            self.tracing.open[-1].updates.append((optimizer, pairs))
        return True

    def applied(self, optimizer: Any, done: bool) -> None:
        """It has changed them."""
        self._applies -= 1
        if self._applies or self.tracing.tracing or self._open is None:
            return
        if self._open.is_complete:
            self._close_train()

    def assigned(self, variable: Any) -> bool:
        """A script changes a variable."""
        opened = self._open
        if opened is not None and opened.models and not self.tracing.tracing:
            known = self.models.place_of(variable)
            if known is not None:
                opened.updated.add(known[0].number)
        return False

    def layer_enters(self, layer: Any) -> bool:
        """A layer is called."""
        if not self._counts():
            return False
        if self.tracing.open and (self.tracing.tracing or self._tapes):
            self.tracing.open[-1].depth += 1
            return True
        if not self._tapes and not self.tracing.tracing:
            self._forward = True
        if self.tracing.tracing or self._tapes:
            self.models.offer(layer)
        return False

    def layer_returns(self, layer: Any, arguments: Any, result: Any) -> None:
        """A layer has returned."""
        if self.tracing.open:
            self.tracing.layer_returns(layer, arguments, result)

    def collects(self) -> bool:
        """Whether values of what is called now are collected."""
        return bool(self.tracing.open) and self._counts() and (self.tracing.tracing or self._tapes > 0)

    def judged(self, about: Callable[[int], JudgedCall | None], result: Any) -> None:
        """A loss function has returned."""
        if not self._counts():
            return
        if self.tracing.tracing or (self._tapes and self.tracing.open):
            doings = self.tracing.open[-1]
            doings.judged.append((about(len(doings.judged) + 1), result))
        elif not self._tapes and self._forward and self.port.started and tf.is_tensor(result):
            self._forward = False
            self._leave()
            self.steps.begin(Mode.EVAL)
            self.steps.end({"loss": _mean([result])}, model=self.models.numbers.first)

    def _counts(self) -> bool:
        # A compiled function that runs may be traced again for other shapes: that is no call of the script.
        return (self.tracing.tracing or not self._runs) and self.tracing.counts(self.port.guard.thread)

    def _counts_eager(self) -> bool:
        return not self.tracing.tracing and threading.get_ident() == self.port.guard.thread and tf.executing_eagerly()

    # ------------------------------------------------------------ steps

    def _open_train(self, models: Iterable[TrainedModel], begun: OpenStep | None = None) -> None:
        models = list(models)
        opened = self._open
        if opened is None:
            if models and self.port.resumption.open:
                optimizer = next((model.optimizer for model in models if model.optimizer is not None), None)
                if optimizer is not None:
                    self.port.resumption.settle(updates_before(optimizer), "iterations of the optimizer")
            first = min((model.number for model in models), default=None)
            opened = self._open = OpenTapeStep(begun or self._begin_train(first))
            if opened.step is not None:
                self.tracing.look_at_plan()
                opened.doings = self._frame.enter_context(self.tracing.eager())
        for model in models:
            self._describe(model)
        self._read_before(opened, models)

    def _begin_train(self, model: int | None) -> OpenStep | None:
        return self.steps.begin(Mode.TRAIN, model=model)

    def _read_before(self, opened: OpenTapeStep, models: Iterable[TrainedModel]) -> None:
        for model in models:
            if model.optimizer is not None and model.number not in opened.rates:
                opened.rates[model.number] = self._rate(model, opened.step is not None)
        if opened.step is None:
            return
        for model in models:
            for variable, place in model.parameters.values():
                if place.name not in opened.before:
                    opened.before[place.name] = variable, self._arrays.values(variable)

    def _leave(self) -> None:
        """The step that is open is over, or was none."""
        if self._open is None:
            return
        if self._open.models:
            self._close_train()
        else:
            self._drop()

    def _drop(self) -> None:
        self._open = None
        self._frame.close()
        self.steps.fail()

    def _close_train(self) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        step = opened.step
        if step is not None and opened.doings is not None:
            opened.values.append(self.tracing.close(opened.doings, None))
        self._frame.close()
        if step is not None:
            self._deliver(opened, step)
        for model in opened.models.values():
            self._describe(model)
        first = min(opened.models, default=0)
        self._end_train(first, opened.losses, opened.rates.get(first))

    def _deliver(self, opened: OpenTapeStep, step: OpenStep) -> None:
        known, add, values = self.tracing.collector.known, self.tracing.collector.add, Values()
        updaters = {}
        for found in opened.values:
            values |= found
        for model in opened.models.values():
            scale = None if model.optimizer is None else scale_of(model.optimizer)
            for variable, place in model.parameters.values():
                _, old = opened.before.get(place.name, (None, None))
                # A weight whose gradient is not asked for is frozen, or stays as it is on purpose.
                if old is not None and place.name in model.derived:
                    about = Collected(ValuePart.BEFORE, place.name, place.place, place, model.number)
                    add(about, old, values)
                    add(_as(about, ValuePart.AFTER), self._arrays.values(variable), values)
            if scale not in (None, 1.0):
                for key in [each for each in values if known[each].part is ValuePart.GRADIENT]:
                    if known[key].model == model.number:
                        values[key] = _divided(values[key], scale)
            if model.optimizer is not None:
                updaters[model.number] = updater_of(model.optimizer)
                self._put_states(values, model, opened.rates.get(model.number), scale)
            if step.due and "membership" in chosen_facts(self.port.config.facts):
                derived = [name for name, exists in model.derived.items() if exists]
                self._membership.save(step, model.number, model.given, model.trainable(), derived)
            if model.clips:
                updater = updaters.get(model.number, SCRIPT)
                updaters[model.number] = replace(updater, clips=(*updater.clips, *model.clips))
        self._save(step, values, updaters)

    def _put_states(self, values: Values, model: TrainedModel, rate: float | None, scale: float | None) -> None:
        add, wants = self.tracing.collector.add, self.port.plan.wants(Role.OPTIMIZER_STATE)
        for slot, parameter, variable in states_of(model.optimizer, model):
            if wants:
                about = Collected(ValuePart.STATE, f"{slot}/{parameter.name}", parameter.place, model=model.number)
                add(about, self._arrays.values(variable), values)
            if slot == SECOND_MOMENT:
                about = Collected(ValuePart.MOMENT, parameter.name, parameter.place, parameter, model.number)
                add(about, self._arrays.values(variable), values)
        numbers = (
            (ValuePart.RATE, rate), (ValuePart.SCALE, scale), (ValuePart.UPDATES, updates_before(model.optimizer)),
        )  # fmt: skip
        for part, number in numbers:
            if number is not None:
                add(Collected(part, f"{part.value}/{model.number}", model=model.number), float(number), values)

    def _save(self, step: OpenStep, values: Values, updaters: Mapping[int, Updater] | None = None) -> None:
        known = self.tracing.collector.known
        ready = dict(values)
        labels = {known[key].call: key for key in values if known[key].part is ValuePart.LABELS}
        for key, value in values.items():
            call = known[key].call
            if known[key].part is ValuePart.PREDICTIONS and call is not None and call in labels:
                ready[key], ready[labels[call]] = as_collected(call, value, values[labels[call]])
        graphs, self.tracing.graphs = self.tracing.graphs, []
        for graph in graphs:
            if graph.values.keys() <= values.keys():
                self._delivery.traced(functools.partial(graph.read, values), graph.model)
            else:  # of a function that this step does not call
                self.tracing.graphs.append(graph)
        self._delivery.save(step, ready, known, updaters)

    def _describe(self, model: TrainedModel) -> None:
        records = self.port.records.current()
        number = self.port.model_numbers.in_facts(model.number)
        if model not in self._described:
            self._described.add(model)
            records.add_fact(model.description(number), "tensorflow")
        if model.optimizer is not None and model.optimizer not in self._described:
            self._described.add(model.optimizer)
            records.add_fact(settings_of(model.optimizer, number), type(model.optimizer).__name__)

    def _rate(self, model: TrainedModel, due: bool) -> float | None:
        since, rate = self._rates.get(model.number, (_RATE_EVERY, None))
        if due or since >= _RATE_EVERY:
            since, rate = 0, rate_of(model.optimizer)
        self._rates[model.number] = since + 1, rate
        return rate


def _mean(losses: list[Any]) -> Any:
    """A loss as one number; several, of micro-batches or rows, count by their mean."""
    if len(losses) == 1 and not len(getattr(losses[0], "shape", ())):
        return DeferredNumbers(functools.partial(float, losses[0]))
    with tf.init_scope():
        return tf.reduce_mean([tf.reduce_mean(tf.cast(each, tf.float32)) for each in losses])


def _divided(gradient: Any, scale: float) -> Any:
    if isinstance(gradient, dict):
        return Reduced(gradient, scale)
    with tf.init_scope():
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / scale, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(scale, gradient.dtype)


def _as(about: Collected, part: ValuePart) -> Collected:
    return Collected(part, about.name, about.place, about.parameter, about.model)
