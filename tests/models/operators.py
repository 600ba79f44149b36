"""Functions of torch by kind, as a model calls them; each gets a module with a few parameters, and a 4-d tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import gridwise
from gridwise.models.rules import pointwise, rule_for
from gridwise.models.rules.pointwise import is_pointwise
from gridwise.operators.table import maker_for

Function = Callable[[Any, Any], Any]

CASES: dict[str, list[Function]] = {
    "pointwise": [
        lambda m, x: F.hardswish(x) + F.prelu(x, m.c) * x.sigmoid() + m.c.view(-1, 1, 1),
        lambda m, x: torch.where(x > 0, x, 0.5).masked_fill(x < -1, 2.0).clamp(-1, 1),
        lambda m, x: F.glu(x, 1) * F.glu(x, 1).exp(),
        lambda m, x: x.float().to(torch.float64) + x.detach().bool().to(x.dtype),
        lambda m, x: x[:, :, :1] * x + x[..., :1],
        lambda m, x: x.mean((2, 3), keepdim=True) * x,
    ],
    "windows": [
        lambda m, x: F.conv2d(x, m.w, m.b, padding=1),
        lambda m, x: F.conv2d(x, m.w, None, stride=2, padding=1, dilation=1),
        lambda m, x: F.conv2d(x, m.w[:4, :1], m.c, padding="same", groups=4),
        lambda m, x: F.conv_transpose2d(x, m.w.transpose(0, 1), m.b, stride=2, padding=1, output_padding=1),
        lambda m, x: F.conv1d(x.flatten(2), m.w[..., 0], m.b, padding=1),
        lambda m, x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda m, x: F.adaptive_avg_pool2d(x, 2) * F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, 2),
        lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        lambda m, x: F.interpolate(x, size=(5, 9), mode="nearest") + F.interpolate(x, size=(5, 9), mode="bicubic"),
        lambda m, x: F.pad(x, (1, 2, 0, 1), value=3.0).sin() + F.pad(x, (1, 2, 0, 1), mode="replicate"),
        lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect") * F.pad(x, (1, 1, 1, 1), mode="circular"),
        lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 2)) + F.pad(x, (-1, 1, 1, -1, 2, 1)),
        lambda m, x: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x,
        lambda m, x: F.pixel_unshuffle(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), 2),
        lambda m, x: F.channel_shuffle(x, 2),
        lambda m, x: x.unfold(2, 2, 1).unfold(3, 3, 2).sum(-1),
        lambda m, x: F.unfold(x, 3, padding=1, stride=2),
        lambda m, x: F.grid_sample(x, x.permute(0, 2, 3, 1)[..., :2].tanh(), align_corners=False),
    ],
    "norms": [
        lambda m, x: F.batch_norm(x, m.mean, m.var, m.c, m.c.sin(), True, 0.2),
        lambda m, x: F.batch_norm(x, m.mean + 0.1, m.var + 0.2, m.c, m.c.sin(), False),
        lambda m, x: F.group_norm(x, 2, m.c, m.c.cos()),
        lambda m, x: F.instance_norm(x, weight=m.c, bias=m.c.cos()),
        lambda m, x: F.layer_norm(x, x.shape[1:]) + F.layer_norm(x, x.shape[-1:]),
        lambda m, x: F.layer_norm(x.permute(0, 2, 3, 1), (4,), m.c, m.c.cos()),
        lambda m, x: F.rms_norm(x, x.shape[-1:]) + F.normalize(x, dim=1) + F.normalize(x, dim=-1),
        lambda m, x: F.local_response_norm(x, 3),
    ],
    "products": [
        lambda m, x: F.linear(x.permute(0, 2, 3, 1), m.w[:, :, 0, 0], m.b),
        lambda m, x: x @ x.transpose(-1, -2),
        lambda m, x: torch.einsum("nchw,oc->nohw", x, m.w[:, :, 0, 0]),
        lambda m, x: torch.einsum("nchw,ndhw->ncd", x, x),
        lambda m, x: F.scaled_dot_product_attention(
            *(x.flatten(2).transpose(1, 2).unsqueeze(1) * i for i in (1, 2, 3))
        ),
        lambda m, x: F.scaled_dot_product_attention(*([x.flatten(2).transpose(1, 2)] * 3), is_causal=True),
        lambda m, x: torch.tensordot(x, m.w[..., 0, 0], ([1], [1])),
        lambda m, x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)) + x.flatten().dot(x.flatten()),
        lambda m, x: (x.flatten(2) @ x.flatten(2)[0, 0]).softmax(-1) + torch.mv(x[0].flatten(1), x[0, 0].flatten()),
        lambda m, x: F.bilinear(
            x.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1), m.w[:, :, :1, :1].expand(6, 4, 4, 1)[..., 0]
        ),
    ],
    "reductions": [
        lambda m, x: (x.sum(), x.mean((2, 3)), x.sum(1, keepdim=True), x.mean()),
        lambda m, x: (x.amax((2, 3)), x.amin(1), x.max(), x.max(2)[0], x.std((2, 3)), x.var(1)),
        lambda m, x: (x.softmax(1) + x.softmax(2), x.log_softmax(-1), x.logsumexp((2, 3)), x.cumsum(2)),
        lambda m, x: (x.norm(dim=1), x.norm(), torch.linalg.vector_norm(x, dim=(2, 3)), x.prod(1), x.argmax(1)),
        lambda m, x: (x.kthvalue(2, 2)[0], x.kthvalue(1, -1, keepdim=True)[0], x.median(1)[0], x.nanmedian(3)[0]),
        lambda m, x: (x.quantile(0.3, 1), x.nanquantile(0.5, 3, keepdim=True), *torch.std_mean(x, 1), x.mode(3)[0]),
        lambda m, x: (x.sort(2)[0], x.topk(2, 3)[0], (x > 0).any(), (x > 0).all(1), (x > 0).sum((0, 2))),
    ],
    "views": [
        lambda m, x: x.flatten(2).transpose(1, 2),
        lambda m, x: x.view(x.shape[0], -1).sin(),
        lambda m, x: x.reshape(-1).cos(),
        lambda m, x: x.permute(2, 0, 3, 1).reshape(x.shape[2], -1, 4),
        lambda m, x: x.unflatten(1, (2, 2)).movedim(1, -1).contiguous().swapaxes(0, 1),
        lambda m, x: x.unsqueeze(0).expand(3, -1, -1, -1, -1).reshape(-1, *x.shape[1:]),
        lambda m, x: x[:, :, : x.shape[2] // 2 * 2].reshape(x.shape[0], 4, -1, 2, x.shape[3]).permute(0, 2, 3, 4, 1),
        lambda m, x: x.mean(1, keepdim=True).squeeze(1).unsqueeze(-1) * m.c,
        lambda m, x: torch.view_as_real(torch.complex(x, x.sin())).flatten(-2),
    ],
    "joins": [
        lambda m, x: torch.cat([x, x.sin()], 1) + 1,
        lambda m, x: torch.cat([x[:, :, :1], x, x.cos()[:, :, 1:]], 2),
        lambda m, x: torch.cat([m.c.view(1, 4, 1, 1).expand(x.shape[0], 4, 1, x.shape[3]), x], 2)[:, :, 1:],
        lambda m, x: torch.stack([x, x.sin()], 2) + torch.stack([x, x.cos()], 2),
        lambda m, x: (x.chunk(2, 1)[1], x.chunk(2, 3)[0], *x.split(2, 2)[:2], x.unbind(1)[2], x.unbind(2)[1]),
        lambda m, x: (x[:, :, 1:], x[:, :, ::2], x[:, 1], x[..., 2], x[:, :, -1], x[0]),
        lambda m, x: x.repeat(1, 2, 1, 2) + x.repeat_interleave(2, 1).repeat_interleave(2, 3),
        lambda m, x: torch.roll(x, (1, -2), (2, 3)) + x.flip(2) + x.flip((1, 3)),
        lambda m, x: x.tile(2, 1, 1, 1),
    ],
    "indexing": [
        lambda m, x: x[:, torch.tensor([2, 0])] + x.index_select(1, torch.tensor([1, 1])),
        lambda m, x: x[:, :, torch.tensor([1, 0, 2])] * 2,
        lambda m, x: x[:, torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1])],
        lambda m, x: x.gather(1, x.detach().argsort(1)) + x.take_along_dim(x.detach().argsort(2), 2),
        lambda m, x: F.embedding((x.detach().abs() * 2).long().clamp(max=5), m.w[:, :, 0, 0]),
        lambda m, x: F.embedding((x.detach().abs() * 2).long().clamp(max=5), m.w[:, :, 0, 0], scale_grad_by_freq=True),
        lambda m, x: x.tril() + x.triu(1),
        lambda m, x: F.one_hot((x.detach().abs()).long().clamp(max=2), 3).to(x.dtype) * x.unsqueeze(-1),
    ],
    "made from sizes": [
        lambda m, x: x + torch.arange(x.shape[3]) + torch.zeros(x.shape) + torch.ones_like(x) + x.new_full((1,), 2.0),
        lambda m, x: (
            torch.meshgrid(torch.linspace(0, 1, x.shape[2]), torch.arange(x.shape[3]) * 1.0, indexing="ij")[0] * x
        ),
    ],
    "in place": [
        lambda m, x: (x * 2).add_(x).mul_(0.5).relu_(),
        lambda m, x: _assigned(x),
        lambda m, x: _filled(x),
        lambda m, x: (
            F.silu(x * 1, inplace=True) + F.hardswish(x * 2, inplace=True) + F.hardsigmoid(x * 1, inplace=True)
        ),
        lambda m, x: F.dropout(x * 1, 0.3, True, inplace=True) * F.dropout2d(x.sin(), 0.3, True, inplace=True),
        lambda m, x: _seen_through_view(x),
    ],
    "random": [
        lambda m, x: F.dropout(x, 0.4, True) + F.dropout2d(x, 0.3, True),
        lambda m, x: F.dropout(x.permute(2, 0, 3, 1) * 1, 0.4, True) + torch.randn_like(x.permute(2, 0, 3, 1)),
        lambda m, x: x * torch.rand(x.shape[0], 1, 1, 1) + torch.randn_like(x) * 0.1,
        lambda m, x: x * x.new_empty(x.shape[0], 1, 1, 1).bernoulli_().div_(0.5) + torch.rand_like(x),
        lambda m, x: F.scaled_dot_product_attention(*([x.flatten(2).transpose(1, 2)] * 3), dropout_p=0.3),
    ],
    "transforms": [
        lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=x.shape[-2:]),
        lambda m, x: torch.fft.fftshift(torch.fft.fft(x, dim=1)).abs(),
        lambda m, x: torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 2, 3)), s=x.shape[1:], dim=(1, 2, 3)),
    ],
}


def _assigned(x: Any) -> Any:
    y = torch.zeros(x.shape, dtype=x.dtype)
    y[:, :2] = x[:, 2:]
    y[:, :, 1:] = y[:, :, 1:] + x[:, :, :-1]
    return y


def _filled(x: Any) -> Any:
    y = x.sin()
    y[:, 1:2].fill_(0.5)
    y[:, :, :, :1] *= 2
    return y


def _seen_through_view(x: Any) -> Any:
    y = x.cos()
    turned = y.transpose(2, 3)
    y.mul_(2)
    turned[:, 1:2].add_(1)
    return y + turned.transpose(2, 3)


def register_erfcx() -> None:
    """A rule for an operator that has none; not in the test, which travels to the workers without torch's operators."""
    gridwise.register_rule(torch.ops.aten.special_erfcx, pointwise)


