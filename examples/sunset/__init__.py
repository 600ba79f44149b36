"""A decoder like Stable Diffusion's, which learns one picture in seconds: for examples.

It has residual blocks with group norms, attention in the middle, and upsampling: 8 x 8 pixels for each of its input.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FACTOR = 8


class Residual(nn.Sequential):
    def __init__(self, width: int) -> None:
        layers = [(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(2)]
        super().__init__(*layers[0], *layers[1])
        nn.init.zeros_(layers[1][2].weight)  # it begins as the identity, and learns sooner

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.to_qkv, self.project = (
            nn.GroupNorm(4, width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).mT[:, None]  # (batch, 1 head, pixels, channels)
        y = F.scaled_dot_product_attention(*self.to_qkv(pixels).chunk(3, -1))
        return x + self.project(y)[:, 0].mT.reshape(x.shape)


def decoder() -> nn.Sequential:
    layers = [nn.Conv2d(4, 64, 3, padding=1), Residual(64), Attention(64), Residual(64)]
    for wide, narrow in ((64, 64), (64, 32), (32, 16)):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(wide, narrow, 3, padding=1), Residual(narrow)]
    return nn.Sequential(*layers, nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))


def scene(size: int) -> Tensor:
    """An evening at the sea, in [-1, 1]."""
    at = (torch.arange(4 * size) + 0.5) / (4 * size)
    y, x = torch.meshgrid(at, at, indexing="ij")
    ridge = 0.50 - 0.10 * torch.sin(5 * x + 0.8) - 0.03 * torch.sin(17 * x)
    clouds = torch.sin(9 * x + 3 * torch.sin(14 * y)) * torch.sin(31 * y + 2 * torch.sin(5 * x)) - 0.35
    waves = 0.5 + 0.5 * torch.sin(110 * (y - 0.6) / (0.25 + y) + 4 * torch.sin(11 * x + 20 * y))
    glitter = torch.exp(-(((x - 0.68) / (0.04 + 0.5 * (y - 0.6).clamp(min=0))) ** 2))
    painted = [  # colour, and where
        ((1.0, 0.62, 0.36), (y / 0.62).clamp(0, 1) ** 1.5),
        ((1.0, 0.80, 0.72), 0.7 * clouds.clamp(0, 1) * (y < 0.5)),
        ((1.0, 0.96, 0.75), torch.sigmoid((0.07 - torch.hypot(x - 0.68, y - 0.46)) * 250)),
        ((0.16, 0.13, 0.24), torch.sigmoid((y - ridge) * 300)),
        ((0.07, 0.19, 0.33), 1.0 * (y > 0.6)),
        ((0.20, 0.36, 0.48), 0.6 * waves * (y > 0.6)),
        ((1.0, 0.78, 0.50), 0.9 * waves * glitter * (y > 0.6)),
    ]
    picture = torch.tensor((0.10, 0.16, 0.42))[:, None, None].expand(3, *y.shape)
    for colour, where in painted:
        picture = torch.lerp(picture, torch.tensor(colour)[:, None, None], where)
    return F.avg_pool2d(2 * picture[None] - 1, 4)


def encoded(picture: Tensor) -> Tensor:
    """A latent with a pixel for each 8 x 8 of the picture: mean colours, and contrast."""
    mean = F.avg_pool2d(picture, FACTOR)
    contrast = F.avg_pool2d(picture.square(), FACTOR).sub(mean.square()).clamp(min=0).mean(1, keepdim=True).sqrt()
    return torch.cat((mean, 4 * contrast - 1), 1)


def trained_decoder(steps: int = 200) -> nn.Sequential:
    """Trained on the whole picture, at two small sizes."""
    torch.manual_seed(0)
    model, pictures = decoder(), [scene(96), scene(176)]
    optimiser = torch.optim.AdamW(model.parameters(), 5e-3, betas=(0.8, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1, (i + 1) / 10) * (1 - i / steps))
    for i in range(steps):
        optimiser.zero_grad()
        F.l1_loss(model(encoded(pictures[i % 2])), pictures[i % 2]).backward()
        optimiser.step()
        schedule.step()
    return model.eval()
