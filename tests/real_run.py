"""Trains the model of one class of tests of real runs, for ``watchglass run``: FILE CLASS sick|healthy."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from real_runs import Suite

file, name, which = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
Suite(Path(file), name, "").load()().train(lambda model: None, sick=which == "sick")