def has_rule(name: str) -> bool:
    packet, _, overload = name.rpartition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    plain = getattr(torch.ops.aten, packet.removesuffix("_"), None) if packet.endswith("_") else None
    overloads = [op, *([getattr(plain, each) for each in plain.overloads()] if plain else [])]
    return any(rule_for(each) or is_pointwise(each) or maker_for(each) for each in overloads)


LISTED = [
    "conv2d.default", "adaptive_avg_pool2d.default", "max_pool2d.default", "pad.default", "conv3d.default",
    "upsample_nearest2d.vec", "avg_pool2d.default", "upsample_bilinear2d.vec", "conv_transpose3d.input",
    "conv_transpose2d.input", "conv1d.default", "pixel_shuffle.default", "max_pool3d.default",
    "adaptive_avg_pool3d.default", "upsample_nearest3d.vec", "adaptive_avg_pool1d.default",
    "_upsample_nearest_exact2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec", "conv2d.padding",
    "avg_pool3d.default", "avg_pool1d.default", "batch_norm.default", "layer_norm.default", "group_norm.default",
    "linalg_vector_norm.default", "instance_norm.default", "linear.default", "scaled_dot_product_attention.default",
    "matmul.default", "einsum.default", "mv.default", "vdot.default", "tensordot.default", "lstm.input", "dot.default",
    "mean.dim", "softmax.int", "sum.dim_IntList", "cumsum.default", "amax.default", "flatten.using_ints",
    "reshape.default", "view.default", "transpose.int", "permute.default", "unsqueeze.default", "contiguous.default",
    "slice.Tensor", "unbind.int", "select.int", "to.dtype", "expand.default", "alias.default", "expand_as.default",
    "chunk.default", "squeeze.dim", "split_with_sizes.default", "split.Tensor", "reshape_as.default", "unflatten.int",
    "to.device", "to.dtype_layout", "type_as.default", "movedim.int", "detach_.default", "tensor_split.indices",
    "swapaxes.default", "cat.default", "index.Tensor", "stack.default", "repeat.default", "roll.default",
    "copy_.default", "repeat_interleave.self_int", "fill_.Tensor", "zero_.default", "where.Scalar",
    "concatenate.default", "concat.default", "arange.default", "empty.memory_format", "zeros.default",
    "new_empty.default", "lift_fresh_copy.default", "meshgrid.indexing", "arange.start", "new_zeros.default",
    "linspace.default", "zeros_like.default", "ones.default", "dropout.default", "bernoulli_.float", "dropout_.default",
    "rand.default", "feature_dropout.default", "randn_like.default", "feature_dropout_.default", "fft_rfftn.default",
    "fft_irfftn.default", "fft_fftshift.default", "real.default", "fft_fft2.default", "add.Tensor", "add_.Tensor",
    "mul.Tensor", "relu_.default", "gelu.default", "relu.default", "sigmoid.default", "div.Tensor", "silu.default",
    "sub.Tensor", "silu_.default", "div_.Tensor", "leaky_relu_.default", "hardsigmoid.default", "tanh.default",
    "clamp_min.default", "exp.default", "clamp.default", "pow.Tensor_Scalar", "ge.Scalar", "clone.default",
    "rsqrt.default", "floor.default", "sin.default", "leaky_relu.default", "hardtanh_.default", "hardtanh.default",
    "cos.default", "ne.Scalar", "masked_fill.Scalar", "eq.Scalar", "square.default", "pow.Scalar", "div.Tensor_mode",
    "addcmul.default", "rsub.Scalar", "neg.default", "elu_.default", "bitwise_not.default", "hardswish_.default",
    "prelu.default", "le.Tensor", "hardswish.default",
]  # fmt: skip
"""The operators of 222 models of seven libraries."""
