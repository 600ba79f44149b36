"""DistDL's functions of autograd and its allocators, called as its own layers call them, against those layers."""

from __future__ import annotations

import numpy as np
import torch

import gridwise
import gridwise_compat
from gridwise.testing import workers


def partitions():
    """(1, 2) on two workers, (2, 2) on four, (2, 1) on two others than the first."""
    gridwise_compat.install()
    from distdl.backends.mpi.partition import MPIPartition
    from mpi4py import MPI

    P_world = MPIPartition(MPI.COMM_WORLD)
    row, square, column = (P_world.create_partition_inclusive(ranks) for ranks in ([0, 1], [0, 1, 2, 3], [2, 3]))
    shapes = ([1, 2], [2, 2], [2, 1])
    return [
        P.create_cartesian_topology_partition(shape) for P, shape in zip((row, square, column), shapes, strict=True)
    ]


def tensor_on(P, *shape: int) -> torch.Tensor:
    """A leaf with values of this worker's own, without volume where `P` has no part."""
    from distdl.utilities.torch import zero_volume_tensor

    random = torch.Generator().manual_seed(gridwise.world().rank)
    x = torch.randn(shape, generator=random, dtype=torch.float64) if P.active else zero_volume_tensor(shape[0])
    return x.requires_grad_()


def structure(shape: tuple[int, ...] | None):
    from distdl.utilities.torch import TensorStructure

    of = TensorStructure()
    of.shape, of.dtype, of.requires_grad = shape, torch.float64, True
    return of


def check_same(x: torch.Tensor, by_function: torch.Tensor, by_layer: torch.Tensor, twin: torch.Tensor) -> None:
    torch.testing.assert_close(by_function, by_layer)
    assert by_function.requires_grad
    dy = torch.randn(by_layer.shape, generator=torch.Generator().manual_seed(9), dtype=by_layer.dtype)
    by_function.backward(dy)
    by_layer.backward(dy)
    torch.testing.assert_close(x.grad, twin.grad)


@workers(4)
def test_copies_and_sums() -> None:
    row, square, column = partitions()
    import distdl
    from distdl.backends.mpi.functional import BroadcastFunction, SumReduceFunction

    shape = (3, 2)
    for P_x, P_y in ((row, square), (column, square), (row, row)):
        x = tensor_on(P_x, *shape)
        twin = x.detach().clone().requires_grad_()
        P_send, P_recv = P_x.create_broadcast_partition_to(P_y)
        brought, got = structure(tuple(x.shape)), structure(shape if P_y.active else None)
        y = BroadcastFunction.apply(x, P_send, P_recv, True, brought, got)
        check_same(x, y, distdl.nn.Broadcast(P_x, P_y)(twin), twin)

        x = tensor_on(P_y, *shape)
        twin = x.detach().clone().requires_grad_()
        P_send, P_recv = P_y.create_reduction_partition_to(P_x)
        brought, got = structure(tuple(x.shape)), structure(shape if P_x.active else None)
        y = SumReduceFunction.apply(x, P_send, P_recv, True, brought, got)
        check_same(x, y, distdl.nn.SumReduce(P_y, P_x)(twin), twin)


@workers(4)
def test_blocks_that_move_and_halos_that_are_filled() -> None:
    _, square, _ = partitions()
    import distdl
    from distdl.backends.mpi.functional.halo_exchange import HaloExchangeFunction
    from distdl.backends.mpi.functional.repartition import RepartitionFunction

    P_y = square.create_cartesian_topology_partition([4, 1])
    x = tensor_on(square, 3, 2)
    twin = x.detach().clone().requires_grad_()
    y = RepartitionFunction.apply(x, square, None, None, None, square, [], [], P_y, [], [], True)
    check_same(x, y, distdl.nn.Repartition(square, P_y)(twin), twin)

    index = square.index
    halo = np.array([[int(i > 0), int(i < 1)] for i in index])
    layer = distdl.nn.HaloExchange(square, halo, halo, halo)
    twin = tensor_on(square, 4, 5)
    by_layer = layer(twin.clone())
    x = twin.detach().clone().requires_grad_()
    inside = x.clone()
    y = HaloExchangeFunction.apply(inside, square, layer.slices, None, layer.neighbor_ranks)
    assert y is inside
    check_same(x, y, by_layer, twin)
    for d, (left_bulk, left_ghost, right_bulk, right_ghost) in enumerate(layer.slices):
        of = [x[part].shape[d] for part in (left_ghost, left_bulk, right_bulk, right_ghost)]
        assert of == [halo[d, 0], halo[d, 0], halo[d, 1], halo[d, 1]]
    grown = x[layer.slices[1][3]].shape[0], x[layer.slices[0][3]].shape[1]
    assert grown == (4, 5 - halo[1].sum())  # dims before have their ghosts, dims after do not


def test_buffers_are_allocated_for_those_who_ask(old_names: None) -> None:
    from distdl.backends.mpi import BufferManager
    from distdl.backends.mpi.halo_exchange import allocate_halo_exchange_buffers
    from distdl.backends.mpi.repartition import allocate_repartition_buffers

    manager = BufferManager()
    part = (slice(0, 2), slice(0, 3))
    shapes = np.array([[1, 0], [0, 1]])
    found = allocate_halo_exchange_buffers(manager, [[part] * 4] * 2, shapes, shapes, torch.float32)
    assert [[buffer is not None for buffer in of] for of in found] == [
        [True, True, False, False],
        [False, False, True, True],
    ]
    assert found[0][0].get_view((2, 3)).dtype == np.float32
    assert len(manager.buffers_map[np.float32]) == 4
    there = [(part, (2, 3), 1), (part, (2, 3), "self"), (None, None, None)]
    to_y, to_x = allocate_repartition_buffers(manager, there, there[:1], torch.float64)
    assert [buffer is not None for buffer in (*to_y, *to_x)] == [True, False, False, True]
    assert to_y[0] is not to_x[0]


def test_interpolation_of_a_part(old_names: None) -> None:
    from distdl.functional.interpolate import InterpolateFunction

    x = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    places = ([0, 0, 1], [1, 2, 6], [1, 2, 6], [0, 0, 3], [1, 2, 9], [1, 2, 9])
    y = InterpolateFunction.apply(x[..., 1:], None, "linear", True, *places)
    right = torch.nn.functional.interpolate(x, 9, mode="linear", align_corners=True)[..., 3:]
    torch.testing.assert_close(y, right)
