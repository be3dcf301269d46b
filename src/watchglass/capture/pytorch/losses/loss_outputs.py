"""Outputs of a model from which backwards start in training: in an evaluation, the same outputs are the loss.

Language models compute their loss themselves and return it with the logits (nanoGPT, Hugging Face); so does a criterion
that the script wrote as a module. In training such an output is marked in autograd's graph, and found again from the
tensor that a backward starts from. Scripts may have divided it by the number of micro-batches, scaled it, or added
penalties. In an evaluation no graph and no backward exists, and none is needed. At captured steps a model's other
outputs are marked as well: the graph then shows by which :mod:`expression
<watchglass.capture.pytorch.graph.loss_expressions>` a script makes its loss of them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.graph import loss_expressions
from watchglass.capture.pytorch.graph.autograd_graph import BackwardStart
from watchglass.capture.pytorch.graph.loss_expressions import Expression
from watchglass.capture.pytorch.graph.nodes import Output, Walk, mark, marks_of, operation_of
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.losses.objective import Objective
from watchglass.capture.pytorch.modules.module_tree import unwrap
from watchglass.record import Forward

#: Nodes that are examined between a backward's start and the marks.
_MOST_NODES = 64
#: Forwards whose numbers are kept until it is known which of them are losses, and how many numbers of each.
_MOST_KEPT, _MOST_NUMBERS = 4096, 8
#: Operations between a loss that a module returned and what a backward starts from: those that change its scale only;
#: these, sums, and what arranges one number.
_SCALING = ("div", "mul", "mean")
_LOOKED_THROUGH = frozenset((*_SCALING, "add", "sum", "stack", "reshape", "copy", "select", "gather"))


class LossOutputs:
    """Learns in training, by module, which of its outputs are the loss.

    Before a module is trained, an evaluation of it may return numbers of which it is not known yet whether they are
    losses: they are kept until the first backward shows it.
    """

    def __init__(self) -> None:
        #: Called with the module, a forward of an evaluation that was over before, and the loss that it had.
        self.on_found: Callable[[nn.Module, Forward, Any], None] = lambda module, forward, loss: None
        self._kept = weakref.WeakKeyDictionary[nn.Module, list[tuple[Forward, dict[str, Any]]]]()
        self._paths: weakref.WeakKeyDictionary[nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()
        # How scripts make the losses of models; None where a model has several.
        self._expressions: weakref.WeakKeyDictionary[nn.Module, Expression | None] = weakref.WeakKeyDictionary()
        # Outputs were marked since the last backward; all of a model's.
        self._marked = self._all_marked = False
        # Results of loss functions inside the open forward.
        self._computed: list[weakref.ref[Tensor]] = []

    def returned(
        self,
        module: nn.Module,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        again: bool,
        model: bool = False,
        apart: bool = False,
    ) -> None:
        """A module returned these tensors in training.

        Args:
            module: It.
            tensors: Its outputs with their paths.
            again: Look again at a module whose loss is known.
            model: Whether it is one of the models that are trained: then a loss may be computed from its outputs.
            apart: As in :class:`~watchglass.capture.pytorch.graph.nodes.Output`.
        """
        module = unwrap(module)
        wanted = again or module not in self._paths
        if not wanted and not apart:
            return
        for path, tensor in tensors:
            alone = tensor.numel() == 1
            found = wanted and (alone or (again and model))
            if (found or apart) and tensor.grad_fn is not None:
                mark(tensor, Output(weakref.ref(module), path, alone and found, apart))
                self._marked |= found
                self._all_marked |= found and again and model

    def started_from(self, loss: Tensor, start: BackwardStart) -> Expression | None:
        """A backward starts from this tensor; returns how the script makes it of a model's outputs, where that shows.

        Args:
            loss: The tensor.
            start: Its place in the graph, before a scaler has multiplied it.
        """
        if not self._marked:
            return None
        all_marked, self._marked, self._all_marked = self._all_marked, False, False
        marks = _marks(loss)
        for module, found in marks.items():
            paths = tuple(path for path, _ in found)
            # Several losses: only for a plain sum are the weights known.
            self._paths[module] = paths if len(found) == 1 or all(summed for _, summed in found) else ()
            for forward, numbers in self._kept.pop(module, []):
                if numbers.keys() >= set(self._paths[module]) != set():
                    self.on_found(module, forward, Objective.sum_of([numbers[path] for path in self._paths[module]]))
        return self._expressed(start, loss.output_nr) if all_marked and not marks else None

    def _expressed(self, start: BackwardStart, number: int) -> Expression | None:
        graph = start.of_outputs
        read = loss_expressions.read(graph, number) if len(graph) and graph.complete else None
        if read is None:
            return None
        module, expression = read
        known = self._expressions.get(module, expression)
        if known is not None and (known.key, known.sign) != (expression.key, expression.sign):
            known = None  # a model that is trained on several in turns: an evaluation may mean any of them
        elif known is not None and known.per != expression.per:
            known = known._replace(per="")
        self._expressions[module] = known
        return None if known is None else expression

    def expression_of(self, module: nn.Module) -> Expression | None:
        """How the script computes the training loss from a model's outputs, if it does."""
        return self._expressions.get(unwrap(module))

    def knows(self, module: nn.Module) -> bool:
        """Whether backwards were seen to start from an output of this module."""
        return bool(self._paths.get(unwrap(module)))

    def keep(self, module: nn.Module, forward: Forward, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """A module that was not trained yet returned these tensors in an evaluation: one of them may be its loss."""
        module = unwrap(module)
        if module in self._paths:
            return
        kept = self._kept.setdefault(module, [])
        found = ((path, tensor) for path, tensor in tensors if tensor.numel() == 1 and tensor.is_floating_point())
        # As numbers, or on their way to the host: compiled code uses the memory of its outputs again.
        numbers = {path: losses.number(tensor) for path, tensor in itertools.islice(found, _MOST_NUMBERS)}
        numbers = {path: number for path, number in numbers.items() if number is not None}
        if numbers and len(kept) < _MOST_KEPT:
            kept.append((forward, numbers))

    def forget(self) -> None:
        """The first update is over: record the kept values unchanged."""
        if self._kept:
            self._kept.clear()

    def entered(self) -> None:
        """A forward of an evaluation begins."""
        self._computed.clear()

    def computed(self, result: Tensor) -> None:
        """A loss function returned this inside a forward of an evaluation."""
        if len(self._computed) < _MOST_NODES:
            self._computed.append(weakref.ref(result))

    def loss_of(self, module: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> Any:
        """The loss among the outputs of a module in an evaluation, a float or a readback of one; None for none.

        Of a module that was not trained yet, what a loss function inside of it returned.
        """
        given = {path: tensor for path, tensor in tensors if tensor.numel() == 1 and tensor.is_floating_point()}
        paths = self._paths.get(unwrap(module))
        if paths is None:
            computed = [reference() for reference in self._computed]
            paths = tuple(path for path, tensor in given.items() if any(tensor is one for one in computed))[:1]
        if not paths or not given.keys() >= set(paths):
            return None
        parts = [given[path].detach().reshape(()) for path in paths]
        return losses.number(parts[0] if len(parts) == 1 else torch.stack(parts).sum())


def _marks(loss: Tensor) -> dict[nn.Module, list[tuple[str, bool]]]:
    """Marked outputs from which a loss was computed, by module: their paths, and whether they were only added up."""
    found: dict[nn.Module, list[tuple[str, bool]]] = {}
    walk = Walk(loss.grad_fn, loss.output_nr, True, _MOST_NODES)
    for node, number, summed in walk:
        output = marks_of(node).get(number)
        if output is not None and output.alone and (living := output.module()) is not None:
            found.setdefault(living, []).append((output.path, summed))
            continue
        name = operation_of(node).name
        if name in _LOOKED_THROUGH:
            walk.into(node, summed and name not in _SCALING and getattr(node, "_saved_alpha", 1) == 1)
    return found
