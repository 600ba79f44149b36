"""Bodies in the style of DistDL's users: `import distdl`, partitions over COMM_WORLD, positional arguments, old defaults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from old_partitions import block, partition
from torch.nn import functional as F

import gridwise
from gridwise.testing import workers


@workers(3)
def test_partitions_look_as_they_did() -> None:
    P_x = partition(1, 2)
    from distdl.backends.mpi.compare import check_null_comm, check_null_rank
    from distdl.backends.mpi.partition import MPIPartition
    from mpi4py import MPI

    P_world = MPIPartition(MPI.COMM_WORLD)
    assert P_world.size == P_world._comm.Get_size() == 3
    assert P_world.index == P_world.rank == P_world._comm.Get_rank()
    P_world._comm.Barrier()
    assert P_world._comm.allgather(P_world.rank) == [0, 1, 2]
    assert P_world.dim == 1
    assert isinstance(P_x.shape, np.ndarray)
    assert np.all(P_x.shape == [1, 2])
    if P_world.rank < 2:
        assert P_x.active
        assert np.all(P_x.index == [0, P_world.rank])
        assert P_x._comm.Get_size() == P_x.size == 2
        assert P_x.neighbor_ranks(0) == [(MPI.PROC_NULL, MPI.PROC_NULL), (MPI.PROC_NULL, 1)]
        ring = partition(1, 2).create_cartesian_topology_partition([2], periods=[True])
        assert ring.neighbor_ranks(0) == [(1, 1)]
        assert partition(1, 2) != P_x  # the same workers, but another communicator
        assert P_x == P_x
    else:
        assert not P_x.active
        assert P_x.size == -1
        assert check_null_comm(P_x._comm)
        assert check_null_rank(P_x.rank)
        assert P_x.index is None
    nobody = P_world.create_partition_inclusive([])
    assert not nobody.active
    assert not nobody.create_cartesian_topology_partition([1]).active
    P_x.deactivate()
    P_world.deactivate()
    assert not P_world.active
    assert MPIPartition(MPI.COMM_WORLD).active


@workers(1, 3)
def test_a_feature_convolution_has_its_parameters_on_the_root() -> None:
    size = min(2, gridwise.world().size)
    P_x = partition(1, 1, size, 1)
    import distdl

    torch.manual_seed(gridwise.world().rank)  # a layer's values are the root's, whoever drew what
    layer = distdl.nn.DistributedConv2d(P_x, in_channels=2, out_channels=3, kernel_size=[3, 3], padding=[1, 1])
    assert type(layer) is distdl.nn.conv_feature.DistributedFeatureConv2d
    is_root = P_x.active and P_x.rank == 0
    assert len(list(layer.parameters())) == 2 * is_root
    assert layer.weight.shape == ((3, 2, 3, 3) if is_root else (0,))
    x = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(1))
    weight, bias = (P_x._comm.bcast(t.detach(), 0) if P_x.active else None for t in (layer.weight, layer.bias))
    for step in range(3):
        mine = block(P_x, x).requires_grad_()
        y = layer(mine)
        y.backward(torch.ones_like(y))
        if P_x.active:
            whole = x.clone().requires_grad_()
            w, b = (t.clone().requires_grad_() for t in (weight, bias))
            right = F.conv2d(whole, w, b, padding=1)
            right.sum().backward()
            torch.testing.assert_close(y, block(P_x, right))
            torch.testing.assert_close(mine.grad, block(P_x, whole.grad))
            if is_root:
                torch.testing.assert_close(layer.weight.grad, w.grad)
                torch.testing.assert_close(layer.bias.grad, b.grad)
            weight = weight + step + 1.0  # what the root writes next, also past the version counter
        if is_root:
            layer.weight.grad = layer.bias.grad = None
            layer.weight.data += step + 1.0
    state = layer.state_dict()
    assert {name: tuple(v.shape) for name, v in state.items()} == {
        "weight": (3, 2, 3, 3) if is_root else (0,),
        "bias": (3,) if is_root else (0,),
    }
    assert set(map(type, state.values())) == {torch.Tensor}
    layer.load_state_dict({name: value * 0 for name, value in state.items()})
    if P_x.active:
        assert not layer(block(P_x, x)).any()


@workers(2)
def test_layers_in_a_row_draw_from_the_roots_generator_alone() -> None:
    P_x = partition(1, 1, 2)
    import distdl

    torch.manual_seed(7 + P_x.rank)
    before = torch.get_rng_state()
    layers = [distdl.nn.DistributedFeatureConv1d(P_x, 1, 2, 3) for _ in range(2)]
    if P_x.rank == 0:
        torch.manual_seed(7)
        assert all(torch.equal(torch.nn.Conv1d(1, 2, 3).weight, layer.weight) for layer in layers)
    else:
        assert torch.equal(torch.get_rng_state(), before)


@workers(2)
def test_values_are_sent_only_when_they_have_changed() -> None:
    P_x = partition(1, 1, 2)
    import distdl

    layer = distdl.nn.DistributedFeatureConv1d(P_x, 1, 1, 1)
    sent = []
    transport = layer._transport
    honest = transport.copy_from
    transport.copy_from = lambda *args: sent.append(args[-1]) or honest(*args)
    try:
        x = torch.ones(1, 1, 2)
        layer(x), layer(x)
        assert len(sent) == 2  # weight and bias, once
        if P_x.rank == 0:
            layer.weight.data.fill_(3.0)
        y = layer(x)
        assert len(sent) == 3
    finally:
        del transport.copy_from
    bias = P_x._comm.bcast(layer.bias.detach(), 0)
    torch.testing.assert_close(y, torch.full((1, 1, 2), 3.0) + bias)


@workers(4)
def test_channels_and_space_may_be_cut() -> None:
    import_of = {(2, 2, 1): "DistributedChannelConv1d", (2, 1, 2): "DistributedGeneralConv1d"}
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for (p_co, p_ci, p), name in import_of.items():
        P_x, P_y, P_w = partition(1, p_ci, p), partition(1, p_co, p), partition(p_co, p_ci, p)
        import distdl

        layer = distdl.nn.DistributedConv1d(
            P_x, P_y, P_w, in_channels=4, out_channels=6, kernel_size=3, padding=1, stride=2
        ).double()
        assert type(layer).__name__ == name
        whole = torch.nn.Conv1d(4, 6, 3, stride=2, padding=1).double()
        state = {n: v for n, v in whole.state_dict().items() if n in layer.state_dict()}
        layer.load_state_dict(state)
        mine = block(P_x, x).requires_grad_()
        y = layer(mine)
        right = whole(x)
        if P_y.active:
            torch.testing.assert_close(y, block(P_y, right))
        else:
            assert y.shape == (2, 0)
        y.square().sum().backward()
        right.square().sum().backward()
        if layer.stores_weight:
            torch.testing.assert_close(layer.weight.grad, block_of_weight(P_w, whole.weight.grad))


def block_of_weight(P_w, weight: torch.Tensor) -> torch.Tensor:
    rows, columns = (np.array_split(np.arange(n), p) for n, p in zip(weight.shape[:2], P_w.shape[:2], strict=True))
    return weight[rows[P_w.index[0]]][:, columns[P_w.index[1]]]


@workers(4)
def test_linear_keeps_its_state_keys() -> None:
    P_x, P_y, P_w = partition(1, 2), partition(1, 2), partition(2, 2)
    import distdl

    layer = distdl.nn.DistributedLinear(P_x, P_y, P_w, 5, 3)
    index = [int(i) for i in P_w.index]
    assert set(layer.state_dict()) == {"sublinear.weight", *["sublinear.bias"] * (index[1] == 0)}
    torch.manual_seed(3)
    whole = torch.nn.Linear(5, 3)
    rows, columns = np.array_split(np.arange(3), 2)[index[0]], np.array_split(np.arange(5), 2)[index[1]]
    state = {"sublinear.weight": whole.weight.detach()[rows][:, columns]}
    if index[1] == 0:
        state["sublinear.bias"] = whole.bias.detach()[rows]
    layer.load_state_dict(state)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    y = layer(block(P_x, x))
    if P_y.active:
        torch.testing.assert_close(y, block(P_y, whole(x)))
    else:
        assert y.shape == (4, 0)
    y.sum().backward()
    assert layer.sublinear.weight.grad.shape == state["sublinear.weight"].shape
    torch.testing.assert_close(layer.sublinear.weight.grad, x.sum(0)[columns].expand(len(rows), -1))


@workers(1, 2)
def test_batch_norm_has_gamma_and_beta_and_an_uncorrected_variance() -> None:
    size = gridwise.world().size
    P_x = partition(size, 1, 1)
    import distdl

    layer = distdl.nn.DistributedBatchNorm(P_x, num_features=3).double()
    assert set(dict(layer.named_parameters())) == ({"gamma", "beta"} if P_x.rank == 0 else set())
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        if P_x.rank == 0:
            layer.gamma += 1.0
    mine = block(P_x, x).requires_grad_()
    y = layer(mine)
    whole = x.clone().requires_grad_()
    gamma = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    right = F.batch_norm(whole, None, None, gamma, torch.zeros(3).double(), True)
    torch.testing.assert_close(y, block(P_x, right))
    y.square().sum().backward()
    right.square().sum().backward()
    torch.testing.assert_close(mine.grad, block(P_x, whole.grad))
    if P_x.rank == 0:
        torch.testing.assert_close(layer.gamma.grad.flatten(), gamma.grad)
    assert layer.running_var.shape == (1, 3, 1)
    torch.testing.assert_close(layer.running_var.flatten(), 0.9 + 0.1 * x.var((0, 2), unbiased=False))
    layer(mine)  # torch's own function, on a single worker, would correct the variance
    torch.testing.assert_close(layer.running_var.flatten(), 0.81 + 0.19 * x.var((0, 2), unbiased=False))
    assert "num_batches_tracked" not in layer.state_dict()
    layer.load_state_dict(layer.state_dict())
    layer.eval()
    running = [layer.running_mean.flatten(), layer.running_var.flatten()]
    right = F.batch_norm(x, *running, gamma, torch.zeros(3).double(), False)
    torch.testing.assert_close(layer(block(P_x, x)), block(P_x, right))


@workers(4)
def test_halos_are_filled_in_place_and_their_cotangents_come_home() -> None:
    P_x = partition(1, 1, 2, 2)
    from distdl.nn.halo_exchange import HaloExchange
    from distdl.nn.mixins import ConvMixin, HaloMixin
    from distdl.nn.padnd import PadNd

    class Layer(HaloMixin, ConvMixin):
        pass

    shape, index = (1, 1, 7, 6), [int(i) for i in P_x.index]
    x = torch.arange(42.0, dtype=torch.float64).reshape(shape)
    halo, recv, send, needed = Layer()._compute_exchange_info(
        shape, [1, 1, 3, 3], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], P_x.active, P_x.shape, P_x.index
    )
    mine = block(P_x, x).requires_grad_()
    padded = PadNd(halo, value=0)(mine)
    layer = HaloExchange(P_x, halo, recv, send)
    y = layer(padded)
    assert y is padded
    rows, columns = [(slice(0, 5), slice(3, 7)), (slice(0, 4), slice(2, 6))]
    torch.testing.assert_close(y.detach(), x[:, :, rows[index[2]], columns[index[3]]])
    assert needed.tolist()[2] == [0, 5 - index[2]]
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(P_x.rank), dtype=torch.float64)
    y.backward(dy)
    sides = torch.tensor([(y * dy).sum(), (mine * mine.grad).sum()], dtype=torch.float64)
    ahead, back = P_x.allreduce_data(sides.detach().numpy())
    np.testing.assert_allclose(ahead, back)


@workers(2)
def test_a_bad_halo_of_one_worker_is_an_error_on_all() -> None:
    P_x = partition(2)
    from distdl.nn.halo_exchange import HaloExchange

    for bad in ([[1]], [[1, -1]], [[1.5, 1]], [[1, 1], [1, 1]], "wide"):
        layer = HaloExchange(P_x, [[1, 1]] if P_x.rank == 0 else bad)
        with pytest.raises(gridwise.errors.PartitionError, match="halo_shape"):
            layer(torch.zeros(5))


@workers(1, 3)
def test_a_loss_is_a_number_on_the_root_and_zero_elsewhere() -> None:
    P_x = partition(min(2, gridwise.world().size), 1)
    import distdl

    x, t = (torch.randn(3, 2, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    cases = [("mean", "DistributedMSELoss", F.mse_loss), ("batchmean", "DistributedKLDivLoss", F.kl_div)]
    for reduction, name, torchs in cases:
        t = t.abs()  # a target of the Kullback-Leibler divergence is a probability
        mine = block(P_x, x).requires_grad_()
        loss = getattr(distdl.nn, name)(P_x, reduction)(mine, block(P_x, t))
        whole = x.clone().requires_grad_()
        right = torchs(whole, t, reduction=reduction)
        assert loss.shape == ()
        torch.testing.assert_close(loss.detach(), right.detach() if P_x.active and P_x.rank == 0 else torch.zeros(()))
        loss.backward()
        right.backward()
        if P_x.active:
            torch.testing.assert_close(mine.grad, block(P_x, whole.grad))
    none = distdl.nn.DistributedL1Loss(P_x, "none")(block(P_x, x), block(P_x, t))
    if P_x.active:
        torch.testing.assert_close(none, block(P_x, (x - t).abs()))


@workers(2)
def test_a_bad_input_of_one_worker_is_an_error_on_all() -> None:
    P_x = partition(1, 2)
    import distdl

    linear, loss = (
        distdl.nn.DistributedLinear(P_x, partition(1, 1), partition(1, 2), 4, 4),
        distdl.nn.DistributedMSELoss(P_x),
    )
    x = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"worker.*\(3, 1, 2\)"):
        linear(x if P_x.rank else x[:, None])
    with pytest.raises(ValueError, match="size of tensor"):
        loss(x, x if P_x.rank else torch.ones(5, 2))
    torch.testing.assert_close(loss(x, x), torch.zeros(()))


@workers(2)
def test_old_defaults_stay() -> None:
    P_x = partition(1, 1, 2)
    import distdl
    from distdl.nn.transpose import DistributedTranspose

    x = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(1))
    pooled = distdl.nn.DistributedMaxPool1d(P_x, 3)(block(P_x, x))
    torch.testing.assert_close(pooled, block(P_x, F.max_pool1d(x, 3, stride=1)))
    pooled = distdl.nn.DistributedAvgPool1d(P_x, 2, 2, 1)(block(P_x, x))
    torch.testing.assert_close(pooled, block(P_x, F.avg_pool1d(x, 2, 2, 1)))
    larger = distdl.nn.DistributedUpsample(P_x, size=[1, 2, 9])(block(P_x, x))
    torch.testing.assert_close(larger, block(P_x, F.interpolate(x, 9, mode="linear")))
    P_y = partition(1, 2, 1)
    torch.testing.assert_close(DistributedTranspose(P_x, P_y)(block(P_x, x)), block(P_y, x))
    part = distdl.nn.Interpolate(
        [0, 0, 1], [1, 2, 6], [1, 2, 6], [0, 0, 3], [1, 2, 9], [1, 2, 9], mode="linear", align_corners=True
    )(x[..., 1:])
    torch.testing.assert_close(part, F.interpolate(x, 9, mode="linear", align_corners=True)[..., 3:])
