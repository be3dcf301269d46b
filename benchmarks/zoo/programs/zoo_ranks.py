"""What a program has beside its training if several ranks train it together.

It says so in its declaration, with `"ranks": 2`, and is started as under torchrun.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from zoo import Zoo


def zoo_of_rank(program: Mapping[str, Any]) -> Zoo:
    """The :class:`Zoo` of this process: figures are those of rank 0."""
    if os.environ.get("RANK", "0") != "0" and "--figures" in sys.argv:
        place = sys.argv.index("--figures")
        del sys.argv[place : place + 2]
    return Zoo(program)
