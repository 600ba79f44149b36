"""What torch's convolutions on the CPU compute and hold beyond what they return, as far as plans know it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gridwise.costs.convolutions import Convolution


class Calls(TorchDispatchMode):
    """Notes convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Convolution] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = Convolution.of(func, args, [result] if isinstance(result, torch.Tensor) else list(result))
        self.seen += [made] if made is not None else []
        return result


def both_ways(layer: torch.nn.Module, *shape: int) -> list[Convolution]:
    """The convolution and its backward."""
    with Calls() as calls:
        layer(torch.ones(shape, device="meta", dtype=layer.weight.dtype, requires_grad=True)).sum().backward()
    return calls.seen


@pytest.mark.parametrize(
    ("before", "after", "times"), [(16, 32, 1.0), (3, 16, 1.0), (17, 16, 32 / 17), (17, 20, 1024 / 340)]
)
def test_channels_that_do_not_fill_a_vector_are_computed_all_the_same(before, after, times):
    calls = both_ways(torch.nn.Conv2d(before, after, 3, device="meta"), 2, before, 8, 8)
    assert [call.wasted for call in calls] == pytest.approx([times, times])


def test_other_dtypes_waste_nothing():
    calls = both_ways(torch.nn.Conv2d(17, 20, 3, device="meta", dtype=torch.float64), 2, 17, 8, 8)
    assert [call.wasted for call in calls] == [1.0, 1.0]


def test_windows_are_unrolled_where_onednn_is_not_used():
    small = both_ways(torch.nn.Conv2d(8, 4, 3, padding=1, device="meta"), 1, 8, 16, 16)
    assert small[0].unrolled_elements == 8 * 9 * 16 * 16
    assert small[1].unrolled_elements == 2 * small[0].unrolled_elements
    assert both_ways(torch.nn.Conv2d(8, 4, 3, padding=1, device="meta"), 2, 8, 16, 16)[0].unrolled_elements == 0


def test_rows_are_those_of_the_outputs_and_of_a_transposed_one_of_the_inputs():
    assert [call.columns for call in both_ways(torch.nn.Conv2d(8, 8, 3, device="meta"), 2, 8, 10, 12)] == [10, 10]
    upward = torch.nn.ConvTranspose2d(8, 8, 2, stride=2, device="meta")
    assert [call.columns for call in both_ways(upward, 2, 8, 10, 12)] == [12, 12]


def test_a_product_of_single_windows_needs_no_room_on_a_device():
    (forward, _), (wide, _) = (
        both_ways(torch.nn.Conv2d(8, 8, kernel, device="meta"), 2, 8, 10, 12) for kernel in (1, 3)
    )
    assert forward.workspace("cuda") == 0
    assert wide.workspace("cuda") == wide.x.nbytes + wide.weight.nbytes + wide.y.nbytes


def test_a_product_with_a_stride_or_in_several_threads_copies_its_weight():
    plain, strided = (both_ways(torch.nn.Conv2d(64, 256, 1, s, device="meta"), 1, 64, 32, 32)[0] for s in (1, 2))
    assert plain.workspace() == 0
    assert strided.workspace() >= strided.weight.nbytes
    threaded = dataclasses.replace(plain, threads=2)
    assert threaded.workspace() >= plain.weight.nbytes
