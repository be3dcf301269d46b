"""The operations of a function that TensorFlow has traced, from parameters to the loss.

Read from the definition of its graph, and of the functions that it calls. Only what the loss depends on is read, so
gradients and updates have no part in it. What TensorFlow writes in several operations becomes one where the form is
certain, see ``capture/compiled/program.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from watchglass.capture.compiled.collecting import Collected, ValuePart, Values
from watchglass.capture.compiled.program import (
    ARRANGING,
    GraphConstant,
    GraphResult,
    TracedProgram,
    Value,
    added,
    bounded,
    chosen,
    cut_of,
    divided,
    multiplied,
    past,
    product,
    rows_of,
    subtracted,
)
from watchglass.records import OPERATIONS, PARAMETER, Operation

#: Words of operations, each with the types that have it.
_WORDS = {
    kind: word
    for word, kinds in (
        ("neg", "Neg"), ("exp", "Exp"), ("expm1", "Expm1"), ("log", "Log"), ("log1p", "Log1p"), ("tanh", "Tanh"),
        ("sigmoid", "Sigmoid"), ("relu", "Relu"), ("elu", "Elu Selu"), ("leaky_relu", "LeakyRelu"),
        ("softplus", "Softplus"), ("sin", "Sin"), ("cos", "Cos"), ("abs", "Abs ComplexAbs"), ("sign", "Sign"),
        ("sqrt", "Sqrt"), ("rsqrt", "Rsqrt"), ("erf", "Erf Erfc"), ("erfinv", "Erfinv Ndtri"), ("atan", "Atan Atan2"),
        ("acos", "Acos"), ("asin", "Asin"), ("acosh", "Acosh"), ("asinh", "Asinh"), ("atanh", "Atanh"),
        ("reciprocal", "Reciprocal Inv"), ("round", "Round Rint Floor Ceil"), ("xlogy", "Xlogy Xlog1py"),
        ("sum", "Sum"), ("mean", "Mean"), ("max", "Max"), ("min", "Min"), ("prod", "Prod Cumprod"),
        ("norm", "EuclideanNorm"), ("cumsum", "Cumsum"), ("pow", "Pow Square"), ("clamp", "ClipByValue Relu6"),
        ("logsumexp", "CumulativeLogsumexp"), ("distance", "Cdist"),
        ("reshape", "Reshape Squeeze ExpandDims"), ("expand", "Tile BroadcastTo"), ("transpose", "Transpose"),
        ("copy", """Cast Bitcast EnsureShape CheckNumerics Snapshot StatefulIdentity PlaceholderWithDefault Copy
            CopyHost Real"""),
        ("slice", "StridedSlice Slice"), ("split", "Split SplitV Unpack"), ("pad", "Pad PadV2 MirrorPad"),
        ("roll", "Roll"), ("tril", "MatrixBandPart BatchMatrixBandPart"), ("topk", "TopK TopKV2"),
        ("rearrange", """ReverseV2 ReverseSequence TensorListFromTensor TensorListStack TensorListGetItem
            TensorListSetItem TensorListConcatV2 TensorListPushBack TensorArrayReadV3 TensorArrayGatherV3
            TensorArrayScatterV3 TensorArrayWriteV3 SpaceToBatchND BatchToSpaceND SpaceToDepth DepthToSpace
            ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea ExtractImagePatches MatrixDiagV3
            MatrixDiagPartV3 DynamicPartition DynamicStitch ParallelDynamicStitch ImageProjectiveTransformV3
            CropAndResize"""),
        ("cat", "ConcatV2 Concat"), ("stack", "Pack ParallelConcat"), ("index_add", """SegmentSum SegmentMean
            UnsortedSegmentSum SparseSegmentSum SparseSegmentMean SparseSegmentSumWithNumSegments
            SparseSegmentMeanWithNumSegments SparseSegmentSqrtN"""),
        ("scatter", "ScatterNd TensorScatterUpdate"), ("scatter_add", "TensorScatterAdd TensorScatterSub"),
        ("max_pool", "MaxPool MaxPoolV2 MaxPool3D MaxPoolWithArgmax"), ("average_pool", "AvgPool AvgPool3D"),
        ("fft", "FFT FFT2D FFT3D IFFT IFFT2D IFFT3D RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D"),
        ("ctc_loss", "CTCLoss CTCLossV2"), ("recurrent", "CudnnRNN CudnnRNNV2 CudnnRNNV3"),
    )
    for kind in kinds.split()
}  # fmt: skip
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
#: Loops, of which one with parameters is a recurrent layer.
_LOOPS = ("While", "StatelessWhile")
#: Operations that return what they get, and whose gradient is that.
_PASSING = ("Identity", "IdentityN", "ReadVariableOp")
#: Operations through which no gradient passes.
_CUT = frozenset((
    "StopGradient", "PreventGradient", "ArgMax", "ArgMin", "Greater", "GreaterEqual", "Less", "LessEqual", "Equal",
    "NotEqual", "ApproximateEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "IsNan", "IsInf", "IsFinite", "Where",
    "Any", "All", "InTopKV2", "Bucketize",
))  # fmt: skip
#: Operations that depend on the shape alone of what they take.
_OF_SHAPES = frozenset((
    "Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "Range", "VariableShape", "TensorListLength",
    "TensorListElementShape", "Fill",
))  # fmt: skip
#: Elements of constants that are read at most.
_FEW = 64
#: Functions that call functions, at most.
_DEEPEST = 32
#: Types of numbers that have gradients; a variant holds a list of tensors.
_FLOATS = frozenset(("float16", "float32", "float64", "bfloat16", "complex64", "complex128", "variant"))


class TracedGraph(NamedTuple):
    """A graph that was traced for a model, with the values that it collects.

    Attributes:
        graph: The graph.
        values: Its collected tensors by key.
        known: What each of them is.
        parameters: The variables that it trains, with their names.
        model: Number of the model.
    """

    graph: Any
    values: Values
    known: Mapping[str, Collected]
    parameters: Sequence[tuple[Any, str]]
    model: int = 0

    def read(self, values: Mapping[str, Any]) -> TracedProgram:
        """Read it, when the values of a step are there: these show lengths that are open while a graph is traced."""
        inner = {id(outer): tensor.op.name for outer, tensor in self.graph.captures}
        given: dict[str, list[Value]] = {}
        for variable, name in self.parameters:
            leaf = GraphResult(PARAMETER, (), tuple(variable.shape), name)
            copies = variable.values if isinstance(variable, tf.distribute.DistributedValues) else (variable,)
            given.update({inner[id(each.handle)]: [leaf] for each in copies if id(each.handle) in inner})
        wanted = {
            key: what
            for key, what in self.known.items()
            if what.model == self.model and what.part in (ValuePart.LOSS, ValuePart.PREDICTIONS)
        }
        definition = self.graph.as_graph_def(add_shapes=True)
        reader = _NodeReader(definition.library, _open_lengths(self.values, values))
        found = reader.results(definition.node, given, [self.values[key].name for key in wanted])
        results = dict(zip(wanted, found, strict=True))
        loss = next((results[key] for key, what in wanted.items() if what.part is ValuePart.LOSS), GraphConstant())
        predictions = {
            what.call.number: results[key]
            for key, what in wanted.items()
            if what.part is ValuePart.PREDICTIONS and what.call is not None
        }
        return TracedProgram([name for _, name in self.parameters], loss, predictions)


def _open_lengths(traced: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, int]:
    """The lengths of axes whose length is open in a graph: of the first axis, and of others."""
    rows = others = 0
    for key, tensor in traced.items():
        shape, now = getattr(tensor, "shape", None), getattr(values.get(key), "shape", None)
        if shape is None or now is None or shape.rank != len(now):
            continue
        for axis, (length, known) in enumerate(zip(shape, now, strict=True)):
            if length is None and axis == 0:
                rows = rows or int(known)
            elif length is None:
                others = others or int(known)
    return max(rows, 1), max(others or rows, 1)


class _NodeReader:
    """Reads the nodes of graphs and of functions.

    Args:
        library: The functions.
        lengths: What stands for an open length of the first axis, and of others.
    """

    def __init__(self, library: Any, lengths: tuple[int, int]) -> None:
        self._functions = {each.signature.name: each for each in library.function}
        self._lengths = lengths
        self._depth = 0

    def results(self, nodes: Iterable[Any], known: dict[str, list[Value]], wanted: Sequence[str]) -> list[Value]:
        """The wanted results of nodes, read after what they take; those of some nodes are known."""
        by_name = {node.name: node for node in nodes}
        for each in wanted:
            begun: set[str] = set()
            waiting = [_node_of(each)]
            while waiting:
                name = waiting[-1]
                node = by_name.get(name)
                if name in known or node is None:
                    known.setdefault(name, [GraphConstant()])
                    waiting.pop()
                    continue
                taken = [taken for taken in node.input if not taken.startswith("^")]
                missing = [below for below in map(_node_of, taken) if below not in known and below not in begun]
                if missing:
                    begun.add(name)
                    waiting += missing
                else:
                    known[name] = self._made(node, [_value_of(known, below) for below in taken])
                    waiting.pop()
        return [_value_of(known, each) for each in wanted]

    def _made(self, node: Any, taken: list[Value]) -> list[Value]:
        """The results of a node."""
        live = [each for each in taken if isinstance(each, GraphResult)]
        if not live or node.op in _OF_SHAPES:
            return [_constant(node, taken)]
        if node.op in _CUT or (node.op == "Cast" and _dtype(node, "DstT") not in _FLOATS):
            return [GraphConstant.cut_off(taken)]
        if node.op in _CALLS:
            function = self._functions.get(node.attr["f"].func.name)
            if function is not None and self._depth < _DEEPEST:
                return self._called(function, taken)
        if node.op in _PASSING:
            return taken
        return [self._operation(node, taken, live, self._shape(node, live))]

    def _called(self, function: Any, taken: list[Value]) -> list[Value]:
        """The results of a function."""
        self._depth += 1
        try:
            arguments = {each.name: [value] for each, value in zip(function.signature.input_arg, taken, strict=False)}
            wanted = [function.ret[each.name] for each in function.signature.output_arg]
            return self.results(function.node_def, arguments, wanted)
        finally:
            self._depth -= 1

    def _operation(self, node: Any, taken: list[Value], live: list[GraphResult], shape: tuple[int, ...]) -> GraphResult:
        make = _MAKERS.get(node.op)
        if make is not None:
            return make(node, taken, shape)
        if node.op in _LOOPS and any(each.operation is PARAMETER for each in live):
            return GraphResult(OPERATIONS["recurrent"], taken, shape)
        word = _WORDS.get(node.op)
        if word is None:
            return GraphResult(Operation(node.op, "unknown"), taken, shape)
        operands = taken if OPERATIONS[word].kind in ("adds", "multiplies", "activates") else live
        return GraphResult(OPERATIONS[word], operands, shape, **_settings(node, word, taken, live))

    def _shape(self, node: Any, live: Sequence[GraphResult]) -> tuple[int, ...]:
        """Shape of the first result of a node; where it is not known, that of what it takes."""
        shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
        if not shapes or shapes[0].unknown_rank:
            return max((each.shape for each in live), key=len, default=())
        first, others = self._lengths
        sizes = [axis.size for axis in shapes[0].dim]
        return tuple(size if size >= 0 else others if axis else first for axis, size in enumerate(sizes))


def _node_of(result: str) -> str:
    return result.partition(":")[0]


def _value_of(known: Mapping[str, list[Value]], result: str) -> Value:
    """A result of a node: the last number in its name is its place, of those that have several."""
    name, _, number = result.partition(":")
    values = known.get(name) or [GraphConstant()]
    index = int(number.rpartition(":")[2] or 0) if number else 0
    return values[index] if index < len(values) else values[0]


def _dtype(node: Any, attribute: str) -> str:
    return str(tf.dtypes.as_dtype(node.attr[attribute].type).name)


def _constant(node: Any, taken: Sequence[Value]) -> GraphConstant:
    """A value that depends on no parameter, with its numbers where these follow from constants and shapes."""
    numbers = _numbers(node, taken)
    if numbers is None or numbers.size > _FEW or numbers.dtype.kind not in "biuf":
        return GraphConstant(cut=() if node.op in _OF_SHAPES else cut_of(taken))
    single = numbers.size == 1 or (numbers.size and bool((numbers == numbers.flat[0]).all()))
    return GraphConstant(float(numbers.flat[0]) if single else None, numbers)


def _numbers(node: Any, taken: Sequence[Value]) -> Any:
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        elements = math.prod(axis.size for axis in tensor.tensor_shape.dim)
        return np.asarray(tf.make_ndarray(tensor)) if elements <= _FEW else None
    if node.op in ("ZerosLike", "OnesLike"):
        return np.asarray(float(node.op == "OnesLike"))
    if node.op in ("Shape", "Size") and taken:
        given = getattr(taken[0], "shape", None)
        return None if given is None else np.asarray(given if node.op == "Shape" else math.prod(given))
    known = [each.numbers for each in taken if isinstance(each, GraphConstant)]
    if not known or len(known) < len(taken) or any(each is None for each in known):
        return None
    if node.op in ("Cast", "Identity", "Reshape", "Squeeze", "ExpandDims", "Fill"):
        return known[1 if node.op == "Fill" else 0]
    if node.op == "Prod":
        return np.prod(known[0])
    if node.op in ("Pack", "ConcatV2"):
        return np.concatenate([np.atleast_1d(each) for each in (known if node.op == "Pack" else known[:-1])])
    if node.op in _ARITHMETIC:
        return _ARITHMETIC[node.op](*known)
    if node.op == "StridedSlice" and node.attr["shrink_axis_mask"].i == 1:
        return known[0][int(known[1].flat[0])] if known[0].ndim == 1 else None
    return None


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Mul": np.multiply, "Sub": np.subtract, "AddV2": np.add, "Neg": np.negative, "Maximum": np.maximum,
}  # fmt: skip


def _settings(node: Any, word: str, taken: list[Value], live: list[GraphResult]) -> dict[str, Any]:
    numbers = [getattr(each, "numbers", None) for each in taken[1:]]
    rank = len(live[0].shape)
    if word in ("sum", "mean", "max", "min", "prod", "norm"):
        axes = np.arange(rank) if not numbers or numbers[0] is None else np.ravel(numbers[0])
        return {"axes": tuple(int(axis) % rank for axis in axes) if rank else ()}
    if word == "transpose":
        return {"order": tuple(map(int, numbers[0])) if numbers and numbers[0] is not None else None}
    if word == "pow":
        return {"exponent": 2.0 if node.op == "Square" else getattr(taken[1], "value", None)}
    if word == "clamp":
        low, high = (0.0, 6.0) if node.op == "Relu6" else (getattr(each, "value", None) for each in taken[1:3])
        return {"min": low, "max": high}
    return {}


Maker = Callable[[Any, list[Value], tuple[int, ...]], GraphResult]


def _plain(make: Callable[..., GraphResult], first: int = 0, **options: Any) -> Maker:
    """A maker that needs no settings of the node."""
    return lambda node, taken, shape: make(taken[first:], shape, **options)


def _softmax(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    return _normalized_exponentials(taken[0], "softmax" if node.op == "Softmax" else "log_softmax", shape)


def _normalized_exponentials(given: Value, word: str, shape: tuple[int, ...]) -> GraphResult:
    return GraphResult(OPERATIONS[word], [given], shape, axes=(len(shape) - 1,))


def _likelihood(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """The likelihood of one class for each row, or of shares of all classes."""
    logits = taken[0]
    given = logits.shape if isinstance(logits, GraphResult) else shape
    shares = _normalized_exponentials(logits, "log_softmax", given)
    if node.op.startswith("Sparse"):
        return GraphResult(OPERATIONS["nll_loss"], [shares], shape, reduction="none")
    weighed = multiplied([taken[1], shares], given)
    summed = GraphResult(OPERATIONS["sum"], [weighed], shape, axes=(len(given) - 1,))
    return GraphResult(OPERATIONS["neg"], [summed], shape)


def _added(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A sum, or what ``tf.nn.sigmoid_cross_entropy_with_logits`` makes of logits."""
    if len(taken) != 2:
        return GraphResult(OPERATIONS["add"], taken, shape)
    for one, other in (taken, taken[::-1]):
        logits = _logits_of(one, other)
        if logits is not None:
            return GraphResult(OPERATIONS["binary_cross_entropy_with_logits"], [logits], shape, reduction="none")
    return added(taken, shape)


