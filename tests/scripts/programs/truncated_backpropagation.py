"""A recurrent language model: the hidden state is carried from batch to batch and detached, gradients are clipped."""
# /// watchglass
# headline = "no issues found"
# files = ["model.pt"]
# steps = 90
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

text = ("the quick brown fox jumps over the lazy dog and runs away from the bear " * 120)[:7208]
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text]).view(8, -1)


class LanguageModel(nn.Module):
    def __init__(self, size, width=32):
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, size)

    def forward(self, inputs, hidden):
        output, hidden = self.rnn(self.embedding(inputs), hidden)
        return self.decoder(output), hidden


model = LanguageModel(len(letters))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=45, gamma=0.5)
hidden = None
for step in range(90):
    start = step * 10
    inputs, targets = data[:, start : start + 10], data[:, start + 1 : start + 11]
    if hidden is not None:
        hidden = tuple(state.detach() for state in hidden)
    optimizer.zero_grad()
    output, hidden = model(inputs, hidden)
    loss = criterion(output.reshape(-1, len(letters)), targets.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.8g}")
with open("model.pt", "wb") as file:
    torch.save(model, file)
