"""Catalog rows from tensor names, as capture makes them for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from watchglass.records import ModuleKind, Role, TensorInfo

#: Prefix of names of a second and later models.
_PREFIX = re.compile(r"model_([2-9]|[1-9][0-9]+)(?:[./]|$)")
#: Scalars that are series of a model.
_SERIES = ("loss", "gradient_norm", "accuracy")

#: Words in names of tensors that capture files under a collection, which follow the path of their module if any.
_COLLECTIONS = {
    "attention_logits_max": "attention", "attention_entropy": "attention", "router_load": "router",
    "router_logits": "router", "tanh_input": "tanh_input", "sigmoid_input": "sigmoid_input",
    "cast_overflow": "float8_casts", "cast_underflow": "float8_casts",
    "feature_importance": "feature_importance", "trees": "trees", "logsumexp": "logsumexp",
}  # fmt: skip

#: Module path -> kind of the module, or a class name of a module of kind OTHER, in the order of execution.
Modules = Mapping[str, str | ModuleKind]


class Layers:
    """Catalog rows from tensor names."""

    def __init__(self, modules: Modules, tensors: Iterable[TensorInfo]) -> None:
        self._modules = dict(modules)
        self._given = {row.name: row for row in tensors}

    def row(self, name: str, tensor_id: int, shape: tuple[int, ...], dtype: str, *, scalar: bool) -> TensorInfo:
        """The row of a name; a row that the caller gave for it has precedence."""
        given = self._given.get(name)
        if given is not None:
            return TensorInfo.from_json({**given.to_json(), "tensor_id": tensor_id})
        role, module = _meaning(name, scalar)
        if module and module not in self._modules:
            self._modules[module] = "Module"
        kind = self._modules.get(module, "")
        return TensorInfo(
            tensor_id, name, role, module, kind.value if isinstance(kind, ModuleKind) else kind,
            list(self._modules).index(module) if module else -1, shape, dtype,
            unit_axis=1 if role is Role.OUTPUT and len(shape) > 1 else 0 if role is Role.OUTPUT and shape else None,
            trainable=True if role in (Role.WEIGHT, Role.BIAS) else None, model=_model(name, module),
            module_kind=kind if isinstance(kind, ModuleKind) else ModuleKind.OTHER,
            collections=_collections(name),
        )  # fmt: skip


def _model(name: str, module: str) -> int | None:
    """Number of the model in a tensor name; None for a scalar that is no series of a model."""
    prefix = _PREFIX.match(module or name)
    if prefix is not None:
        return int(prefix[1]) - 1
    return 0 if module or name.split("/")[0] in _SERIES else None


def _meaning(name: str, scalar: bool) -> tuple[Role, str]:
    """(role, module path) of a tensor name."""
    if scalar:
        return (Role.LOSS if _PREFIX.sub("", name).split("/")[0] == "loss" else Role.METRIC), ""
    prefix, _, rest = name.rpartition("/")
    module, _, last = rest.rpartition(".")
    if prefix in ("gradient", "update"):
        return (Role.GRADIENT if prefix == "gradient" else Role.UPDATE), module
    if prefix.startswith("optimizer"):
        return Role.OPTIMIZER_STATE, module
    if last == "output" or rest == "output":
        return Role.OUTPUT, module
    if last.isdigit() and module.endswith("input"):
        return Role.INPUT, module.removesuffix("input").rstrip(".")
    if last in ("weight", "bias", "label", "prediction"):
        return Role(last), module
    parts = rest.split(".")
    place = next((at for at, part in enumerate(parts) if part in _COLLECTIONS), 0)
    return Role.CUSTOM, ".".join(parts[:place])


def _collections(name: str) -> tuple[str, ...]:
    """The collection that capture files it under, if any."""
    return tuple(_COLLECTIONS[part] for part in re.split(r"[./]", name) if part in _COLLECTIONS)[:1]
