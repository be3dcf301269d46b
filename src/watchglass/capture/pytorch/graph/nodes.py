"""Nodes of autograd's graph: the operation of each in neutral words, its operands, shapes and saved numbers.

Everything that reads the graph goes through here. Operations are known by the names of their nodes, sizes by the shapes
of their results, settings by saved numbers. No saved tensor is touched unless it is asked for: hooks may have packed
it. Nodes keep the graph alive, so nothing here may outlive the callback that reads it.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from watchglass.records import OPERATIONS, PARAMETER, Operation

_NUMBERED = re.compile(r"Backward\d*$")
#: Beyond it a number is negative, as that of an axis, which autograd keeps without its sign.
_UNSIGNED = 1 << 63

#: Operations, each with the names of autograd's nodes without "Backward" and number, where these are others.
_NODES = {
    name: nodes.split()
    for name, nodes in (
        ("reshape", "View ReshapeAlias UnsafeView Reshape Squeeze Unsqueeze"), ("copy", "ToCopy Clone Alias Detach"),
        ("transpose", "T Transpose Permute Swapaxes"), ("slice", "Slice Narrow"), ("select", "Select Unbind"),
        ("split", "Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes"), ("roll", "Roll Flip Rot90"),
        ("choose", "IndexSelect MaskedSelect Take"), ("pad", "ConstantPadNd"),
        ("rearrange", """AsStrided Repeat Unfold UnfoldBackward Im2Col Col2Im PixelShuffle PixelUnshuffle Diagonal Triu
            MaskedScatter Copy Real Imag ViewAsReal ViewAsComplex Conj NativeDropoutBackward SelectBackward
            SliceBackward torch::autograd::CopySlices torch::autograd::CopyBackwards"""),
        ("index_put", "IndexPut IndexPutImpl"), ("fft", "FftR2C FftC2R FftC2C"),
        ("linear", "Addmm Mm Mv Addmv Dot Linear MkldnnLinear"), ("bmm", "Bmm Baddbmm Addbmm"),
        ("convolution", "Convolution ConvolutionOverrideable MkldnnConvolution CudnnConvolution"),
        ("bilinear", "Trilinear"), ("embedding", "Embedding EmbeddingBag"),
        ("recurrent", "MkldnnRnnLayer CudnnRnn MiopenRnn LstmMps ThnnFusedLstmCell ThnnFusedGruCell"),
        ("leaky_relu", "LeakyRelu RreluWithNoise"), ("prelu", "PreluKernel"), ("elu", "Elu Celu Selu"),
        ("relu", "Relu Threshold"), ("shrink", "Softshrink Hardshrink"), ("max", "Max Amax"), ("min", "Min Amin"),
        ("sign", "Sgn Sign"), ("clamp", "Clamp ClampMin ClampMax"), ("log1p", "Log1P"),
        ("norm", "LinalgVectorNorm Norm"), ("prod", "Prod Cumprod"), ("distance", "EuclideanDist Cdist"),
        ("softmax", "Softmax SafeSoftmax"), ("batch_norm", "NativeBatchNorm CudnnBatchNorm MiopenBatchNorm"),
        ("layer_norm", "NativeLayerNorm"), ("group_norm", "NativeGroupNorm"), ("rms_norm", "FusedRmsNorm"),
        ("dropout", "NativeDropout FusedDropout Bernoulli"), ("nll_loss", "NllLoss NllLoss2D"),
        ("ctc_loss", "CtcLoss CudnnCtcLoss"), ("eigh", "LinalgEigh"), ("eig", "LinalgEig"), ("svd", "LinalgSvd"),
    )
}  # fmt: skip
#: Where a node is not listed: by the beginning of its name.
_BEGINNINGS = {
    **dict.fromkeys(("Upsample", "ReflectionPad", "ReplicationPad", "GridSampler"), "rearrange"),
    **dict.fromkeys(("AvgPool", "AdaptiveAvgPool", "MkldnnAdaptiveAvgPool"), "average_pool"),
    **dict.fromkeys(("MaxPool", "AdaptiveMaxPool", "MkldnnMaxPool"), "max_pool"),
    "ScaledDotProduct": "attention", "SlowConv": "convolution",
}  # fmt: skip
_BY_NODE = {
    # A word alone is that of its node: "log_softmax" of LogSoftmax.
    **{"".join(map(str.capitalize, name.split("_"))): each for name, each in OPERATIONS.items() if name not in _NODES},
    **{node: OPERATIONS[name] for name, nodes in _NODES.items() for node in nodes},
}
#: Names whose operations are kept.
_MOST_KNOWN = 4096
#: Key in the metadata of a node, which lives as long as the graph.
_OUTPUTS = "watchglass"

State = TypeVar("State")


class Output(NamedTuple):
    """The mark of a module's output on the node that made it. A reference to the tensor would keep its memory."""

    module: weakref.ref[nn.Module]  #: The module.
    path: str  #: Path of the output in what it returned.
    alone: bool  #: Whether that is one number.
    apart: bool  #: Whether a backward through it is noted in another way, so that :func:`reaches` stops here.


