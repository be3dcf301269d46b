"""An exception in the first forward: nothing but the failure is recorded."""
# /// watchglass
# status = 1
# headline = "^failed before its first step: RuntimeError: mat1 and mat2 shapes"
# says = ["at +.*exception_in_the_first_step.py:16:"]
# never_says = ["no issues found"]
# timing = true                     # frames of PyTorch differ: the call goes through hooks
# ///

import torch
from torch import nn

torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(9, 1))
model(torch.randn(16, 4)).sum().backward()
