"""GAN: both backward passes, then both optimizers step."""
# /// watchglass
# headline = "no issues found"
# steps = 150
# says = ["model_2\\b.*150 training steps"]
# [[recorded]]
# series = "loss"
# line = 'step (\d+) generator (\S+)'
# [[recorded]]
# series = "model_2/loss"
# line = 'step (\d+) critic (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
of_critic = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.999))
of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
real, fake = torch.ones(64, 1), torch.zeros(64, 1)
for number in range(150):
    angle = torch.rand(64) * 6.28318
    points = torch.stack([angle.cos(), angle.sin()], 1)
    made = generator(torch.randn(64, 4))
    of_generator.zero_grad()
    fooled = F.binary_cross_entropy_with_logits(critic(made), real)
    fooled.backward()
    of_critic.zero_grad()
    critic_loss = F.binary_cross_entropy_with_logits(critic(points), real)
    critic_loss = critic_loss + F.binary_cross_entropy_with_logits(critic(made.detach()), fake)
    critic_loss.backward()
    of_critic.step()
    of_generator.step()
    print(f"step {number} generator {fooled.item():.8g}")
    print(f"step {number} critic {critic_loss.item():.8g}")
