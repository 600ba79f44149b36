"""Operators on the last dims of their tensors, as on matrices or images: these are whole, the leading dims may be cut.

solve    a (b n n), c (b n k)  ->  (b n k)         samples b cut, and broadcast as torch does
unpool   x (b c h w)           ->  (b c 2h 2w)     planes b c cut
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...grid import Grid, Layout
from ..placement import Cut, GlobalTensor, Want, with_dims
from .call import Call, NoRule, NothingCut, Placed
from .pointwise import needed_by
from .products import plain
from .table import rule


def planes(call: Call, core: Sequence[int], takes_empty: bool = True) -> Placed:
    """The operator itself, on blocks along the leading dims of its tensors; the last `core` dims of each are whole."""
    tensors = call.tensors
    lead = tuple(torch.broadcast_shapes(*(x.shape[: x.dim - n] for x, n in zip(tensors, core, strict=True))))
    own = _lead_layout(call, core, lead)
    wants: list[Want] = [
        needed_by(with_dims(own, (*own.cuts, *((0, n) for n in x.shape[x.dim - k :]))), x)
        for x, k in zip(tensors, core, strict=True)
    ]
    targets = [with_dims(own, (*own.cuts, *((0, n) for n in result.shape[len(lead) :]))) for result in call.results]
    run = call.locally() if takes_empty else call.unless_empty(call.locally(), *targets)
    return Placed([Cut(target) for target in targets], plain(run, tensors, wants), wants)


def _lead_layout(call: Call, core: Sequence[int], lead: tuple[int, ...]) -> Layout:
    """The layout of the leading dims, which follows the largest cut tensor."""
    largest, _ = call.largest_cut()
    x, k = next((x, k) for x, k in zip(call.tensors, core, strict=True) if x is largest)
    if x.shape[: x.dim - k] != lead:
        placed = call.workers.spread(lead)
        if not isinstance(placed, Cut):
            raise NothingCut
        return placed.layout
    layout = call.whole(x, range(x.dim - k, x.dim))
    return Layout(Grid(layout.grid.ranks, layout.grid.shape[: len(lead)]), layout.cuts[: len(lead)])


VECTORS = {"tau": 1, "pivots": 1, "LU_pivots": 1, "input2": 1, "atol": 0, "rtol": 0, "random_samples": 1}
"""Arguments of the operators below with fewer whole dims than others."""


@rule(
    "_linalg_svd", "linalg_qr", "linalg_inv_ex", "_linalg_eigh", "linalg_eig", "_linalg_slogdet", "_linalg_det", "linalg_lu",
    "linalg_cholesky_ex", "cholesky", "cholesky_inverse", "cholesky_solve", "linalg_matrix_exp", "linalg_householder_product",
    "geqrf", "ormqr", "triangular_solve", "linalg_solve_triangular", "linalg_lu_factor_ex", "linalg_lu_solve", "lu_unpack",
    "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_pinv", "linalg_lstsq",
)  # fmt: skip
def matrices(call: Call) -> Placed:
    """Matrices, which every worker has whole."""
    vectors = VECTORS if call.kind != "cholesky_solve" else {}
    return planes(call, [vectors.get(name, 2) for name in _names_of_tensors(call)])


def _names_of_tensors(call: Call) -> list[str]:
    return [name for name, value in call.given.items() if isinstance(value, GlobalTensor)]


@rule("_linalg_solve_ex")
def solve(call: Call) -> Placed:
    a, b = call["A"], call["B"]
    is_vector = b.dim == 1 or (b.dim == a.dim - 1 and b.shape == a.shape[:-1])
    return planes(call, [2, 1 if is_vector else 2])


@rule(
    *(f"{kind}{d}d" for kind in ("max_unpool", "fractional_max_pool") for d in (2, 3)),
    *(f"max_pool{d}d_with_indices_backward" for d in (2, 3)), "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
def images(call: Call) -> Placed:
    """Images or volumes, which every worker has whole, of some channels and samples."""
    space = 3 if "3d" in call.kind else 2
    if call.kind.startswith("fractional") and call.tensors[0].dim == space + 1:
        raise NoRule("one sample, of which the random numbers have a dim more")
    return planes(call, [VECTORS.get(name, space) for name in _names_of_tensors(call)], takes_empty=False)
