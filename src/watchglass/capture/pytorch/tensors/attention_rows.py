"""Attention computed from queries and keys: the largest logit and the entropy of each row, by head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

#: Sequences of a batch that are read.
SEQUENCES = 4


def spread(length: int, most: int) -> slice:
    """A slice of at most ``most`` of ``length`` elements, evenly spaced; nothing is copied."""
    stride = -(-length // max(1, min(length, most))) if length else 1
    return slice((stride - 1) // 2, None, stride)


def rows_of_attention(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, causal: bool = False, scale: float | None = None,
    most_logits: int = 1 << 18,
) -> tuple[Tensor, Tensor, bool]:  # fmt: skip
    """Largest logits, entropies in nats, both of shape ``(heads, rows)``, and whether that is of all rows.

    Where some rows are left out, the largest logits are also those of the query with the largest norm of each sequence
    and head, behind the others. A logit is at most the product of the norms of its query and key.

    As ``torch.nn.functional.scaled_dot_product_attention`` computes them, in float32 at least and without dropout. A
    row is one query; a row that is masked altogether has no entropy and counts as the mean of its head.

    Args:
        query: Of shape ``(batch, heads, length, size)``; without a second axis there is one head, without a first one
            sequence.
        key: The same; of heads there may be fewer, each for as many heads of the query.
        mask: True where attention may go, or what is added to the logits.
        causal: Whether no query sees a key beyond its own position.
        scale: Factor of the logits; ``1 / sqrt(size)`` when not given.
        most_logits: Logits that are computed in all; one row at least of each sequence.

    Raises:
        ValueError: More than four axes, or heads that do not fit.
    """
    if query.dim() > 4 or (query.shape[-3:-2].numel() % max(1, key.shape[-3:-2].numel()) and query.dim() == 4):
        raise ValueError(f"queries {tuple(query.shape)} and keys {tuple(key.shape)} do not fit")
    if mask is not None:
        mask = _four(mask.expand(*query.shape[:-1], key.shape[-2]))
    query, key = _four(query), _four(key)
    batch, heads, length, size = query.shape
    chosen = spread(batch, SEQUENCES)
    query, key = query[chosen], key[chosen]
    mask = None if mask is None else mask[chosen]
    scale = 1 / math.sqrt(size) if scale is None else scale
    places = spread(length, most_logits // max(1, query.shape[0] * heads * key.shape[2]))
    at = torch.arange(length, device=query.device)[places].expand(*query.shape[:2], -1)
    rows = at.shape[2]
    if rows < length:
        longest = torch.linalg.vector_norm(query, dim=-1, dtype=_kind(query)).argmax(-1, keepdim=True)
        at = torch.cat((at, longest), 2)
    at = at[..., None]
    logits = _logits(query.gather(2, at.expand(-1, -1, -1, size)), key) * scale
    if mask is not None:
        mask = mask.gather(2, at.expand(-1, -1, -1, mask.shape[3]))
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else logits + mask
    if causal:
        logits = logits.masked_fill(torch.arange(logits.shape[3], device=logits.device) > at, -math.inf)
    largest, entropy = _of_rows(logits, logits.softmax(-1))
    whole = query.shape[0] == batch and rows == length
    return _by_head(largest[:, :, :rows], largest[:, :, rows:]), _by_head(entropy[:, :, :rows]), whole


def rows_of_softmax(logits: Tensor, shares: Tensor, *, most_logits: int = 1 << 18) -> tuple[Tensor, Tensor, bool]:
    """The same of logits that were computed already, masks included, and of their softmax over the last axis.

    Args:
        logits: Of shape ``(batch, heads, length, keys)``; with three axes there is one head.
        shares: Their softmax, of the same shape.
        most_logits: As above.
    """
    logits, shares = _four(logits), _four(shares)
    batch, heads, length, keys = logits.shape
    chosen = spread(batch, SEQUENCES)
    logits, shares = logits[chosen], shares[chosen]
    places = spread(length, most_logits // max(1, logits.shape[0] * heads * keys))
    logits, shares = logits[:, :, places].float(), shares[:, :, places].float()
    largest, entropy = _of_rows(logits, shares)
    return _by_head(largest), _by_head(entropy), logits.shape[0] == batch and logits.shape[2] == length


def _of_rows(logits: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    entropy = torch.special.entr(shares).sum(-1)
    largest = logits.amax(-1)
    unseen = largest == -math.inf
    return _filled(largest, unseen), _filled(entropy, unseen)


def _kind(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _logits(query: Tensor, key: Tensor) -> Tensor:
    kind = _kind(query)
    count, heads, rows, size = query.shape
    groups = key.shape[1]
    grouped = query.to(kind).reshape(count, groups, -1, size)
    return (grouped @ key.to(kind).transpose(-1, -2)).reshape(count, heads, rows, -1)


def _filled(values: Tensor, unseen: Tensor) -> Tensor:
    seen = (~unseen).sum((0, 2), keepdim=True).clamp(min=1)
    mean = values.masked_fill(unseen, 0).sum((0, 2), keepdim=True) / seen
    return torch.where(unseen, mean, values)


def _by_head(*parts: Tensor) -> Tensor:
    return torch.cat([values.transpose(0, 1).flatten(1) for values in parts], 1)


def _four(tensor: Tensor) -> Tensor:
    """With axes for the batch and for heads, if need be of length one."""
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape)) if tensor.dim() < 4 else tensor


def some_sequences(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``torch.nn.functional.multi_head_attention_forward`` for a few sequences of its batch.

    Also without dropout and without weights to be returned.
    """
    query = given["query"]
    changed = {**given, "need_weights": False, "training": False, "is_causal": False}
    if query.dim() == 3:
        batch = query.shape[1]
        chosen = spread(batch, SEQUENCES)
        parts: dict[int, Tensor] = {}
        for name in ("query", "key", "value"):
            # One tensor given for all three stays one: it is projected at once.
            changed[name] = parts.setdefault(id(given[name]), given[name][:, chosen])
        if given.get("key_padding_mask") is not None:
            changed["key_padding_mask"] = given["key_padding_mask"][chosen]
        mask = given.get("attn_mask")
        if mask is not None and mask.dim() == 3:
            changed["attn_mask"] = mask.unflatten(0, (batch, -1))[chosen].flatten(0, 1)
    return changed
