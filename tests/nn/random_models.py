"""Random models: chains of layers and of what models do between them, each step chosen for the shape that it gets."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[["Chain", Tensor], Tensor]


class Chain(nn.Module):
    """Steps one after the other; a step may have modules and parameters of its own in it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.words: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(self, x)
        return x

    def own(self, name: str, part: Any) -> str:
        """Keep a module, or a parameter of that shape, under a name of its own."""
        name = f"{name}{len(self.steps)}"
        if isinstance(part, tuple):
            generator = torch.Generator().manual_seed(len(self.steps))
            part = nn.Parameter(torch.randn(part, dtype=torch.float64, generator=generator))
        setattr(self, name, part)
        return name


def random_model(rng: random.Random, shape: tuple[int, ...], steps: int) -> Chain:
    """A chain for inputs of that shape; torch runs it while it is made, to know what fits next."""
    model = Chain()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    while len(model.steps) < steps:
        words, step = rng.choice(STEPS)(rng, model, tuple(x.shape))
        if step is None:
            continue
        model.double()
        try:
            y = step(model, x).detach()
        except ValueError:  # a norm of a single value
            continue
        if not y.numel() or y.numel() > 4000 or not y.dim() or y.dim() > 6:
            continue
        model.steps.append(step)
        model.words.append(f"{words} {tuple(x.shape)}")
        x = y / y.abs().max().clamp(min=1.0)
    return model


