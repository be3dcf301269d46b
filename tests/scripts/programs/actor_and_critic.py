"""Reinforcement learning with an actor and a critic whose returns grow: losses that rise and fall, and are below zero."""
# /// watchglass
# headline = "no issues found"
# steps = 100
# says = ["model_2\\b.*100 training steps"]
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
of_actor = torch.optim.Adam(actor.parameters(), 3e-3)
of_critic = torch.optim.Adam(critic.parameters(), 1e-2)
for episode in range(100):
    states, actions, rewards = [torch.randn(4)], [], []
    with torch.no_grad():
        for _ in range(10):
            actions.append(torch.distributions.Categorical(logits=actor(states[-1])).sample())
            states.append(0.9 * states[-1] + 0.3 * torch.randn(4) + actions[-1] - 0.5)
            rewards.append(episode / 10 - float(states[-1].abs().sum()))
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    seen, goal = torch.stack(states[:-1]), torch.tensor(returns)
    values = critic(seen).squeeze(1)
    chances = torch.distributions.Categorical(logits=actor(seen)).log_prob(torch.stack(actions))
    of_actor.zero_grad()
    (-(chances * (goal - values).detach()).mean()).backward()
    of_actor.step()
    of_critic.zero_grad()
    F.mse_loss(values, goal).backward()
    of_critic.step()
    print(f"episode {episode} return {returns[0]:.4f}")
