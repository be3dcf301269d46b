"""A script that trains nothing."""
# /// watchglass
# headline = "^no data: no training step was recorded: torch was imported, and no backward was observed"
# never_says = ["no issues found"]
# ///

import torch

print(torch.arange(4).sum().item())
