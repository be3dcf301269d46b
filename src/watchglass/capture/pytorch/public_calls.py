"""Public functions of PyTorch that have no hook point, wrapped once for any number of listeners.

Each is wrapped when its first listener comes and restored when its last one leaves; signatures are kept. Which they are
is in the constants at the end of this file; docs/pytorch.md says when each is wrapped.

Functions that every step calls, and that only facts need, are wrapped only while a hook is active. A hook rests while
its training repeats the same step and none is captured (``events.resting``). The loss functions stay wrapped:
``F.cross_entropy(model(x), y)`` looks the function up before the model is called, and that call may end the rest.

Of nested calls only the outermost is reported, except for backwards: a scheduler made of others steps once. While
PyTorch compiles, or without a listener, a wrapper passes through; that of ``scaled_dot_product_attention`` then becomes
a part of the code that is compiled.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from watchglass.capture.guard import Guard
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.compiled.modules import hand_over_attention
from watchglass.capture.pytorch.profiling.device_copies import COPIES, CopyMethod
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around
from watchglass.records import LOSSES as LOSS_KINDS

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
Owners = Callable[[], Iterable[tuple[Any, str]]]

#: Loss functions of torch.nn.functional that are observed: their names are the words of these losses.
LOSS_FUNCTIONS = (*LOSS_KINDS, "margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss")

#: Functions of torch.nn.init that draw random values.
INITIALIZERS = (
    "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_",
    "orthogonal_",
)  # fmt: skip


class Nest:
    """Calls of which only the outermost is reported."""

    inside = False


class NestOfThread(threading.local, Nest):
    """The same for functions that any thread may call."""


class ActiveHooks:
    """The hooks that need, at present, the calls that every step makes."""

    def __init__(self) -> None:
        self._active: set[Any] = set()
        self.calls: list[PublicCall] = []

    def __bool__(self) -> bool:
        return bool(self._active)

    def rest(self, who: Any, on: bool) -> None:
        """A hook begins to rest or is closed (``on``), or becomes active."""
        (self._active.discard if on else self._active.add)(who)
        for call in self.calls:
            call.settle()


class PublicCall:
    """One public function, or several that a listener takes for one.

    Args:
        owners: Finds the functions to wrap: (owner, attribute).
        nest: Shared with functions whose calls inside this one are not reported.
        inner: Whether nested calls are all reported.
        active: For a function that every step calls: it is reported only while a hook is active.
        stays: Whether it stays wrapped while no hook is active.
        compiled: Called with the arguments while PyTorch compiles a call, as a part of what it compiles.

    Attributes:
        observed: Whether a listener is called at present.
    """

    def __init__(
        self,
        owners: Owners,
        nest: Nest | None = None,
        *,
        inner: bool = False,
        active: ActiveHooks | None = None,
        stays: bool = False,
        compiled: Callable[..., None] | None = None,
    ) -> None:
        self.before: tuple[Before, ...] = ()
        self.after: tuple[After, ...] = ()
        self.ended: tuple[After, ...] = ()
        self.nest = nest or Nest()
        self._outermost = not inner
        self._owners = owners
        self._active_hooks = active
        self._stays = stays
        self._compiled = compiled
        self._listeners = 0
        self.observed = False
        self._undo: list[Callable[[], None]] = []
        self._places: set[tuple[Any, str]] = set()
        # One for each function, wherever it is found: pickle looks it up by its name and compares. Kept, because the
        # compiler compiles once more what called another wrapper.
        self._wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}
        # Wrappers that the script has wrapped again, so that they could not be removed, and functions that remove them.
        self._left: dict[Callable[..., Any], Callable[[], None]] = {}
        if active is not None:
            active.calls.append(self)

    def listen(
        self, guard: Guard, *, before: Before | None = None, after: After | None = None, ended: After | None = None
    ) -> Callable[[], None]:
        """Call ``before(args, kwargs)`` and ``after(args, kwargs, result)`` from now on; returns an undo function.

        Args:
            guard: The guard of the listening hook.
            before: Called before the function.
            after: Called when it has returned.
            ended: The same, also after an exception in the function or before it: then with :data:`RAISED`.
        """
        before = guard.shielded(before) if before else None
        after = guard.shielded(after) if after else None
        ended = guard.shielded(ended) if ended else None
        self.before += (before,) if before else ()
        self.after += (after,) if after else ()
        self.ended += (ended,) if ended else ()
        self._listeners += 1
        self.settle()

        def leave() -> None:
            self.before = tuple(listener for listener in self.before if listener is not before)
            self.after = tuple(listener for listener in self.after if listener is not after)
            self.ended = tuple(listener for listener in self.ended if listener is not ended)
            self._listeners -= 1
            self.settle()

        return leave

    def settle(self) -> None:
        """Wrap the functions or restore them, as the listeners need now."""
        active = self._listeners > 0 and (self._active_hooks is None or bool(self._active_hooks))
        # Some listeners only keep the function wrapped.
        self.observed = active and bool(self.before or self.after or self.ended)
        wanted = active or (self._listeners > 0 and self._stays)
        if wanted and not self._undo:
            for owner, name in self._owners():
                self._wrap(owner, name)
        if self._undo and not wanted:
            for undo in (*self._undo, *self._left.values()):
                undo()
            self._undo.clear()
            self._places.clear()
            # Functions that a script has put in place for a while must not live as long as the process.
            present = [getattr(owner, name, None) for owner, name in self._owners()]
            kept = self._wrappers.items()
            self._wrappers = {own: wrapper for own, wrapper in kept if any(own is each for each in present)}

    def look_again(self) -> None:
        """Wrap also the functions of packages that the script has imported since."""
        if self._undo:
            for place in self._owners():
                if place not in self._places:
                    self._wrap(*place)

    def _wrap(self, owner: Any, name: str) -> None:
        beneath = vars(owner).get(name)
        original = getattr(owner, name, None)
        if isinstance(beneath, CopyMethod):
            original, beneath = beneath.timed, beneath.beneath
        if original is None:
            return  # an older PyTorch
        wrapper = self._wrappers.get(original)
        if wrapper is None:
            wrapper = self._wrappers[original] = self._wrapper(original)
            if not inspect.isfunction(original):
                # pickle looks a function up by its name; those of PyTorch's own are of the place where it makes them.
                wrapper.__module__ = owner.__name__ if inspect.ismodule(owner) else owner.__module__
                wrapper.__qualname__ = name if inspect.ismodule(owner) else f"{owner.__qualname__}.{name}"
        setattr(owner, name, wrapper)
        self._places.add((owner, name))

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                if beneath is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, beneath)
                self._left.pop(wrapper, None)
                COPIES.settle()
            else:
                self._left[wrapper] = undo

        self._undo.append(undo)

    def _wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        nest, outermost = self.nest, self._outermost

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            if not self.observed or nest.inside or (wrapper in self._left and not self._is_on_top(wrapper)):
                return False
            nest.inside = outermost
            for before in self.before:
                before(args, kwargs)
            return True

        def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            try:
                # Those first that take back what they have changed for the call: what the others see is the script's.
                for ended in self.ended:
                    ended(args, kwargs, result)
                for after in self.after if result is not RAISED else ():
                    after(args, kwargs, result)
            finally:
                nest.inside = False

        wrapper = around(original, begin, end, bypass=compiling, passing=self._compiled)
        wrapper.watchglass = True  # type: ignore[attr-defined]
        return wrapper

    def _is_on_top(self, wrapper: Callable[..., Any]) -> bool:
        """Whether a wrapper that was left inside another is called first: else a newer one around it reports."""
        return any(getattr(owner, name, None) is wrapper for owner, name in self._owners())


def is_wrapped(function: Any) -> bool:
    """Whether this function is one of our wrappers."""
    return hasattr(function, "watchglass")


def _at(*places: str) -> Owners:
    """Finds functions by their places, ``"torch.optim:Optimizer.step"``, where this PyTorch and Python have them."""

    def found() -> Iterable[tuple[Any, str]]:
        for place in places:
            module, _, path = place.partition(":")
            *classes, name = path.split(".")
            owner: Any = import_module(module)
            for each in classes:
                owner = getattr(owner, each, None)
            if owner is not None:
                yield owner, name

    return found


def _schedulers(name: str) -> Owners:
    """Classes of PyTorch that define a method of schedulers themselves."""
    known = [each for each in vars(lr_scheduler).values() if inspect.isclass(each) and issubclass(each, LRScheduler)]
    return lambda: ((each, name) for each in known if name in vars(each))


def _data_loader() -> Iterable[tuple[Any, str]]:
    yield from _at("torch.utils.data:DataLoader.__iter__")()
    # It makes iterators itself. A script that has not imported it reads none.
    stateful = getattr(sys.modules.get("torchdata.stateful_dataloader"), "StatefulDataLoader", None)
    if stateful is not None:
        yield stateful, "__iter__"


def _safetensors() -> Iterable[tuple[Any, str]]:
    """Where PyTorch's part of safetensors keeps the function that writes; it is not imported for this."""
    module = sys.modules.get("safetensors.torch")
    if module is not None:
        yield module, "serialize_file"


