"""Ways to draw random numbers in constructors, as constructors to defer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .layers import Holder
from .registry import case


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
