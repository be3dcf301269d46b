"""Statistics of attention: the largest logit and the entropy of each head."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from watchglass.capture.hook import Hook
from watchglass.capture.module_places import Place
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall
from watchglass.capture.pytorch.models import Models
from watchglass.capture.pytorch.public_calls import PublicCall
from watchglass.capture.pytorch.saving import Item, Saving
from watchglass.capture.pytorch.tensors.attention_rows import rows_of_attention, some_sequences
from watchglass.capture.pytorch.tensors.module_entry import is_open
from watchglass.record import CapturedRecords
from watchglass.records import Role

_TAG = "attention"
_ATTENTION = PublicCall(lambda: ((F, "scaled_dot_product_attention"),))
_MULTI_HEAD = PublicCall(lambda: ((F, "multi_head_attention_forward"),))
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

_Given = dict[str, Any]


class Attention:
    """Saves ``attn.attention_logits_max.0`` and ``attn.attention_entropy.0``: one value per query, of head 0.

    Computed again from queries and keys, of a few rows of a few sequences, see
    :func:`~watchglass.capture.pytorch.tensors.attention_rows.rows_of_attention`. Observed are
    ``torch.nn.functional.scaled_dot_product_attention``, and ``multi_head_attention_forward`` where it computes
    attention itself because its weights are asked for (``nn.MultiheadAttention`` in its default setting). They are
    wrapped from the first step on at which a collection asks, until the hook detaches. Not observed: attention that is
    written out, that other libraries compute, or that runs in compiled code or in the fast path of evaluation.
    """

    def __init__(self, hook: Hook, models: Models, saving: Saving, events: Events) -> None:
        self._hook = hook
        self._saving = saving
        self._call: ForwardCall | None = None
        self._stack: list[tuple[nn.Module, Place]] = []
        self._refused: set[str] = set()
        self._leave: list[Callable[[], None]] = []
        # Arguments of attention while it is computed again for its rows; None otherwise.
        self._again: list[_Given] | None = None
        self._guarded_attended = hook.guarded(self._attended)
        events.add(self)
        events.module_listeners.append((self._wants, self._called))
        hook.detach_with(self._detach)

    def _wants(self) -> bool:
        return self._hook.plan.wants_tag(_TAG)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        self._stack.clear()
        self._call = call if self._wants() else None
        if self._call is not None and not self._leave:
            self._leave.append(_ATTENTION.listen(self._hook.guard, after=self._observed))
            self._leave.append(_MULTI_HEAD.listen(self._hook.guard, after=self._hook.guarded(self._multi_head)))

    def forward_ended(self, call: ForwardCall) -> None:
        """It has ended."""
        self._call = None
        self._stack.clear()

    def module_entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        if self._call is not None:
            self._stack.append((entry.module, entry.place))

    def _called(self, call: ModuleCall) -> None:
        # Calls above it were left by an exception that the script caught.
        depth = next((at for at in range(len(self._stack) - 1, -1, -1) if self._stack[at][0] is call.module), None)
        if depth is not None:
            del self._stack[depth:]

    def _detach(self) -> None:
        self._call = None
        while self._leave:
            self._leave.pop()()

    # -- attention ------------------------------------------------------------------------------------------------

    def _observed(self, arguments: tuple[Any, ...], kwargs: _Given, result: Any) -> None:
        if self._again is not None:
            self._again.append(_named(arguments, kwargs))
        elif self._call is not None:
            self._guarded_attended(_named(arguments, kwargs))

    def _attended(self, given: _Given) -> None:
        where = self._where()
        if where is not None:
            self._carefully(where, functools.partial(self._save, *where, given))

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
        if call is None or not is_open(self._hook, call.step):
            # The forward was left by an exception; later calls belong to no captured forward.
            self._call = None
            return None
        place = self._stack[-1][1] if self._stack else None
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
            records.facts.append(("attention_unreadable", place.path, {"reason": reason}))

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
        items = [
            Item(values, place.named(what, str(head)), place, (_TAG,), sampled=not whole)
            for what, by_head in (("attention_logits_max", largest), ("attention_entropy", entropy))
            for head, values in enumerate(by_head)
        ]
        self._saving.save_all(records, Role.CUSTOM, items)


def _named(arguments: tuple[Any, ...], kwargs: _Given) -> _Given:
    return {**dict(zip(_NAMES, arguments, strict=False)), **kwargs}
