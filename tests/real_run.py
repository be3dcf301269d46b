"""Trains the model of one class of tests of real runs, for ``watchglass run``: FILE CLASS sick|healthy."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from real_runs import Suite
from watchglass.session import current_hook

file, name, which = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
suite = Suite(Path(file), name, "").load()()
hook = current_hook()
if suite.profiler and hook is not None and hook.port.clock.end_phases is not None:
    # The launcher has attached it before this script began.
    phases = hook.port.clock.end_phases.__self__  # type: ignore[attr-defined]
    hook.port.phase_clock = hook.port.clock.now_ns = phases.now_ns = suite.clock.monotonic_ns
suite.train(lambda model: None, sick=which == "sick")
