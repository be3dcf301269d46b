"""Autograd's graph as plain numbers: what each operation is, what it takes, and whether it depends on the data.

One bounded walk from the start of a backward reads it. Operations are known by the names of their nodes, sizes by the
shapes of their results, settings by saved numbers. No saved tensor is touched: hooks may have packed it. Nodes keep the
graph alive, so a :class:`Graph` must not outlive the callback that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, is_grad_enabled, nn

#: Nodes that are read at most.
_MOST_NODES = 16_384
#: Index of an operand that has no part in the graph: a constant, or data.
CONSTANT = -1
_NUMBERED = re.compile(r"Backward\d*$")
#: Beyond it a number is negative, as that of an axis, which autograd keeps without its sign.
_UNSIGNED = 1 << 63
_PARAMETER = "torch::autograd::AccumulateGrad"
#: Key in the metadata of a node.
_OUTPUT = "watchglass output"

#: Kinds of operations.
ARRANGES, ADDS, MULTIPLIES, MATRIX, LOOKS_UP, RECURS, ATTENDS, ACTIVATES, SOFTMAX, NORMALIZES, DROPS, POOLS, LOSS = (
    "arranges", "adds", "multiplies", "matrix", "looks_up", "recurs", "attends", "activates", "softmax", "normalizes",
    "drops", "pools", "loss",
)  # fmt: skip
PARAMETER, UNKNOWN = "parameter", "unknown"
#: Kinds that may have weights.
_WEIGHTED = (MATRIX, LOOKS_UP, RECURS)
#: Those of layers, and of what is not known.
_LAYERS = (*_WEIGHTED, NORMALIZES, UNKNOWN)

#: By kind, names of autograd's nodes without "Backward" and number; after a colon the name that is recorded.
_NODES = {
    ARRANGES: """View ReshapeAlias UnsafeView Reshape Squeeze Unsqueeze ToCopy Clone Alias T Transpose Permute Expand
        Slice Select Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes Unbind AsStrided Repeat Roll Flip Rot90
        Unfold UnfoldBackward Im2Col Col2Im PixelShuffle PixelUnshuffle ConstantPadNd Index IndexSelect Gather
        MaskedSelect Take Diagonal Tril Triu MaskedFill MaskedScatter Copy Real Imag ViewAsReal ViewAsComplex Conj
        Swapaxes Narrow NativeDropoutBackward SelectBackward SliceBackward torch::autograd::CopySlices
        torch::autograd::CopyBackwards Detach""",
    ADDS: """Add:add Sub:sub Rsub:sub Neg:neg Cat:cat Stack:stack Sum:sum Mean:mean Cumsum:cumsum
        IndexAdd:index_add ScatterAdd:scatter_add Scatter:scatter IndexPut:index_put IndexPutImpl:index_put Lerp:lerp
        FftR2C:fft FftC2R:fft FftC2C:fft""",
    MULTIPLIES: "Mul:mul Div:div Addcmul:mul",
    MATRIX: """Addmm:linear Mm:linear Bmm:bmm Baddbmm:bmm Addbmm:bmm Mv:linear Addmv:linear Dot:linear
        Linear:linear MkldnnLinear:linear Convolution:convolution ConvolutionOverrideable:convolution
        MkldnnConvolution:convolution CudnnConvolution:convolution Trilinear:bilinear""",
    LOOKS_UP: "Embedding:embedding EmbeddingBag:embedding",
    RECURS: """MkldnnRnnLayer:recurrent CudnnRnn:recurrent MiopenRnn:recurrent LstmMps:recurrent
        ThnnFusedLstmCell:recurrent ThnnFusedGruCell:recurrent""",
    ACTIVATES: """Relu:relu LeakyRelu:leaky_relu RreluWithNoise:leaky_relu PreluKernel:prelu Gelu:gelu Silu:silu
        Elu:elu Celu:elu Selu:elu Mish:mish Softplus:softplus Hardswish:hardswish Hardsigmoid:sigmoid Hardtanh:hardtanh
        Threshold:relu Tanh:tanh Sigmoid:sigmoid LogSigmoid:log_sigmoid Softshrink:shrink Hardshrink:shrink Glu:glu
        Abs:abs Pow:pow Exp:exp Expm1:exp Log:log Log1P:log1p Log2:log Log10:log Sqrt:sqrt Rsqrt:rsqrt
        Reciprocal:reciprocal Sin:sin Cos:cos Atan:atan Erf:erf Maximum:maximum Minimum:minimum Max:max Min:min
        Amax:max Amin:min Sgn:sign Sign:sign Round:round Clamp:clamp ClampMin:clamp ClampMax:clamp
        Logsumexp:logsumexp LinalgVectorNorm:norm Norm:norm Where:where Topk:topk Sort:sort Var:var Std:var Prod:prod
        Cumprod:prod Logaddexp:logsumexp Xlogy:log EuclideanDist:distance Cdist:distance""",
    SOFTMAX: "Softmax:softmax SafeSoftmax:softmax LogSoftmax:log_softmax",
    NORMALIZES: """NativeBatchNorm:batch_norm CudnnBatchNorm:batch_norm MiopenBatchNorm:batch_norm
        NativeLayerNorm:layer_norm NativeGroupNorm:group_norm FusedRmsNorm:rms_norm""",
    DROPS: "NativeDropout:dropout FusedDropout:dropout Bernoulli:dropout",
    LOSS: """NllLoss:nll_loss NllLoss2D:nll_loss MseLoss:mse_loss SmoothL1Loss:smooth_l1_loss HuberLoss:huber_loss
        BinaryCrossEntropy:binary_cross_entropy BinaryCrossEntropyWithLogits:binary_cross_entropy_with_logits
        SoftMarginLoss:soft_margin_loss MultiMarginLoss:multi_margin_loss
        MultilabelMarginLoss:multilabel_margin_loss CtcLoss:ctc_loss CudnnCtcLoss:ctc_loss""",
}
_BY_NODE = {
    node: (kind, name or "")
    for kind, listed in _NODES.items()
    for node, _, name in (
        (each, "", "") if each.startswith("torch::") else each.partition(":") for each in listed.split()
    )
}
#: Where a node is not listed: by the beginning of its name.
_BY_BEGINNING = (
    ("Upsample", ARRANGES, ""), ("ReflectionPad", ARRANGES, ""), ("ReplicationPad", ARRANGES, ""),
    ("GridSampler", ARRANGES, ""), ("AvgPool", ADDS, "average_pool"), ("AdaptiveAvgPool", ADDS, "average_pool"),
    ("MkldnnAdaptiveAvgPool", ADDS, "average_pool"), ("MaxPool", POOLS, "max_pool"),
    ("AdaptiveMaxPool", POOLS, "max_pool"), ("MkldnnMaxPool", POOLS, "max_pool"),
    ("ScaledDotProduct", ATTENDS, "attention"), ("SlowConv", MATRIX, "convolution"),
)  # fmt: skip
#: Positions of the two factors among the operands, by name of the node; the first two for others.
_FACTORS = {"Addmm": (1, 2), "Baddbmm": (1, 2), "Addbmm": (1, 2), "Addmv": (1, 2)}


class Operand(NamedTuple):
    """What an operation takes: the index of the operation that made it, and which of its results."""

    at: int
    number: int


class Graph:
    """Operations in an order in which operands come before what takes them.

    Attributes:
        complete: Whether the whole graph was read.
        nodes: Nodes of autograd.
        bases: Their names without "Backward" and number.
        kinds: Kinds of operations.
        names: Names of operations; "" for those that only arrange values.
        below: Operands.
        parameters: Parameters by index.
        varying: Whether the results depend on data; otherwise on parameters alone.
    """

    def __init__(self, start: Any, is_parameter: Callable[[Tensor], bool]) -> None:
        self.complete = True
        self.nodes: list[Any] = []
        self.bases: list[str] = []
        self.kinds: list[str] = []
        self.names: list[str] = []
        self.below: list[list[Operand]] = []
        self.parameters: dict[int, Tensor] = {}
        self.varying: list[bool] = []
        self._is_parameter = is_parameter
        self._read(start)

    def __len__(self) -> int:
        return len(self.nodes)

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """Shape of a result; () where it is not known."""
        if operand.at == CONSTANT:
            return ()
        return shape_of(self.nodes[operand.at], operand.number)

    def saved(self, index: int, name: str, default: Any = None) -> Any:
        """A number that an operation has saved, or several; ``default`` for anything else."""
        try:
            value = getattr(self.nodes[index], f"_saved_{name}", default)
        except RuntimeError:
            return default
        return default if isinstance(value, Tensor) else value

    def factor(self, index: int) -> float | None:
        """The number that an operation multiplies its only operand by; None where it is not known at once."""
        side = "other" if self.below[index][0].at != CONSTANT else "self"
        value = saved_tensor(self.nodes[index], side)
        if value is None or value.dim() or not value.is_cpu:
            return None
        number = float(value)
        if self.bases[index] == "Mul":
            return number
        return 1 / number if number and side == "other" else None

    def weights(self, index: int) -> list[int]:
        """Indices of the parameters that an operation multiplies data by, its weight first; none for others."""
        kind, below = self.kinds[index], self.below[index]
        if kind == UNKNOWN:
            found = [each.at for each in below if each.at in self.parameters]
            return found if any(self.parameters[each].dim() > 1 for each in found) else []
        if kind not in _WEIGHTED or not self.varying[index]:
            return []
        factors = below if kind == RECURS else self._factors(index)
        fixed = [each.at for each in factors if each.at != CONSTANT and not self.varying[each.at]]
        return [parameter for each in fixed for parameter in self._parameters_of(each)]

    def _parameters_of(self, index: int, most: int = 16) -> list[int]:
        """Parameters from which a value that does not depend on data is computed."""
        waiting, found = [index], []
        for _ in range(most):
            if not waiting:
                break
            at = waiting.pop(0)
            if at in self.parameters:
                found.append(at)
            waiting += [each.at for each in self.below[at] if each.at != CONSTANT]
        return found

    def _factors(self, index: int) -> list[Operand]:
        places = _FACTORS.get(self.bases[index], (0, 1))
        below = self.below[index]
        return [below[place] for place in places if place < len(below)]

    def _read(self, start: Any) -> None:
        numbers: dict[Any, int] = {}
        seen: set[Any] = set()
        stack: list[tuple[Any, Any]] = [(start, None)]
        while stack:
            node, operands = stack.pop()
            if operands is not None:
                numbers[node] = len(self.nodes)
                self._add(node, [Operand(numbers.get(child, CONSTANT), number) for child, number in operands])
                continue
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > _MOST_NODES:
                self.complete = False
                return
            operands = node.next_functions
            stack.append((node, operands))
            stack += [(child, None) for child, _ in operands if child is not None and child not in seen]

    def _add(self, node: Any, below: list[Operand]) -> None:
        full = node.name()
        if full == _PARAMETER:
            parameter = node.variable
            base, kind, name, varying = full, PARAMETER, "", not self._is_parameter(parameter)
            self.parameters[len(self.nodes)] = parameter
        else:
            base = _NUMBERED.sub("", full)
            kind, name = operation_of(node)
            varying = any(each.at != CONSTANT and self.varying[each.at] for each in below)
        self.nodes.append(node)
        self.bases.append(base)
        self.kinds.append(kind)
        self.names.append(name)
        self.below.append(below)
        self.varying.append(varying)
        if not varying and kind != PARAMETER:
            self.varying[-1] = self._takes_data(len(self.nodes) - 1)

    def _takes_data(self, index: int) -> bool:
        """Whether an operation takes data in addition to parameters: data have no part in the graph."""
        kind, below = self.kinds[index], self.below[index]
        if kind in (LOOKS_UP, RECURS, ATTENDS, UNKNOWN):
            return True
        if kind == MATRIX:
            return any(each.at == CONSTANT for each in self._factors(index))
        if kind not in (ADDS, MULTIPLIES) or all(each.at != CONSTANT for each in below):
            return False
        # A parameter with a constant of its shape stays a parameter; with a batch it becomes as large as that.
        sizes = [_size(self.shape(each)) for each in below if each.at != CONSTANT]
        return _size(self.shape(Operand(index, 0))) > max(sizes, default=0)


def differentiates() -> bool:
    """In a hook on a tensor outside of any backward: whether ``torch.autograd.grad`` runs with ``create_graph=True``.

    What it returns may be a part of the loss: a gradient penalty, the inner step of MAML, the residual of a
    differential equation. The backward of that need not run through the tensor itself: of a network of linear layers
    and ReLU, the gradients depend on the weights alone.
    """
    return is_grad_enabled()


def note_output(tensor: Tensor) -> None:
    """Let :func:`reaches` stop at this output of a model."""
    node: Any = tensor.grad_fn
    if node is not None:
        # In the graph, and as long as that lives.
        node.metadata[_OUTPUT] = True


def reaches(tensor: Tensor, wanted: Callable[[Tensor], bool]) -> bool:
    """Whether a backward from a tensor runs through a layer of wanted parameters beside the outputs that were noted.

    A penalty on parameters is no layer.
    """
    # With each node, whether what it gives is an operand of a layer.
    waiting: list[tuple[Any, bool]] = [(tensor.grad_fn, False)]
    seen: set[tuple[Any, bool]] = set()
    while waiting and len(seen) < _MOST_NODES:
        node, used = waiting.pop()
        if node is None or (node, used) in seen or _OUTPUT in node.metadata:
            continue
        seen.add((node, used))
        if node.name() == _PARAMETER:
            if used and wanted(node.variable):
                return True
            continue
        kind, _ = operation_of(node)
        used = kind in _LAYERS or (used and kind == ARRANGES)
        waiting += [(child, used) for child, _ in node.next_functions]
    return False


def is_parameter(tensor: Tensor) -> bool:
    """Whether a leaf of the graph is a parameter of a module."""
    return isinstance(tensor, nn.Parameter)


def operation_of(node: Any) -> tuple[str, str]:
    """Kind and name of the operation of a node; the name is "" where it only arranges values."""
    full = node.name()
    base = _NUMBERED.sub("", full)
    found = _BY_NODE.get(base)
    if found is None:
        found = next(((kind, name) for begin, kind, name in _BY_BEGINNING if base.startswith(begin)), None)
    return found or (UNKNOWN, full)


def shape_of(node: Any, number: int = 0) -> tuple[int, ...]:
    """Shape of a result of a node, without its saved tensors; () where it is not known."""
    outputs = getattr(node, "_input_metadata", None) or ()
    try:
        return tuple(map(int, outputs[number].shape)) if number < len(outputs) else ()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return ()  # a nested tensor has no plain shape


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """A tensor that a node has saved; None where there is none, or hooks have packed it, or a backward let go of it."""
    # Numbers are never packed.
    if getattr(getattr(node, f"_raw_saved_{name}", None), "unpack_hook", None) is not None:
        return None
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
    return value if isinstance(value, Tensor) else None


def saved_tensors(node: Any, name: str) -> list[Tensor]:
    """The tensors of a list that a node has saved; none where hooks have packed one, or a backward let go of them."""
    if any(getattr(each, "unpack_hook", None) is not None for each in getattr(node, f"_raw_saved_{name}", None) or ()):
        return []
    try:
        return [each for each in getattr(node, f"_saved_{name}", None) or () if isinstance(each, Tensor)]
    except RuntimeError:
        return []


def axis_of(value: int, axes: int) -> int:
    """An axis as autograd keeps it, a negative one as unsigned, counted from the first."""
    return signed(value) % axes if axes else 0


def signed(value: int) -> int:
    """A number that autograd keeps without its sign."""
    return value - 2 * _UNSIGNED if value >= _UNSIGNED else value


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size
