"""Two workers of a DataLoader, a custom collate function, a seeded generator, and one log file."""
# /// watchglass
# headline = "no issues found"
# files = ["log.csv"]
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import csv

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        point = torch.randn(6, generator=generator)
        return {"point": point, "label": int(point.sum() > 0)}


def collate(samples):
    points = torch.stack([sample["point"] for sample in samples])
    return {"points": points, "labels": torch.tensor([sample["label"] for sample in samples])}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(Points(), 16, shuffle=True, num_workers=2, collate_fn=collate, generator=generator)
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    with open("log.csv", "w", newline="") as file:
        log = csv.writer(file)
        for _ in range(3):
            for batch in loader:
                loss = F.cross_entropy(model(batch["points"]), batch["labels"])
                optimizer.zero_grad(set_to_none=False)
                loss.backward()
                optimizer.step()
                log.writerow([step, loss.item()])
                print(f"step {step} loss {loss.item():.8g}")
                step += 1


if __name__ == "__main__":
    main()
