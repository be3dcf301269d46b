"""Outputs of modules inside compiled code.

PyTorch's compiler reads a module's hooks when it compiles, and never again: a hook that is put on later is silently
ignored. So modules that are compiled carry permanent hooks, registered before the first compiled call. Such a hook only
tests a flag of this module, on which the compiler guards. That makes two graphs: with the flag off the graph of an
unwatched run, with the flag on a graph that hands each output to a custom operator. An operator is opaque to the
compiler, so capture runs as ordinary Python in the middle of compiled code.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.guard import Guard, harmless
from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.capture.pytorch.modules.module_hooks import Unsaved, unsaved
from watchglass.capture.pytorch.modules.module_tree import (
    compiled_parts,
    is_wrapper,
    runs_compiled,
    unwrap,
    wraps_compiled,
)
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in

#: Whether compiled code is to hand over outputs of modules. The compiler guards on it: a plain global.
_capturing = False

_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, CompiledModules] = weakref.WeakValueDictionary()

#: Declared as changed by each operator, and never is: what changes nothing, the compiler leaves out, and what changes
#: the same tensor, it keeps in order.
_order = torch.zeros((), device="cpu")

_library = torch.library.Library("watchglass", "FRAGMENT")
# None of these is in every version of PyTorch.
_TAGS = [
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "flexible_layout", "cudagraph_unsafe")
    if hasattr(torch.Tag, name)
]
# ``place`` is a tensor because a tensor is an input of the graph, which modules of one class share, where a number
# would be part of it.
_library.define("observe(Tensor[] values, str paths, bool grad, Tensor place, Tensor(a!) order) -> ()", tags=_TAGS)
_library.define(
    "attend(Tensor query, Tensor key, Tensor? mask, bool causal, float? scale, Tensor(a!) order) -> ()", tags=_TAGS
)


def _observe(values: Sequence[Tensor], paths: str, grad: bool, place: Tensor, order: Tensor) -> None:
    number, index, entry = place.tolist()
    observer = _by_number.get(number)
    if observer is not None:
        by_path = dict(zip(paths.split(","), values, strict=True)) if values else {}
        observer.observe(index, bool(entry), by_path, grad)


def _attend(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None, order: Tensor
) -> None:  # fmt: skip
    given = {"query": query, "key": key, "attn_mask": mask, "is_causal": causal, "scale": scale}
    for observer in list(_by_number.values()):
        observer.attend(given)


for _name, _operator in (("observe", _observe), ("attend", _attend)):
    _library.impl(_name, harmless(_operator), "CompositeExplicitAutograd")
    torch.library.register_fake(f"watchglass::{_name}", harmless(lambda *given: None), lib=_library)
    # Under vmap there is no one tensor that a module returned.
    torch.library.register_vmap(f"watchglass::{_name}", harmless(lambda info, dims, *given: (None, None)), lib=_library)


def hand_over_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> None:  # fmt: skip
    """The compiler reads a call of ``scaled_dot_product_attention``: its queries and keys are handed over, too.

    The compiler reads this function. So nothing that a script could change may be used here, beyond the flag.
    """
    if not _capturing or type(query) is not Tensor or type(key) is not Tensor:
        return
    if attn_mask is not None and type(attn_mask) is not Tensor:
        return
    mask = None if attn_mask is None else attn_mask.detach()
    torch.ops.watchglass.attend(query.detach(), key.detach(), mask, is_causal, scale, _order)


#: Takes a module, its positional arguments, what it returned (None as it is called), whether gradients are on, and
#: whether compiled code handed this over. Compiled code uses its tensors again, so they must be read now; it hands over
#: a tensor or a dict of tensors by path, and with what a module returned no arguments: ().
Observed = Callable[[nn.Module, Any, Any, bool, bool], None]


class ModuleHook:
    """A hook of one module: holds nothing that changes.

    Args:
        number: Of the :class:`CompiledModules` that put it on.
        index: Of the module there.
        entry: Whether it is called as the module is, or as the module returns.
        directly: Called where the module runs without compilation.
    """

    def __init__(self, number: int, index: int, entry: bool, directly: Callable[..., None]) -> None:
        self.place = torch.tensor([number, index, int(entry)], device="cpu")
        self.entry = entry
        self.directly = directly

    def __call__(self, module: Any, arguments: Any, output: Any = None) -> None:
        """The module is called, or has returned."""
        if not _capturing:
            return
        if not compiling():
            self.directly(module, arguments, output)
            return
        if type(module) is nn.Sequential and len(module):
            return  # its values are those of its first and last module
        # Other tensors (distributed, nested, quantized) need not support our operator.
        value = arguments if self.entry else output
        found = [(path, tensor.detach()) for path, tensor in tensors_in(value) if type(tensor) is Tensor]
        if found or self.entry:
            values = [tensor for _, tensor in found]
            paths = ",".join([path for path, _ in found])
            torch.ops.watchglass.observe(values, paths, torch.is_grad_enabled(), self.place, _order)


class CompiledModules:
    """Modules that are, or may be, called from compiled code.

    Args:
        guard: Keeps exceptions of watchglass from the script.
        entered: Called for every module that is called while this is switched on, where inputs are wanted.
        returned: Called for every module that returns.
    """

    def __init__(self, guard: Guard, entered: Observed, returned: Observed) -> None:
        self._guard = guard
        self._entered = entered
        self._returned = returned
        self._number = next(_numbers)
        self._modules: list[weakref.ref[nn.Module]] = []
        # By module: the carrier of its hook, and a function that removes it.
        self._handles = weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], list[Callable[[], None]]]]()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._reported: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Made when they are needed: this imports the compiler.
        self._directly: list[Any] = []
        self.on = False  #: Whether modules hand over their outputs.
        self.in_code = False  #: Whether compiled code has handed over anything since the switch.
        self.expected = False  #: Whether a function was compiled, which may call any module.
        #: Called with the arguments of each attention that compiled code computes by ``scaled_dot_product_attention``,
        #: between the calls for the modules around it.
        self.attended: Callable[[dict[str, Any]], None] = lambda given: None
        self._recomputing = False
        _by_number[self._number] = self

    def add(self, root: nn.Module, *, inputs: bool) -> None:
        """Put hooks on a module and all below it that have none yet, for their inputs too where these are wanted."""
        if not self._directly:
            directly = map(self._guard.shielded, (self._returned_directly, self._entered_directly))
            self._directly += map(torch.compiler.disable, directly)
        self._roots.add(unwrap(root))
        # The output of a wrapper is taken from the wrapper: hooks of the module inside run around the compiled
        # code, and would be compiled by themselves.
        wrappers = {unwrap(module): module for module in root.modules() if wraps_compiled(module)}
        for module in root.modules():
            through = wrappers.get(module, module)
            if is_wrapper(module) or isinstance(module, torch.jit.ScriptModule):
                continue  # the latter take no hooks
            known = self._handles.get(module)
            if known is not None and known[0]() is through:
                continue
            self._remove(module)
            index = len(self._modules)
            self._modules.append(weakref.ref(module))
            # Before the hook that notices the end of the outermost call.
            shielded = self._guard.shielded
            ending = Unsaved(shielded(ModuleHook(self._number, index, False, self._directly[0])))
            handles = [unsaved(through.register_forward_hook(ending, prepend=True))]
            if inputs:
                beginning = Unsaved(shielded(ModuleHook(self._number, index, True, self._directly[1])))
                handles.append(unsaved(through.register_forward_pre_hook(beginning)))
            self._handles[module] = (weakref.ref(through), handles)

    def remove(self, root: nn.Module | None = None) -> None:
        """Take the hooks off again, below ``root`` or everywhere; compiled code continues as if they were there."""
        modules = list(self._handles) if root is None else list(root.modules())
        (self._roots.clear if root is None else functools.partial(self._roots.discard, unwrap(root)))()
        for module in modules:
            self._remove(module)

    def _remove(self, module: nn.Module) -> None:
        known = self._handles.pop(module, None)
        if known is not None:
            for remove in known[1]:
                remove()

    def __contains__(self, root: nn.Module) -> bool:
        """Whether calls of this root are observed here."""
        return unwrap(root) in self._roots

    @property
    def has_roots(self) -> bool:
        """Whether there is anything to observe."""
        return bool(self._roots)

    def switch(self, on: bool) -> None:
        """Hand over outputs of modules from the next call on, or stop; compiles a second graph the first time."""
        if on:
            self._reported.clear()
            self.in_code = False
        if on != self.on:
            self.on = on
            self._choose_graph()

    def recompute(self, on: bool) -> None:
        """A backward begins (``on``), or has ended, that may call modules of a captured forward once more.

        Activation checkpointing does so. It compares what both calls save, which differs between the two graphs.
        """
        if on != self._recomputing:
            self._recomputing = on
            self._choose_graph()

    def _choose_graph(self) -> None:
        global _capturing
        _capturing = any(other.on or other._recomputing for other in _by_number.values())

    def blind(self, root: nn.Module) -> list[nn.Module]:
        """Compiled modules that handed over nothing since the switch: they had been compiled without the hooks."""
        return [part for part in compiled_parts(root) if not any(map(self._reported.__contains__, _inside(part)))]

    def observe(self, index: int, entry: bool, values: dict[str, Tensor], grad: bool) -> None:
        """Compiled code hands over inputs or outputs of a module, by path."""
        module = self._modules[index]()
        if not self.on or module is None or captured():
            return
        self.in_code = True
        self._reported.add(module)
        if not entry:
            self._returned(module, (), values.get("", values), grad, True)
        else:
            self._entered(module, values, None, grad, True)

    def attend(self, given: dict[str, Any]) -> None:
        """Compiled code computes attention with these arguments."""
        if self.on and not captured():
            self.attended(given)

    def _returned_directly(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self.on and not captured():
            inner = unwrap(module)
            self._reported.add(inner)
            self._returned(inner, arguments, output, torch.is_grad_enabled(), runs_compiled(module))

    def _entered_directly(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self.on and not captured():
            self._entered(unwrap(module), arguments, None, torch.is_grad_enabled(), False)


def _inside(part: nn.Module) -> list[nn.Module]:
    """Modules that only compiled code calls; hooks of the part itself may run before and after that code."""
    inside = [module for module in part.modules() if module is not part and not is_wrapper(module)]
    return inside or [part]