def loads(
    guard: Guard, *, before: Before | None = None, after: After | None = None, ended: After | None = None
) -> Callable[[], None]:
    """Listen to :data:`DATA_LOADER`, also to loaders of packages that the script imports later."""
    leave = DATA_LOADER.listen(guard, before=before, after=after, ended=ended)
    leave_made = LOADER_MADE.listen(guard, before=lambda args, kwargs: DATA_LOADER.look_again())

    def leave_both() -> None:
        leave_made()
        leave()

    return leave_both


def next_batch(iterator: type) -> PublicCall:
    """The calls of ``next`` for the iterators of a loader, by their class."""
    return _of_class(iterator, "__next__")


def new_order(sampler: type) -> PublicCall:
    """The calls of ``iter`` for the samplers of a loader, by their class."""
    return _of_class(sampler, "__iter__")


def _of_class(owner: type, name: str) -> PublicCall:
    if (owner, name) not in _OF_CLASSES:
        _OF_CLASSES[owner, name] = PublicCall(lambda: ((owner, name),), NestOfThread())
    return _OF_CLASSES[owner, name]


def argument_of(function: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], default: Any) -> Any:
    """The argument of a loss function for its parameter ``name``."""
    if name in kwargs:
        return kwargs[name]
    return dict(zip(parameters_of(function), args, strict=False)).get(name, default)


