"""The arguments of a converted model: by name, with defaults, several tensors; and inputs that it cannot take."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import MismatchError, PartitionError, UnsupportedError
from gridwise.testing import workers

GRIDS = [(1, 1, 2, 1), (2, 1, 1, 1), (1, 2, 1, 1)]


def partition(*grid: int) -> Any:
    return gridwise.world().create_cartesian_topology_partition(grid)


def block(x: Tensor, P: Any) -> Tensor:
    return x[gridwise.local_slice(P, x.shape)].clone()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 2.0, flips: bool = False) -> Tensor:
        y = self.conv(x)
        if mask is not None:
            y = y * mask[:, None, :, None]
        return scale * (y.flip(2) if flips else y)


@workers(1, 2)
def test_arguments_by_name_and_defaults(gridwise_setting: tuple[str, int]) -> None:
    torch.manual_seed(0)
    sequential, x = Masked().double(), random(2, 2, 5, 4)
    for grid in GRIDS if gridwise_setting[1] == 2 else [(1, 1, 1, 1)]:
        P = partition(*grid)
        model, mine = gridwise.distribute(copy.deepcopy(sequential), P), block(x, P)
        for y in (model(mine), model(x=mine), model(mine, None), model(mine, mask=None, scale=2.0)):
            torch.testing.assert_close(y, block(sequential(x), model.P_y))
        model = gridwise.distribute(copy.deepcopy(sequential), P, scale=3.0, flips=True)
        expected = sequential(x, scale=3.0, flips=True)
        torch.testing.assert_close(model(mine), block(expected, model.P_y))


@workers(1, 2, 4)
def test_several_tensors_on_partitions_of_their_own(gridwise_setting: tuple[str, int]) -> None:
    torch.manual_seed(0)
    for grid in {1: [(1, 1, 1, 1)], 2: GRIDS, 4: [(2, 1, 2, 1), (1, 1, 2, 2)]}[gridwise_setting[1]]:
        sequential = Masked().double()
        P, P_mask = partition(*grid), partition(gridwise_setting[1], 1)
        model = gridwise.distribute(copy.deepcopy(sequential), P, mask=P_mask)
        x, mask = random(3, 2, 5, 4).requires_grad_(), random(3, 5).requires_grad_()
        mine, own = block(x.detach(), P).requires_grad_(), block(mask.detach(), P_mask).requires_grad_()
        for _ in range(2):
            y, expected = model(mask=own, x=mine), sequential(x, mask)
            torch.testing.assert_close(y, block(expected, model.P_y))
        y.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(mine.grad, block(x.grad, P))
        torch.testing.assert_close(own.grad, block(mask.grad, P_mask))
        torch.testing.assert_close(model.conv.weight.grad, sequential.conv.weight.grad[_own(model.conv.weight)])


def _own(parameter: Any) -> Any:
    return parameter.block.slices if parameter.block is not None else ...


@workers(2)
def test_wrong_arguments_are_one_error_on_all_workers() -> None:
    P = partition(1, 1, 2, 1)
    model, x = gridwise.distribute(Masked(), P), torch.ones(1, 2, 2, 4)
    held = gridwise.distribute(Masked(), P, scale=3.0)
    wrong: dict[str, Any] = {
        "missing a required argument: 'x'": lambda: model(),
        "unexpected keyword argument 'weight'": lambda: model(x, weight=x),
        "too many positional arguments": lambda: model(x, None, 3),
        "no tensor was given": lambda: model(3),
        "`scale` is held at 3.0": lambda: held(x, scale=1.0),
        "`mask` is held at None, a tensor was given": lambda: model(x, mask=x),
    }
    for words, call in wrong.items():
        with pytest.raises(PartitionError, match=words):
            call()
    with pytest.raises(PartitionError, match="`mask` is held at None"):  # said by all, though only one is wrong
        model(x, mask=x if gridwise.world().rank else None)
    model(x)


@workers(2, transports=("mpi",))
def test_one_tensor_as_several_arguments() -> None:
    """On several partitions it is a block of as many global tensors; on one it is one tensor."""
    P, Q, rank = partition(2, 1), partition(1, 2), gridwise.world().rank
    whole, other = random(4, 2), random(4, 2).reshape(2, 2, 2).transpose(0, 1).reshape(2, 4)
    torch.testing.assert_close(whole[2 * rank : 2 * rank + 2], other[:, 2 * rank : 2 * rank + 2])
    added = gridwise.distribute(lambda a, b: (a * a.sum(0)).sum() + (b.sum(0) * b).sum().exp(), P, b=Q)
    nested = gridwise.distribute(
        lambda pair, b=None: (pair[0] * pair[0].sum(0)).sum() + pair[1].sum(0).sin().sum(), P, pair=(P, Q)
    )
    alike = gridwise.distribute(lambda pair: (pair[0] * pair[1]).sum() + pair[1].sum(0).sin().sum(), P, pair=(P, P))
    x, a, b = whole[2 * rank : 2 * rank + 2].clone().requires_grad_(), whole.requires_grad_(), other.requires_grad_()
    for y, expected in (
        (added(x, x), (a * a.sum(0)).sum() + (b.sum(0) * b).sum().exp()),
        (nested((x, x)), (a * a.sum(0)).sum() + b.sum(0).sin().sum()),
        (alike((x, x)), (a * a).sum() + a.sum(0).sin().sum()),
        (alike((x, 2 * x)), (a * 2 * a).sum() + (2 * a).sum(0).sin().sum()),
    ):
        torch.testing.assert_close(y, expected)
        (g,) = torch.autograd.grad(y, x)
        of_a, of_b = torch.autograd.grad(expected, (a, b), allow_unused=True)
        mine = of_a[2 * rank : 2 * rank + 2] + (0 if of_b is None else of_b[:, 2 * rank : 2 * rank + 2])
        torch.testing.assert_close(g, mine)


@workers(2, transports=("mpi",))
def test_labels_without_a_channel_dim() -> None:
    """They lie where the input does; what has other dims is named, with what to say."""
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 4, 1).double(), random(4, 3, 6, 5)
    labels = torch.randint(4, (4, 6, 5), generator=torch.Generator().manual_seed(2))
    for grid in ((1, 1, 2, 1), (2, 1, 1, 1)):
        P, P_y = partition(*grid), partition(grid[0], *grid[2:])
        loss = gridwise.distribute(lambda x, y: F.cross_entropy(net(x), y), P)
        torch.testing.assert_close(loss(block(x, P), block(labels, P_y)), F.cross_entropy(net(x), labels))
        late = gridwise.distribute(lambda x, y: F.cross_entropy(net(x), y), P, example=(x, labels))
        torch.testing.assert_close(late(block(x, P), block(labels, P_y)), F.cross_entropy(net(x), labels))
        rank = gridwise.world().rank
        for wrong in (labels[:, 0, 0], block(labels, P_y)[..., None, None], block(labels, P_y)[..., 1:]):
            with pytest.raises(PartitionError, match=r"`y` has \d dims.* distribute\(<lambda>, P_x, y=P\) says"):
                loss(block(x, P), wrong if rank else block(labels, P_y))
    rows = gridwise.distribute(lambda x, y: F.cross_entropy(x, y), partition(2, 1))
    torch.testing.assert_close(
        rows(block(x[:, :, 0, 0], partition(2, 1)), block(labels[:, 0, 0] % 3, partition(2))),
        F.cross_entropy(x[:, :, 0, 0], labels[:, 0, 0] % 3),
    )
    with pytest.raises(PartitionError, match="`y` has 3 dims"):
        gridwise.distribute(lambda x, y: F.cross_entropy(x, y), partition(1, 2, 1, 1))(x[:, :2], labels)


class Keywords(nn.Module):
    def forward(self, x: Tensor, **options: Any) -> Tensor:
        y = x * options.get("by", 1.0) if options.get("flag") else x
        return y + options["shift"] if "shift" in options else y


def test_values_held_for_arguments_by_keyword() -> None:
    P, x = partition(1, 1), random(2, 3)
    held = gridwise.distribute(Keywords(), P, flag=True, by=3.0)
    for y in (held(x), held(x, flag=True), held(x=x, by=3.0)):
        torch.testing.assert_close(y, 3 * x)
    torch.testing.assert_close(held(x, shift=x), 4 * x)
    with pytest.raises(PartitionError, match="`flag` is held at True"):
        held(x, flag=False)


def test_what_distribute_is_told_about_arguments() -> None:
    P = partition(1, 1, 1, 1)
    with pytest.raises(PartitionError, match="has no argument 'masks'"):
        gridwise.distribute(Masked(), P, masks=P)
    with pytest.raises(UnsupportedError, match="`mask` of Masked cannot be held at a tensor"):
        gridwise.distribute(Masked(), P, mask=torch.ones(1))
    with pytest.raises(PartitionError, match=r"is no torch\.nn\.Module and no function"):
        gridwise.distribute(3, P)
    with pytest.raises(UnsupportedError, match="has an attribute 'P_x'"):
        gridwise.distribute(nn.Sequential(OrderedDict(P_x=nn.Conv2d(1, 1, 1))), P)


class Of(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


VIEWS: dict[str, Any] = {
    "a sample is no multiple": (lambda x: x.view(-1, 4), (4, 3)),
    "a sample is no multiple, in several dims": (lambda x: x.reshape(-1, 2, 5), (5, 3, 4)),
    "a sample is a part": (lambda x: x.view(-1, 6), (4, 3)),
    "a sample is more": (lambda x: x.view(-1, 2), (3, 4)),
    "fewer rows than workers": (lambda x: x.reshape(-1, 12), (4, 3)),
}


@workers(2, 3)
@pytest.mark.parametrize("name", VIEWS)
def test_views_that_do_not_keep_samples(name: str, gridwise_setting: tuple[str, int]) -> None:
    function, shape = VIEWS[name]
    for d in range(len(shape)):
        P = partition(*(gridwise_setting[1] if i == d else 1 for i in range(len(shape))))
        sequential, x = Of(function), random(*shape)
        model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
        for _ in range(2):
            gridwise.testing.check_equal_to_sequential(model, sequential, x, P, model.P_y)


@workers(2, 3)
def test_what_torch_refuses_is_refused_by_all_before_anything_runs(gridwise_setting: tuple[str, int]) -> None:
    """Also where a worker's own block would do, or is empty."""
    size = gridwise_setting[1]
    P = partition(size, 1, 1, 1)
    for function in (
        lambda x: x.view(-1, 7),
        lambda x: x.reshape(x.size(0), 5, -1),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pad(x, (9, 9), mode="reflect"),
        lambda x: x.flatten(1) @ torch.ones(7, 2),
        lambda x: torch.cat([x, x[:, :1]], 2),
    ):
        model = gridwise.distribute(Of(function), P)
        calls = []
        transport = gridwise.world().transport
        move = transport.move
        transport.move = lambda *args, move=move, calls=calls: (calls.append(1), move(*args))[1]
        try:
            with pytest.raises(PartitionError, match="cannot take a global input of shape") as info:
                model(block(torch.ones(size - 1, 3, 4, 4), P))
        finally:
            del transport.move
        assert not calls
        assert "test_inputs.py" in str(info.value)


