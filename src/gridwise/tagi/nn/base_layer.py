"""Base of all TAGI layers: a `torch.nn.Module` with closed-form moments forward and innovations backward.

    forward(x)         moments of the output; in training mode the layer keeps what backward needs
    backward(delta)    innovations of the input, from those of the output; leaves the *raw sums* of the layer's
                       parameters over the batch in `layer.sums`
    step()             the capped update of the parameters from the sums (see update.py)

A layer with parameters holds pairs (`mu_w`, `var_w`) and (`mu_b`, `var_b`): ordinary `Parameter`s with
`requires_grad=False`, so `.to()`, `state_dict()`, checkpoints and deferred initialisation treat them like any other.
`sums["w"]` and `sums["b"]` are pairs too. To add them up over workers, set `on_sums`: it is called with the layer as
soon as its sums are complete, before the innovations of its input are computed, so that communication overlaps with
computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ArgumentError, GridwiseError
from ..inference.initial_values import gaussian_parameters, scale_of
from ..inference.tracing import is_traced
from ..inference.update import ParameterChange, cap_factor, capped_update
from .gaussian import Gaussian, Innovation

Sums = tuple[Tensor, Tensor]
Shape = tuple[int, ...]
Fans = tuple[int, int]
"""Fan-in, the inputs of one output unit, and fan-out, the outputs of one input unit."""

_LAST_INPUT_ATTRIBUTES = {
    *("batch", "num_samples", "input_size", "output_size"),
    *("in_width", "in_height", "in_channels", "out_width", "out_height", "out_channels"),
}
"""Attributes that record a layer's last input; the next step does not depend on them."""


class BaseLayer(nn.Module):
    """Base of all layers; by itself the identity.

    Parameters
    ----------
    input_size, output_size : units of one sample before and after the layer

    Attributes
    ----------
    compat : None or 'cutagi'
        'cutagi' reproduces the deterministic quirks of cuTAGI 0.2.1 that the layer documents.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> isinstance(nn.Linear(3, 2), nn.BaseLayer)
    True
    """

    in_width: int = 0
    in_height: int = 0
    in_channels: int = 0
    out_width: int = 0
    out_height: int = 0
    out_channels: int = 0
    compilable: bool = True
    """Whether a step depends on nothing but the input, the parameters and the states in `carried`."""
    reusable: bool = False
    """Whether a layer may occur several times in a network: it keeps nothing between forward and backward."""

    def __init__(self, input_size: int = 0, output_size: int = 0) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size
        self.compat: str | None = None
        self._saved: tuple[Any, ...] | None = None
        self._memory: dict[str, Tensor] = {}

    # ---- forward, backward, step ------------------------------------------------------------------------------------
    def forward(self, x: Gaussian) -> Gaussian:
        return x

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        """Innovations of the input; may be None if `need_input` is False."""
        return delta

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters of this layer and the layers inside it from the sums left by backward."""
        capped_update([change for leaf in self.leaves() for change in leaf.changes()])

    def changes(self) -> Iterator[ParameterChange]:
        """The updates that the next step makes; none for a layer without parameters or sums."""
        return iter(())

    # ---- what a layer expects as input ------------------------------------------------------------------------------
    def as_input(self, flat: Tensor) -> Tensor:
        """An array, flat or with one row per sample, in the shape (batch, ...) that this layer expects."""
        if self.input_size <= 0:
            return flat if flat.ndim > 1 else flat.reshape(flat.shape[0], 1)
        return self._samples(flat, self.input_size)

    def _samples(self, flat: Tensor, size: int) -> Tensor:
        """The values as (batch, size); raises unless they are whole samples of that size."""
        if flat.ndim < 2 and flat.numel() % size:
            raise ArgumentError(
                f"{self.get_layer_info()}: an input of {flat.numel()} values is not a whole number of samples of "
                f"{size} values.\n  fix: pass (batch, {size}) values."
            )
        if flat.ndim >= 2 and flat.shape[1:].numel() != size:
            raise ArgumentError(
                f"{self.get_layer_info()}: the input of shape {tuple(flat.shape)} has {flat.shape[1:].numel()} values a "
                f"sample, {size} are needed.\n  fix: pass (batch, {size}) values, or flat ones."
            )
        return flat.reshape(-1, size)

    def children_layers(self) -> Iterator[BaseLayer]:
        """The layers inside this one, in order, if any."""
        return iter(())

    def leaves(self) -> Iterator[BaseLayer]:
        """The innermost layers inside this one, in forward order; the layer itself if it contains none."""
        empty = True
        for child in self.children_layers():
            empty = False
            yield from child.leaves()
        if empty:
            yield self

    # ---- buffers that are reused at every step ----------------------------------------------------------------------
    def _scratch(self, name: str, like: Tensor) -> Tensor | None:
        """A buffer like `like`, the same at every call: the first touch of fresh memory costs more than a product.

        None in a traced step, where the compiler plans the memory.
        """
        if is_traced():
            return None
        kept = self._memory.get(name)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype or kept.device != like.device:
            kept = self._memory[name] = torch.empty_like(like, requires_grad=False)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have the parameters, but no scratch buffers, saved values or hooks."""
        return self.__dict__ | {"_saved": None, "_memory": {}}

    # ---- what backward needs from forward ---------------------------------------------------------------------------
    def _keep(self, *values: Any) -> None:
        if self.training:
            self._saved = values

    def _recall(self) -> tuple[Any, ...]:
        if self._saved is None:
            raise GridwiseError(
                f"{self.get_layer_info()}: backward() has no forward pass in training mode to go back through.\n"
                "  fix: train(), then forward, update, backward, each once."
            )
        saved, self._saved = self._saved, None
        return saved

    # ---- states that a step hands to the next, besides parameters and buffers ---------------------------------------
    def carried(self) -> tuple[Tensor, ...]:
        """The states that the next step starts from, such as those of a recurrence."""
        return ()

    def carry(self, states: tuple[Tensor, ...]) -> None:
        """Let the next step start from `states`, as returned by `carried`."""

    # ---- names ------------------------------------------------------------------------------------------------------
    def get_layer_name(self) -> str:
        return type(self).__name__

    def get_layer_info(self) -> str:
        """A one-line description of the layer, as in the original."""
        return f"{self.get_layer_name()}()"

    def extra_repr(self) -> str:
        info = self.get_layer_info()
        return "" if self._modules else info[info.find("(") + 1 : -1]

    @property
    def device(self) -> str:
        """The device of the parameters: 'cpu', 'cuda:0', ..."""
        return str(next((p.device for p in self.parameters()), "cpu"))

    def to_cuda(self) -> None:
        self.to("cuda")


