"""Routers of mixtures of experts: their logits, and the spread of tokens over the experts.

A module counts as a router under three conditions. Its name or the name of its class contains a word such as *router*
or *gate* (``mlp.gate``, ``MixtralTopKRouter``). The module or its parent holds the number of experts, or its parent has
a single list of modules. It returns a tensor of floats whose last axis has that length. So the ``gate_proj`` of a gated
feed-forward is no router. In a module with experts (by name or class), any module that returns such a tensor before an
expert runs is the router, independent of its name.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from watchglass.capture.module_places import Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.device.readback import on_host
from watchglass.capture.pytorch.events import Events, ModuleCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import type_name
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.saving.saving import Item, Saving
from watchglass.records import UNITS, Role, UnitKind

_TAG = "router"
_WORDS = frozenset({"router", "routing", "gate", "gates", "gating", "switch", "selector", "dispatcher"})
#: Attributes of models with the number of experts, and with the number of experts for each token.
_COUNTS = (
    "num_experts", "num_local_experts", "n_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts",
)  # fmt: skip
_CHOSEN = (
    "top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "num_selected_experts", "n_activated_experts",
    "moe_top_k", "k",
)  # fmt: skip


class _Router(NamedTuple):
    """What is known of a router."""

    experts: int  #: How many experts it has.
    chosen: int | None  #: How many it chooses for each token; None where that is unknown.
    #: The experts, of a module that is a router only if it runs before them; else none.
    family: tuple[nn.Module, ...] = ()


class Routers:
    """Saves ``mlp.gate.router_logits`` and ``mlp.gate.router_load``, the share of choices that went to each expert.

    The load has one element for each expert, which sum to 1. Choices are those that the router returns as whole
    numbers; where it returns none, the largest logits, as many as it or its parent holds. Where that is unknown, all
    experts may be mixed, so the load is the mean of the softmax. With the load goes which experts are unused.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._models = models
        self._saving = saving
        self._known: weakref.WeakKeyDictionary[nn.Module, _Router | None] = weakref.WeakKeyDictionary()
        self._called_before: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        events.module_listeners.append((functools.partial(port.plan.wants_tag, _TAG), self._called))

    def _called(self, call: ModuleCall) -> None:
        if call.module not in self._known:
            self._read_models()
        router = self._known.setdefault(call.module, None)
        first = call.module not in self._called_before
        self._called_before.add(call.module)
        if router is None:
            return
        if router.family and first:
            if any(expert in self._called_before for expert in router.family):
                self._known[call.module] = None  # the head of a model with as many classes as experts
                return
            self._known[call.module] = router._replace(family=())
        tensors = [tensor for _, tensor in tensors_in(call.output)]
        logits = next((t for t in tensors if t.is_floating_point() and _is_of(t, router.experts)), None)
        if logits is None or not logits.numel():
            return
        name, place = call.place.path, call.place
        choices = _choices(tensors, logits, router)
        load = _mean_share(logits) if choices is None else _load(choices, router.experts)
        items = [
            Item(logits, f"{name}.router_logits", place, (_TAG,), unit_axis=logits.dim() - 1),
            Item(load, f"{name}.router_load", place, (_TAG,), unit_axis=0),
        ]
        self._saving.save(call.records, Role.CUSTOM, items[0])
        load_id = self._saving.save(call.records, Role.CUSTOM, items[1])
        if load_id is not None:
            unused = load < 0.01 / router.experts
            bits = on_host(unused)
            call.records.rows[UNITS].append((load_id, UnitKind.UNUSED, bits))

    def _read_models(self) -> None:
        for tree in self._models:
            modules = tree.modules()
            by_path = {place.path: module for module, place in modules}
            # By path of a parent: read once, not once for each of its modules.
            mixtures: dict[str, _Mixture] = {}
            for module, place in modules:
                if module in self._known:
                    continue
                path = place.path.rpartition(".")[0]
                parent = by_path.get(path)
                if parent is not None and path not in mixtures:
                    mixtures[path] = _mixture(parent)
                self._known[module] = None if parent is None else _router(module, place, parent, mixtures[path])