SHUFFLES: dict[str, Any] = {
    "shuffle": lambda: nn.PixelShuffle(2),
    "unshuffle": lambda: nn.PixelUnshuffle(2),
    "shuffle by function": lambda: Of(lambda x: F.pixel_shuffle(x, 2)),
    "unshuffle by function": lambda: Of(lambda x: F.pixel_unshuffle(x, 2)),
    "reflect": lambda: Of(lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect")),
    "replicate": lambda: Of(lambda x: F.pad(x, (1, 1, 2, 0), mode="replicate")),
    "circular": lambda: Of(lambda x: F.pad(x, (1, 1, 2, 0), mode="circular")),
    "channel shuffle": lambda: nn.ChannelShuffle(2),
    "local response": lambda: nn.LocalResponseNorm(3),
    "softmax": lambda: nn.Softmax2d(),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "normalize": lambda: Of(lambda x: F.normalize(x, dim=2) + x.cumsum(2) + x.std(2, keepdim=True)),
    "several": lambda: Of(lambda x: torch.cat([x.max(2)[0], x.median(1)[0]], 1)),
}


@workers(2, 3)
@pytest.mark.parametrize("name", SHUFFLES)
def test_empty_blocks(name: str, gridwise_setting: tuple[str, int]) -> None:
    size = gridwise_setting[1]
    if name == "channel shuffle" and torch.get_default_device().type == "cuda":
        pytest.skip("torch's own backward of it on CUDA refuses gradients that are not contiguous")
    for grid, shape in (
        ((size, 1, 1, 1), (1, 4, 4, 6)),
        ((1, size, 1, 1), (2, 4, 4, 6)),
        ((1, 1, size, 1), (2, 4, 4, 2)),
    ):
        sequential, P, x = nn.Sequential(SHUFFLES[name]()), partition(*grid), random(*shape)
        model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
        for _ in range(2):
            gridwise.testing.check_equal_to_sequential(model, sequential, x, P, model.P_y)


@workers(2, 3)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_pads_of_workers_without_channels(mode: str, gridwise_setting: tuple[str, int]) -> None:
    P, x = partition(1, gridwise_setting[1], 1, 1), random(2, 1, 4, 6)
    for pad in ((1, 2, 0, 0), (1, 1, 2, 0)):
        sequential = Of(lambda x, pad=pad: F.pad(x.sin(), pad, mode=mode))
        model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
        gridwise.testing.check_equal_to_sequential(model, sequential, x, P, model.P_y)


@workers(2)
def test_copies_are_told_from_their_originals() -> None:
    P, world = partition(1, 1, 2, 1), gridwise.world()
    layer = gridwise.nn.DistributedConv2d(P, 1, 1, 3, padding=1)
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU()), P)
    x = torch.ones(1, 1, 4, 4)
    for original in (layer, model, gridwise.nn.AllGather(P, (2,))):
        twin = copy.deepcopy(original)
        other = copy.deepcopy(twin)
        with pytest.raises(MismatchError, match="called different operators"):
            (twin if world.rank else original)(x)
        torch.testing.assert_close(twin(x), original(x))
        torch.testing.assert_close(other(x), original(x))
    twin, weight = copy.deepcopy(layer), layer.weight.detach().clone().requires_grad_()
    twin(x).sum().backward()
    F.conv2d(torch.ones(1, 1, 8, 4), weight, padding=1).sum().backward()
    torch.testing.assert_close(twin.weight.grad, weight.grad)
    assert layer.weight.grad is None


@workers(2)
def test_copies_keep_hooks_and_attributes() -> None:
    P = partition(1, 1, 2, 1)
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()), P)
    seen: list[str] = []
    model.register_forward_hook(lambda module, given, y: seen.append("forward"))
    model.register_forward_pre_hook(lambda module, given: seen.append("before"))
    model.register_full_backward_hook(lambda module, given, taken: seen.append("backward"))
    model.get_submodule("0").register_forward_hook(lambda module, given, y: 2 * y)
    model.note = "mine"
    twin = copy.deepcopy(model)
    twin(torch.ones(1, 1, 2, 2, requires_grad=True)).sum().backward()
    assert seen == ["before", "forward", "backward"]
    assert twin.note == "mine"
