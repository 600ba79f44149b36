"""Torch's decompositions of operators."""

from __future__ import annotations

import torch

from gridwise.torch_internals.decompositions import decompositions_of


def test_a_decomposition_makes_what_the_operator_makes() -> None:
    found = decompositions_of(["rot90", "diag_embed"])
    x = torch.arange(12.0).view(3, 4)
    assert torch.equal(found[torch.ops.aten.rot90.default](x, 1, (0, 1)), torch.rot90(x))
    assert torch.equal(found[torch.ops.aten.diag_embed.default](x), torch.diag_embed(x))
