"""A Fourier neural operator learns how heat spreads in a cube, on a 2 x 2 grid of workers: same losses as sequentially.

    python examples/fourier_operator.py          starts four local workers; mpiexec, torchrun and srun work as well

The model is plain torch. `distribute` is given the loss including the model, so the result is one number, the same on
all workers. A Fourier transform over cut dims moves the tensor there and back, once each.
"""

import copy
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gridwise

SIDE, MODES, WIDTH, STEPS = 16, 4, 8, 12


class SpectralConv3d(nn.Module):
    """Multiplies the lowest frequencies by learnt weights, in each of the four corners of the spectrum."""

    def __init__(self) -> None:
        super().__init__()
        shape = 4, WIDTH, WIDTH, MODES, MODES, MODES
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.complex128) / WIDTH**2)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfftn(x, dim=(-3, -2, -1))
        made = torch.zeros_like(spectrum)
        low, high = slice(None, MODES), slice(-MODES, None)
        for weight, (a, b) in zip(self.weight, ((low, low), (low, high), (high, low), (high, high)), strict=True):
            made[:, :, a, b, low] = torch.einsum("bixyz,ioxyz->boxyz", spectrum[:, :, a, b, low], weight)
        return torch.fft.irfftn(made, s=x.shape[-3:], dim=(-3, -2, -1))


class FourierOperator(nn.Module):
    """Lift, three layers of spectral and pointwise convolutions, project."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.project = nn.Conv3d(1, WIDTH, 1), nn.Conv3d(WIDTH, 1, 1)
        self.spectral = nn.ModuleList(SpectralConv3d() for _ in range(3))
        self.pointwise = nn.ModuleList(nn.Conv3d(WIDTH, WIDTH, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for spectral, pointwise in zip(self.spectral, self.pointwise, strict=True):
            x = F.gelu(spectral(x) + pointwise(x))
        return self.project(x)


def heat(batches: int) -> list[tuple[Tensor, Tensor]]:
    """Random temperatures in a periodic cube, and the temperatures a moment later."""
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(batches, 2, 1, SIDE, SIDE, SIDE, generator=generator, dtype=torch.float64)
    k = torch.fft.fftfreq(SIDE, 1 / SIDE, dtype=torch.float64)
    squares = k[:, None, None] ** 2 + k[:, None] ** 2 + k**2
    end = torch.fft.ifftn(torch.fft.fftn(start, dim=(-3, -2, -1)) * torch.exp(-0.05 * squares), dim=(-3, -2, -1)).real
    return list(zip(start, end, strict=True))


def trained(loss: nn.Module, parameters: list[nn.Parameter], batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    optimizer, losses = torch.optim.Adam(parameters, lr=1e-2), []
    for x, y in batches:
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def main() -> tuple[list[float], list[float] | None, str]:
    """Run by every worker; worker 0 also trains sequentially."""
    torch.manual_seed(1)
    P_x = gridwise.world().grid(1, 1, 1, 2, 2)
    model = FourierOperator().double()
    sequential, whole = copy.deepcopy(model), heat(STEPS)
    loss = gridwise.distribute(lambda x, y: F.mse_loss(model(x), y), P_x)
    block = gridwise.local_slice(P_x, whole[0][0].shape)
    losses = trained(loss, list(model.parameters()), [(x[block].clone(), y[block].clone()) for x, y in whole])
    alone = None
    if P_x.rank == 0:
        alone = trained(lambda x, y: F.mse_loss(sequential(x), y), list(sequential.parameters()), whole)
    return losses, alone, str(loss.report())


if __name__ == "__main__":
    losses, alone, report = main() if gridwise.world().size > 1 else gridwise.launch(main, workers=4)[0]
    if alone is not None:
        apart = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f}; from the sequential run at most {apart:.1e} apart\n{report}")
        sys.exit(0 if apart < 1e-9 and losses[-1] < losses[0] else "the losses differ")
