"""Statistics of attention: the largest logit and the entropy of each head."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from watchglass.capture.module_places import Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall
from watchglass.capture.pytorch.graph.nodes import behind, operation_of
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.public_calls import ATTENTION, MULTI_HEAD_ATTENTION, SOFTMAX
from watchglass.capture.pytorch.tensors.attention_rows import rows_of_attention, rows_of_softmax, some_sequences
from watchglass.capture.pytorch.tensors.functional_activations import REARRANGED
from watchglass.capture.pytorch.tensors.module_entry import is_open
from watchglass.capture.pytorch.tensors.running_modules import RunningModules
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords
from watchglass.records import Role, facts

_TAG = "attention"
#: Operations that may lie between a batched product of matrices and the softmax.
_BETWEEN = (
    *REARRANGED, "copy", "expand", "slice", "mul", "div", "add", "sub", "masked_fill", "where", "tanh",
)  # fmt: skip
_NODES = 24
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

_Given = dict[str, Any]


class Attention:
    """Saves ``attn.attention_logits_max.0`` and ``attn.attention_entropy.0``: one value per query, of head 0.

    Computed again from queries and keys, of a few rows of a few sequences and of the longest query, see
    :func:`~watchglass.capture.pytorch.tensors.attention_rows.rows_of_attention`. Observed are
    ``torch.nn.functional.scaled_dot_product_attention``, and ``multi_head_attention_forward`` where it computes
    attention itself because its weights are requested (``nn.MultiheadAttention`` in its default setting). They are
    wrapped from the first step on at which a collection asks, until the hook detaches. Attention that is written out is
    observed where gradients are on: a softmax over the last of at least three axes, whose input comes of a batched
    product of matrices. The softmax is wrapped in captured forwards only. Compiled code hands over queries and keys of
    ``scaled_dot_product_attention``. Not observed: attention that other libraries compute, that is written out in
    compiled code, or that runs in the fast path of evaluation.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._port = port
        self._saving = saving
        self._call: ForwardCall | None = None
        self._running = RunningModules()
        self._refused: set[str] = set()
        self._leave: list[Callable[[], None]] = []
        self._leave_softmax: Callable[[], None] | None = None
        # Arguments of attention while it is computed again for its rows; None otherwise.
        self._again: list[_Given] | None = None
        self._guarded_attended = port.guarded(self._attended)
        events.add(self)
        events.module_listeners.append((self._wants, self._running.returned))
        port.detach_with(self._detach)

    def _wants(self) -> bool:
        return self._port.plan.wants_tag(_TAG)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        self._running.clear()
        self._call = call if self._wants() else None
        if self._call is not None and not self._leave:
            self._leave.append(ATTENTION.listen(self._port.guard, after=self._observed))
            multi_head = self._port.guarded(self._multi_head)
            self._leave.append(MULTI_HEAD_ATTENTION.listen(self._port.guard, after=multi_head))
        if self._call is not None and self._leave_softmax is None:
            self._leave_softmax = SOFTMAX.listen(self._port.guard, after=self._port.guarded(self._softmax))

    def forward_ended(self, call: ForwardCall) -> None:
        """It has ended."""
        self._call = None
        self._running.clear()
        self._unwrap_softmax()

    def _unwrap_softmax(self) -> None:
        leave, self._leave_softmax = self._leave_softmax, None
        if leave is not None:
            leave()

    def module_entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        if self._call is not None:
            self._running.entered(entry)

    def _detach(self) -> None:
        self._call = None
        self._unwrap_softmax()
        while self._leave:
            self._leave.pop()()

    # -- attention ------------------------------------------------------------------------------------------------

    def _observed(self, arguments: tuple[Any, ...], kwargs: _Given, result: Any) -> None:
        if self._again is not None:
            self._again.append(named_arguments(arguments, kwargs))
        elif self._call is not None:
            self._guarded_attended(named_arguments(arguments, kwargs))

    def attention_compiled(self, given: _Given) -> None:
        """Compiled code computes attention."""
        if self._call is not None:
            self._attended(given)

    def _attended(self, given: _Given) -> None:
        where = self._where()
        if where is not None:
            self._carefully(where, functools.partial(self._save, *where, given))

    def _softmax(self, arguments: tuple[Any, ...], kwargs: _Given, result: Any) -> None:
        """A softmax has returned."""
        # What multi-head attention calls is no other attention.
        other = self._call is not None and not MULTI_HEAD_ATTENTION.nest.inside
        logits = logits_of(arguments, kwargs) if other else None
        where = self._where() if logits is not None else None
        if logits is not None and where is not None:
            self._carefully(where, functools.partial(self._save_softmax, *where, logits.detach(), result.detach()))

    def _multi_head(self, arguments: tuple[Any, ...], kwargs: _Given, result: Any) -> None:
        where = self._where() if self._call is not None else None
        if where is None:
            return
        given = inspect.signature(F.multi_head_attention_forward).bind(*arguments, **kwargs).arguments
        # Without weights it calls scaled_dot_product_attention, which was observed.
        if given.get("need_weights", True) and given.get("static_k") is None:
            self._carefully(where, functools.partial(self._repeat, *where, given))

    def _repeat(self, records: CapturedRecords, place: Place, given: _Given) -> None:
        self._again = []
        try:
            F.multi_head_attention_forward(**some_sequences(given))
            observed = self._again
        finally:
            self._again = None
        for one in observed:
            self._save(records, place, one)

    def _where(self) -> tuple[CapturedRecords, Place] | None:
        call = self._call
        if call is None or not is_open(self._port, call.step):
            # The forward was left by an exception; later calls belong to no captured forward.
            self._call = None
            return None
        place = self._running.innermost
        return None if place is None or place.path in self._refused else (call.forward.records, place)

    def _carefully(self, where: tuple[CapturedRecords, Place], look: Callable[[], None]) -> None:
        """Attention has more forms than are known here: one that cannot be read is reported once and left out."""
        records, place = where
        try:
            with torch.no_grad():
                look()
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            self._refused.add(place.path)
            reason = f"{type(error).__name__}: {error}"[:500]
            records.add_fact(facts.AttentionUnreadable(reason), place.path)

    def _save(self, records: CapturedRecords, place: Place, given: _Given) -> None:
        query, key = given["query"], given["key"]
        if query.is_nested or hasattr(query, "to_local"):
            raise ValueError("queries are nested or sharded")
        with torch.autocast(query.device.type, enabled=False):
            largest, entropy, whole = rows_of_attention(
                query.detach(),
                key.detach(),
                given.get("attn_mask"),
                causal=bool(given.get("is_causal")),
                scale=given.get("scale"),
            )
        self._save_rows(records, place, largest, entropy, whole)

    def _save_softmax(self, records: CapturedRecords, place: Place, logits: Tensor, shares: Tensor) -> None:
        self._save_rows(records, place, *rows_of_softmax(logits, shares))

    def _save_rows(
        self, records: CapturedRecords, place: Place, largest: Tensor, entropy: Tensor, whole: bool
    ) -> None:  # fmt: skip
        items = [
            Item(values, place.named(what, str(head)), place, (_TAG,), sampled=not whole)
            for what, by_head in (("attention_logits_max", largest), ("attention_entropy", entropy))
            for head, values in enumerate(by_head)
        ]
        self._saving.save_all(records, Role.CUSTOM, items)


def logits_of(arguments: tuple[Any, ...], kwargs: _Given) -> Tensor | None:
    """What a call of ``softmax`` is given, if that is attention: a product of matrices, scaled and masked since."""
    given = {**dict(zip(("input", "dim"), arguments, strict=False)), **kwargs}
    logits, axis = given.get("input"), given.get("dim")
    if not isinstance(logits, Tensor) or not 3 <= logits.dim() <= 4 or axis not in (-1, logits.dim() - 1):
        return None
    made_of = behind(logits.grad_fn, logits.output_nr, _BETWEEN, _NODES)
    return logits if any(operation_of(each).name == "bmm" for each in made_of) else None


def named_arguments(arguments: tuple[Any, ...], kwargs: _Given) -> _Given:
    """Arguments of ``torch.nn.functional.scaled_dot_product_attention`` by name."""
    return {**dict(zip(_NAMES, arguments, strict=False)), **kwargs}
