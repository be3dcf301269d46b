"""Cells of a grid as pixels: each column is there, as wide as the steps around it."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.view.pictures.png import grid_png
from watchglass.view.pictures.records import Axis, Grid


def pixels(image: bytes) -> NDArray[np.uint8]:
    """The indices of the colours of a PNG with a palette, uint8[rows, columns]."""
    place, parts = 8, dict[bytes, bytes]()
    while place < len(image):
        (length,) = struct.unpack_from(">I", image, place)
        parts[image[place + 4 : place + 8]] = image[place + 8 : place + 8 + length]
        place += 12 + length
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()  # no filter
    return rows[:, 1:]


def grid(columns: list[float], cells: list[list[float]]) -> Grid:
    values = np.array(cells, np.float32)
    return Grid(
        "toy", Axis("step"), tuple("ab"), np.array(columns), values, 0.0, 1.0, "share", np.isinf(values)
    )  # fmt: skip


@pytest.mark.parametrize("steps", [3, 40, 2000])
def test_the_first_and_the_last_column_are_drawn(steps: int) -> None:
    cells = np.full((2, steps), 0.5)
    cells[:, 0], cells[:, -1] = 0.0, 1.0
    drawn = pixels(grid_png(grid(list(range(steps)), cells.tolist()), -0.5, steps - 0.5))
    assert (drawn[:, 0] == 0).all()
    assert (drawn[:, -1] == 253).all()
    assert (drawn[:, drawn.shape[1] // 2] == 126).all()


def test_a_column_reaches_half_way_to_its_neighbours() -> None:
    drawn = pixels(grid_png(grid([0, 10, 40], [[0.0, 0.5, 1.0], [np.nan, np.inf, 1.0]]), 0.0, 40.0))
    parts = [float(np.mean(drawn[0] == index)) for index in (0, 126, 253)]
    assert parts == pytest.approx([5 / 40, 20 / 40, 15 / 40], abs=2 / drawn.shape[1])
    assert set(drawn[1].tolist()) == {255, 254, 253}  # none, not finite, the brightest
