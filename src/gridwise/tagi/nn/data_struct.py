"""The buffers of pytagi's interface: hidden states, innovations of the output, and the tree of classes.

They hold torch tensors of shape (batch, units), on the device of the network; they can be set from NumPy arrays and
lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ...errors import ArgumentError, GridwiseError
from ...nn.docstrings import documented_like
from .gaussian import Gaussian, Innovation

Value = TypeVar("Value", Gaussian, Innovation)
Values = Tensor | ArrayLike
"""Numbers as users pass them: a tensor, an array, a list, or one number."""


def of_array(value: object) -> Tensor:
    """A tensor from anything that NumPy accepts, also arrays that torch refuses: reversed, read-only, byte-swapped."""
    array = np.asarray(value)
    if not (array.flags.writeable and array.dtype.isnative and all(stride >= 0 for stride in array.strides)):
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(array)


def of_anything(value: object, like: Tensor | None = None) -> Tensor:
    """A tensor from a tensor, an array or a list, in its own precision."""
    if isinstance(value, Tensor):
        return value
    exact = isinstance(value, float) and like is not None  # torch's default type would drop digits
    is_array = hasattr(value, "__array__")
    return of_array(value) if is_array else torch.as_tensor(value, dtype=torch.float64 if exact else None)


def as_tensor(value: object, like: Tensor | None = None) -> Tensor:
    """A tensor from a tensor, an array or a list, with the device and the floating-point type of `like`."""
    value = of_anything(value, like)
    if like is None:
        return value if value.is_floating_point() else value.to(torch.get_default_dtype())
    return value.to(device=like.device, dtype=like.dtype)


def describe(error: Exception) -> str:
    """The message of an error, with its type unless it is ours."""
    return str(error) if isinstance(error, GridwiseError) else f"{type(error).__name__}: {error}"


class _States(Generic[Value]):
    """Values of a layer's units for a batch of `block_size` samples, as tensors in the shape of its output."""

    _value: Value

    def __init__(self, size: int | None = None, block_size: int | None = None) -> None:
        self.set_size(size or 0, block_size or 0)

    def set_size(self, size: int, block_size: int) -> str:
        """Reset to `size` values in `block_size` samples, about which nothing is known."""
        if size % block_size if block_size else size:
            raise ArgumentError(
                f"{self.get_name()}: `size` (={size}) is not a multiple of `block_size` (={block_size})."
            )
        self._assign(self._unknown((block_size, size // block_size) if block_size else (0, 0)))
        return self.get_name()

    def _assign(self, value: Value) -> None:
        self._value = value

    def _unknown(self, shape: tuple[int, int]) -> Value:
        raise NotImplementedError

    @property
    def size(self) -> int:
        return self._value.mu.numel()

    @property
    def block_size(self) -> int:
        """Number of samples in the batch."""
        return self._value.mu.shape[0]

    @property
    def actual_size(self) -> int:
        """Number of units of one sample."""
        return self.size // max(self.block_size, 1)

    def get_name(self) -> str:
        return type(self).__name__


def _moment(name: str, read: Callable[[Any], Tensor]) -> property:
    """A property: one of the moments, one row per sample; can be set from anything with as many values."""

    def get(states: _States[Any]) -> Tensor:
        found = read(states._value)
        return found.reshape(found.shape[0], found.shape[1:].numel())

    def put(states: _States[Any], value: object) -> None:
        like = states._value.mu
        states._assign(states._value._replace(**{name: as_tensor(value, like).reshape(like.shape)}))

    return property(get, put)


class BaseHiddenStates(_States[Gaussian]):
    """Means `mu_a`, variances `var_a` and Jacobians `jcb` of a layer's units, initially 0, 0 and 1.

    Parameters
    ----------
    size : number of units in total
    block_size : number of samples

    Examples
    --------
    >>> gridwise.tagi.nn.BaseHiddenStates(4, 2).jcb
    tensor([[1., 1.],
            [1., 1.]])
    """

    def _unknown(self, shape: tuple[int, int]) -> Gaussian:
        return Gaussian(torch.zeros(shape), torch.zeros(shape), torch.ones(shape))

    def set_input_x(self, mu_x: Values, var_x: Values | None = None, block_size: int = 1) -> None:
        """Take `block_size` samples of a network's input."""
        mu = as_tensor(mu_x).reshape(block_size, -1)
        self._value = Gaussian(mu, None if var_x is None else as_tensor(var_x, mu).reshape(mu.shape))

    @property
    def gaussian(self) -> Gaussian:
        """The states as the layers use them, in the shape of the layer's output."""
        return self._value

    @gaussian.setter
    def gaussian(self, value: Gaussian) -> None:
        self._value = value

    mu_a = _moment("mu", lambda value: value.mu)
    var_a = _moment("var", Gaussian.variance)
    jcb = _moment("jcb", Gaussian.jacobian)


@documented_like(BaseHiddenStates)
class BaseDeltaStates(_States[Innovation]):
    """Innovations `delta_mu` and `delta_var` of a layer's units, initially zero.

    Where several workers train one network they are `shared`: an error in one worker's observations is then kept as the
    `problem`, and raised by all workers in `backward`.

    Examples
    --------
    >>> gridwise.tagi.nn.BaseDeltaStates(4, 2).delta_mu
    tensor([[0., 0.],
            [0., 0.]])
    """

    shared: bool = False
    problem: str | None = None

    def _assign(self, value: Innovation) -> None:
        self._value, self.problem = value, None  # a problem is about the values that are replaced

    def _unknown(self, shape: tuple[int, int]) -> Innovation:
        return Innovation(torch.zeros(shape), torch.zeros(shape))

    @property
    def innovation(self) -> Innovation:
        """The innovations as the layers use them, in the shape of the layer's output."""
        return self._value

    @innovation.setter
    def innovation(self, value: Innovation) -> None:
        self._assign(value)

    def set_from(self, make: Callable[[], Innovation]) -> None:
        """Set the innovations to the result of `make`; an error is raised or, if `shared`, kept for `backward`."""
        try:
            self._assign(make())
        except Exception as error:  # also of lists that torch refuses: the other workers go on to backward
            if not self.shared:
                raise
            self.problem = describe(error)

    def reset_zeros(self) -> None:
        self._assign(Innovation(torch.zeros_like(self._value.mu), torch.zeros_like(self._value.var)))

    def copy_from(self, source: BaseDeltaStates, num_data: int = -1) -> None:
        """Take the first `num_data` values of `source`, or all of them."""
        if num_data < 0:
            self._value = Innovation(source._value.mu.clone(), source._value.var.clone())
            self.problem = source.problem
            return
        if num_data > min(self.size, source.size):
            raise ArgumentError(
                f"copy_from: `num_data` (={num_data}) is more than {self.size} values here or {source.size} there."
            )
        for mine, theirs in zip(self._value, source._value, strict=True):
            mine.view(-1)[:num_data] = theirs.reshape(-1)[:num_data]
        self.problem = self.problem or source.problem

    delta_mu = _moment("mu", lambda value: value.mu)
    delta_var = _moment("var", lambda value: value.var)


class HRCSoftmax:
    """The binary tree of classes: see `gridwise.tagi.hrc_softmax`.

    Attributes
    ----------
    obs : (classes * num_obs,) array of +1 and -1, the turns from the root to each class
    idx : (classes * num_obs,) array of the nodes on that path, counted from 1
    num_obs : number of turns of one class
    len : number of nodes of the tree = outputs of the network

    Examples
    --------
    >>> tree = gridwise.tagi.Utils().get_hierarchical_softmax(10)
    >>> tree.len, tree.num_obs
    (11, 4)
    """

    def __init__(self) -> None:
        self.obs: np.ndarray = np.zeros(0, np.float32)
        self.idx: np.ndarray = np.zeros(0, np.int32)
        self.num_obs: int = 0
        self.len: int = 0