def _delta(name: str, power: int) -> property:
    """A property: what the next step will add to means or variances, before the cap; None if there are no sums."""

    def get(layer: ParametricLayer) -> Tensor | None:
        pair = {n: var for n, _, var in layer.pairs()}
        if name not in layer.sums or name not in pair:
            return None
        return pair[name] ** power * layer.sums[name][power - 1].reshape(pair[name].shape)

    return property(get)


class ParametricLayer(BaseLayer):
    """A layer with weights and, optionally, biases."""

    mu_w: nn.Parameter
    var_w: nn.Parameter
    mu_b: nn.Parameter | None
    var_b: nn.Parameter | None
    neg_var_w: Tensor  # how many variances the steps have set to FLOOR
    gain_weight: float = 1.0
    gain_bias: float = 1.0
    init_method: str = "He"

    def __init__(self, input_size: int = 0, output_size: int = 0, bias: bool = True) -> None:
        super().__init__(input_size, output_size)
        self.bias = bias
        self.sums: dict[str, Sums] = {}
        self.batch = 1  # samples behind the sums: those of all workers where the sums are added up
        self.cap: float | str | None = "batch"
        self.on_sums: Callable[[ParametricLayer], None] | None = None
        self.register_buffer("neg_var_w", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_parameter("mu_b", None)
        self.register_parameter("var_b", None)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"on_sums": None}

    def init_weight_bias(self) -> None:
        """Draw new initial means and reset the variances; the layer forgets what it has learnt."""
        for name, value in self._initial().items():
            old = getattr(self, name, None)
            if old is None:
                self.register_parameter(name, value)
            else:
                old.copy_(value)

    def _initial(self) -> dict[str, nn.Parameter]:
        weight, bias, fans = self._shapes()
        scale = scale_of(self.init_method, *fans)
        return gaussian_parameters(weight, bias if self.bias else None, scale, self.gain_weight, self.gain_bias)

    def _shapes(self) -> tuple[Shape, Shape, Fans]:
        """Shapes of weights and biases, and the fans."""
        raise NotImplementedError

    def pairs(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        """('w', mu_w, var_w) and, where there are biases, ('b', mu_b, var_b)."""
        yield "w", self.mu_w, self.var_w
        if self.mu_b is not None and self.var_b is not None:
            yield "b", self.mu_b, self.var_b

    # ---- sums and step ----------------------------------------------------------------------------------------------
    def _sums_ready(self, batch: int, w: Sums, b: Sums | None) -> None:
        self.sums = {"w": w} if b is None or not self.bias else {"w": w, "b": b}
        self.batch = batch
        if self.on_sums is not None:
            self.on_sums(self)

    def cap_value(self) -> float | None:
        """The cap factor of the next step: from the batch size, as set by the user, or None for no cap."""
        return cap_factor(self.batch) if isinstance(self.cap, str) else self.cap

    def changes(self) -> Iterator[ParameterChange]:
        """The updates that the next step makes; consumes the sums."""
        sums, self.sums = self._final_sums(), {}
        for name, mu, var in self.pairs():
            if name in sums:
                s1, s2 = (total.reshape(mu.shape) for total in sums[name])
                yield ParameterChange(mu, var, s1, s2, self.cap_value(), self.neg_var_w if name == "w" else None)

    def _final_sums(self) -> dict[str, Sums]:
        return self.sums

    delta_mu_w = _delta("w", 1)
    delta_var_w = _delta("w", 2)
    delta_mu_b = _delta("b", 1)
    delta_var_b = _delta("b", 2)

    @property
    def num_weights(self) -> int:
        return self.mu_w.numel()

    @property
    def num_biases(self) -> int:
        return 0 if self.mu_b is None else self.mu_b.numel()


def setting_names(layer: BaseLayer) -> list[str]:
    """The attributes of a layer, besides tensors and hooks, that its computation may depend on."""
    always = {"compat", "cap"}
    return [
        name
        for name, value in vars(layer).items()
        if name in always or (name not in _LAST_INPUT_ATTRIBUTES and _is_plain(value))
    ]


def _is_plain(value: object) -> bool:
    return isinstance(value, Number | str) or (type(value) is tuple and all(map(_is_plain, value)))
