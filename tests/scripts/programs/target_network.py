"""Deep Q-learning: a target network is asked under ``no_grad`` ahead of each update, and copied now and then."""
# /// watchglass
# headline = "no issues found"
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
online = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(online)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
states, rewards = torch.randn(512, 4), torch.rand(512)

for step in range(80):
    rows = torch.randint(511, (32,))
    actions = torch.randint(2, (32, 1))
    with torch.no_grad():
        wanted = rewards[rows] + 0.5 * target(states[rows + 1]).max(1).values
    loss = F.smooth_l1_loss(online(states[rows]).gather(1, actions)[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
    if step % 20 == 19:
        target.load_state_dict(online.state_dict())
