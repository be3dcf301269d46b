"""Functions that are traced: what is collected of them on the way, through transformations of JAX."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.10 it was there for Flax
    from jax.core import get_opaque_trace_state as _state_for_flax

    get_opaque_trace_state = functools.partial(_state_for_flax, convention="flax")

from watchglass.capture.compiled.collecting import Collected, Collector, ObservedLoss, Updater, ValuePart, Values
from watchglass.capture.jax.lineages import ModelLineage, ModelLineages
from watchglass.capture.jax.models import PytreeModels, TracedModule
from watchglass.capture.jax.trees import Leaf, dotted, getter, named_leaves
from watchglass.capture.model_numbers import FrameworkNumbers, ModelNumbers
from watchglass.capture.module_places import NOWHERE, Place
from watchglass.capture.port import Port
from watchglass.records import facts

#: What a function does, found as it is traced.
GRADIENT, OPTIMIZER, UPDATE, LOSS, MODULE = "gradient", "optimizer", "update", "loss", "module"


#: The type of an optimizer that is not known.
_UNKNOWN = "GradientTransformation"
#: Numbers that an optimizer holds.
_NUMBERS = {"learning_rate": ValuePart.RATE, "count": ValuePart.UPDATES}


class Optimizer(ABC):
    """How an optimizer was made, as its library knows it.

    Args:
        kind: Its type, as rules call it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @abstractmethod
    def rate(self, step: int) -> float | None:
        """The learning rate of an update, by its number; None if it is not known."""

    @abstractmethod
    def fact(self, model: int | None) -> facts.OptimizerSettings:
        """Its settings, when it first steps."""

    @abstractmethod
    def updater(self, step: int) -> Updater:
        """What updates the model at a step."""


