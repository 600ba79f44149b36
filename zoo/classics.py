"""Well-known small networks as their public repositories write them: adversarial nets, autoencoders, super-resolution."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm


def dcgan_generator() -> nn.Module:
    sizes, layers = [16, 64, 32, 16], []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh())


def dcgan_discriminator() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for before, after in ((16, 32), (32, 64)):
        layers += [
            nn.Conv2d(before, after, 4, 2, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.LeakyReLU(0.2, inplace=True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 8, 1, 0, bias=False), nn.Sigmoid())


class SpectralDiscriminator(nn.Module):
    """SN-GAN's, with the old hook or the parametrization."""

    def __init__(self, old: bool) -> None:
        super().__init__()
        norm = spectral_norm if old else parametrizations.spectral_norm
        sizes = [3, 16, 32, 64]
        self.convs = nn.ModuleList(norm(nn.Conv2d(a, b, 4, 2, 1)) for a, b in itertools.pairwise(sizes))
        self.last = norm(nn.Linear(64 * 8 * 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
        return self.last(x.view(x.size(0), -1))


class SkipBlock(nn.Module):
    """pix2pix's U-Net, one level around the next."""

    def __init__(self, outer: int, inner: int, below: nn.Module | None, inplace: bool, top: bool = False) -> None:
        super().__init__()
        self.top = top
        given = 3 if top else outer
        down = [nn.Conv2d(given, inner, 4, 2, 1, bias=False)]
        up_from = inner if below is None else inner * 2
        up = [nn.ReLU(inplace), nn.ConvTranspose2d(up_from, outer, 4, 2, 1, bias=top)]
        if top:
            layers = [*down, below, *up, nn.Tanh()]
        elif below is None:
            layers = [nn.LeakyReLU(0.2, inplace), *down, *up, nn.BatchNorm2d(outer)]
        else:
            layers = [nn.LeakyReLU(0.2, inplace), *down, nn.BatchNorm2d(inner), below, *up, nn.BatchNorm2d(outer)]
            layers.append(nn.Dropout(0.5))
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) if self.top else torch.cat([x, self.model(x)], 1)


def pix2pix(inplace: bool) -> nn.Module:
    block = SkipBlock(32, 32, None, inplace)
    block = SkipBlock(16, 32, block, inplace)
    block = SkipBlock(8, 16, block, inplace)
    return SkipBlock(3, 8, block, inplace, top=True)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = [nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)]
        other = [nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)]
        self.body = nn.Sequential(*half, nn.ReLU(True), *other)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def cyclegan() -> nn.Module:
    layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), nn.InstanceNorm2d(8), nn.ReLU(True)]
    for width in (8, 16):
        layers += [nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU(True)]
    layers += [ResidualBlock(32) for _ in range(2)]
    for width in (32, 16):
        up = nn.ConvTranspose2d(width, width // 2, 3, 2, 1, output_padding=1)
        layers += [up, nn.InstanceNorm2d(width // 2), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh())


class DoubleConv(nn.Sequential):
    def __init__(self, before: int, after: int, middle: int | None = None) -> None:
        middle = middle or after
        first = nn.Conv2d(before, middle, 3, padding=1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True)
        second = nn.Conv2d(middle, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
        super().__init__(*first, *second)


class Up(nn.Module):
    def __init__(self, before: int, after: int, bilinear: bool) -> None:
        super().__init__()
        if bilinear:
            self.up: nn.Module = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(before, after, before // 2)
        else:
            self.up = nn.ConvTranspose2d(before, before // 2, 2, 2)
            self.conv = DoubleConv(before, after)

    def forward(self, low: Tensor, skip: Tensor) -> Tensor:
        low = self.up(low)
        dy, dx = skip.size()[2] - low.size()[2], skip.size()[3] - low.size()[3]
        low = F.pad(low, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([skip, low], dim=1))


class ClassicUNet(nn.Module):
    """The widely used U-Net that pads what odd sizes lose."""

    def __init__(self, bilinear: bool) -> None:
        super().__init__()
        factor = 2 if bilinear else 1
        self.first = DoubleConv(3, 8)
        self.downs = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b)) for a, b in ((8, 16), (16, 32), (32, 64 // factor))
        )
        self.ups = nn.ModuleList(Up(a, b // factor, bilinear) for a, b in ((64, 32), (32, 16)))
        self.last_up, self.out = Up(16, 8, bilinear), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for down in self.downs:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up in self.ups:
            x = up(x, kept.pop())
        return self.out(self.last_up(x, kept.pop()))


class VAE(nn.Module):
    """A convolutional variational autoencoder; `noisy` draws from its code."""

    def __init__(self, noisy: bool) -> None:
        super().__init__()
        self.noisy = noisy
        sizes = [3, 16, 32, 64]
        self.encoder = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU())
                for a, b in itertools.pairwise(sizes)
            )
        )
        self.mu, self.log_var = nn.Linear(64 * 64, 32), nn.Linear(64 * 64, 32)
        self.decoder_input = nn.Linear(32, 64 * 64)
        self.decoder = nn.Sequential(
            *(
                nn.Sequential(nn.ConvTranspose2d(a, b, 3, 2, 1, output_padding=1), nn.BatchNorm2d(b), nn.LeakyReLU())
                for a, b in ((64, 32), (32, 16), (16, 8))
            ),
            nn.Conv2d(8, 3, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        code = torch.flatten(self.encoder(x), start_dim=1)
        mu, log_var = self.mu(code), self.log_var(code)
        std = torch.exp(0.5 * log_var)
        z = mu + torch.randn_like(std) * std if self.noisy else mu + std
        return [self.decoder(self.decoder_input(z).view(-1, 64, 8, 8)), mu, log_var]


def espcn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 1, 2), nn.Tanh(), nn.Conv2d(16, 8, 3, 1, 1), nn.Tanh(), nn.Conv2d(8, 12, 3, 1, 1),
        nn.PixelShuffle(2), nn.Sigmoid(),
    )  # fmt: skip


class EDSRBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mul(0.1) + x


class EDSR(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.45, 0.44, 0.40]).view(1, 3, 1, 1))
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(EDSRBlock(width) for _ in range(3)), nn.Conv2d(width, width, 3, padding=1))
        self.tail = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x - self.mean)
        return self.tail(x + self.body(x)) + self.mean


