"""Constructors to defer: every torch.nn layer with parameters or buffers, what people do to them, three architectures.

`CASES` maps a name to a function without arguments; `test_bitwise.py` runs each eagerly and deferred.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

CASES: dict[str, Callable[[], nn.Module]] = {}


def case(fn: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    CASES[fn.__name__] = fn
    return fn


def _layer(name: str, *args: object, **kwargs: object) -> None:
    label = name + "".join(f",{k}={v}" for k, v in kwargs.items())
    CASES[label] = lambda: getattr(nn, name)(*args, **kwargs)


for _dims in "123":
    _layer(f"Conv{_dims}d", 3, 5, 3)
    _layer(f"ConvTranspose{_dims}d", 4, 6, 3, groups=2, bias=False)
    _layer(f"BatchNorm{_dims}d", 7)
    _layer(f"InstanceNorm{_dims}d", 7, affine=True, track_running_stats=True)
_layer("Conv2d", 4, 8, 3, padding_mode="circular", dtype=torch.float64)
_layer("Linear", 33, 17)
_layer("Linear", 33, 17, dtype=torch.float64)
_layer("Linear", 33, 17, dtype=torch.bfloat16)
_layer("Linear", 33, 17, dtype=torch.float16, bias=False)
_layer("Linear", 5, 4, dtype=torch.complex64)
_layer("Bilinear", 3, 4, 5)
_layer("LayerNorm", [3, 4])
_layer("RMSNorm", 12)
_layer("GroupNorm", 2, 6)
_layer("SyncBatchNorm", 6)
_layer("Embedding", 20, 7)
_layer("Embedding", 20, 7, padding_idx=3)
_layer("Embedding", 3, 5, dtype=torch.float64)
_layer("EmbeddingBag", 11, 3)
_layer("PReLU", 4)
_layer("LSTM", 5, 7, num_layers=2, bidirectional=True)
_layer("LSTM", 5, 7, proj_size=3)
_layer("GRU", 5, 7, num_layers=2)
_layer("RNN", 5, 7)
_layer("LSTMCell", 5, 7)
_layer("GRUCell", 5, 7)
_layer("RNNCell", 5, 7)
_layer("MultiheadAttention", 16, 4)
_layer("MultiheadAttention", 16, 4, kdim=5, vdim=6, add_bias_kv=True)
_layer("TransformerEncoderLayer", 16, 2, 32)
_layer("TransformerDecoderLayer", 16, 2, 32)
_layer("Transformer", 16, 2, 2, 1, 32, batch_first=True)
_layer("AdaptiveLogSoftmaxWithLoss", 32, 20, [4, 10], div_value=2.0)
_layer("CrossEntropyLoss")
CASES["CrossEntropyLoss,weight"] = lambda: nn.CrossEntropyLoss(weight=torch.rand(5))
CASES["BCEWithLogitsLoss,pos_weight"] = lambda: nn.BCEWithLogitsLoss(pos_weight=torch.ones(5) * 3)
CASES["TransformerEncoder"] = lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)
for _lazy in ("LazyConv1d", "LazyConv2d", "LazyConvTranspose2d"):
    _layer(_lazy, 4, 3)
_layer("LazyLinear", 4)
for _lazy in ("LazyBatchNorm1d", "LazyBatchNorm2d", "LazyInstanceNorm2d"):
    _layer(_lazy)


class Holder(nn.Module):
    """A module to hang tensors on."""

    def __init__(self, **tensors: Tensor | nn.Module | None) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):
                self.register_buffer(name, tensor)
            else:
                setattr(self, name, tensor)


def _init_case(
    name: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (12, 18), **kwargs: object
) -> None:
    def build() -> nn.Module:
        weight = nn.Parameter(torch.empty(shape, dtype=dtype))
        getattr(nn.init, name)(weight, **kwargs)
        return Holder(weight=weight)

    CASES[f"init.{name},{str(dtype)[6:]},{shape}"] = build


for _name in ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"):
    _init_case(_name)
_init_case("kaiming_normal_", mode="fan_out", nonlinearity="relu")
_init_case("trunc_normal_", torch.float64, (3, 5), std=0.02)
_init_case("normal_", torch.bfloat16, (3, 5))
_init_case("normal_", torch.float16, (33,), mean=1.0)
_init_case("ones_")
_init_case("eye_", shape=(5, 5))
_init_case("dirac_", shape=(4, 4, 3))
_init_case("orthogonal_")
_init_case("sparse_", sparsity=0.4)


@case
def lazy_dry_run() -> nn.Module:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5))
    net(torch.zeros(2, 3, 8, 8))
    return net


@case
def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(6, 4))


@case
def old_spectral_norm() -> nn.Module:
    return nn.utils.spectral_norm(nn.Conv2d(3, 4, 3))


@case
def weight_norm() -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(6, 4))


@case
def spectral_norm() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(6, 4), n_power_iterations=3)


@case
def orthogonal_parametrization() -> nn.Module:
    return parametrizations.orthogonal(nn.Linear(6, 6))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.triu()


@case
def own_parametrization() -> nn.Module:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


@case
def removed_parametrization() -> nn.Module:
    layer = own_parametrization()
    parametrize.remove_parametrizations(layer, "weight")
    return layer


@case
def pruned() -> nn.Module:
    from torch.nn.utils import prune

    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", amount=0.3)
    return layer


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
def seeds_inside() -> nn.Module:
    first = nn.Linear(7, 5)
    torch.manual_seed(11)
    second = nn.Linear(7, 5)
    state = torch.get_rng_state()
    third = nn.Linear(7, 5)
    torch.set_rng_state(state)
    again = nn.Linear(7, 5)
    with torch.random.fork_rng():
        forked = nn.Linear(5, 7)
    return nn.ModuleList([first, second, third, again, forked, nn.Linear(7, 5)])


@case
def explicit_generators() -> nn.Module:
    g = torch.Generator().manual_seed(5)
    a = torch.empty(4, 30).normal_(generator=g)
    b = torch.rand(7, generator=g)
    before = g.get_state()
    c = nn.init.trunc_normal_(torch.empty(5, 5), generator=g)
    g.set_state(before)
    d = torch.randn(3, generator=g)
    e = torch.randperm(9, generator=g)
    return Holder(a=a, b=b, c=c, d=d, e=e, f=torch.randn(3, generator=torch.default_generator))


@case
def small_normals() -> nn.Module:
    """An odd count leaves half a pair in the generator for the next small normal."""
    return Holder(
        **{f"n{n}": torch.randn(n) for n in (1, 3, 40, 2, 15, 16, 5, 7)}, u=torch.rand(3), last=torch.randn(1)
    )


@case
def strided_fills() -> nn.Module:
    a = torch.empty(9, 11).t().normal_()
    b = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last).uniform_()
    c = torch.zeros(10, 10)
    c[::2, 1:7].normal_()
    return Holder(a=a, b=b, c=c, d=torch.randn(3, 4).t().contiguous())


@case
def other_distributions() -> nn.Module:
    x = torch.empty(33)
    return Holder(
        bernoulli=torch.bernoulli(torch.rand(20)),
        in_place=x.clone().bernoulli_(0.3),
        exponential=x.clone().exponential_(),
        integers=torch.randint(0, 50, (9,)),
        picked=torch.multinomial(torch.rand(6), 3),
        log_normal=x.clone().log_normal_(),
        geometric=x.clone().geometric_(0.3),
        dropped=F.dropout(torch.ones(50)),
        normal=torch.normal(torch.zeros(9), 2.0),
        like=torch.randn_like(x),
        after=torch.rand(4),
    )


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


class Bottleneck(nn.Module):
    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        cout = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


@case
def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    cin = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            layers.append(Bottleneck(cin, width, stride if i == 0 else 1))
            cin = 4 * width
    net = nn.Sequential(*layers, nn.Linear(cin, 1000))
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    for m in net.modules():
        if isinstance(m, Bottleneck):
            nn.init.zeros_(m.bn3.weight)
    return net


class Block(nn.Module):
    def __init__(self, d: int, heads: int, context: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).bool(), persistent=False)


def gpt2(vocabulary: int = 50257, context: int = 1024, d: int = 768, layers: int = 12) -> nn.Module:
    net = nn.ModuleDict(
        {"wte": nn.Embedding(vocabulary, d), "wpe": nn.Embedding(context, d)}
        | {f"h{i}": Block(d, 12, context) for i in range(layers)}
        | {"ln": nn.LayerNorm(d), "head": nn.Linear(d, vocabulary, bias=False)}
    )
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            std = 0.02 / math.sqrt(2 * layers) if name.endswith(("proj", "down")) else 0.02
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    net["head"].weight = net["wte"].weight
    return net


CASES["gpt2"] = lambda: gpt2(vocabulary=5003, context=128, d=192, layers=12)


@case
def unet3d() -> nn.Module:
    def double(cin: int, cout: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm3d(cout), nn.ReLU(),
            nn.Conv3d(cout, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True), nn.PReLU(),
        )  # fmt: skip

    widths = (8, 16, 32, 64)
    down = nn.ModuleList(double(a, b) for a, b in zip((1, *widths[:-1]), widths, strict=True))
    up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
    merge = nn.ModuleList(double(2 * a, a) for a in widths[:-1])
    return nn.ModuleDict({"down": down, "up": up, "merge": merge, "out": nn.Conv3d(widths[0], 3, 1)})