def mark(tensor: Tensor, output: Output) -> None:
    """Mark a tensor that has a graph as an output."""
    node: Any = tensor.grad_fn
    node.metadata.setdefault(_OUTPUTS, {})[tensor.output_nr] = output


def marks_of(node: Any) -> dict[int, Output]:
    """The outputs that a node made, by number of its result."""
    found: dict[int, Output] = node.metadata.get(_OUTPUTS, {})
    return found


def output_path(node: Any, number: int) -> str | None:
    """Path of the output of a living module that a node made; None for other results."""
    output = marks_of(node).get(number)
    return output.path if output is not None and output.module() is not None else None


def operation_of(node: Any) -> Operation:
    """The operation of a node; one that is not known has the name of its node."""
    return _operation(node.name())


@functools.lru_cache(_MOST_KNOWN)
def _operation(full: str) -> Operation:
    if full == "torch::autograd::AccumulateGrad":
        return PARAMETER
    base = _NUMBERED.sub("", full)
    begins = (OPERATIONS[name] for begin, name in _BEGINNINGS.items() if base.startswith(begin))
    return _BY_NODE.get(base) or next(begins, Operation(full, "unknown"))


def operands(node: Any) -> Sequence[tuple[Any, int]]:
    """What an operation takes: nodes and numbers of their results; (None, 0) for a constant, or data."""
    found: Sequence[tuple[Any, int]] = node.next_functions
    return found


class Walk(Generic[State]):
    """A walk over results from one on, the nearest first, each of them once.

    Iterating gives node, number of the result, and the state with which the walk has come to it. It goes on to the
    operands of those that :meth:`into` is called with.

    Args:
        node: The first node; None for no walk.
        number: Number of its result.
        state: Its state.
        most: Results that are visited at most.
        by_state: Whether a result is visited again in another state.
    """

    def __init__(self, node: Any, number: int, state: State, most: int, *, by_state: bool = False) -> None:
        self._waiting = deque([(node, number, state)] if node is not None else ())
        self._most, self._by_state = most, by_state

    def __iter__(self) -> Iterator[tuple[Any, int, State]]:
        seen: set[Any] = set()
        while self._waiting and len(seen) < self._most:
            found = self._waiting.popleft()
            key = found if self._by_state else found[:2]
            if key not in seen:
                seen.add(key)
                yield found

    def into(self, node: Any, state: State) -> None:
        """Go on to the operands of a node, with this state."""
        self._waiting.extend((child, number, state) for child, number in operands(node) if child is not None)


def behind(node: Any, number: int, past: Collection[str], most: int) -> Iterator[Any]:
    """Nodes from which a result was computed, the nearest first, up to operations that are not of ``past``."""
    walk = Walk(node, number, None, most)
    for each, _, _ in walk:
        yield each
        if operation_of(each).name in past:
            walk.into(each, None)


