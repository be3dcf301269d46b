"""The accuracy of each batch is counted element by element. The twin compares whole tensors."""

import torch

from task import SLOW, network, samples, train_step

model = network(64)
optimizer = torch.optim.SGD(model.parameters(), 0.5)
correct = 0
for _ in range(80):
    inputs, labels = samples(2048)
    train_step(model, optimizer, inputs, labels)
    with torch.no_grad():
        guesses = inputs[:, :8].argmax(1)  # of a rule that the model is compared with
    if SLOW:
        for guess, label in zip(guesses, labels, strict=True):
            correct += guess.item() == label.item()
    else:
        correct += (guesses == labels).sum().item()
