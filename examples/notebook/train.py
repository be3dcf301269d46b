"""A small convolutional network on the digits of scikit-learn, with gradients of its inputs: see docs/notebook.md."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
images, digits = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
digits = torch.tensor(digits)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(1024, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()

for _ in range(8):
    order = torch.randperm(1500)
    for batch in order.split(64):
        inputs = images[batch].requires_grad_()
        loss = loss_function(model(inputs), digits[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"validation loss {loss_function(model(images[1500:]), digits[1500:]):.3f}")
    model.train()
