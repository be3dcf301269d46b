"""A way through a grid with pits, by policy gradients or values."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "a way through a grid",
    "architecture": "policy or value network",
    "healthy": {
        "reinforce": "policy gradient with a running baseline, RMSprop; the loss has either sign",
        "critic": "actor and critic in one network, Adam, entropy bonus",
        "values": "Q-learning, replay, target network, Adam",
    },
    "faults": {
        "minus_forgotten": ("flipped_sign", "reinforce"),
        "softmax_over_the_episodes": ("loss_on_wrong_axis", "critic"),
        "rate_of_three_tenths": ("learning_rate_too_high", "critic"),
        "updates_of_the_target_only": ("step_missing", "values"),
    },
}
SIZE, LONGEST, EPISODES = 5, 20, 24
PITS = torch.tensor([[1, 1], [1, 3], [3, 0], [3, 2], [2, 4]])
GOAL = torch.tensor([4, 4])
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
zoo = Zoo(PROGRAM)


def observe(places):
    return F.one_hot(places[:, 0] * SIZE + places[:, 1], SIZE * SIZE).float()


def move(places, actions):
    """Places after the moves, rewards, and which episodes end."""
    places = (places + MOVES[actions]).clamp(0, SIZE - 1)
    fallen = (places[:, None] == PITS).all(dim=2).any(dim=1)
    arrived = (places == GOAL).all(dim=1)
    return places, arrived.float() - 0.2 * fallen.float() - 0.02, arrived


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIZE * SIZE, 48), nn.Tanh())
        self.actions, self.value = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, observations):
        hidden = self.body(observations)
        return self.actions(hidden), self.value(hidden).squeeze(-1)


network = Network()


def choose(outputs):
    probabilities = outputs.softmax(dim=0 if zoo.has("softmax_over_the_episodes") else -1)
    return torch.distributions.Categorical(probabilities)


def play():
    """What happened in some episodes: log-probabilities, entropies, values, discounted returns, which steps count."""
    places, running = torch.zeros(EPISODES, 2, dtype=torch.long), torch.ones(EPISODES, dtype=torch.bool)
    history = []
    for _ in range(LONGEST):
        outputs, values = network(observe(places))
        policy = choose(outputs)
        actions = policy.sample()
        places, rewards, ended = move(places, actions)
        history.append((policy.log_prob(actions), policy.entropy(), values, rewards * running, running))
        running = running & ~ended
        if not running.any():
            break
    following, returns = torch.zeros(EPISODES), []
    for *_, rewards, _ in reversed(history):
        following = rewards + 0.97 * following
        returns.insert(0, following)
    logs, entropies, values, _, counted = (torch.stack(part) for part in zip(*history, strict=True))
    return logs, entropies, values, torch.stack(returns), counted


if zoo.variant == "values":
    target = Network()
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    memory, places, age = [], torch.zeros(EPISODES, 2, dtype=torch.long), torch.zeros(EPISODES)
    for step in range(1000):
        with torch.no_grad():
            actions = network(observe(places))[0].argmax(dim=1)
        random = torch.rand(EPISODES) < max(0.1, 1 - step / 400)
        actions = torch.where(random, torch.randint(4, (EPISODES,)), actions)
        reached, rewards, ended = move(places, actions)
        memory = [*memory[-200:], (places, actions, rewards, reached, ended)]
        age = age + 1
        over = ended | (age > LONGEST)
        places, age = torch.where(over[:, None], 0, reached), torch.where(over, 0, age)
        before, actions, rewards, after, ended = memory[int(torch.randint(len(memory), ()))]
        with torch.no_grad():
            best = target(observe(after))[0].max(dim=1).values
        wanted = rewards + 0.97 * best * ~ended
        loss = F.smooth_l1_loss(network(observe(before))[0].gather(1, actions[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        if not zoo.has("updates_of_the_target_only"):
            optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(network.state_dict())
        zoo.trained(step, loss.item())
        if step % 200 == 199:
            print(f"step {step + 1}: loss {loss.item():.4f}")
else:
    if zoo.variant == "reinforce":
        optimizer = torch.optim.RMSprop(network.parameters(), lr=3e-3)
    else:
        rate = 0.3 if zoo.has("rate_of_three_tenths") else 5e-3
        optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    baseline = 0.0
    for step in range(300):
        logs, entropies, values, returns, counted = play()
        if zoo.variant == "reinforce":
            gain = logs * (returns - baseline)
            loss = gain[counted].mean() if zoo.has("minus_forgotten") else -gain[counted].mean()
            baseline = 0.9 * baseline + 0.1 * returns[counted].mean().item()
        else:
            advantage = returns - values.detach()
            loss = -(logs * advantage)[counted].mean() - 0.02 * entropies[counted].mean()
            loss = loss + 0.5 * F.mse_loss(values[counted], returns[counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        if step % 50 == 49:
            print(f"update {step + 1}: loss {loss.item():.4f}, mean return {returns[0].mean().item():.3f}")


@zoo.measured_by
def skill():
    """Share of episodes that arrive, above the share that a random walk brings there."""
    places, arrived, running = torch.zeros(200, 2, dtype=torch.long), torch.zeros(200), torch.ones(200).bool()
    for _ in range(LONGEST):
        with torch.no_grad():
            outputs = network(observe(places))[0]
        actions = outputs.argmax(dim=1) if zoo.variant == "values" else choose(outputs).sample()
        places, rewards, ended = move(places, actions)
        arrived = arrived + ((rewards > 0.5) & running).float()
        running = running & ~ended
    return above_chance(arrived.mean().item(), 0.1)
