"""Operators that couple the rows of some dims, which they need whole: softmax, sorting, Fourier transforms, matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .call import OperatorCall, TensorSpec
from .labels import Labels, along, by_labels, numbered
from .on_boxes import Builder, Composed, Local
from .table import NotOnBoxes, operator

ONE = ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")
SEVERAL = tuple(f"{name}{end}" for name in ONE for end in ("2", "n"))


@operator(
    "softmax", "_softmax", "log_softmax", "_log_softmax", "softmin", "special_softmax", "special_log_softmax", "_safe_softmax",
    "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort", "topk", "msort", "renorm",
)  # fmt: skip
def along_a_dim(call: OperatorCall) -> Local:
    """Operators along a dim, which is whole."""
    x = call.tensors[0]
    if len(call.tensors) > 1 or len({each.shape for each in call.results}) > 1:
        raise NotOnBoxes("several tensors")
    if call.kind == "renorm":  # scales the rows of a dim by the norm of all others
        dim = call["dim"] % x.dim
        return along(call, [d for d in range(x.dim) if d != dim], flops=4.0)
    dims = [0] if call.kind == "msort" else call.dims("dim", x.dim)
    return along(call, dims if x.dim else [], flops=8.0)


@operator(*ONE, *SEVERAL)
def fourier(call: OperatorCall) -> Local:
    """Fourier transforms: the transformed dims are whole."""
    x = call.tensors[0]
    if call["dim"] is None and call.given.get("s") is not None:
        dims = tuple(range(x.dim - len(call["s"]), x.dim))
    else:
        dims = call.dims("dim", x.dim)
    return along(call, dims, flops=40.0)


@operator("fft_fftshift", "fft_ifftshift")
def shifted(call: OperatorCall) -> Composed:
    """Rows shifted by half of their number."""
    x, sign = call.tensors[0], 1 if call.kind == "fft_fftshift" else -1
    dims = list(call.dims("dim", x.dim))
    shifts = [x.shape[d] // 2 if sign > 0 else -(x.shape[d] // 2) for d in dims]
    return Composed(lambda builder, x: builder.call(torch.ops.aten.roll.default, x, shifts, dims))


@operator(
    "linalg_inv_ex", "linalg_cholesky_ex", "linalg_matrix_exp", "linalg_qr", "linalg_pinv", "linalg_lu", "linalg_lu_factor_ex",
    "linalg_solve_triangular", "linalg_eig", "linalg_ldl_factor_ex", "linalg_householder_product", "_linalg_det",
    "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "_linalg_eigh", "_linalg_eigvals", "linalg_cross", "cholesky",
    "cholesky_inverse", "cholesky_solve", "triangular_solve", "matrix_power", "linalg_matrix_power",
)  # fmt: skip
def batched(call: OperatorCall) -> Local | Composed:
    """Operators on the matrices of the last two dims; the dims before these follow the box."""
    lead = call.tensors[0].dim - 2
    if call.kind == "linalg_cross":
        labels = numbered("d", call.result.dim)
        dim = call["dim"] % call.result.dim
        return by_labels(call, [labels, labels], labels, None, [labels[dim]])
    if lead < 1 or any(each.dim - 2 != lead for each in call.tensors) or any(each.dim < lead for each in call.results):
        raise NotOnBoxes("matrices without a batch, or that broadcast")
    labels = numbered("b", lead)
    operands = [[*labels, "n", "m"] for _ in call.tensors]

    def part(i: int, result: TensorSpec, run: Callable[..., Any]) -> Local:
        rest: Labels = numbered("r", result.dim - lead)
        alone = OperatorCall(call.op, call.args, call.kwargs, (result,))
        return by_labels(alone, operands, [*labels, *rest], lambda *given: run(*given)[i], rest, flops=100.0)

    run = call.locally()
    if len(call.results) == 1:
        return part(0, call.result, lambda *given: (run(*given),))

    def build(builder: Builder, *values: Any) -> list[Any]:
        return [
            builder.local(part(i, result, run), values, result.shape, result.dtype, f"result {i}")
            for i, result in enumerate(call.results)
        ]

    return Composed(build)
