"""Tensors made from sizes: replicated if small, else cut like the model's input."""

from __future__ import annotations

from ..placement import Cut, Replicated
from .call import Call, Placed
from .table import rule


@rule(
    "arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices", "scalar_tensor", "tensor",
    "hann_window", "hamming_window", "lift_fresh_copy", "lift_fresh",
)  # fmt: skip
def everywhere(call: Call) -> Placed:
    """The whole tensor on every worker."""
    return call.everywhere()


@rule(
    "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "empty_strided", "new_empty_strided",
)  # fmt: skip
def filled(call: Call) -> Placed:
    placement = call.made_of_a_size()
    if not isinstance(placement, Cut) or call.kind.endswith("strided"):
        return Placed(Replicated(), call.locally())
    return Placed(placement, call.locally(size=list(call.block(placement.layout).shape)))
