"""One contract for every linear primitive: the test of a new one defines two methods and inherits all checks.

    @workers(1, 2, 3, 4)
    class TestMyPrimitive(PrimitiveContract):
        def layer(self):
            return MyPrimitive(gridwise.world().create_cartesian_topology_partition(...))

        def block(self):
            return (4, 5)        # the shape of this worker's input, None where it holds no part

Every check runs on all workers at once. The contract: the backward pass is the adjoint in float64, the layer is linear,
gradients of gradients are right, every dtype and memory layout gives the same numbers, and autograd's modes work.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..nn.engine.module import Module
from ..partition import zero_volume_tensor
from .adjoint import check_adjoint
from .gradients import check_gradients
from .inner import random_like

FLOATS = (torch.float32, torch.float64, torch.complex64, torch.complex128)
SHORT = (torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64, torch.uint8)


class PrimitiveContract:
    """Checks of a linear layer; subclasses provide the layer and the shape of the block.

    Examples
    --------
    >>> class TestHalo(gridwise.testing.PrimitiveContract):
    ...     def layer(self):
    ...         P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    ...         return gridwise.nn.HaloExchange(P_x, [(1, 1), (0, 0)])
    ...     def block(self):
    ...         return (4, 3)
    >>> TestHalo().test_the_backward_pass_is_the_adjoint()
    """

    def layer(self) -> Module:
        """The layer under test, the same on every worker."""
        raise AssertionError("a subclass makes its layer here")

    def block(self) -> tuple[int, ...] | None:
        """The shape of this worker's input, None where it holds no part."""
        raise AssertionError("a subclass tells the shape of its block here")

    def tensor(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """This worker's input: whole numbers that every dtype can represent."""
        shape = self.block()
        if shape is None:
            return zero_volume_tensor(dtype=dtype)
        return (random_like(torch.empty(shape), "input") * 2).round().clamp(-3, 3).abs().to(dtype)

    def test_the_backward_pass_is_the_adjoint(self) -> None:
        for seed in range(3):
            check_adjoint(self.layer(), self.tensor(), seed=seed)

    def test_it_is_linear(self) -> None:
        layer, x, y = self.layer(), random_like(self.tensor(), "x"), random_like(self.tensor(), "y")
        together = layer(2.0 * x - 3.0 * y)
        torch.testing.assert_close(together, 2.0 * layer(x) - 3.0 * layer(y), rtol=1e-12, atol=1e-12)

    def test_gradients_and_their_gradients(self) -> None:
        layer = self.layer()
        check_gradients(lambda x: layer(x * x), random_like(self.tensor(), "x"))
        check_adjoint(lambda x: _gradient_of(layer, self.tensor(), x), layer(self.tensor()))

    def test_dtypes_give_the_same_numbers(self) -> None:
        expected = self.layer()(self.tensor())
        for dtype in (*FLOATS, *SHORT):
            x = self.tensor(dtype)
            y = self.layer()(x)
            assert y.dtype == dtype
            assert torch.equal(y.to(torch.complex128).real, expected), dtype

    def test_lazy_conjugates_are_sent_as_what_they_mean(self) -> None:
        layer, x = self.layer(), torch.complex(self.tensor(), self.tensor())
        assert torch.equal(layer(x.conj()), layer(x).conj())

    def test_booleans_are_moved_or_combined(self) -> None:
        y = self.layer()(self.tensor(torch.bool))
        assert torch.equal(y, self.layer()(self.tensor()) != 0)

    def test_non_contiguous_and_expanded_inputs_and_gradients(self) -> None:
        layer, x = self.layer(), self.tensor()
        y = layer(x)
        turned = x.transpose(0, -1).contiguous().transpose(0, -1)
        assert torch.equal(layer(turned), y)
        gapped = torch.stack([x, x], dim=-1)[..., 0].requires_grad_()
        out = layer(gapped)
        assert torch.equal(out, y)
        out.sum().backward()
        plain = x.clone().requires_grad_()
        layer(plain).backward(torch.ones_like(y))
        assert torch.equal(_present(gapped), _present(plain))
        wide = x[:1].expand_as(x) if x.dim() and x.shape[0] else x
        assert torch.equal(layer(wide), layer(wide.contiguous()))

    def test_the_output_is_never_the_input(self) -> None:
        layer, x = self.layer(), self.tensor()
        kept = x.clone()
        y = layer(x)
        if y.numel():
            y.fill_(-7)
        assert torch.equal(x, kept)

    def test_modes_of_autograd(self) -> None:
        layer, x = self.layer(), self.tensor(torch.float32).requires_grad_()
        y = layer(x)
        assert y.requires_grad
        with torch.no_grad():
            assert torch.equal(layer(x), y)
            assert not layer(x).requires_grad
        with torch.inference_mode():
            assert torch.equal(layer(x.detach()), y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(layer(x), y)
        y.backward(torch.ones_like(y), retain_graph=True)
        once = _present(x).clone()
        y.backward(torch.ones_like(y))
        assert torch.equal(_present(x), 2 * once)

    def test_set_up_runs_once_in_many_calls(self) -> None:
        layer, x = self.layer(), self.tensor()
        plan, runs = layer._distdl_module_setup, 0

        def counted(input: tuple) -> None:
            nonlocal runs
            runs += 1
            plan(input)

        layer._distdl_module_setup = counted  # type: ignore[method-assign]
        for _ in range(20):
            layer(x)
        assert runs == (0 if layer._is_outside else 1)

    def test_a_deep_copy_works_like_the_original(self) -> None:
        layer, x = self.layer(), self.tensor()
        y = layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), y)


def _gradient_of(layer: Module, x: Tensor, dy: Tensor) -> Tensor:
    """The adjoint of the layer, as a function of the cotangent."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(layer(x), x, dy, create_graph=True)
    return dx


def _present(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad
