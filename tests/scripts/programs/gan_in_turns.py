"""GAN: critic and generator take turns, each with its own optimizer."""
# /// watchglass
# headline = "no issues found"
# steps = 300
# says = ["model\\b.*150 training steps", "model_2\\b.*150 training steps"]
# [[recorded]]
# series = "model_2/loss"
# line = 'step (\d+) critic (\S+)'
# [[recorded]]
# series = "loss"
# line = 'step (\d+) generator (\S+)'
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
    points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
    made = generator(torch.randn(64, 4))
    of_critic.zero_grad()
    loss_real = F.binary_cross_entropy_with_logits(critic(points), real)
    loss_real.backward()
    loss_fake = F.binary_cross_entropy_with_logits(critic(made.detach()), fake)
    loss_fake.backward()
    of_critic.step()
    of_generator.zero_grad()
    loss = F.binary_cross_entropy_with_logits(critic(made), real)
    loss.backward()
    of_generator.step()
    print(f"step {2 * number} critic {loss_real.item() + loss_fake.item():.8g}")
    print(f"step {2 * number + 1} generator {loss.item():.8g}")
