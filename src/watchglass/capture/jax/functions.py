"""What is known of functions that are jitted: what their calls do, and what the traces of their twins have shown."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from watchglass.capture.compiled.collecting import Collected, ValuePart, Values
from watchglass.capture.compiled.reductions import reduced_values
from watchglass.capture.compiled.twin import Arguments, Repetition
from watchglass.capture.jax.arrays import JaxArrays
from watchglass.capture.jax.batches import Argument, arguments_in, batch_in
from watchglass.capture.jax.graph import ShownByProgram, shown_by
from watchglass.capture.jax.lineages import ModelLineage
from watchglass.capture.jax.results import follows_from
from watchglass.capture.jax.returned_parameters import ReturnedParameters, returned_parameters
from watchglass.capture.jax.tracing import GRADIENT, LOSS, MODULE, TRACING, UPDATE
from watchglass.capture.jax.trees import dotted, getter, words_of
from watchglass.capture.jax.written_losses import ReadingTwin, written_in
from watchglass.records import Mode, ModuleKind

#: Kinds of modules whose inputs show what a function that is a ReLU has made.
_WEIGHTED = (ModuleKind.LINEAR, ModuleKind.CONVOLUTION)
_LOSSES = frozenset(("loss", "loss_value", "train_loss", "val_loss", "eval_loss"))
_WORDS = (
    (ValuePart.LOSS, GRADIENT), (ValuePart.AFTER, UPDATE), (ValuePart.METRIC, LOSS), (ValuePart.OUTPUT, MODULE),
)  # fmt: skip

Getters = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class About:
    """What is known of the calls of a function with some static arguments.

    Attributes:
        does: What it does, of the words of ``tracing``; empty if it is no step.
        loss: Takes the loss out of its result; None if it is not there.
        numbers: Take other numbers out of its result, by name.
        model: The model that it trains or evaluates.
        base: The model as the function was traced, which is equal to that.
        batch: The arguments that are the batch, by name.
        returned: Parameters among its results, which the script updates itself.
        steps: The number of its steps in a call, if it loops over them and returns the loss of each.
        lineages: Where it takes and returns the parameters of its models.
        given: The parameters that optimizers get, by name with the type of these.
        kept: Names of those that it updates by zero: they are frozen.
        unused: Names of those that its loss does not depend on.
    """

    does: frozenset[str] = frozenset()
    loss: Callable[[Any], Any] | None = None
    numbers: Getters = field(default_factory=dict)
    model: int = 0
    steps: int = 1
    lineages: tuple[ModelLineage, ...] = ()
    base: int = 0
    batch: Mapping[str, Argument] = field(default_factory=dict)
    returned: Sequence[ReturnedParameters] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()

    @functools.cached_property
    def of_equal(self) -> dict[int, About]:
        """The same of models that are equal to this one, by their numbers."""
        return {self.model: self}

    @functools.cached_property
    def is_whole_step(self) -> bool:
        """Whether each call is a whole TRAIN step of one model, which a library updates."""
        return self.steps == 1 and {GRADIENT, UPDATE} <= self.does and len(self.lineages) == 1 and not self.returned

    @property
    def mode(self) -> Mode:
        """The mode of its steps."""
        return Mode.TRAIN if GRADIENT in self.does else Mode.EVAL


NO_STEP = About()


class Function:
    """What is known of one function of the script, however often it is jitted.

    Args:
        fun: The function; its caller keeps it alive.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.about: dict[Any, About] = {}
        #: What the latest trace of its twin has shown, if it was not known to JAX already.
        self.latest: Outcome | None = None
        self.has_effects = False  #: Whether it does more than to return a result.
        self.shown = ShownByProgram()  #: What the program of that trace shows.
        #: Whether the script writes its loss out, so that its twin is read as a program.
        self.writes_loss = False
        #: Numbers of the arguments that are parameters of a known model, of the latest trace.
        self.parameters: tuple[int, ...] = ()
        self._arguments: list[Argument] = []
        #: Whether its twin, when it is traced, reduces what is there for its statistics alone.
        self.on_device = False
        self.trains = False  #: Whether it computes a gradient.
        try:
            held: Callable[[], Any] = weakref.ref(fun)
        except TypeError:
            held = lambda: fun  # noqa: E731  # it has no weak references
        self._held = held
        functools.update_wrapper(self, fun, updated=())
        del vars(self)["__wrapped__"]  # it would hold the function
        with suppress(TypeError, ValueError):
            vars(self)["__signature__"] = inspect.signature(fun)

    def complete(self, traced: Any) -> Outcome | None:
        """The trace is over, and gave this program; returns :attr:`latest`."""
        jaxpr, known = traced.jaxpr.jaxpr, TRACING.collector.known
        self.has_effects = bool(jaxpr.effects)
        shown = self.latest
        if shown is not None:
            shown = shown.completed(jaxpr)
            if shown.about.does and shown.about.steps == 1:
                with suppress(Exception):  # programs belong to JAX: without the batch, its facts alone are missing
                    batch = batch_in(jaxpr, traced.out_info, self._arguments, self.parameters, known)
                    shown = replace(shown, about=replace(shown.about, batch=batch))
            kept = frozenset(known[key].name for key in self.shown.kept if known[key].part is ValuePart.AFTER)
            unused = frozenset(known[key].name for key in self.shown.zero if known[key].part is ValuePart.GRADIENT)
            shown = replace(shown, about=replace(shown.about, kept=kept, unused=unused))
            self.latest = shown
        return shown

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The result of the function, and the values: what the twin compiles."""
        with TRACING.evaluating((args, kwargs), trains=self.trains), TRACING.frame() as values:
            leaves = [leaf for leaf in jax.tree_util.tree_leaves((args, kwargs)) if isinstance(leaf, jax.core.Tracer)]
            self.parameters = tuple(at for at, leaf in enumerate(leaves) if TRACING.path_of(leaf) is not None)
            self._arguments = arguments_in((args, kwargs))
            out = self._held()(*args, **kwargs)
            trained = {
                id(value) for key, value in values.items() if TRACING.collector.known[key].part is ValuePart.BEFORE
            }
            self.parameters += tuple(at for at, leaf in enumerate(leaves) if id(leaf) in trained)
            lineages = TRACING.lineages((args, kwargs), out, values)
        given = TRACING.given
        returned = self._reduced(values) if self.on_device else values
        known = TRACING.collector.known
        shown = Outcome.of(out, values, known, returned, lineages)
        taken = {each.model: each.taken for each in lineages}
        updates = returned_parameters(values, known, out, taken)
        self.latest = replace(shown, about=replace(shown.about, returned=updates, given=given))
        return out, returned

    def _reduced(self, values: Values) -> Values:
        known, plan = TRACING.collector.known, TRACING.watching.port.plan
        parts = {known[key].part for key in values}
        # A gradient without its update may be averaged with others; a loss that is written out is found by parameters.
        kept = {ValuePart.GRADIENT, ValuePart.BEFORE} if ValuePart.AFTER not in parts else set[ValuePart]()
        if ValuePart.PREDICTIONS not in parts:
            kept.add(ValuePart.BEFORE)
        return reduced_values(JaxArrays.primitives, values, known, plan.takes_elements, kept)

    def again(self) -> Callable[..., tuple[Any, Values]]:
        """What the twin compiles, as another function: JAX traces one only once."""
        if self.writes_loss:
            return ReadingTwin(self, lambda: self.parameters, self._judged)

        @functools.wraps(self, updated=())
        def call(*args: Any, **kwargs: Any) -> tuple[Any, Values]:
            return self(*args, **kwargs)

        return call

    def tags(self, traced: Any) -> bool:
        """Whether this trace is the first one that shows that a layer takes what a ReLU has made."""
        collector, self.shown = TRACING.collector, ShownByProgram()
        if not (self.latest and self.latest.about.does & {GRADIENT, UPDATE}):
            return False
        with suppress(Exception):  # programs belong to JAX: without it, dead units and frozen parameters do not show
            self.shown = shown_by(traced.jaxpr, traced.out_info, self.parameters)
        takers = [(key, collector.known[key]) for key in self.shown.rectified]
        takers = [(key, what) for key, what in takers if what.part is ValuePart.INPUT and what.place.kind in _WEIGHTED]
        new = [key for key, _ in takers if collector.tag(key, "relu_output")]
        return bool(new)

    def is_to_be_read(self, traced: Any) -> bool:
        """Whether this trace is the first one that shows a written loss."""
        if self.latest is None or self.writes_loss:
            return False
        self.writes_loss = written_in(traced.jaxpr.jaxpr, traced.out_info, self.parameters) is not None
        return self.writes_loss

    def _judged(self, at: int) -> int:
        shown = self.latest
        if shown is None:
            return TRACING.models.current
        if GRADIENT not in shown.about.does:
            about = replace(shown.about, does=shown.about.does | {LOSS}, loss=getter(shown.out, at))
            self.latest = replace(shown, about=about)
        return shown.about.model


class FunctionRepetition(Repetition):
    """A function of JAX changes nothing in place; what it may reuse the memory of is copied for its twin.

    Args:
        function: What is known of it.
        donates: Whether it may reuse memory of its arguments.
    """

    def __init__(self, function: Function, *, donates: bool) -> None:
        self._function, self._donates = function, donates

    def is_possible(self) -> bool:
        """Not with effects, such as a print."""
        return not self._function.has_effects

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Arguments]:
        """Copies for the twin, if these may be used up."""
        for_twin = jax.tree_util.tree_map(copied, (args, kwargs)) if self._donates else (args, kwargs)
        return for_twin, (args, kwargs)

    def are_equal(self, one: Any, other: Any) -> bool:
        """All numbers in both."""
        return equal(one, other)


@dataclass(frozen=True)
class Outcome:
    """What the trace of a twin has shown.

    Attributes:
        out: The result of the function, traced.
        about: What is known.
        scalars: Names of the numbers among the leaves of the result, by index.
        mean: Index of the mean of the losses of rows among all results of the twin; None without such losses.
    """

    out: Any
    about: About
    scalars: Mapping[int, str]
    mean: int | None

    @classmethod
    def of(
        cls, out: Any, values: Values, known: Mapping[str, Collected], returned: Mapping[str, Any] | None = None,
        lineages: tuple[ModelLineage, ...] = (),
    ) -> Outcome:  # fmt: skip
        """From a result and the values, those that the twin returns where they are others, and where parameters are."""
        leaves = jax.tree_util.tree_flatten_with_path(out)[0]
        parts = {key: known[key].part for key in values}
        does = frozenset(word for part, word in _WORDS if part in parts.values())
        models = [known[key].model for key, part in parts.items() if part in (ValuePart.GRADIENT, ValuePart.AFTER)]
        losses = [values[key] for key, part in parts.items() if part in (ValuePart.LOSS, ValuePart.METRIC)]
        scalars = {
            index: dotted(words_of(path))
            for index, (path, leaf) in enumerate(leaves)
            if getattr(leaf, "size", 0) == 1 and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
        }
        at = next((index for index, (_, leaf) in enumerate(leaves) if any(leaf is loss for loss in losses)), None)
        metric = next((key for key in sorted(values) if parts[key] is ValuePart.METRIC), None)
        before = {key: value for key, value in (returned or values).items() if metric is not None and key < metric}
        mean = len(leaves) + len(jax.tree_util.tree_leaves(before)) if metric and GRADIENT not in does else None
        objectives = [values[key] for key, part in parts.items() if part is ValuePart.LOSS]
        steps = [loss.shape[0] for loss in objectives if UPDATE in does and loss.ndim == 1]
        loss = None if at is None else getter(out, at)
        if lineages:
            models = models or [lineages[0].model]
        elif does:
            models = models or [known[key].model for key in parts]
        model = min(models, default=0)
        about = About(does, loss, model=model, steps=max(steps, default=1), lineages=lineages, base=model)
        return cls(out, about, scalars, mean)

    def completed(self, jaxpr: Any) -> Outcome:
        """With a loss that is computed from losses of rows, or named so, and the other numbers of the result."""
        loss, does, at = self.about.loss, self.about.does, None
        if loss is None and self.mean is not None:
            at = follows_from(jaxpr, self.mean, self.scalars)
        if loss is None and at is None:
            named = [index for index, name in self.scalars.items() if name.split(".")[-1] in _LOSSES]
            at = (
                named[0]
                if len(named) == 1
                else next(iter(self.scalars))
                if len(self.scalars) == 1 and not does
                else None
            )
        loss = getter(self.out, at) if at is not None else loss
        numbers = {
            name: getter(self.out, index)
            for index, name in self.scalars.items()
            if index != at and not name.split(".")[-1].isdigit() and name
        }
        return replace(self, out=None, about=replace(self.about, loss=loss, numbers=numbers))


def equal(one: Any, other: Any) -> bool:
    """Whether two trees have the same numbers in the same places; waits for them."""
    pairs = list(zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True))
    arrays = [pair for pair in pairs if all(isinstance(each, jax.Array) for each in pair)]
    with TRACING.inside():
        return all(
            first.sharding == second.sharding and bool(jax.numpy.array_equal(first, second, equal_nan=True))
            for first, second in arrays
            if jax.numpy.issubdtype(first.dtype, jax.numpy.number)
        )


def copied(leaf: Any) -> Any:
    """A copy of an array that the script may donate."""
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf
