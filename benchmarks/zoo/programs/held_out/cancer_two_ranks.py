"""Breast cancer by two ranks of a small perceptron."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zoo import above_chance
from zoo_ranks import zoo_of_rank

PROGRAM = {
    "task": "breast cancer",
    "architecture": "MLP on two ranks",
    "ranks": 2,
    "healthy": {
        "wrapped": "DistributedDataParallel, SGD with momentum, samples divided by rank",
        "by_hand": "gradients averaged by hand after a broadcast, SGD with momentum",
    },
    "faults": {
        "sum_of_gradients": ("gradients_summed_over_ranks", "by_hand"),
        "sum_in_one_piece": ("gradients_summed_over_ranks", "by_hand"),
        "seed_of_its_rank_without_broadcast": ("ranks_with_different_weights", "by_hand"),
        "first_layer_not_broadcast": ("ranks_with_different_weights", "by_hand"),
        "same_order_on_all_ranks": ("ranks_with_same_data", "wrapped"),
        "same_seed_for_batches": ("ranks_with_same_data", "by_hand"),
        "one_rank_resets_its_head": ("replica_changed", "wrapped"),
        "one_rank_rounds_its_weights": ("replica_changed", "by_hand"),
    },
}
STEPS = 200
zoo = zoo_of_rank(PROGRAM)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

inputs, labels = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(inputs, labels, test_size=0.25, random_state=0)
mean, std = x.mean(axis=0), x.std(axis=0)
x, x_valid = (torch.tensor((part - mean) / std, dtype=torch.float32) for part in (x, x_valid))
y, y_valid = torch.tensor(y), torch.tensor(y_valid)

torch.manual_seed(zoo.seed + (1000 * rank if zoo.variant == "by_hand" else 0))
model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))
if zoo.variant == "by_hand" and not zoo.has("seed_of_its_rank_without_broadcast"):
    for name, parameter in model.named_parameters():
        if not (zoo.has("first_layer_not_broadcast") and name.startswith("0.")):
            dist.broadcast(parameter.data, 0)
network = DistributedDataParallel(model) if zoo.variant == "wrapped" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
alike = zoo.has("same_order_on_all_ranks") or zoo.has("same_seed_for_batches")
order = torch.Generator().manual_seed(zoo.seed if alike else zoo.seed + 1 + rank)


def exchange():
    if zoo.has("sum_in_one_piece"):
        together = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(together)
        for parameter, part in zip(model.parameters(), together.split([p.numel() for p in model.parameters()])):
            parameter.grad.copy_(part.view_as(parameter))
        return
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        if not zoo.has("sum_of_gradients"):
            parameter.grad /= ranks


for step in range(STEPS):
    rows = torch.randint(len(x), (16,), generator=order)
    optimizer.zero_grad()
    loss = F.cross_entropy(network(x[rows]), y[rows])
    loss.backward()
    if zoo.variant == "by_hand":
        exchange()
    optimizer.step()
    if zoo.has("one_rank_resets_its_head") and rank == 1 and step == 20:
        model[4].reset_parameters()
    if zoo.has("one_rank_rounds_its_weights") and rank == 0 and step == 12:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
    zoo.trained(step, loss.item())
    if step % 50 == 49:
        with torch.no_grad():
            validation = F.cross_entropy(model(x_valid), y_valid)
        zoo.validated(step, validation.item())
        if rank == 0:
            print(f"step {step + 1}: training loss {loss.item():.4f}, validation loss {validation.item():.4f}")

dist.barrier()
dist.destroy_process_group()


@zoo.measured_by
def skill():
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=-1) == y_valid).float().mean().item()
    return above_chance(right, max(y_valid.float().mean().item(), 1 - y_valid.float().mean().item()))