@functools.cache
def parameters_of(function: str) -> dict[str, inspect.Parameter]:
    """The parameters of a loss function, by name, in order."""
    return dict(inspect.signature(getattr(nn.functional, function)).parameters)


#: Hooks that record facts about calls of every step, and hooks that record losses.
FACTS, LOSS_HOOKS = ActiveHooks(), ActiveHooks()
_SCHEDULER, _SCALER = Nest(), Nest()

EVERY_BACKWARD = PublicCall(_at("torch.autograd:backward"), inner=True)
BACKWARD = PublicCall(_at("torch.autograd:backward"), active=FACTS)
MODULE_MADE = PublicCall(_at("torch.nn:Module.__init__"))
# Initializers call the methods; a script may call some from several threads.
_DRAWS = NestOfThread()
#: Whatever initializes the values of a weight.
INITIALIZED = PublicCall(_at(*(f"torch.nn.init:{name}" for name in INITIALIZERS)), _DRAWS)
#: What scripts and packages draw weights with beside these. Not ``torch.randn`` and the like: PyTorch keeps tables of
#: its functions, for default devices and for compiled code, which must not hold a wrapper.
DRAWN = PublicCall(_at("torch:Tensor.normal_", "torch:Tensor.uniform_"), _DRAWS)
#: Module.compile calls torch.compile: shared, so that only the outer call is reported.
_COMPILING = Nest()
COMPILE = PublicCall(_at("torch:compile"), _COMPILING)
COMPILE_IN_PLACE = PublicCall(_at("torch.nn:Module.compile"), _COMPILING)
#: As an optimizer is made, and later.
OPTIMIZER_GIVEN = PublicCall(_at("torch.optim:Optimizer.add_param_group"))
OPTIMIZER_ZERO_GRAD = PublicCall(_at("torch.optim:Optimizer.zero_grad"), active=FACTS)
MODULE_ZERO_GRAD = PublicCall(_at("torch.nn:Module.zero_grad"), active=FACTS)
#: Constructors step their scheduler once; the training did not call that.
SCHEDULER_MADE = PublicCall(_schedulers("__init__"), _SCHEDULER)
SCHEDULER_STEP = PublicCall(_schedulers("step"), _SCHEDULER)
SCALER_SCALE = PublicCall(_at("torch.amp:GradScaler.scale"))
#: A scaler's step unscales unless the script has.
SCALER_UNSCALE = PublicCall(_at("torch.amp:GradScaler.unscale_"), _SCALER)
SCALER_STEP = PublicCall(_at("torch.amp:GradScaler.step"), _SCALER)
SCALER_UPDATE = PublicCall(_at("torch.amp:GradScaler.update"))
#: By name. The last is the second half of clipping where a script takes the norm itself; PyTorch has it since 2.6.
#: Scripts import them from either place.
CLIPS = {
    name: PublicCall(_at(f"torch.nn.utils:{name}", f"torch.nn.utils.clip_grad:{name}"))
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
}
DATA_LOADER = PublicCall(_data_loader)
#: Every loader calls it when it is made.
LOADER_MADE = PublicCall(_at("torch.utils.data:DataLoader.check_worker_number_rationality"))
SAVE = PublicCall(_at("torch:save", "torch.serialization:save"), NestOfThread())
#: What ``save_file`` and ``save_model`` call, under whichever name a script has imported them.
SAFETENSORS = PublicCall(_safetensors, NestOfThread())
_READ = NestOfThread()
#: Methods of tensors that may wait for a device, by name, and ``torch.cuda.synchronize``.
READS = {
    name: PublicCall(_at(f"torch:Tensor.{name}"), _READ)
    for name in ("item", "tolist", "cpu", "to", "__float__", "__int__", "__bool__")
} | {"synchronize": PublicCall(_at("torch.cuda:synchronize"), _READ)}
ATTENTION = PublicCall(_at("torch.nn.functional:scaled_dot_product_attention"), compiled=hand_over_attention)
MULTI_HEAD_ATTENTION = PublicCall(_at("torch.nn.functional:multi_head_attention_forward"))
SOFTMAX = PublicCall(_at("torch:softmax", "torch.nn.functional:softmax", "torch:Tensor.softmax"), NestOfThread())
#: What is observed in single forwards, and what compiled code of a model may call.
_IN_MODELS = (ATTENTION, MULTI_HEAD_ATTENTION, SOFTMAX)