def _logits_of(linear: Value, rest: Value) -> GraphResult | None:
    """What ``max(x, 0) - x * z + log(1 + exp(-|x|))`` is made of; None for other sums."""
    if not (isinstance(linear, GraphResult) and isinstance(rest, GraphResult)):
        return None
    if linear.word != "sub" or len(linear.results) != 2 or rest.word != "log1p" or rest.first.word != "exp":
        return None
    positive, product_ = linear.results
    size = rest.first.first
    same = [each for each in positive.results if positive.word in ("masked_fill", "relu")]
    folded = size.word == "where" or (size.word == "neg" and size.first.word == "abs")
    return same[0] if same and folded and product_.word == "mul" and same[0] in product_.results else None


def _squared_difference(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    return GraphResult(OPERATIONS["pow"], [subtracted(taken, shape)], shape, exponent=2.0)


def _softsign(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    size = GraphResult(OPERATIONS["abs"], taken, shape)
    return GraphResult(OPERATIONS["div"], [*taken, GraphResult(OPERATIONS["add"], [size], shape)], shape)


def _half_squares(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """``tf.nn.l2_loss``."""
    given = taken[0].shape if isinstance(taken[0], GraphResult) else ()
    squares = GraphResult(OPERATIONS["pow"], taken, given, exponent=2.0)
    summed = GraphResult(OPERATIONS["sum"], [squares], shape, axes=tuple(range(len(given))))
    return GraphResult(OPERATIONS["mul"], [summed], shape, factor=0.5)


def _matrices(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    # A product for each sample of a batch has a matrix for each.
    fixed = [each for each in taken if isinstance(each, GraphResult) and past(each, ARRANGING).operation is PARAMETER]
    return product(taken, shape, sums=all(len(each.shape) <= 2 for each in fixed))


def _einsum(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    operands, _, result = node.attr["equation"].s.decode().replace(" ", "").partition("->")
    first, *others = (set(each) - {"."} for each in operands.split(","))
    both = first.intersection(*others)
    return product(taken, shape, sums=len(taken) == 2 and bool(both) and not both & set(result))


def _convolution(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A convolution; the kernel of a transposed one is (height, width, outputs, inputs)."""
    transposed = "Backprop" in node.op
    operands = [taken[2], taken[1]] if transposed else taken[:2]
    kernel = operands[1]
    if isinstance(kernel, GraphResult):
        leaf = past(kernel, ("copy", "reshape"))
        *space, given, made = kernel.shape if len(kernel.shape) > 2 else (1, *kernel.shape)
        if leaf.operation is PARAMETER:
            each = (given * made, 1) if node.op.startswith("Depthwise") else (made, given)
            leaf.shape = (*each, *space)
    return GraphResult(OPERATIONS["convolution"], operands, _channels_second(node, shape))


def _channels_second(node: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    last = not node.attr["data_format"].s.decode().startswith("NC")
    return (shape[0], shape[-1], *shape[1:-1]) if last and len(shape) > 2 else shape


def _normalized(node: Any, taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A batch normalisation as one operation."""
    training = int(node.attr["is_training"].b)
    return GraphResult(OPERATIONS["batch_norm"], taken[:2], _channels_second(node, shape), training=training)


_MAKERS: Mapping[str, Maker] = {
    "Maximum": _plain(bounded, side="min"), "Minimum": _plain(bounded, side="max"),
    "Add": _added, "AddV2": _added, "AddN": _added, "BiasAdd": _added, "Sub": _plain(subtracted),
    "Mul": _plain(multiplied), "MulNoNan": _plain(multiplied), "RealDiv": _plain(divided), "Div": _plain(divided),
    "DivNoNan": _plain(divided), "Xdivy": _plain(divided), "SquaredDifference": _squared_difference,
    "L2Loss": _half_squares, "Softsign": _softsign, "Softmax": _softmax, "LogSoftmax": _softmax,
    "SparseSoftmaxCrossEntropyWithLogits": _likelihood, "SoftmaxCrossEntropyWithLogits": _likelihood,
    "SelectV2": _plain(chosen, 1), "Select": _plain(chosen, 1), "GatherV2": _plain(rows_of), "Gather": _plain(rows_of),
    "ResourceGather": _plain(rows_of), "GatherNd": _plain(rows_of),
    "MatMul": _matrices, "BatchMatMul": _matrices, "BatchMatMulV2": _matrices, "BatchMatMulV3": _matrices,
    "SparseTensorDenseMatMul": lambda node, taken, shape: _matrices(node, taken[-2:], shape), "Einsum": _einsum,
    **dict.fromkeys(("Conv2D", "Conv3D", "Conv", "DepthwiseConv2dNative", "Conv2DBackpropInput",
                     "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"), _convolution),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _normalized),
}  # fmt: skip
