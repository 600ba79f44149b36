"""Losses and filters of kornia, MONAI and piqa, each behind a convolution; targets are made from the input.

a picture ──► convolution ──► loss (or filter) ◄── target ◄── the picture
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

CLASSES = 3
Target = Callable[[Tensor], Tensor]


def labels(x: Tensor) -> Tensor:
    """A class for each pixel."""
    return x.detach().argmax(1)


def one_label(x: Tensor) -> Tensor:
    """A class for each pixel, with a channel dim, as MONAI has it."""
    return labels(x)[:, None]


def mask(x: Tensor) -> Tensor:
    return (x.detach()[:, :1] > 0).to(x.dtype)


def picture(x: Tensor) -> Tensor:
    """Another picture, with values from 0 to 1."""
    return torch.sigmoid(0.7 * x.detach() + 0.1)


class Scored(torch.nn.Module):
    """A loss of what a convolution makes of its input; `alone`: of the prediction without a target."""

    def __init__(self, loss: Any, target: Target | None = None, channels: int = CLASSES, bounded: bool = False) -> None:
        super().__init__()
        self.net = torch.nn.Conv2d(3, channels, 3, padding=1)
        self.loss, self.target, self.bounded = loss, target, bounded

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        if self.bounded:
            y = torch.sigmoid(y)
        return self.loss(y) if self.target is None else self.loss(y, self.target(x))


def of_kornia() -> Iterator[tuple[str, Callable[[], torch.nn.Module]]]:
    from kornia import filters, losses

    yield "Dice", lambda: Scored(losses.DiceLoss(), labels)
    yield "Tversky", lambda: Scored(losses.TverskyLoss(0.5, 0.5), labels)
    yield "Focal", lambda: Scored(losses.FocalLoss(0.5, reduction="mean"), labels)
    yield "LovaszSoftmax", lambda: Scored(losses.LovaszSoftmaxLoss(), labels)
    yield "SSIM", lambda: Scored(losses.SSIMLoss(5), picture, bounded=True)
    yield "MS_SSIM", lambda: Scored(losses.MS_SSIMLoss(sigmas=[0.5, 1.0]), picture, bounded=True)
    yield "PSNR", lambda: Scored(losses.PSNRLoss(1.0), picture, bounded=True)
    yield "Charbonnier", lambda: Scored(losses.CharbonnierLoss(reduction="mean"), picture)
    yield "Welsch", lambda: Scored(losses.WelschLoss(reduction="mean"), picture)
    yield "TotalVariation", lambda: Scored(lambda y: losses.total_variation(y, reduction="mean"))
    yield "gaussian_blur2d", lambda: Scored(lambda y: filters.gaussian_blur2d(y, (5, 5), (1.5, 1.5)))
    yield "sobel", lambda: Scored(filters.sobel)
    yield "laplacian", lambda: Scored(lambda y: filters.laplacian(y, 5))
    yield "unsharp_mask", lambda: Scored(lambda y: filters.unsharp_mask(y, (5, 5), (1.5, 1.5)))
    yield "median_blur", lambda: Scored(lambda y: filters.median_blur(y, (3, 3)))
    yield "guided_blur", lambda: Scored(lambda y, t: filters.guided_blur(t, y, 5, 0.1), picture)
    yield "spatial_gradient", lambda: Scored(filters.spatial_gradient)


def of_monai() -> Iterator[tuple[str, Callable[[], torch.nn.Module]]]:
    from monai import losses

    classes = {"to_onehot_y": True, "softmax": True}
    for name in ("Dice", "DiceCE", "DiceFocal", "GeneralizedDice", "GeneralizedDiceFocal", "Tversky"):
        yield name, lambda name=name: Scored(getattr(losses, f"{name}Loss")(**classes), one_label)
    yield "Focal", lambda: Scored(losses.FocalLoss(to_onehot_y=True, use_softmax=True), one_label)
    yield "MaskedDice", lambda: Scored(losses.MaskedDiceLoss(sigmoid=True), mask, channels=1)
    yield "SSIM", lambda: Scored(losses.SSIMLoss(2, win_size=5), picture, bounded=True)
    yield "LNCC", lambda: Scored(losses.LocalNormalizedCrossCorrelationLoss(2), picture)
    yield "MutualInformation", lambda: Scored(losses.GlobalMutualInformationLoss(), picture, bounded=True)
    yield "BendingEnergy", lambda: Scored(losses.BendingEnergyLoss(), channels=2)
    yield "NACL", lambda: Scored(losses.NACLLoss(CLASSES, 2), labels)


def of_piqa() -> Iterator[tuple[str, Callable[[], torch.nn.Module]]]:
    import piqa

    for name in ("SSIM", "TV", "PSNR", "GMSD", "MDSI"):
        target = None if name == "TV" else picture
        yield name, lambda name=name, target=target: Scored(getattr(piqa, name)(), target, bounded=True)