def keep_wrapped(guard: Guard) -> Callable[[], None]:
    """Keep functions wrapped that models call, whether or not a forward is observed; returns an undo function.

    PyTorch's compiler compiles a model once more whenever such a function is another one than at the last time.
    """
    undo = ExitStack()
    for call in _IN_MODELS:
        undo.callback(call.listen(guard))
    return undo.close


def profiles() -> bool:
    """Whether PyTorch's profiler begins, ends or is read in this thread now, by the script or by watchglass."""
    return _PROFILER.inside


@contextmanager
def own_profiler() -> Iterator[None]:
    """In this block, or function, PyTorch's profiler is used by watchglass itself: its calls are not reported."""
    before, _PROFILER.inside = _PROFILER.inside, True
    try:
        yield
    finally:
        _PROFILER.inside = before


_PROFILER = NestOfThread()
_RECENT, _OLDER = "torch.profiler:profile", "torch.autograd.profiler:profile"
#: Of a profiler of the script itself: calls that may begin it, and others that end it or read it.
PROFILERS = PublicCall(_at(f"{_RECENT}.start", f"{_RECENT}.step", f"{_OLDER}.__enter__"), _PROFILER)
PROFILERS_ENDED = PublicCall(
    _at(
        f"{_RECENT}.stop", f"{_RECENT}.events", f"{_OLDER}.__exit__",
        *(f"{profiler}.{name}" for profiler in (_RECENT, _OLDER) for name in ("export_chrome_trace", "key_averages")),
    ),
    _PROFILER,
)  # fmt: skip
#: Where a range of the script (``record_function``) begins, while operators are profiled.
RANGES = PublicCall(_at("torch.autograd.profiler:record_function.__enter__"), inner=True)
#: Profilers of Python functions, while those are profiled.
PYTHON_PROFILERS = PublicCall(_at("cProfile:Profile.enable", "sys:setprofile"), NestOfThread())
#: Tools of ``sys.monitoring``, which cProfile is from Python 3.12 on, while it profiles.
MONITORING_TOOLS = PublicCall(_at("sys:monitoring.use_tool_id"), NestOfThread())
#: By the class of the iterators of a loader.
_OF_CLASSES: dict[tuple[type, str], PublicCall] = {}
#: By name. A mode of torch functions, as a default device is one, calls the public function once more from within.
LOSSES = {
    name: PublicCall(_at(f"torch.nn.functional:{name}"), NestOfThread(), active=LOSS_HOOKS, stays=True)
    for name in LOSS_FUNCTIONS
    if hasattr(nn.functional, name)
}
