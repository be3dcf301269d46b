"""REINFORCE on a chain of states: the loss is around zero, and grows with the returns while the policy gets better."""
# /// watchglass
# headline = "^no issues found"
# never_says = ["diverged", "rises again", "does not fall"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

policy = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
baseline = 0.0
for episode in range(250):
    place, logs, rewards = 0.0, [], []
    for _ in range(10):
        choice = torch.distributions.Categorical(logits=policy(torch.tensor([place / 10])))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        place += 1.0 if action.item() else -1.0
        rewards.append(place)
    total = sum(rewards)
    loss = -torch.stack(logs).sum() * (total - baseline) / 10
    baseline = 0.9 * baseline + 0.1 * total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 25 == 0:
        print(f"episode {episode} reward {total:.6g} loss {loss.item():.6g}")