class Tracing:
    """What this process traces and watches now; one object, for the training thread.

    Attributes:
        watching: Gets the steps, a ``Watching``, whose file imports this one; None while nothing is watched.
        collector: Has the frames of the traces of twins.
        models: The models so far.
        chains: Tells equal ones apart, as functions are called.
        seen: While a function of the script itself is traced: what it does. Nothing is added to its graph.
        busy: Whether a watched function runs or is traced, so that functions called in it are parts of it.
        around: Makes what is to be entered around each trace; libraries that advise add to it.
        given: Of the function that is traced, the parameters that optimizers get, by name with the type of these.
    """

    def __init__(self) -> None:
        self.watching: Any = None
        self.reset(ModelNumbers())

    def reset(self, numbers: ModelNumbers) -> None:
        """Forget the models: another run is watched, whose models have these numbers."""
        self.collector, self.models = Collector(), PytreeModels(FrameworkNumbers(numbers))
        self.chains = ModelLineages(self.models)
        self.seen: set[str] | None = None
        self.busy = False
        self.around: list[Callable[[], AbstractContextManager[Any]]] = []
        # By open frame, what JAX traces: values of other traces, as of conditions, cannot get into it.
        self._states: list[Any] = []
        # Paths of the parameters of the model whose function is traced, by the identities of their tracers.
        self._paths: dict[int, tuple[str, ...]] = {}
        # Paths of the arguments of the function that is traced, by the identities of their tracers; numbers of models
        # by what they are equal to and where among the arguments they are; and by their gradients.
        self._arguments: dict[int, tuple[str, ...]] = {}
        self._slots: dict[tuple[int, tuple[str, ...]], int] = {}
        self._of_gradients: dict[int, int] = {}
        self.given: dict[str, str] = {}
        self._trains = self._foreign = False
        self._differentiating = 0
        #: Optimizers that were made, and those that update a model, by its number; None for one that is not known.
        self.optimizers: list[Optimizer | None] = []
        self._of_models: dict[int, Optimizer | None] = {}

    @property
    def traces(self) -> bool:
        """Whether a function is traced, so that what it does matters."""
        return self.seen is not None or self.collects

    @property
    def losses(self) -> int:
        """How many calls of loss functions the open frame has; 0 without one."""
        kind = f"{ValuePart.PREDICTIONS.value}/"
        return sum(key.startswith(kind) for key in self.collector.open) if self.collector.active else 0

    def made(self, optimizer: Optimizer | None) -> None:
        """The script has made an optimizer."""
        self.optimizers.append(optimizer)

    def optimizer_of(self, model: int) -> Optimizer | None:
        """The optimizer of a model, or the only one."""
        if model in self._of_models or len(self.optimizers) != 1:
            return self._of_models.get(model)
        return self.optimizers[0]

    @staticmethod
    def replace(port: Port, owner: Any, name: str, wrapped: Any) -> None:
        """Replace a public function of a module until the port detaches."""
        original = getattr(owner, name)
        setattr(owner, name, wrapped)

        def restore() -> None:
            if getattr(owner, name) is wrapped:
                setattr(owner, name, original)

        port.detach_with(restore)

    @contextmanager
    def observing(self) -> Iterator[set[str]]:
        """A function of the script is traced inside; what it does gets into the set."""
        before, seen = self.seen, set[str]()
        self.seen = seen
        try:
            with self.inside():
                yield seen
        finally:
            self.seen = before

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A watched function runs or is traced inside."""
        before, self.busy = self.busy, True
        try:
            with ExitStack() as entered:
                for make in self.around:
                    entered.enter_context(make())
                yield
        finally:
            self.busy = before

    def sees(self, what: str) -> bool:
        """Something is traced now; returns whether its values are to be collected."""
        if self.seen is not None:
            self.seen.add(what)
            return False
        return self.collects

    @property
    def collects(self) -> bool:
        """Whether a value would get into the open frame."""
        return self.collector.active and bool(self._states[-1] == get_opaque_trace_state())

    @contextmanager
    def frame(self) -> Iterator[Values]:
        """A frame that is open inside, for values of what JAX traces now."""
        self._states.append(get_opaque_trace_state())
        try:
            with self.collector.frame() as values:
                yield values
        finally:
            self._states.pop()

    def add(self, part: ValuePart, name: str, value: Any, **more: Any) -> None:
        """Collect a value."""
        self.collector.add(Collected(part, name, **more), value)

    def optimized(
        self, optimizer: Optimizer | None, updates: Any, variables: Iterable[tuple[str, tuple[str, ...], Any]]
    ) -> None:
        """An optimizer has made updates of gradients.

        Args:
            optimizer: How it was made.
            updates: The gradients.
            variables: What it holds now, each with its name and the path of its parameter.
        """
        collects = self.sees(OPTIMIZER)
        if self._differentiating:
            return
        rows = named_leaves(updates)
        number = self._of_gradients.get(id(rows[0][1])) if rows else None
        if number is None:
            base = self.models.holding(rows)
            if base is None and self.seen is not None:
                return  # a part of a model, maybe, whose gradient is not collected before its twin is traced
            number = self._number_of(rows, base)
        self._of_models[number] = self._of_models.get(number) or optimizer
        if collects:
            kind = _UNKNOWN if optimizer is None else optimizer.kind
            self.given |= {self.models.parameter(number, *row).name: kind for row in rows}
            for name, path, value in variables:
                parameter = self.models.parameter(number, path, value) if path else None
                place = NOWHERE if parameter is None else parameter.place
                if parameter is None and name in _NUMBERS:
                    self.add(_NUMBERS[name], name, value, model=number)
                whole = name if parameter is None else f"{name}/{parameter.name}"
                self.add(ValuePart.STATE, whole, value, place=place, model=number)
                if parameter is not None and name == "nu":
                    self.add(ValuePart.MOMENT, parameter.name, value, place=place, parameter=parameter, model=number)

    def updates(self, before: Any, after: Any) -> None:
        """A library has updated parameters, in a function that is traced or outside of all."""
        if self.traces or self.watching is None or self.busy or traced(before):
            self.updated(before, after)
        else:
            self.watching.updated(before, after)

    def updated(self, before: Any, after: Any) -> None:
        """Parameters have become others."""
        if not self.sees(UPDATE) or self._differentiating:
            return
        rows = named_leaves(before)
        number = self._number_of(rows, self.models.holding(rows))
        places = self.models.parameters(number, rows)
        whats = map(self.collector.known.__getitem__, self.collector.open)
        held = {what.name for what in whats if what.part is ValuePart.BEFORE}
        have_before = not places or places[0].name in held
        for place, (_, old), new in zip(places, rows, jax.tree_util.tree_leaves(after), strict=True):
            about = {"place": place.place, "parameter": place, "model": number}
            if not have_before:
                self.add(ValuePart.BEFORE, place.name, old, **about)
            self.add(ValuePart.AFTER, place.name, new, **about)

    def entered(self, call: TracedModule) -> Place | None:
        """The place of a module that is called, None of another network; they are numbered as they are first called."""
        return None if self._foreign else self.models.module(call)

    def lineages(self, arguments: Any, out: Any, values: Values) -> tuple[ModelLineage, ...]:
        """Where the function that is traced takes and returns the parameters of its models."""
        taken = {id(leaf): index for index, leaf in enumerate(jax.tree_util.tree_leaves(arguments))}
        given = {id(leaf): index for index, leaf in enumerate(jax.tree_util.tree_leaves(out))}
        found: dict[int, ModelLineage] = {}
        collected = [(self.collector.known[key], value) for key, value in values.items()]
        after = {what.name: value for what, value in collected if what.part is ValuePart.AFTER}
        for what, value in collected:
            if what.part is ValuePart.BEFORE and what.model not in found and id(value) in taken:
                back = given.get(id(after.get(what.name)))
                found[what.model] = ModelLineage(
                    what.model, getter(arguments, taken[id(value)]), None if back is None else getter(out, back)
                )
        if not (found or self._trains):
            index = next((taken[leaf] for leaf in self._paths if leaf in taken), None)
            if index is not None:
                found[self.models.current] = ModelLineage(self.models.current, getter(arguments, index))
        return tuple(found.values())

    def normalizes(self, place: Place | None, mean: Any, variance: Any) -> None:
        """A module is called that has these moving averages, as the last update has left them."""
        if place is None or not self.collects:
            return
        for part, value in ((ValuePart.MEAN, mean), (ValuePart.VARIANCE, variance)):
            if hasattr(value, "shape"):
                self.add(part, "", value, place=place, model=place.model or 0)

    def called(self, place: Place | None, inputs: Any, outputs: Any) -> None:
        """A module was called; None for one whose place is unknown."""
        if not self.sees(MODULE) or place is None or self._foreign:
            return
        for part, tree in ((ValuePart.INPUT, inputs), (ValuePart.OUTPUT, outputs)):
            for path, leaf in named_leaves(tree):
                if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
                    self.add(part, dotted(path), leaf, place=place, model=place.model or 0)

    @contextmanager
    def evaluating(self, arguments: Any, *, trains: bool) -> Iterator[None]:
        """A function with these arguments is traced inside.

        If it trains, modules are those of the models that are differentiated. Else models that are known are found
        among the arguments.
        """
        before = self._paths, self._arguments, self._slots, self._of_gradients, self._trains
        self.given = {}
        self._paths, model = ({}, None) if trains else self.models.found_in(arguments)
        self._arguments = {id(leaf): path for path, leaf in named_leaves(arguments)}
        self._slots, self._of_gradients, self._trains = {}, {}, trains
        try:
            with self.models.traced(model):
                yield
        finally:
            self._paths, self._arguments, self._slots, self._of_gradients, self._trains = before

    @contextmanager
    def within(self, parameters: Any) -> Iterator[None]:
        """A module with these parameters runs inside: one of a network that is not trained here is left out."""
        outer = self._foreign
        self._foreign = outer or self._is_foreign(jax.tree_util.tree_leaves(parameters))
        try:
            yield
        finally:
            self._foreign = outer

    def _is_foreign(self, leaves: list[Any]) -> bool:
        if not (self._trains and leaves) or any(id(leaf) in self._paths for leaf in leaves):
            return False
        if not self._differentiating:
            return True  # samples of a generator, answers of a target network
        return all(id(leaf) in self._arguments or not isinstance(leaf, jax.core.Tracer) for leaf in leaves)

    def _number_of(self, rows: list[Leaf], base: int | None = None) -> int:
        """The number of the model with these parameters; argument positions separate models of equal structure.

        Args:
            rows: The parameters.
            base: The number of the first model of this structure, where they are a part of one.
        """
        base = self.models.number_of(rows) if base is None else base
        path, leaf = rows[0] if rows else ((), None)
        at = self._arguments.get(id(leaf))
        slots = {root: number for (model, root), number in self._slots.items() if model == base}
        if at is None:
            return next(reversed(slots.values()), base)
        root = at[: len(at) - len(path)]
        if root not in slots:
            equal = self.models.equal(base)
            left = [number for number in equal if number not in slots.values()]
            slots[root] = self._slots[base, root] = left[0] if left else self.models.twin(base)
        return slots[root]

    def path_of(self, parameters: Any) -> tuple[str, ...] | None:
        """The path of the module that has these parameters; None if it is none of the model's."""
        found = (self._paths.get(id(leaf)) for leaf in jax.tree_util.tree_leaves(parameters))
        return next((path[:-1] for path in found if path is not None), None)

    def lost(self, loss: ObservedLoss, predictions: Any, labels: Any, value: Any) -> None:
        """A loss function was called."""
        if not self.sees(LOSS):
            return
        number = "" if loss.number == 1 else f"_{loss.number}"
        model = self.models.current
        self.add(ValuePart.PREDICTIONS, f"prediction{number}", predictions, call=loss, model=model)
        self.add(ValuePart.LABELS, f"label{number}", labels, call=loss, model=model)
        if not self._differentiating:
            self.add(ValuePart.METRIC, "loss", value.mean() if value.ndim else value, model=model)

    def observed(self, tree: Any, name: str) -> bool:
        """A script saves values; returns whether they were collected."""
        if not self.collects:
            return False
        for path, leaf in named_leaves(tree):
            self.add(ValuePart.CUSTOM, dotted((name, *path)), leaf)
        return True

    def differentiated(
        self,
        fun: Callable[..., Any],
        transform: Callable[..., Any],
        argnums: Any,
        has_aux: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The value and the gradient of a function, which are collected with what is collected in it.

        Args:
            fun: The function.
            transform: ``jax.value_and_grad`` with its options, of a function with further results.
            argnums: The arguments that are differentiated.
            has_aux: Whether the function itself has further results.
            args: Its arguments.
            kwargs: Its arguments by name.
        """
        if self._differentiating:
            # A gradient inside a loss, as of a penalty: no gradient of the training.
            with self.collector.closed():
                return _without(transform(_with_aux(fun, has_aux))(*args, **kwargs), has_aux)
        differentiated = [args[each] for each in ((argnums,) if isinstance(argnums, int) else argnums)]
        rows = named_leaves(differentiated[0] if isinstance(argnums, int) else differentiated)
        number = self._number_of(rows)
        passing = Passing(self, _with_aux(fun, has_aux))

        def inner(*inner_args: Any, **inner_kwargs: Any) -> Any:
            paths = self._paths
            given = [inner_args[each] for each in ((argnums,) if isinstance(argnums, int) else argnums)]
            self._paths = dict(zip(map(id, jax.tree_util.tree_leaves(given)), (path for path, _ in rows), strict=True))
            self._differentiating += 1
            try:
                with self.models.traced(number):
                    (value, aux), values = passing(*inner_args, **inner_kwargs)
            finally:
                self._differentiating -= 1
                self._paths = paths
            passing.holds_loss(value, aux)
            return value, (aux, values)

        (value, (aux, values)), gradients = transform(inner)(*args, **kwargs)
        passing.absorb((value, aux), values)
        self.add(ValuePart.LOSS, "loss", passing.loss_of(value, aux), model=number)
        places = self.models.parameters(number, rows)
        for place, (_, before), gradient in zip(places, rows, jax.tree_util.tree_leaves(gradients), strict=True):
            if gradient.dtype != jax.dtypes.float0:
                about = {"place": place.place, "parameter": place, "model": number}
                self.add(ValuePart.BEFORE, place.name, before, **about)
                self.add(ValuePart.GRADIENT, place.name, gradient, **about)
                self._of_gradients[id(gradient)] = number
        return _without(((value, aux), gradients), has_aux)


class Passing:
    """A function of the script inside of a transformation, whose values come out as a further result.

    A loss that is a result of the function comes out once.

    Args:
        tracing: Collects.
        fun: The function.
    """

    def __init__(self, tracing: Tracing, fun: Callable[..., Any]) -> None:
        self._tracing, self._fun = tracing, fun
        functools.update_wrapper(self, fun, updated=())
        self._aliases: dict[str, int] = {}
        self._loss_at: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The result of the function, and the values."""
        collector = self._tracing.collector
        with self._tracing.frame() as values:
            out = self._fun(*args, **kwargs)
        at = {id(leaf): index for index, leaf in enumerate(jax.tree_util.tree_leaves(out))}
        self._aliases = {
            key: at[id(value)]
            for key, value in values.items()
            if collector.known[key].part is ValuePart.LOSS and id(value) in at
        }
        return out, {key: value for key, value in values.items() if key not in self._aliases}

    def holds_loss(self, value: Any, aux: Any) -> None:
        """The value of a function that is differentiated may be among its further results, too."""
        leaves = jax.tree_util.tree_leaves(aux)
        self._loss_at = next((index for index, leaf in enumerate(leaves) if leaf is value), None)

    def loss_of(self, value: Any, aux: Any) -> Any:
        """The loss as the script gets it: of ``jax.grad`` it gets no other than that."""
        return value if self._loss_at is None else jax.tree_util.tree_leaves(aux)[self._loss_at]

    def absorb(
        self, out: Any, values: Mapping[str, Any], change: Callable[[Collected, Any], Any] | None = None
    ) -> None:
        """Add to the outer frame what the values have become.

        Args:
            out: What the result has become.
            values: What the values have become.
            change: Called with each, returns what to add.
        """
        collector = self._tracing.collector
        leaves = jax.tree_util.tree_leaves(out)
        found = {**values, **{key: leaves[index] for key, index in self._aliases.items()}}
        if change is not None:
            found = {key: change(collector.known[key], value) for key, value in found.items()}
        collector.absorb(found)


def _with_aux(fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    if has_aux:
        return fun

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs), None

    return call


def _without(result: Any, has_aux: bool) -> Any:
    (value, aux), gradients = result
    return ((value, aux) if has_aux else value), gradients


def traced(*trees: Any) -> bool:
    """Whether there is a tracer among these values."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(trees))


#: What this process traces and watches now.
TRACING = Tracing()
