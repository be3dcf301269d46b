"""Grids as PNG with a palette, one byte a cell; and images."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from watchglass.view.pictures.colours import NON_FINITE, scale
from watchglass.view.pictures.records import Grid

#: Colours of the scale, then that of cells that are not finite, then a transparent one for no cell.
_COLOURS, _BROKEN, _NONE = 254, 254, 255
#: Kinds of pixels in a PNG: red, green and blue, or an index.
_TRUE_COLOUR, _PALETTE = 2, 3
#: Most columns of pixels.
_MOST_COLUMNS = 1250


def grid_png(grid: Grid, low: float, high: float) -> bytes:
    """The cells between two ends of the horizontal axis; a column reaches half way to its neighbours."""
    columns = grid.columns
    # Two for each of the closest columns: they must not all be equally wide, and of the first and last there is half.
    closest = float(np.diff(columns).min()) if len(columns) > 1 else high - low
    width = int(np.clip(np.ceil(2 * (high - low) / max(closest, 1e-12)), 1, _MOST_COLUMNS))
    centres = low + (np.arange(width) + 0.5) * (high - low) / width
    edges = (columns[1:] + columns[:-1]) / 2
    nearest = np.searchsorted(edges, centres, side="right")
    return _palette_png(_indices(grid)[:, nearest])


def _indices(grid: Grid) -> NDArray[np.uint8]:
    """The index of each cell's colour, uint8[rows, columns]."""
    reach = grid.high - grid.low
    places = (grid.cells - grid.low) / (reach if reach > 0 else 1.0)
    indices: NDArray[np.uint8] = np.rint(np.nan_to_num(np.clip(places, 0.0, 1.0)) * (_COLOURS - 1)).astype(np.uint8)
    indices[~np.isfinite(grid.cells)] = _NONE
    indices[grid.broken] = _BROKEN
    return indices


def image_png(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels uint8[height, width, 3] as they are."""
    return _png(pixels.reshape(len(pixels), -1), pixels.shape[1], _TRUE_COLOUR)


def _palette_png(indices: NDArray[np.uint8]) -> bytes:
    """Indices of colours as an image."""
    palette = scale(np.linspace(0.0, 1.0, _COLOURS)).tobytes() + bytes.fromhex(NON_FINITE[1:]) + bytes(3)
    opaque = bytes([255] * _NONE + [0])
    return _png(indices, indices.shape[1], _PALETTE, (b"PLTE", palette), (b"tRNS", opaque))


def _png(content: NDArray[np.uint8], width: int, colours: int, *parts: tuple[bytes, bytes]) -> bytes:
    """Bytes of rows as an image. Source: PNG Specification, third edition (W3C)."""
    rows = np.zeros((len(content), content.shape[1] + 1), np.uint8)  # before each row the number of its filter: none
    rows[:, 1:] = content
    head = struct.pack(">IIBBBBB", width, len(content), 8, colours, 0, 0, 0)
    chunks = (b"IHDR", head), *parts, (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