def permuted(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    order = rng.sample(range(len(shape)), len(shape))
    return f"permute {order}", lambda m, x: x.permute(order)


def sliced(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    index: list[Any] = []
    for n in shape:
        if n > 2 and rng.random() < 0.5:
            start = rng.randint(0, n // 2)
            index.append(slice(start, rng.choice((None, rng.randint(start + 1, n), -1)), rng.choice((None, 1, 2, 3))))
        else:
            index.append(slice(None))
    if rng.random() < 0.3 and len(shape) > 2:
        index[rng.randrange(len(shape))] = rng.choice((0, -1))
    if rng.random() < 0.2:
        index.insert(rng.randint(0, len(index)), None)
    taken = tuple(index)
    return f"{taken}", lambda m, x: x[taken]


def along(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    d = rng.randint(-len(shape), len(shape) - 1)
    name = rng.choice(("softmax", "cumsum", "flip"))
    return f"{name} {d}", lambda m, x: getattr(x, name)(d)


def reduced(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    if len(shape) < 2:
        return "", None
    dims = rng.sample(range(len(shape)), rng.randint(1, len(shape) - 1))
    name, keep = rng.choice(("mean", "sum", "amax")), rng.random() < 0.5
    return f"{name} {dims} {keep}", lambda m, x: getattr(x, name)(dims, keepdim=keep)


def gated(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    dims = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
    if len(dims) == len(shape):
        return "", None
    return f"gate {dims}", lambda m, x: x * torch.sigmoid(x.mean(dims, keepdim=True))


def flattened(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    first, last = sorted((rng.randrange(len(shape)), rng.randrange(len(shape))))
    if last - first + 1 == len(shape):
        return "", None
    return f"flatten {first} {last}", lambda m, x: x.flatten(first, last)


def reshaped(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    """Two neighbours as one, or one as two, with the sizes of the others taken from the tensor."""
    d = rng.randrange(len(shape))
    if shape[d] % 2 == 0 and rng.random() < 0.5:
        return f"split {d}", lambda m, x: x.reshape(
            [x.size(i) for i in range(d)] + [2, -1] + [x.size(i) for i in range(d + 1, len(shape))]
        )
    if len(shape) < 3 or d + 1 == len(shape):
        return "", None
    return f"merge {d}", lambda m, x: x.reshape(
        [x.size(i) for i in range(d)] + [-1] + [x.size(i) for i in range(d + 2, len(shape))]
    )


def parts(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    d = rng.randrange(len(shape))
    if shape[d] < 2:
        return "", None
    if rng.random() < 0.5:
        return f"halves {d}", lambda m, x: torch.cat([x.chunk(2, d)[1], x.chunk(2, d)[0].sin()], d)
    return f"stack {d}", lambda m, x: torch.stack([x, x.cos()], d)


def weighted(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    own = tuple(n if rng.random() < 0.5 else 1 for n in shape[rng.randrange(len(shape)) :])
    name = model.own("weight", own)
    return f"times {own}", lambda m, x: x * getattr(m, name) + 0.1


def shifted(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    d = rng.randrange(len(shape))
    if shape[d] < 2:
        return "", None
    return f"differences {d}", lambda m, x: x.narrow(d, 1, shape[d] - 1) - x.narrow(d, 0, shape[d] - 1)


def layered(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    kind = rng.choice(("Linear", "LayerNorm", "Conv", "Norm", "Pool", "Up"))
    if kind == "Linear":
        name = model.own("linear", nn.Linear(shape[-1], rng.randint(1, 5)))
    elif kind == "LayerNorm":
        name = model.own("norm", nn.LayerNorm(shape[-1]))
    elif len(shape) != 4:
        return "", None
    elif kind == "Conv":
        kernel = tuple(rng.randint(1, min(4, n)) for n in shape[2:])
        name = model.own("conv", nn.Conv2d(shape[1], rng.randint(1, 4), kernel, padding=rng.randint(0, 1)))
    elif kind == "Norm":
        name = model.own("norm", nn.GroupNorm(1, shape[1]) if shape[2] * shape[3] == 1 else nn.InstanceNorm2d(shape[1]))
    elif kind == "Pool":
        name = model.own("pool", nn.AdaptiveAvgPool2d(rng.choice((1, 2, (3, None)))))
    else:
        return "interpolate", lambda m, x: F.interpolate(x, scale_factor=2.0, mode="bilinear") if min(shape) else x
    return f"{kind} {name}", lambda m, x: getattr(m, name)(x)


def regrouped(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    """Rows of another length, which need not be a part of a sample."""
    count = math.prod(shape)
    fitting = [n for n in range(1, 13) if count % n == 0]
    rest = (rng.choice(fitting),) if rng.random() < 0.5 else (1, rng.choice(fitting))
    return f"view -1 {rest}", lambda m, x: x.reshape(-1, *rest)


def repeated(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    d = rng.randrange(len(shape))
    kind = rng.choice(("repeat", "interleave", "expand", "as"))
    if kind == "repeat":
        counts = [2 if i == d else 1 for i in range(len(shape))]
        return f"repeat {counts}", lambda m, x: x.repeat(counts)
    if kind == "interleave":
        return f"interleave {d}", lambda m, x: x.repeat_interleave(2, dim=d)
    if kind == "as":
        return f"expand as {d}", lambda m, x: x.amax(d, keepdim=True).expand_as(x) - x
    return f"expand {d}", lambda m, x: x + x.mean(d, keepdim=True).expand([x.size(i) for i in range(len(shape))])


def token(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    """A parameter for each sample, put in front."""
    if len(shape) < 2:
        return "", None
    d = rng.randrange(1, len(shape))
    own = [1 if i in (0, d) else n for i, n in enumerate(shape)]
    name = model.own("token", tuple(own))
    return f"token {d}", lambda m, x: torch.cat([getattr(m, name).expand(x.size(0), *[-1] * (len(own) - 1)), x], d)


def multiplied(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    if len(shape) < 2:
        return "", None
    kind = rng.choice(("right", "left", "self", "einsum", "attention"))
    if kind in ("right", "left"):
        name = model.own("matrix", (shape[-1], 3) if kind == "right" else (2, shape[-2]))
        if kind == "right":
            return f"{kind} {shape}", lambda m, x: x @ getattr(m, name)
        return f"{kind} {shape}", lambda m, x: getattr(m, name) @ x
    if kind == "self":
        return "self", lambda m, x: x @ x.transpose(-1, -2) * 0.1
    if kind == "attention":
        return "attention", lambda m, x: F.scaled_dot_product_attention(x, x.sin(), x)
    letters = "abcdef"[: len(shape)]
    left, right = rng.sample(letters, 2)
    result = "".join(rng.sample(letters.replace(left, "").replace(right, ""), len(letters) - 2)) + right
    other = letters.replace(left, "")
    return f"einsum {letters},{left}{right}", lambda m, x: torch.einsum(
        f"{letters},{other}->{result}", x, x.detach().amax(letters.index(left))
    )


def convolved(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    if len(shape) != 4:
        return "", None
    after, kernel = rng.randint(1, 4), tuple(rng.randint(1, min(3, n)) for n in shape[2:])
    name, stride = model.own("kernel", (after, shape[1], *kernel)), rng.randint(1, 2)
    return f"conv {after} {kernel} {stride}", lambda m, x: F.conv2d(x, getattr(m, name), None, stride, 1)


def shuffled(rng: random.Random, model: Chain, shape: tuple[int, ...]) -> Any:
    if len(shape) != 4:
        return "", None
    if shape[1] % 4 == 0 and rng.random() < 0.5:
        return "shuffle", lambda m, x: F.pixel_shuffle(x, 2)
    if shape[2] % 2 or shape[3] % 2:
        return "", None
    return "unshuffle", lambda m, x: F.pixel_unshuffle(x, 2)


STEPS = (
    permuted,
    sliced,
    along,
    reduced,
    gated,
    flattened,
    reshaped,
    parts,
    weighted,
    shifted,
    layered,
    layered,
    layered,
    regrouped,
    repeated,
    token,
    multiplied,
    convolved,
    shuffled,
)
