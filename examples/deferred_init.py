"""Make four workers' blocks of a model without ever making the whole: they equal the eager model, bit for bit.

python examples/deferred_init.py
"""

from __future__ import annotations

import torch
from torch import nn

from gridwise.deferred_init import deferred_init, materialize_module
from gridwise.show.describe import describe

WORKERS = 4


def build() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(1000, 64),
        nn.TransformerEncoderLayer(64, 4, 256, batch_first=True),
        nn.Linear(64, 1000),
    )


def rows(name: str, shape: torch.Size, rank: int) -> tuple[slice, ...]:
    """Each worker owns a quarter of the rows of every tensor."""
    return (slice(shape[0] * rank // WORKERS, shape[0] * (rank + 1) // WORKERS),)


def main() -> None:
    torch.manual_seed(0)
    model = deferred_init(build)
    print(describe(model, layout=rows, workers=WORKERS))

    parts = []
    for rank in range(WORKERS):  # in life, each of them in its own process
        torch.manual_seed(0)
        model = deferred_init(build)
        materialize_module(model, layout=lambda name, shape, rank=rank: rows(name, shape, rank))
        parts.append(model.state_dict())

    torch.manual_seed(0)
    for name, tensor in build().state_dict().items():
        assert torch.equal(torch.cat([part[name] for part in parts]), tensor)
    print(f"The blocks of {WORKERS} workers are the eager model, bit for bit.")


if __name__ == "__main__":
    main()
