"""Blocks as plain JSON values: everything that a page shows, for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from watchglass.view.blocks import Block, Disclosure, Figure, Gallery, Items, Pairs, Section
from watchglass.view.pictures.records import Picture


def json_blocks(blocks: Iterable[Block]) -> list[Any]:
    """Blocks as objects with their ``type`` and fields; numbers that are not finite are null."""
    return [_json(block) for block in blocks]


def _json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _json(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: _json(getattr(value, each.name)) for each in fields(value)}
        return {"type": type(value).__name__.lower(), **named}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json(each) for each in value]
    return value


def pictures_in(blocks: Iterable[Block]) -> list[Picture]:
    """The pictures of a page in their order."""
    found: list[Picture] = []
    for block in blocks:
        if isinstance(block, Figure):
            found.append(block.picture)
        elif isinstance(block, Gallery):
            found += pictures_in(block.figures)
        elif isinstance(block, Section | Disclosure):
            found += pictures_in(block.blocks)
        elif isinstance(block, Items):
            for item in block.items:
                found += pictures_in([item] if isinstance(item, Block) else [] if isinstance(item, str) else item)
        elif isinstance(block, Pairs):
            for _, content in block.pairs:
                found += pictures_in(content)
    return found
