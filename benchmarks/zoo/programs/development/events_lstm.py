"""Which of three alarms dominates a log of events: an LSTM over sequences of unequal length."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "event logs",
    "architecture": "LSTM for sequences",
    "healthy": {
        "packed": "Adam, packed sequences, clipping at 1",
        "both_ways": "RMSprop, bidirectional, dropout 0.3 before the head",
        "small_batches": "SGD with momentum, batches of 8, noisy losses",
    },
    "faults": {
        "last_step_of_padded_rows": ("padding_leaks", "packed"),
        "one_rare_alarm": ("class_imbalance", "small_batches"),
        "dropout_of_98_percent": ("dropout_too_high", "both_ways"),
        "labels_of_another_file": ("labels_shuffled", "packed"),
        "rate_of_1e_7": ("learning_rate_too_low", "packed"),
    },
}
KINDS = 12
STEPS = 250
zoo = Zoo(PROGRAM)


def logs(count):
    """Events 1..12; the label is which of 1, 2 and 3 comes most often."""
    labels = torch.randint(3, (count,))
    if zoo.has("one_rare_alarm"):
        labels = torch.where(torch.rand(count) < 0.985, torch.zeros(count, dtype=torch.long), labels)
    lengths = torch.randint(8, 25, (count,))
    events = torch.randint(1, KINDS + 1, (count, 24))
    favoured = torch.rand(count, 24) < 0.35
    events = torch.where(favoured, labels[:, None] + 1, events)
    events = events * (torch.arange(24) < lengths[:, None])
    return nn.functional.pad(events, (0, 120)), lengths, labels


class Reader(nn.Module):
    def __init__(self, both):
        super().__init__()
        self.embedding = nn.Embedding(KINDS + 1, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, batch_first=True, bidirectional=both)
        self.dropout = nn.Dropout(0.98 if zoo.has("dropout_of_98_percent") else 0.3 if both else 0.0)
        self.head = nn.Linear(64 if both else 32, 3)

    def forward(self, events, lengths):
        if zoo.has("last_step_of_padded_rows"):
            hidden = self.lstm(self.embedding(events))[0][:, -1]
        else:
            events = events[:, : int(lengths.max())]
            packed = pack_padded_sequence(self.embedding(events), lengths, batch_first=True, enforce_sorted=False)
            hidden = torch.cat(list(self.lstm(packed)[1][0]), dim=1)
        return self.head(self.dropout(hidden))


train = logs(3000)
if zoo.has("labels_of_another_file"):
    train = (*train[:2], train[2][torch.randperm(3000)])
valid = logs(500)
model = Reader(zoo.variant == "both_ways")
if zoo.variant == "packed":
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-7 if zoo.has("rate_of_1e_7") else 5e-3)
elif zoo.variant == "both_ways":
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
size = 8 if zoo.variant == "small_batches" else 32

for step in range(STEPS * (3 if size == 8 else 1)):
    model.train()
    rows = torch.randint(3000, (size,))
    loss = nn.functional.cross_entropy(model(train[0][rows], train[1][rows]), train[2][rows])
    optimizer.zero_grad()
    loss.backward()
    if zoo.variant == "packed":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    zoo.trained(step, loss.item())
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            validation = nn.functional.cross_entropy(model(*valid[:2]), valid[2]).item()
        zoo.validated(step, validation)
        print(f"step {step + 1} loss {loss.item():.4f} validation {validation:.4f}")


@zoo.measured_by
def skill():
    zoo.fault = "" if zoo.has("one_rare_alarm") else zoo.fault  # evaluated on alarms of equal frequency
    events, lengths, labels = logs(1000)
    model.eval()
    with torch.no_grad():
        found = model(events, lengths).argmax(dim=1)
    return above_chance((found == labels).float().mean().item(), 1 / 3)
