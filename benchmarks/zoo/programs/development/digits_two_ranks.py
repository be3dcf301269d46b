"""Handwritten digits by two ranks, with the wrapper of PyTorch or with an average by hand."""

import contextlib

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from zoo import above_chance
from zoo_ranks import zoo_of_rank

PROGRAM = {
    "task": "digits",
    "architecture": "MLP on two ranks",
    "ranks": 2,
    "healthy": {
        "wrapped": "DistributedDataParallel and DistributedSampler, SGD with momentum",
        "by_hand": "gradients averaged by hand, AdamW",
        "micro_batches": "DistributedDataParallel with two micro-batches, the first one in no_sync",
        "averaged_weights": "weights averaged every four steps instead of gradients: local SGD",
    },
    "faults": {
        "module_called_and_not_its_wrapper": ("gradient_average_missing", "wrapped"),
        "average_forgotten": ("gradient_average_missing", "by_hand"),
        "no_sync_for_both_micro_batches": ("gradient_average_missing", "micro_batches"),
    },
}
EPOCHS = 8
zoo = zoo_of_rank(PROGRAM)
dist.init_process_group("gloo")

inputs, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(inputs, labels, test_size=0.25, random_state=0)
mean, std = x.mean(), x.std()
x, x_valid = (torch.tensor((part - mean) / std, dtype=torch.float32) for part in (x, x_valid))
y, y_valid = torch.tensor(y), torch.tensor(y_valid)
data = TensorDataset(x, y)
sampler = DistributedSampler(data, seed=zoo.seed)
loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
wrapped = zoo.variant in ("wrapped", "micro_batches")
network = DistributedDataParallel(model) if wrapped else model
called = model if zoo.has("module_called_and_not_its_wrapper") else network
micro = 2 if zoo.variant == "micro_batches" else 1
if zoo.variant == "by_hand":
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


step = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for images, digits in loader:
        optimizer.zero_grad()
        for number, (part, its_digits) in enumerate(zip(images.chunk(micro), digits.chunk(micro))):
            last = number == micro - 1 and not zoo.has("no_sync_for_both_micro_batches")
            with contextlib.nullcontext() if last or not wrapped or micro == 1 else network.no_sync():
                loss = F.cross_entropy(called(part), its_digits) / micro
                loss.backward()
        if zoo.variant == "by_hand" and not zoo.has("average_forgotten"):
            average(parameter.grad for parameter in model.parameters())
        optimizer.step()
        if zoo.variant == "averaged_weights" and step % 4 == 3:
            average(parameter.data for parameter in model.parameters())
        zoo.trained(step, loss.item() * micro)
        step += 1
    model.eval()
    with torch.no_grad():
        validation = F.cross_entropy(model(x_valid), y_valid)
    model.train()
    zoo.validated(step, validation.item())
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: training loss {loss.item() * micro:.4f}, validation loss {validation.item():.4f}")

dist.barrier()
dist.destroy_process_group()


@zoo.measured_by
def skill():
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=-1) == y_valid).float().mean().item()
    return above_chance(right, 0.1)
