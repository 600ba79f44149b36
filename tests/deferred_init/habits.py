"""What people do with tensors in constructors, as constructors to defer."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings

import numpy as np
import torch
from torch import nn

from .layers import Holder
from .registry import case


@case
def lazy_dry_run() -> nn.Module:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5))
    net(torch.zeros(2, 3, 8, 8))
    return net


@case
def tied() -> nn.Module:
    net = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9, bias=False))
    net[1].weight = net[0].weight
    return net


@case
def views_and_in_place() -> nn.Module:
    base = torch.randn(6, 8)
    net = Holder(base=base, row=base[2], columns=base[:, 1:5], flipped=base.t())
    base[2].mul_(3)
    net.columns.add_(net.flipped[1:5].t() * 2)
    base[0] = net.row
    return net


@case
def view_of_a_parameter() -> nn.Module:
    weight = nn.Parameter(torch.randn(4, 6))
    net = Holder(weight=weight)
    net.flat = weight.view(-1)
    net.register_buffer("detached", weight.detach()[1:])
    return net


@case
def data_assignment() -> nn.Module:
    layer = nn.Linear(6, 4)
    layer.weight.data = torch.randn(4, 6) * 0.1
    layer.bias.data.fill_(0.5)
    layer.bias.data[1:3] = torch.arange(2.0)
    return layer


@case
def complex_parameters() -> nn.Module:
    z = torch.randn(5, 3, dtype=torch.complex64)
    w = nn.Parameter(torch.view_as_complex(torch.rand(4, 2)))
    return Holder(z=nn.Parameter(z), conjugate=z.conj().resolve_conj(), w=w, modulus=z.abs())


@case
def conjugate_views() -> nn.Module:
    z = torch.randn(5, 3, dtype=torch.complex64)
    return Holder(z=z, conjugate=z.conj(), negative=z.conj().imag, alone=torch.randn(4, dtype=torch.complex64).conj())


@case
def non_persistent_buffers() -> nn.Module:
    net = nn.Module()
    half = torch.arange(0, 16, 2).float() / 16
    net.register_buffer("inv_freq", 1.0 / 10000**half, persistent=False)
    net.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1), persistent=False)
    net.buf = nn.Buffer(torch.linspace(0, 1, 5), persistent=False)
    return net


@case
def plain_attributes() -> nn.Module:
    net = nn.Linear(3, 3)
    net.scale = torch.rand(3)
    net.tables = [torch.randn(2), net.weight]
    return net


@case
def containers() -> nn.Module:
    net = nn.Linear(3, 3)
    net.tables = {"a": torch.rand(3), "b": [torch.rand(2), (net.weight, torch.rand(1))]}
    net.pair = (torch.rand(2), net.bias)
    return net


@case
def gradients() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    net(torch.rand(2, 3)).sum().backward()
    net[0].bias.grad = torch.rand(3)
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    return net


@case
def numpy_views() -> nn.Module:
    table = np.arange(12.0).reshape(3, 4)
    return Holder(
        every_second=torch.from_numpy(np.arange(10.0)[::2]),
        transposed=torch.from_numpy(table.T),
        corner=torch.from_numpy(table[1:, 2:]) * torch.rand(2, 2),
        w=nn.Parameter(torch.from_numpy(np.ones((2, 3), dtype=np.float32))),
    )


@case
def loaded_from_a_file() -> nn.Module:
    state = torch.load(io.BytesIO(_SAVED))
    layer, given = nn.Linear(3, 4), nn.Linear(3, 4)
    layer.load_state_dict({"weight": state["weight"], "bias": state["first"]})
    given.load_state_dict({"weight": state["weight"], "bias": state["first"]}, assign=True)
    return nn.ModuleList([layer, given])


def _saved() -> bytes:
    weight = torch.arange(12.0).view(4, 3)
    file = io.BytesIO()
    torch.save({"weight": weight, "first": weight[:, 0]}, file)  # two views of one storage
    return file.getvalue()


_SAVED = _saved()


@case
def other_storages() -> nn.Module:
    a, b, c = torch.rand(6), torch.empty(0), torch.empty(0)
    b.set_(a)
    torch.rand(5, out=c)
    return Holder(a=a, b=b, c=c, d=torch.randn(6, out=torch.empty(6)), e=torch.add(a, 1, out=torch.empty(6)))


@case
def sparse_ingredients() -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks")  # which torch 2.11 leaves off with a warning
        edges = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.rand(2), (2, 2), check_invariants=False)
        return Holder(spread=edges @ torch.rand(2, 3), dense=torch.rand(3, 3).to_sparse().to_dense())


@case
def reads_data() -> nn.Module:
    rates = [x.item() for x in torch.linspace(0, 0.3, 4)]
    sizes = torch.tensor([3, 5]).tolist()
    table = torch.ones(3).numpy().sum()
    net = nn.ModuleList([nn.Linear(sizes[0], sizes[1]), nn.Dropout(rates[2])])
    if (torch.rand(3) < 2).all():
        net.append(nn.Linear(int(table), 2))
    net.register_buffer("where", torch.tensor([0.0, 1.0, 2.0]).nonzero())
    net.register_buffer("noise", torch.from_numpy(np.arange(4.0)) * torch.rand(4, dtype=torch.float64))
    return net


@case
def casts() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)).half()
    return nn.ModuleList(
        [net, nn.Linear(3, 4).to(torch.bfloat16), nn.Linear(3, 4).double().float(), nn.LSTM(3, 4).double()]
    )


@case
def channels_last() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)


@case
def autocast_and_grad_modes() -> nn.Module:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.rand(4, 5) @ torch.rand(5, 6)
    with torch.no_grad():
        w = nn.Parameter(torch.randn(3, 3))
        w.mul_(2)
    return Holder(product=product, w=w, frozen=nn.Parameter(torch.rand(2), requires_grad=False))


@case
def default_dtype() -> nn.Module:
    torch.set_default_dtype(torch.float64)
    try:
        return Holder(layer=nn.Linear(3, 4), ratio=torch.arange(5) / 3)
    finally:
        torch.set_default_dtype(torch.float32)


@case
def copies() -> nn.Module:
    layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    layer[0].register_buffer("whole", torch.rand(6))
    layer[0].register_buffer("part", layer[0].whole[2:4])
    twin = copy.deepcopy(layer)
    twin[0].part.zero_()
    with torch.no_grad():
        twin[0].weight.copy_(layer[0].weight.t())
    return nn.ModuleList([layer, twin])


@case
def in_place_geometry() -> nn.Module:
    a = torch.rand(3, 5)
    b = torch.rand(6)
    a.t_()
    b.unsqueeze_(0)
    c = torch.rand(2, 3).transpose_(0, 1).mul_(2)
    return Holder(a=a, b=b, c=c)


@case
def split_and_stack() -> nn.Module:
    q, k, v = torch.randn(9, 4).chunk(3)
    q.mul_(2)
    halves = torch.stack([q, k]).unbind(1)
    return Holder(
        q=q, k=k, v=v, h=halves[1], top=torch.topk(torch.rand(9), 2)[0], svd=torch.linalg.svd(torch.rand(4, 4))[1]
    )


@case
def spectra() -> nn.Module:
    w = torch.rand(3, 9, 9)
    square = w[0] @ w[0].t()
    return Holder(
        values=torch.linalg.svdvals(w), eigen=torch.linalg.eigvalsh(square), cond=torch.linalg.cond(w),
        rank=torch.linalg.matrix_rank(w),
        nuclear=square.norm("nuc"), largest=torch.linalg.matrix_norm(w, 2), wanted=torch.linalg.svdvals(nn.Parameter(square)),
    )  # fmt: skip


@case
def results_that_the_cpu_lays_out_in_its_own_way() -> nn.Module:
    images = torch.rand(2, 3, 4, 6)
    u, s, vh = torch.linalg.svd(images[0], full_matrices=False)
    eigenvalues, eigenvectors = torch.linalg.eig(images[..., :4])
    pooled, places = nn.functional.max_pool2d(images.to(memory_format=torch.channels_last), 2, return_indices=True)
    ones = torch.ones(3)
    return Holder(
        u=u, s=s, vh=vh, eigenvalues=eigenvalues, eigenvectors=eigenvectors, fourier=torch.fft.rfft2(images),
        found=torch.nonzero_static(images, size=4), unpooled=nn.functional.max_unpool2d(pooled, places, 2),
        normed=list(torch.native_batch_norm(images, ones, ones, ones, ones, False, 0.1, 1e-5)),
    )  # fmt: skip


@case
def masked_attention() -> nn.Module:
    q, k, v = torch.randn(3, 2, 4, 8, 16).unbind()
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    attend = nn.functional.scaled_dot_product_attention
    return Holder(a=attend(q, k, v, attn_mask=mask), b=attend(q, k, v, dropout_p=0.3), after=torch.rand(2))


@case
def gradients_through_what_was_read() -> nn.Module:
    weight, row = nn.Parameter(torch.rand(4, 4)), nn.Parameter(torch.rand(4))
    return Holder(
        weight=weight, row=row, large=weight[weight > 0.5], product=row @ weight, pairs=torch.combinations(row)
    )


@case
def apply_init() -> nn.Module:
    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)

    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 40)).apply(init)


@case
def external_tensors() -> nn.Module:
    return Holder(sum=_TABLE + torch.rand(4), emb=nn.Embedding.from_pretrained(_TABLE.view(2, 2)))


_TABLE = torch.arange(4.0)


@case
def legacy_constructors() -> nn.Module:
    a = torch.Tensor(3, 4).uniform_()
    return Holder(a=a, b=a.new(5).normal_(), c=a.new_zeros(3), d=torch.FloatTensor([1, 2]), e=a.new_tensor([3.0]))


@case
def meta_context_inside() -> nn.Module:
    with contextlib.nullcontext(), torch.device("cpu"):
        return nn.Linear(3, 3)


@case
def resized_and_filled() -> nn.Module:
    holder = Holder()
    holder.register_buffer("filled", torch.empty(0).resize_(5).fill_(2))
    holder.register_buffer("drawn", torch.empty(0).resize_(20).normal_())
    holder.register_buffer("copied", torch.empty(0).resize_as_(torch.ones(3)).copy_(torch.arange(3.0)))
    holder.register_buffer("grown", torch.ones(4).resize_(2, 3).fill_(1))
    holder.register_buffer("shrunk", torch.arange(6.0).resize_(2, 2))
    holder.register_buffer("twice", torch.zeros(2).resize_(3).zero_().resize_(7).uniform_())
    return holder


@case
def resized_beside_a_view() -> nn.Module:
    """The other name of the storage sees what is done to it, within the size that it had."""
    holder = Holder()
    a = torch.zeros(3)
    b, c = a.detach(), a.view(3, 1)
    a.resize_(5).fill_(2)
    b.fill_(3)
    holder.register_buffer("a", a)
    holder.register_buffer("b", b)
    holder.register_buffer("c", c)
    return holder


@case
def resized_by_an_output() -> nn.Module:
    holder = Holder()
    out = torch.empty(0)
    torch.add(torch.ones(3), 1, out=out)
    out.fill_(7)
    holder.register_buffer("out", out)
    again = torch.empty(0)
    torch.add(torch.ones(4), 1, out=again)
    holder.register_buffer("again", again.normal_())
    return holder
