"""What DistDL's documents and its own tests promise about its layers, beyond their results."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from old_partitions import block, partition
from torch.nn import functional as F

from gridwise.errors import PartitionError
from gridwise.testing import workers


@workers(1)
def test_layers_are_what_the_documents_call_them() -> None:
    P = partition(1, 1, 1)
    from distdl import nn
    from distdl.nn import conv_channel, conv_feature, conv_general, mixins, pooling
    from distdl.nn.mixins.interpolate_mixin import InterpolateMixin
    from distdl.nn.module import Module

    features, channels, general = (
        nn.DistributedFeatureConv1d(P, 1, 1, 1),
        nn.DistributedChannelConv1d(P, P, P, 1, 1, 1),
        nn.DistributedGeneralConv1d(P, P, P, 1, 1, 1),
    )
    flat = partition(1, 1)
    others = [
        *(nn.Broadcast(P, P), nn.SumReduce(P, P), nn.AllSumReduce(P, (1, 2)), nn.Repartition(P, P)),
        *(nn.HaloExchange(P, [[0, 0]] * 3), nn.DistributedBatchNorm(P, 1), nn.DistributedMSELoss(P)),
        nn.DistributedLinear(flat, flat, flat, 1, 1),
        *(features, channels, general, nn.DistributedConv1d(P, in_channels=1, out_channels=1, kernel_size=1)),
    ]
    upsample = nn.DistributedUpsample(P, scale_factor=2, mode="nearest")
    pools = [getattr(nn, f"Distributed{kind}Pool1d")(P, 1, 1) for kind in ("Avg", "Max")]
    assert nn.Module is Module
    for layer in (*others, upsample, *pools):
        assert isinstance(layer, Module), type(layer)
        assert layer._distdl_backend.Partition is not None
        assert "_distdl_forward_pre_hook" in str(layer._forward_pre_hooks)
    assert pooling.DistributedPoolBase is pooling.DistributedPoolingBase
    for pool in pools:
        assert isinstance(pool, pooling.DistributedPoolingBase)
        assert isinstance(pool, mixins.PoolingMixin)
    for conv in (features, channels, general):
        assert isinstance(conv, mixins.ConvMixin)
    for layer in (*pools, features, general):
        assert isinstance(layer, mixins.HaloMixin)
    assert isinstance(upsample, InterpolateMixin)
    assert issubclass(pooling.DistributedPoolingBase, Module)
    assert isinstance(features, conv_feature.DistributedFeatureConvBase)
    assert isinstance(channels, conv_channel.DistributedChannelConvBase)
    assert isinstance(general, conv_general.DistributedGeneralConvBase)


@workers(2, 4)
@pytest.mark.parametrize("bias", [True, False])
def test_workers_without_a_parameter_show_it_without_volume_and_so_its_gradient(bias: bool) -> None:
    import gridwise

    P_x = partition(1, 1, gridwise.world().size)
    import distdl

    layer = distdl.nn.DistributedFeatureConv1d(P_x, 2, 3, kernel_size=3, padding=1, bias=bias).double()
    x = torch.randn(2, 2, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = layer(block(P_x, x))
    y.sum().backward()
    weight, *more = (P_x._comm.bcast(t.detach() if P_x.rank == 0 else None, 0) for t in _shown(layer, bias))
    right = F.conv1d(x, weight.requires_grad_(), *more, padding=1)
    right.sum().backward()
    torch.testing.assert_close(y, block(P_x, right))
    if P_x.rank == 0:
        torch.testing.assert_close(layer.weight.grad, weight.grad)
    else:
        for shown in _shown(layer, bias):
            assert shown.grad.shape == shown.shape == (0,)
            assert shown.grad.dtype == shown.dtype == torch.float64
            assert shown.is_leaf


def _shown(layer: torch.nn.Module, bias: bool) -> list[torch.Tensor]:
    return [layer.weight, layer.bias] if bias else [layer.weight]


@workers(4)
def test_general_convolutions_do_without_a_bias() -> None:
    P_x, P_y, P_w = partition(1, 1, 2), partition(1, 2, 2), partition(2, 1, 2)
    import distdl

    layer = distdl.nn.DistributedGeneralConv1d(P_x, P_y, P_w, 4, 6, kernel_size=3, bias=False)
    x = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(1))
    y = layer(block(P_x, x))
    y.sum().backward()
    assert layer.weight.grad.shape == layer.weight.shape == ((3, 4, 3) if P_w.index[2] == 0 else (0,))


@workers(1, 4)
def test_losses_name_their_reductions(old_names: None) -> None:
    import gridwise

    P_x = partition(gridwise.world().size)
    import distdl

    assert distdl.nn.DistributedL1Loss._valid_reductions == ["none", "mean", "sum"]
    assert distdl.nn.DistributedKLDivLoss._valid_reductions == ["none", "mean", "sum", "batchmean"]
    x, t = torch.rand(2, 11, generator=torch.Generator().manual_seed(1))
    for name in ("L1Loss", "MSELoss", "PoissonNLLLoss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss"):
        ours = getattr(distdl.nn, f"Distributed{name}")
        for reduction in ours._valid_reductions:
            mine = block(P_x, x).requires_grad_()
            loss = ours(P_x, reduction=reduction)(mine, block(P_x, t))
            whole = x.clone().requires_grad_()
            right = getattr(torch.nn, name)(reduction=reduction)(whole, t)
            if reduction == "none":
                torch.testing.assert_close(loss, block(P_x, right))
                continue
            loss.backward()
            right.backward()
            torch.testing.assert_close(loss, right if P_x.rank == 0 else torch.zeros(()))
            torch.testing.assert_close(mine.grad, block(P_x, whole.grad))


@pytest.mark.parametrize(("mode", "corners"), [("nearest", False), ("linear", False), ("linear", True)])
def test_interpolation_of_a_part_takes_the_nearest_inputs_at_hand(old_names: None, mode: str, corners: bool) -> None:
    """Outputs outside of what the part can give repeat its edges."""
    from distdl.nn import Interpolate

    (start, stop, n), (first, last, m) = (2, 6, 9), (0, 17, 17)
    x = torch.randn(1, 2, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    places = ([0, 0, start], [1, 2, stop], [1, 2, n]), ([0, 0, first], [1, 2, last], [1, 2, m])
    part = Interpolate(*places[0], *places[1], mode=mode, align_corners=corners)(x[..., start:stop])
    edges = torch.cat(
        [x[..., start : start + 1]] * start + [x[..., start:stop]] + [x[..., stop - 1 : stop]] * (n - stop), -1
    )
    torch.testing.assert_close(
        part, F.interpolate(edges, m, mode=mode, **({"align_corners": corners} if mode == "linear" else {}))
    )


@workers(4)
def test_a_dim_of_extent_one_is_not_cut() -> None:
    P_x, P_y = partition(1, 4, 1, 1), partition(1, 1, 1, 2)
    import distdl

    layer = distdl.nn.Repartition(P_x, P_y)
    with pytest.raises(PartitionError, match=r"`P_y` .* cuts a dim of extent 1"):
        layer(block(P_x, torch.ones(1, 16, 5, 1)))
    y = layer(block(P_x, torch.ones(1, 16, 5, 2)))
    assert y.shape == ((1, 16, 5, 1) if P_y.active else (1, 0))


@workers(4)
def test_the_structure_of_a_global_tensor_is_that_of_its_blocks() -> None:
    P_x, P_y = partition(1, 2), partition(2, 2)
    import distdl
    from distdl.backends.mpi.tensor_comm import assemble_global_tensor_structure
    from distdl.utilities.torch import TensorStructure

    for dtype, grad in product((torch.float64, torch.int32), (False, True)):
        x = block(P_x, torch.ones(5, 6, dtype=dtype)).requires_grad_(grad and dtype.is_floating_point)
        y = distdl.nn.Broadcast(P_x, P_y, preserve_batch=False)(x)
        for local in (y, TensorStructure(y)):
            found = assemble_global_tensor_structure(local, P_y)
            assert tuple(found.shape) == (10, 6)
            assert found.dtype == dtype
            assert found.requires_grad == (grad and dtype.is_floating_point)
        found = assemble_global_tensor_structure(x, P_x, P_y)
        assert tuple(found.shape) == (5, 6)


@workers(4)
def test_overlaps_say_what_goes_where_and_managers_count_buffers() -> None:
    row, square = partition(1, 4), partition(2, 2)
    import distdl
    from distdl.backends.mpi.buffer import MPIBufferManager

    x = torch.arange(35.0).reshape(5, 7)
    manager = MPIBufferManager()
    layer = distdl.nn.Repartition(row, square, buffer_manager=manager)
    y = layer(block(row, x))
    mine = block(row, x)
    to_square, from_row = layer.P_x_to_y_overlaps, layer.P_y_to_x_overlaps
    assert len(to_square) == len(from_row) == 4
    assert [whose is not None for _, _, whose in to_square] == [row.rank in places for places in ((0, 1), (2, 3)) * 2]
    found = torch.zeros_like(y)
    for rank, (part, shape, whose) in enumerate(from_row):
        if whose is not None:
            assert tuple(found[part].shape) == tuple(shape)
            assert whose == ("self" if rank == square.rank else rank)
            found[part] += 1
    assert (found == 1).all()
    assert sum(mine[part].numel() for part, _, whose in to_square if whose is not None) == mine.numel()
    away = sum(whose not in (None, "self") for _, _, whose in (*to_square, *from_row))
    assert len(manager.buffers_map[np.float32]) == away
    assert all(buffer.capacity == 0 for buffer in manager.buffers_map[np.float32])
    same = distdl.nn.Repartition(square, square)
    same(y)
    assert {whose for _, _, whose in (*same.P_x_to_y_overlaps, *same.P_y_to_x_overlaps)} == {None, "self"}
    conv = distdl.nn.DistributedConv2d(
        partition(1, 1, 2, 2), in_channels=1, out_channels=1, kernel_size=3, buffer_manager=manager
    )
    conv(block(partition(1, 1, 2, 2), x[None, None]))
    assert len(manager.buffers_map[np.float32]) == 4
