"""Calls of compiled functions: which of them are steps or parts of steps, and when their twins run."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.collecting import ValuePart, Values
from watchglass.capture.frameworks import FRAMEWORKS
from watchglass.capture.hidden_steps import HiddenFunctions
from watchglass.capture.tensorflow.functions import FunctionAbout, key_of, look, taken
from watchglass.capture.tensorflow.second_traces import SecondTraces, is_of_script
from watchglass.capture.tensorflow.step_values import OpenTapeStep
from watchglass.capture.tensorflow.tape_steps import TapeSteps, mean_loss
from watchglass.capture.tensorflow.tracing import losses_in
from watchglass.record import OpenStep
from watchglass.records import Mode

_log = logging.getLogger("watchglass")
(_LOOP,) = FRAMEWORKS["tensorflow"].hidden


class FunctionCalls:
    """Runs the compiled functions that a script calls. For the training thread.

    Args:
        steps: Gets the steps.

    Attributes:
        seeded: Twins that run at all calls of functions, by these and by the key of their arguments.
    """

    def __init__(self, steps: TapeSteps) -> None:
        self._steps, self._tracing, self._port = steps, steps.tracing, steps.port
        self._second = SecondTraces(steps.tracing)
        self._hidden = HiddenFunctions(steps.port)
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, FunctionAbout]] = weakref.WeakKeyDictionary()
        self.seeded: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        guarded = steps.port.guarded
        self._opens, self._closes = guarded(steps.begin), guarded(steps.end)
        self._begins: Callable[[int], OpenStep | None] = guarded(
            lambda model: steps.recorded.begin(Mode.TRAIN, model=model)
        )
        self._passed, self._took = guarded(self._end_pass), guarded(self._take)
        self._evaluated = guarded(self._end_evaluation)
        # Shielded, which costs less: they call nothing that is observed.
        shielded = steps.port.guard.shielded
        self._begins_row, self._ends_row = shielded(steps.recorded.begin_row), shielded(self._end_row)
        steps.port.detach_with(self._second.release)

    def observes(self) -> bool:
        """Whether a call of a compiled function may be a step."""
        return not (self._steps.is_off() or self._steps.runs) and self._steps.counts_eager()

    def called(self, function: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The script calls a compiled function; returns its result."""
        abouts = self._known.get(function)
        about = None if abouts is None else abouts.get(key_of(args, kwargs))
        if about is None:
            about = self._look(function, args, kwargs)
        if about.row_loss is not None and self._steps.open is None and self._begins_row(about.first):
            return self._row(about, plain, args, kwargs)
        return self._run(about, plain, args, kwargs) if about.is_step else plain(*args, **kwargs)

    def is_nested(self, function: Any) -> bool:
        """Whether a call of a compiled function is one of the script in a trace; not those of single replicas."""
        if not self._tracing.tracing or self._steps.is_off() or threading.get_ident() != self._port.guard.thread:
            return False
        whole = not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
        return whole and is_of_script(function)

    def nested(self, function: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function that is traced calls another one; returns its result."""
        doings = self._tracing.open[-1]
        if doings.call_nested is not None:
            return doings.call_nested(function, args, kwargs)
        count = function.experimental_get_tracing_count()
        result = plain(*args, **kwargs)
        doings.nests = True
        doings.unseen |= function.experimental_get_tracing_count() == count
        return result

    def _look(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionAbout:
        about = FunctionAbout()
        self._steps.keras()
        if not tf.config.functions_run_eagerly() and not self._tracing.tracing:
            try:
                about = look(self._second, self._tracing, function, args, kwargs, self._port)
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
        if self._steps.tapes:
            return self._part(about, plain, args, kwargs)
        return self._evaluate(about, plain, args, kwargs)

    def _train(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if about.trains:
            if self._steps.open is not None and (self._steps.open.is_complete or not self._steps.open.models):
                self._steps.leave()
            step = None
            if about.known_whole and self._steps.open is None:
                step = self._begins(about.first)
                if step is None:
                    return self._pass(about, plain, args, kwargs)
            self._opens(about.models, step)
        opened = self._steps.open
        if opened is None:  # an update without a gradient that was seen
            return self._called(about, False, plain, args, kwargs)[0]
        try:
            result, values = self._called(about, opened.step is not None, plain, args, kwargs)
        except BaseException:
            self._steps.drop()
            raise
        self._took(about, opened, result, values)
        if opened.is_complete:
            self._closes()
        return result

    def _row(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A whole step of which nothing is due and whose only loss is in its result."""
        self._steps.runs = True
        try:
            result = plain(*args, **kwargs)
        except BaseException:
            self._steps.recorded.fail()
            raise
        finally:
            self._steps.runs = False
        self._ends_row(about, result)
        return result

    def _end_row(self, about: FunctionAbout, result: Any) -> None:
        model, loss = about.models[0], taken(result, about.row_loss or 0)
        rate = None if model.optimizer is None else self._steps.rate(model, due=False)
        self._steps.recorded.end_row(mean_loss([loss]) if len(loss.shape) else loss, rate, model=model.number)

    def _pass(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A whole step of which nothing is due."""
        try:
            result, values = self._called(about, False, plain, args, kwargs)
        except BaseException:
            self._steps.recorded.fail()
            raise
        self._passed(about, result, values)
        return result

    def _end_pass(self, about: FunctionAbout, result: Any, values: Values) -> None:
        found = losses_in(values, self._tracing.collector.known, ValuePart.LOSS) if values else {}
        losses, rate = {}, None
        for model in about.models:
            at = about.losses[model.number]
            losses[model.number] = found.get(model.number, []) if at is None else [taken(result, at)]
            if model.number == about.first and model.optimizer is not None:
                rate = self._steps.rate(model, due=False)
        self._steps.record(about.first, losses, rate)

    def _part(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A forward under a tape of an eager loop."""
        opened = self._steps.open
        result, values = self._called(about, opened is not None and opened.step is not None, plain, args, kwargs)
        if opened is not None and values:
            opened.values.append(values)
        return result

    def _evaluate(self, about: FunctionAbout, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._steps.leave()
        mode = Mode.EVAL if about.evaluates else Mode.PREDICT
        step = self._port.guard.call(self._steps.recorded.begin, mode)
        try:
            result, values = self._called(about, step is not None, plain, args, kwargs)
        except BaseException:
            self._steps.recorded.fail()
            raise
        self._steps.forward = not about.evaluates
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
        self._steps.runs = True
        try:
            if twin is None or twin not in about.ready:
                return plain(*args, **kwargs), {}
            return twin(plain, *args, **kwargs)
        finally:
            self._steps.runs = False

    def _take(self, about: FunctionAbout, opened: OpenTapeStep, result: Any, values: Values) -> None:
        """Keep what a function that trains has returned."""
        found = losses_in(values, self._tracing.collector.known, ValuePart.LOSS)
        for model in about.models:
            at = about.losses.get(model.number)
            losses = found.get(model.number, []) if at is None else [taken(result, at)]
            opened.losses.setdefault(model.number, []).extend(losses)
            opened.models[model.number] = model
        if opened.step is not None and values:
            opened.values.append(values)
        opened.updated.update(model.number for model in about.updated)
        about.known_whole = set(about.models) <= set(about.updated)
        if about.known_whole and not about.seeded and len(about.models) == 1:
            about.row_loss = about.losses[about.first]

    def _end_evaluation(self, about: FunctionAbout, step: OpenStep | None, result: Any, values: Values) -> None:
        found = losses_in(values, self._tracing.collector.known, ValuePart.EVALUATED).get(about.judged, [])
        if not found and about.evaluated is not None:
            found = [taken(result, about.evaluated)]
        if step is not None and values:
            self._steps.values.save(step, values)
        self._steps.recorded.end({"loss": mean_loss(found)} if found else {}, model=about.judged)
