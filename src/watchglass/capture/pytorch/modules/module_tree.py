"""Names and places of modules and parameters: one tree per model, wrappers stripped, first owner wins."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.modules import modules_of
from watchglass.records import ModuleKind, facts

#: Wrappers by class name, each of which has one child: they add a path segment that is no part of the model. By name,
#: because importing them would import parts of PyTorch that a script may not use.
_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "CheckpointWrapper", "OptimizedModule"}
)

#: Variables of a script, and attributes of an object, among which a model is looked for.
_MOST_VARIABLES = 1000

#: Prefixes of classes that PyTorch derives from a module's class at run time.
_DERIVED = ("Parametrized", "FSDP", "Replicate")

#: Axis that counts units (neurons, channels) in the output of a module, by class name.
_CHANNEL_SECOND = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm")

#: Modules whose inputs show the units of a functional ReLU.
WEIGHTED = (ModuleKind.LINEAR, ModuleKind.CONVOLUTION)

_MODULES = "torch.nn.modules."
#: Kinds of PyTorch's classes, by the module that defines them.
_BY_FILE = {
    "activation": ModuleKind.ACTIVATION, "batchnorm": ModuleKind.NORMALIZATION, "container": ModuleKind.CONTAINER,
    "conv": ModuleKind.CONVOLUTION, "dropout": ModuleKind.DROPOUT, "instancenorm": ModuleKind.NORMALIZATION,
    "linear": ModuleKind.LINEAR, "normalization": ModuleKind.NORMALIZATION, "pooling": ModuleKind.POOLING,
    "rnn": ModuleKind.RECURRENT, "sparse": ModuleKind.EMBEDDING,
}  # fmt: skip
#: The others, by class.
_BY_CLASS: dict[type, ModuleKind] = {
    nn.Identity: ModuleKind.OTHER,
    nn.MultiheadAttention: ModuleKind.ATTENTION,
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Threshold), ModuleKind.RECTIFIER),
    **dict.fromkeys(
        (nn.Sigmoid, nn.Tanh, nn.Hardsigmoid, nn.Hardtanh, nn.Softsign, nn.LogSigmoid), ModuleKind.SATURATING
    ),
    **dict.fromkeys((nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax), ModuleKind.SOFTMAX),
}


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def type_name(module: nn.Module) -> str:
    """Name of a module's class, without the classes that PyTorch derives from it at run time.

    ``torch.nn.utils.parametrize`` makes a ``ParametrizedLinear`` of a Linear, ``fully_shard`` an ``FSDPLinear``.
    """
    kind = type(module)
    while kind.__name__ in [prefix + kind.__bases__[-1].__name__ for prefix in _DERIVED]:
        kind = kind.__bases__[-1]
    return kind.__name__


def kind_of(module: nn.Module) -> ModuleKind:
    """Kind of a module: that of the first class of PyTorch that it is derived from, else whether it holds others."""
    for cls in type(module).__mro__:
        found = _BY_CLASS.get(cls)
        if found is None and cls.__module__.startswith(_MODULES):
            found = _BY_FILE.get(cls.__module__[len(_MODULES) :])
        if found is not None:
            return found
    return ModuleKind.OTHER if next(module.children(), None) is None else ModuleKind.CONTAINER


def inside(module: nn.Module) -> list[nn.Module]:
    """The content of a wrapper, outermost first: further wrappers, then the module; empty for other modules."""
    found: list[nn.Module] = []
    while type(module).__name__ in _WRAPPERS:
        inner = next(module.children(), None)
        if inner is None:
            break
        found.append(inner)
        module = inner
    return found


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside any number of wrappers."""
    return (inside(module) or [module])[-1]


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module is no part of the model, but is called in the place of one that is."""
    return type(module).__name__ in _WRAPPERS


def wraps_compiled(module: nn.Module) -> bool:
    """Whether a module is the result of ``torch.compile`` for another one."""
    return type(module).__name__ == "OptimizedModule"


def runs_compiled(module: nn.Module) -> bool:
    """Whether a call of this very module runs compiled code."""
    # A wrapper passes attribute reads on to the module inside.
    own = module.__dict__
    return (
        wraps_compiled(module)
        or own.get("_compiled_call_impl") is not None
        or hasattr(own.get("forward"), "_torchdynamo_orig_callable")
    )


def compiled_parts(root: nn.Module) -> Iterator[nn.Module]:
    """Modules at or below ``root`` whose calls run compiled code, each as it was before it was compiled."""
    return (unwrap(module) for module in root.modules() if runs_compiled(module))


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of this module, or of one below it, run compiled code."""
    return next(compiled_parts(module), None) is not None


