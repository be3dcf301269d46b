"""Colours that colour-blind readers can distinguish too, on white and on near-black."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: After Okabe and Ito, Color Universal Design (2008).
COLOURS = {"train": "#3A8FD0", "eval": "#E69F00", "error": "#D55E00", "warning": "#CC79A7", "info": "#56B4E9"}
#: Colours of runs, after Okabe and Ito, too: readable on white and on near-black, and one blue only.
RUN_COLOURS = ("#3A8FD0", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#7F8790", "#8C7A00", "#8E6FC1")
#: Colour of cells that hold a value which is not finite; not in the scale of the others.
NON_FINITE = "#FF2D95"
#: Colours between dark and bright, equally spaced: viridis of matplotlib, sampled.
_SCALE = np.array(
    [(0x44, 0x01, 0x54), (0x48, 0x28, 0x78), (0x3E, 0x4A, 0x89), (0x31, 0x68, 0x8E), (0x26, 0x82, 0x8E),
     (0x1F, 0x9E, 0x89), (0x35, 0xB7, 0x79), (0x6E, 0xCE, 0x58), (0xB5, 0xDE, 0x2B), (0xFD, 0xE7, 0x25)],
    dtype=np.float64,
)  # fmt: skip


def scale(places: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours of places between 0, dark, and 1, bright: uint8[n, 3]."""
    at = np.clip(places, 0.0, 1.0) * (len(_SCALE) - 1)
    colours = [np.interp(at, range(len(_SCALE)), _SCALE[:, channel]) for channel in range(3)]
    return np.rint(np.stack(colours, axis=1)).astype(np.uint8)


def shades(number: int) -> list[str]:
    """``number`` colours, from dark to bright."""
    return ["#" + bytes(row).hex().upper() for row in scale(np.linspace(0.1, 0.9, number))]
