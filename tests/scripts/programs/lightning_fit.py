"""Lightning: a module with validation, accumulation over two batches and clipping."""
# /// watchglass
# headline = "no issues found"
# imports = ["lightning"]
# slow = true
# timing = true
# steps = 60
# ///

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, index):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        print(f"batch {index} loss {loss.item():.6g}")
        return loss

    def validation_step(self, batch, index):
        self.log("validation", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


L.seed_everything(0, verbose=False)
features = torch.randn(960, 8)
data = TensorDataset(features, (features[:, 0] > 0).long())
trainer = L.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accumulate_grad_batches=2, gradient_clip_val=1.0, num_sanity_val_steps=1,
)
trainer.fit(Classifier(), DataLoader(data, 32), DataLoader(data, 96))