def chain(node: Any, number: int, past: Collection[str], most: int) -> Iterator[tuple[Any, int]]:
    """Results from one on, each followed by the first operand, up to the first whose operation is not of ``past``."""
    for _ in range(most):
        if node is None:
            return
        yield node, number
        below = operands(node)
        if not below or operation_of(node).name not in past:
            return
        node, number = below[0]


def node_at(start: Any, path: Sequence[int]) -> Any:
    """The node at the end of a way down from another: which operand is followed at each; None where there is none."""
    node = start
    for number in path:
        below = () if node is None else operands(node)
        node = below[number][0] if number < len(below) else None
    return node


def shape_of(node: Any, number: int = 0) -> tuple[int, ...]:
    """Shape of a result of a node, without its saved tensors; () where it is not known."""
    outputs = getattr(node, "_input_metadata", None) or ()
    try:
        return tuple(map(int, outputs[number].shape)) if number < len(outputs) else ()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return ()  # a nested tensor has no plain shape


def saved(node: Any, name: str, default: Any = None) -> Any:
    """A number that a node has saved, or several; ``default`` for anything else."""
    try:
        value = getattr(node, f"_saved_{name}", default)
    except RuntimeError:
        return default
    return default if isinstance(value, Tensor) else value


def _kept(node: Any, name: str) -> Any:
    """What a node has saved; None where there is none, or hooks have packed it, or a backward let go of it."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    # Numbers are never packed.
    if any(getattr(each, "unpack_hook", None) is not None for each in (raw if isinstance(raw, tuple) else (raw,))):
        return None
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """A tensor that a node has saved; None where it cannot be read."""
    value = _kept(node, name)
    return value if isinstance(value, Tensor) else None


def saved_tensors(node: Any, name: str) -> list[Tensor]:
    """The tensors of a list that a node has saved; none where any of them cannot be read."""
    return [each for each in _kept(node, name) or () if isinstance(each, Tensor)]


def order_of(node: Any, axes: int) -> tuple[int, ...] | None:
    """By axis of the result of a transposition, the one before; None for other operations."""
    if operation_of(node).name != "transpose" or not axes:
        return None
    if (dims := saved(node, "dims")) is not None:
        return tuple(axis_of(of, axes) for of in dims)
    order = list(range(axes))
    one, other = (axis_of(int(saved(node, name, number)), axes) for number, name in enumerate(("dim0", "dim1")))
    order[one], order[other] = other, one
    return tuple(order)


def factor_of(node: Any) -> float | None:
    """The number that a product or quotient multiplies its only operand by; None where it is not known at once."""
    side = "other" if operands(node)[0][0] is not None else "self"
    number = number_of(saved_tensor(node, side))
    if number is None or operation_of(node).name == "mul":
        return number
    return 1 / number if number and side == "other" else None


def axes_of(chosen: Any, axes: int) -> tuple[int, ...] | None:
    """Axes, one or several, counted from the first; all for none. None for what are no numbers."""
    chosen = chosen if isinstance(chosen, (tuple, list)) else () if chosen is None else (chosen,)
    if not all(isinstance(axis, int) for axis in chosen):
        return None
    return tuple(sorted(axis_of(axis, axes) for axis in chosen)) or tuple(range(axes))


def axis_of(value: int, axes: int) -> int:
    """An axis as autograd keeps it, a negative one as unsigned, counted from the first."""
    return signed(value) % axes if axes else 0


def signed(value: int) -> int:
    """A number that autograd keeps without its sign."""
    return value - 2 * _UNSIGNED if value >= _UNSIGNED else value


def number_of(value: Any) -> float | None:
    """A number, or a tensor of one number on the CPU, as a float; None for anything else."""
    if not isinstance(value, Tensor):
        return float(value) if isinstance(value, (int, float)) else None
    try:
        return float(value) if value.is_cpu and value.dim() == 0 else None
    except (RuntimeError, TypeError):
        return None  # complex, or one that stands for many
