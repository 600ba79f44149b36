"""Decode with a video autoencoder of diffusers (a small Wan, random weights) on four workers: same video, less memory.

    pip install -e '.[zoo,viz]'; python examples/vae_decode.py

There is no code for this decoder: `distribute(..., methods=("decode",))` records its own `decode`, including its
feature cache.
"""

import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gridwise
from gridwise.grid import Layout

LATENT = (1, 8, 3, 24, 12)
"""Batch, channels, frames, height, width."""


class Live(TorchDispatchMode):
    """Peak bytes of the live tensors created in the body, not counting views of earlier tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and (key := x.untyped_storage()._cdata) not in self._seen | given:
                self._seen.add(key)
                self.now += (size := x.untyped_storage().nbytes())
                weakref.finalize(x.untyped_storage(), self._freed, key, size)
        self.peak = max(self.peak, self.now)
        return made

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def autoencoder() -> torch.nn.Module:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from zoo.compiled_ops import declare

    declare()  # diffusers imports torchvision, if it is there, whose compiled operators need not load
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    zeros, ones = [0.0] * LATENT[1], [1.0] * LATENT[1]
    options = {"base_dim": 16, "z_dim": LATENT[1], "dim_mult": [1, 2, 2], "num_res_blocks": 1, "attn_scales": []}
    return (
        AutoencoderKLWan(**options, temperal_downsample=[False, True], latents_mean=zeros, latents_std=ones)
        .double()
        .eval()
    )


def peak_of(call: Callable[[], Tensor]) -> tuple[Tensor, int]:
    with torch.no_grad():
        call()  # once, to record
        with Live() as live:
            video = call()
    return video, live.peak


def main() -> tuple[float, float] | None:
    """Run by every worker; worker 0 compares with the sequential decoder and draws the picture."""
    model, latent = autoencoder(), torch.randn(LATENT, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    P_x = gridwise.world().grid(1, 1, 1, 2, 2)
    distributed = gridwise.distribute(model, P_x, methods=("decode",))
    part = gridwise.scatter(latent, P_x)
    block, mine = peak_of(lambda: distributed.decode(part, return_dict=False)[0])
    (P_y,) = distributed.decode.P_y  # after its attention the decoder goes on with blocks of rows
    video = gridwise.gather(block, P_y)
    shares = np.array([mine])
    P_x.transport.all_max(shares, P_x.team)
    if P_x.rank:
        return None
    whole, alone = peak_of(lambda: model.decode(latent, return_dict=False)[0])
    picture = whole[0, :, -1].mean(0).numpy()
    layouts = {"who decoded what": Layout.balanced(P_y.geometry, whole.shape)}
    gridwise.show.owners(layouts, "out/vae_decode.png", image=picture, title="The last frame")
    return float((video - whole).abs().max()), shares[0] / alone


if __name__ == "__main__":
    found = main() if gridwise.world().size > 1 else gridwise.launch(main, workers=4)[0]
    if found is not None:
        error, share = found
        print(f"the videos differ by {error:.1e}; a worker holds {share:.2f} of the sequential activations at its peak")
        sys.exit(0 if error < 1e-9 and share <= 0.4 else "not as it should be")
