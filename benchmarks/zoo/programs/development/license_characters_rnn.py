"""The next character of English text (licences of installed packages) by recurrent networks."""

from importlib import metadata

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "characters of licences",
    "architecture": "recurrent network",
    "healthy": {
        "lstm": "Adam, gradient norm clipped at 1",
        "gru": "AdamW, no clipping, short sequences",
        "carried_state": "LSTM, state carried over and detached, SGD with momentum",
    },
    "faults": {
        "long_without_clipping": ("recurrent_without_clipping", "lstm"),
        "scaled_recurrence_without_clipping": ("recurrent_without_clipping", "carried_state"),
        "rate_of_1e_8": ("learning_rate_too_low", "gru"),
        "targets_of_another_text": ("labels_shuffled", "gru"),
        "summed_over_characters": ("loss_summed", "carried_state"),
        "cosine_to_zero_in_twenty_steps": ("scheduler_per_batch", "lstm"),
    },
}
STEPS = 300
zoo = Zoo(PROGRAM)


def text():
    found = []
    for distribution in sorted(metadata.distributions(), key=lambda each: each.metadata["Name"] or ""):
        for path in distribution.files or ():
            if "LICENSE" in path.name.upper():
                try:
                    found.append(path.read_text())
                except (OSError, UnicodeDecodeError):
                    continue
        if sum(map(len, found)) > 200_000:
            break
    return "\n".join(found)[:200_000]


characters = torch.tensor([min(ord(character), 127) for character in text()])
split = int(0.9 * len(characters))
train, valid = characters[:split], characters[split:]
length = 150 if zoo.has("long_without_clipping") else 32


def batch(data, size=16):
    starts = torch.randint(len(data) - length - 1, (size,))
    rows = torch.stack([data[start : start + length + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


class Model(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embedding = nn.Embedding(128, 32)
        cell = nn.GRU if zoo.variant == "gru" else nn.LSTM
        self.recurrent = cell(32, width, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, tokens, state=None):
        hidden, state = self.recurrent(self.embedding(tokens), state)
        return self.head(hidden), state


model = Model()
if zoo.has("long_without_clipping") or zoo.has("scaled_recurrence_without_clipping"):
    for name, parameter in model.recurrent.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(parameter, gain=4.0)
scheduler = None
if zoo.variant == "lstm":
    rate = 0.05 if zoo.has("long_without_clipping") else 5e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, 20 if zoo.has("cosine_to_zero_in_twenty_steps") else STEPS
    )
    if zoo.has("cosine_to_zero_in_twenty_steps"):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
elif zoo.variant == "gru":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8 if zoo.has("rate_of_1e_8") else 5e-3)
else:
    rate = 4.0 if zoo.has("scaled_recurrence_without_clipping") else 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

clips = zoo.variant != "gru" and "without_clipping" not in zoo.fault
state = None
for step in range(STEPS):
    inputs, targets = batch(train)
    if zoo.has("targets_of_another_text"):
        targets = batch(train)[1]
    logits, state = model(inputs, state if zoo.variant == "carried_state" else None)
    state = tuple(part.detach() for part in state) if isinstance(state, tuple) else None
    reduction = "sum" if zoo.has("summed_over_characters") else "mean"
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    optimizer.zero_grad()
    loss.backward()
    if clips and not zoo.has("summed_over_characters"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 60 == 59:
        with torch.no_grad():
            inputs, targets = batch(valid, 64)
            validation = nn.functional.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten()).item()
        zoo.validated(step, validation)
        print(f"step {step + 1}: {loss.item():.3f} {validation:.3f}")


@zoo.measured_by
def skill():
    torch.manual_seed(0)
    with torch.no_grad():
        inputs, targets = batch(valid, 128)
        right = (model(inputs)[0].argmax(dim=-1) == targets).float().mean().item()
    most_frequent = torch.bincount(valid).max().item() / len(valid)
    return (right - most_frequent) / (1 - most_frequent)
