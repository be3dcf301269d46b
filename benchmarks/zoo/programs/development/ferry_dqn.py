"""When a ferry leaves: deep Q-learning on a small environment written by hand."""

import random
from collections import deque

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "a ferry that waits",
    "architecture": "deep Q-network",
    "healthy": {
        "plain": "Adam, Huber loss, target network, replay",
        "double": "RMSprop, double Q-learning, soft updates of the target network",
    },
    "faults": {
        "rate_of_1e_8": ("learning_rate_too_low", "plain"),
        "fares_in_cents": ("targets_scaled", "plain"),
        "values_detached": ("graph_detached", "double"),
    },
}
STEPS = 700
zoo = Zoo(PROGRAM)


class Ferry:
    """Passengers come; waiting costs, leaving earns by passenger less a fixed price, and takes five minutes."""

    def reset(self):
        self.waiting, self.minute, self.away = 0, 0, 0
        return self.seen()

    def seen(self):
        return [self.waiting / 10 - 0.5, self.away / 5, self.minute / 40 - 0.5]

    def step(self, leaves):
        self.minute += 1
        self.waiting = min(12, self.waiting + (random.random() < 0.6))
        self.away = max(0, self.away - 1)
        reward = -0.02 * self.waiting
        if leaves:
            if self.away:
                reward -= 0.5
            else:
                reward += 0.3 * self.waiting - 1.0
                self.waiting, self.away = 0, 5
        return self.seen(), reward, self.minute >= 40


def network():
    return nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))


online, target = network(), network()
target.load_state_dict(online.state_dict())
target.requires_grad_(False)
if zoo.variant == "plain":
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-8 if zoo.has("rate_of_1e_8") else 1e-3)
else:
    optimizer = torch.optim.RMSprop(online.parameters(), lr=5e-4)
criterion = nn.MSELoss() if zoo.has("fares_in_cents") else nn.SmoothL1Loss()
unit = 100.0 if zoo.has("fares_in_cents") else 1.0
memory = deque(maxlen=3000)
ferry = Ferry()


def act(state):
    with torch.no_grad():
        return int(online(torch.tensor(state)).argmax())


state, earned = ferry.reset(), 0.0
for step in range(STEPS):
    for _ in range(3):
        greedy = random.random() > max(0.1, 1 - step / 400)
        action = act(state) if greedy else int(random.random() < 0.2)
        following, reward, over = ferry.step(action)
        memory.append((state, action, unit * reward, following, float(over)))
        earned += reward
        state = ferry.reset() if over else following
    if len(memory) < 64:
        continue
    batch = random.sample(memory, 64)
    states, actions, rewards, nexts, overs = (torch.tensor(each) for each in zip(*batch))
    with torch.no_grad():
        if zoo.variant == "double":
            chosen = online(nexts).argmax(dim=1, keepdim=True)
            best = target(nexts).gather(1, chosen).squeeze(1)
        else:
            best = target(nexts).max(dim=1).values
        wanted = rewards + 0.95 * (1 - overs) * best
    features = online[:-1](states)
    values = online[-1](features.detach() if zoo.has("values_detached") else features)
    loss = criterion(values.gather(1, actions[:, None]).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    zoo.trained(step, loss.item())
    if zoo.variant == "double":
        for slow, fast in zip(target.parameters(), online.parameters()):
            slow.data.lerp_(fast.data, 0.02)
    elif step % 50 == 0:
        target.load_state_dict(online.state_dict())
    if step % 100 == 99:
        print(f"step {step + 1}: loss {loss.item():.4f}, earned {earned:.2f}")
        earned = 0.0


@zoo.measured_by
def skill():
    def earns(policy):
        whole = 0.0
        for _ in range(40):
            state, over = ferry.reset(), False
            while not over:
                state, reward, over = ferry.step(policy(state))
                whole += reward
        return whole / 40

    never, good = earns(lambda _: 0), earns(lambda seen: int(seen[0] > 0.05 and seen[1] == 0))
    return (earns(act) - never) / (good - never)