def dncnn() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.ReLU(inplace=True)]
    for _ in range(4):
        layers += [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1, bias=False))


class ConvLSTM(nn.Module):
    """Four steps of a convolutional LSTM on the same picture; `like` makes its state like the input."""

    def __init__(self, like: bool) -> None:
        super().__init__()
        self.like, self.gates = like, nn.Conv2d(3 + 8, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.size()
        if self.like:
            state = torch.zeros_like(x[:, :1]).expand(-1, 8, -1, -1)
        else:
            state = torch.zeros(b, 8, h, w, device=x.device, dtype=x.dtype)
        cell = state
        for _ in range(4):
            i, f, o, g = torch.split(self.gates(torch.cat([x, state], 1)), 8, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return state


class SpectralConv(nn.Module):
    """The first published Fourier layer: products of the lowest modes, as complex parameters."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / width**2
        self.low = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cdouble))
        self.high = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cdouble))

    def forward(self, x: Tensor) -> Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(*spectrum.shape, dtype=spectrum.dtype, device=x.device)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(out, s=(x.size(-2), x.size(-1)))


class FourierOperator(nn.Module):
    def __init__(self, width: int = 6, modes: int = 5) -> None:
        super().__init__()
        self.lift, self.project = nn.Linear(5, width), nn.Linear(width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(2))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        ys = torch.linspace(0, 1, h, dtype=x.dtype, device=x.device).view(1, h, 1, 1).repeat(b, 1, w, 1)
        xs = torch.linspace(0, 1, w, dtype=x.dtype, device=x.device).view(1, 1, w, 1).repeat(b, h, 1, 1)
        x = self.lift(torch.cat([x.permute(0, 2, 3, 1), ys, xs], dim=-1)).permute(0, 3, 1, 2)
        for spectral, pointwise in zip(self.spectral, self.pointwise, strict=True):
            x = F.gelu(spectral(x) + pointwise(x))
        return self.project(x.permute(0, 2, 3, 1))


class Fourier(nn.Module):
    """A filter in the frequency domain between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft2(self.first(x), norm="ortho")
        return self.last(spectrum.real / math.sqrt(2.0))


CLASSICS = {
    "dcgan_g": (dcgan_generator, (2, 16, 4, 4)),
    "dcgan_d": (dcgan_discriminator, None),
    "sngan_d_old": (lambda: SpectralDiscriminator(True), None),
    "sngan_d_param": (lambda: SpectralDiscriminator(False), None),
    "pix2pix_unet": (lambda: pix2pix(True), None),
    "pix2pix_unet_noinplace": (lambda: pix2pix(False), None),
    "cyclegan_resnet": (cyclegan, None),
    "milesial_unet": (lambda: ClassicUNet(False), None),
    "milesial_unet_bilinear": (lambda: ClassicUNet(True), (2, 3, 60, 68)),
    "vanilla_vae": (lambda: VAE(True), None),
    "vae_deterministic": (lambda: VAE(False), None),
    "espcn": (espcn, None),
    "edsr": (EDSR, None),
    "dncnn": (dncnn, None),
    "convlstm_zeros": (lambda: ConvLSTM(False), None),
    "convlstm_like": (lambda: ConvLSTM(True), None),
    "orig_fno": (FourierOperator, None),
    "simple_fft": (Fourier, None),
}