class Parents:
    """Which module holds which: PyTorch has no such link, so registrations are noted as they happen.

    Weak on both sides.
    """

    def __init__(self) -> None:
        # With the name that it was registered under.
        self._parents = weakref.WeakKeyDictionary[nn.Module, list[tuple[weakref.ref[nn.Module], str]]]()
        # Modules with parameters, by identity: to hash one while it is made may fail.
        self._holders: dict[int, weakref.ref[nn.Module]] = {}
        self._most = 1024

    def note(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """A module was registered under another; the signature of PyTorch's registration hook."""
        if child is not None:
            self._parents.setdefault(child, []).append((weakref.ref(parent), name))

    def note_parameter(self, module: nn.Module, name: str, parameter: Tensor | None) -> None:
        """A parameter was registered under a module, which may be all that there is."""
        if len(self._holders) > self._most:
            self._holders = {number: each for number, each in self._holders.items() if each() is not None}
            self._most = 2 * len(self._holders) + 1024
        self._holders[id(module)] = weakref.ref(module)

    def owner(self, module: nn.Module, known: dict[int, nn.Module] | None = None) -> nn.Module:
        """The topmost module that holds ``module``, itself when nothing does.

        Args:
            module: Any module.
            known: Answers by identity, looked up and added to: for those who ask for many.
        """
        known = {} if known is None else known
        below: dict[int, None] = {}
        while id(module) not in known:
            below[id(module)] = None
            above = (
                parent
                for reference, name in self._parents.get(module, ())
                if (parent := reference()) is not None and id(parent) not in below and _holds(parent, name, module)
            )
            parent = next(above, None)
            if parent is None:
                known[id(module)] = module
            else:
                module = parent
        top = known[id(module)]
        known.update(dict.fromkeys(below, top))
        return top

    def owners(self, parameters: Iterable[Tensor]) -> list[nn.Module]:
        """The topmost modules that hold any of these parameters."""
        wanted = {id(parameter) for parameter in parameters}
        held = [living for each in self._holders.values() if (living := each()) is not None]
        known: dict[int, nn.Module] = {}
        tops = {id(top): top for top in (self.owner(each, known) for each in [*self._parents, *held])}
        return [top for top in tops.values() if any(id(parameter) in wanted for parameter in top.parameters())]

    def holders(self, parameters: Iterable[Tensor]) -> dict[int, nn.Module]:
        """The module that each of these parameters was registered under, by identity of the parameter."""
        wanted = {id(parameter) for parameter in parameters}
        living = [module for each in self._holders.values() if (module := each()) is not None]
        return {
            id(parameter): module
            for module in living
            for parameter in module.parameters(recurse=False)
            if id(parameter) in wanted
        }


def _holds(parent: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether a module is a child of another, where it was put or, which takes a look at all children, elsewhere."""
    return getattr(parent, name, None) is module or module in parent.children()


class ModuleTree:
    """Places of all modules and parameters below one owner.

    Args:
        owner: Topmost module; held weakly.
        number: Its number from 0, or a provisional one, see :class:`~watchglass.capture.pytorch.modules.models.Models`.
    """

    def __init__(self, owner: nn.Module, number: int = 0) -> None:
        self._owner = weakref.ref(owner)
        self._modules: weakref.WeakKeyDictionary[nn.Module, Place] = weakref.WeakKeyDictionary()
        self._parameters: dict[int, tuple[weakref.ref[Tensor], ParameterPlace]] = {}
        self.renumber(number)

    def renumber(self, number: int) -> None:
        """Give the model this number, and its modules and parameters their names."""
        self.number = number
        self.refresh()

    @property
    def owner(self) -> nn.Module | None:
        """The topmost module while it lives."""
        return self._owner()

    def refresh(self) -> None:
        """Read the tree again: modules or parameters may have been replaced or materialised."""
        owner = self.owner
        if owner is None:
            return
        self._modules.clear()
        self._parameters.clear()
        outer = modules_of(owner, over="torch")
        for module, place in _walk(owner) if outer is None else outer.modules(owner):
            # A module reached by two paths keeps its first.
            self._modules.setdefault(module, place.of(self.number))
        parameters = self._own_parameters() if outer is None else outer.parameters(owner)
        for parameter, known in parameters:
            self._parameters.setdefault(id(parameter), (weakref.ref(parameter), known.of(self.number)))

    def _own_parameters(self) -> Iterator[tuple[Tensor, ParameterPlace]]:
        owner = self.owner
        for module, place in () if owner is None else _walk(owner):
            for leaf, parameter in module.named_parameters(recurse=False):
                yield parameter, ParameterPlace(place.named(leaf), leaf, place)

    def module(self, module: nn.Module) -> Place | None:
        """Place of a module, None for one that is not in this tree."""
        return self._modules.get(module)

    def parameter(self, parameter: Tensor) -> ParameterPlace | None:
        """Place of a parameter, None for one that is not in this tree."""
        found = self._parameters.get(id(parameter))
        return found[1] if found is not None and found[0]() is parameter else None

    def modules(self) -> list[tuple[nn.Module, Place]]:
        """All living modules with their places, in order."""
        return sorted(self._modules.items(), key=lambda item: item[1].index)

    def places(self) -> Iterator[tuple[Tensor, ParameterPlace]]:
        """All living parameters with their places, in order, each once."""
        return ((living, place) for ref, place in self._parameters.values() if (living := ref()) is not None)

    def parameters(self) -> Iterator[Tensor]:
        """All living parameters, in order, each once."""
        return (living for living, _ in self.places())

    def trainable(self) -> int:
        """Number of living parameters that require a gradient."""
        return sum(parameter.requires_grad for parameter in self.parameters())


def described(trees: Iterable[ModuleTree]) -> facts.ModelDescription:
    """Variables of models; class names, kinds, dropout and padding tokens of modules by path."""
    trees = list(trees)
    modules = [each for tree in trees for each in tree.modules()]
    owners = {tree.number: tree.owner for tree in trees if tree.number >= 0 and tree.owner is not None}
    variables = {str(number): variable_of(owner) for number, owner in owners.items()}
    return facts.ModelDescription(
        variables={number: name for number, name in variables.items() if name},
        module_types={place.path: place.module_type for _, place in modules},
        module_kinds={place.path: place.kind.value for _, place in modules},
        # Only those that drop something.
        dropout={place.path: dropped for module, place in modules if (dropped := _dropout(module))},
        padding={
            place.path: token for module, place in modules if isinstance(token := vars(module).get("padding_idx"), int)
        },
    )


def variable_of(model: nn.Module) -> str:
    """The name by which the script has a model: ``D``, or ``agent.critic`` in an object; "" where none is found.

    The first variable of the main module that is the model, maybe wrapped, else the first attribute of an object there.
    Nothing is called and nothing is kept. All ranks run the same script, so they find the same name.
    """
    main = sys.modules.get("__main__")
    named = [each for each in list(vars(main).items())[:_MOST_VARIABLES] if _may_name(each[0])] if main else []
    for name, value in named:
        if _is_module(value) and unwrap(value) is model:
            return name
    for name, value in named:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            continue
        if _is_module(value) or issubclass(type(value), types.ModuleType) or type(attributes) is not dict:
            continue
        for attribute, held in list(attributes.items())[:_MOST_VARIABLES]:
            if _is_module(held) and unwrap(held) is model and _may_name(attribute):
                return f"{name}.{attribute}"
    return ""


def _is_module(value: object) -> bool:
    """Whether it is a module, without ``isinstance``, which may run code of the object."""
    return issubclass(type(value), nn.Module)


def _may_name(name: object) -> bool:
    return isinstance(name, str) and not name.startswith("_")


def _dropout(module: nn.Module) -> float:
    """The probability with which a module of PyTorch drops elements; 0 for others."""
    name = "p" if kind_of(module) is ModuleKind.DROPOUT else "dropout"
    value = vars(module).get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def unit_axis(place: Place, axes: int) -> int | None:
    """Axis of a module's output that counts its units: 1 for images, the last for sequences and vectors."""
    if axes < 2:
        return None
    if place.module_type.startswith(_CHANNEL_SECOND):
        return 1
    # An activation does not know; four and five dimensions are images and volumes, channels second.
    return 1 if axes >= 4 else axes - 1


def _walk(module: nn.Module) -> Iterator[tuple[nn.Module, Place]]:
    stack = [("", module)]
    seen: set[int] = set()
    index = 0
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        skipped = is_wrapper(module)
        if not skipped:
            yield module, Place(path, type_name(module), index, kind=kind_of(module))
            index += 1
        children = [
            (path if skipped else f"{path}.{name}" if path else name, child) for name, child in module.named_children()
        ]
        stack.extend(reversed(children))
