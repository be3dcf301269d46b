"""An exception in a worker process of a data loader, which the loader passes on."""
# /// watchglass
# status = 1
# headline = "^failed after [1-9][0-9]* training steps: IndexError: Caught IndexError in DataLoader"
# says = ["IndexError: sample 37 is missing"]
# never_says = ["no issues found"]
# timing = true
# ///

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)


class Samples(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, number):
        if number == 37:
            raise IndexError(f"sample {number} is missing")
        return torch.full((4,), number / 100)


def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for inputs in DataLoader(Samples(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