class _Mixture(NamedTuple):
    """The experts among the modules in a module, and whether a module next to them is a router by its name."""

    experts: tuple[nn.Module, ...]
    has_router: bool


def _mixture(parent: nn.Module) -> _Mixture:
    return _Mixture(
        _experts(parent), any(_is_router(name, type_name(child)) for name, child in parent.named_children())
    )


def _router(module: nn.Module, place: Place, parent: nn.Module, mixture: _Mixture) -> _Router | None:
    named = _is_router(place.path.rpartition(".")[2], place.module_type)
    family = mixture.experts
    if not named and (not family or mixture.has_router or module is parent or module in family):
        return None
    count = _number((module, parent), _COUNTS) if named else None
    if count is None and family:
        count = len(family)
    if count is None:
        experts = getattr(parent, "experts", None)
        if experts is None:
            lists = [child for child in parent.children() if isinstance(child, nn.ModuleList)]
            experts = lists[0] if len(lists) == 1 else None
        count = len(experts) if isinstance(experts, nn.ModuleList) else _number((experts,), _COUNTS)
    if count is None or count < 2:
        return None
    chosen = _number((module, parent), _CHOSEN)
    return _Router(count, None if chosen is None else min(chosen, count), () if named else family)


def _experts(parent: nn.Module) -> tuple[nn.Module, ...]:
    """The modules in a module, or in one of its lists, that are experts by their name or class; none if there are not.

    Those that all tokens share, and their gates, are no part of the mixture.
    """
    for name, child in parent.named_children():
        inside = tuple(child.children()) if isinstance(child, (nn.ModuleList, nn.ModuleDict)) else ()
        if len(inside) > 1 and (_is_expert(name) or all(_is_expert(type(each).__name__) for each in inside)):
            return inside
    named = [child for name, child in parent.named_children() if _is_expert(name)]
    alike = len(named) > 1 and len({type(child) for child in named}) == 1
    return tuple(named) if alike else ()


def _is_router(name: str, module_type: str) -> bool:
    return bool(_WORDS & {*_words(name), *_words(module_type)})


def _is_expert(name: str) -> bool:
    words = set(_words(name))
    return bool(words & {"expert", "experts"}) and not words & {"shared", *_WORDS}


def _words(name: str) -> list[str]:
    """The words of a name in snake or camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def _number(holders: Iterable[object], names: Iterable[str]) -> int | None:
    names = tuple(names)
    for holder in holders:
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _is_of(tensor: Tensor, experts: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[-1] == experts


def _choices(tensors: Iterable[Tensor], logits: Tensor, router: _Router) -> Tensor | None:
    """Numbers of the experts that were chosen, any shape; None where it is unknown how many are."""
    for tensor in tensors:
        whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
        if whole and tensor.dim() and tensor.shape[-1] == (router.chosen or 1) < router.experts:
            return tensor
    return None if router.chosen is None else logits.detach().topk(router.chosen, dim=-1).indices


def _mean_share(logits: Tensor) -> Tensor:
    """Mean of the softmax over all tokens, by expert; of shares that the router has normalised itself their mean."""
    values = logits.detach().float().reshape(-1, logits.shape[-1])
    # Decided on the device, which need not wait.
    normalized = (values.min() >= 0) & ((values.sum(-1) - 1).abs().max() < 1e-3)
    return torch.where(normalized, values, values.softmax(-1)).mean(0)


def _load(choices: Tensor, experts: int) -> Tensor:
    """Share of choices by expert. Reads no numbers on the host, because that would wait for the device."""
    choices = choices.reshape(-1)
    # Tokens that were dropped may bear a number of no expert.
    real = (choices >= 0) & (choices < experts)
    counts = torch.zeros(experts, device=choices.device)
    counts.scatter_add_(0, choices.clamp(0, experts - 1).long(), real.float())
    return counts / counts.sum().clamp(min=1)
