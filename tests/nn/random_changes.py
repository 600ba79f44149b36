"""Random changes to layers after construction: attributes, dtypes, requires_grad, hooks, parametrizations, parameters.

A `Trial` names a layer, a grid and a change, and on which workers it is made. `changed_layers.attempt` runs it on the workers
of the calling test: the layer is made, perhaps called, changed, and called (again), as is torch's own on every worker. The
result is equal to torch's, on all workers, or refused on all of them. Nothing else passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrizations, parametrize, prune

import gridwise

NOT_OFFERED = (
    "a window without any input",
    "negative circular padding",
    "outside of the window",
    "would be empty",
    "reaches beyond the 2 dims of space",
    "`mode` (='area') is not offered",
)
"""What is refused of an attribute though torch takes it."""
SIZES = (1, 2, 3, (1, 2), (2, 1), [2, 2])
PADDINGS = (0, 1, (1, 0), (0, 1), [1, 1])
VALUES: dict[str, tuple[Any, ...]] = {
    "stride": SIZES,
    "padding": (*PADDINGS, "same", "valid"),
    "dilation": SIZES,
    "kernel_size": SIZES,
    "output_padding": PADDINGS,
    "padding_mode": ("zeros", "reflect", "replicate", "circular", "nonsense"),
    "groups": (1, 2, 4),
    "ceil_mode": (True, False),
    "return_indices": (True, False),
    "count_include_pad": (True, False),
    "divisor_override": (None, 1, 3),
    "output_size": (1, 3, (2, 3), (None, 2), [3, 1]),
    "value": (0.0, 2.5),
    "eps": (1e-5, 0.5),
    "momentum": (0.1, 0.7, None),
    "affine": (True, False),
    "elementwise_affine": (True, False),
    "track_running_stats": (True, False),
    "num_groups": (1, 2, 3, 4),
    "size": (None, 5, (3, 7), [4, 4]),
    "scale_factor": (None, 2, 2.5, (2.0, 0.5)),
    "mode": ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    "align_corners": (None, True, False),
    "recompute_scale_factor": (None, True),
    "reduction": ("none", "mean", "sum", "median"),
    "beta": (0.0, 1.0, 3.0),
    "delta": (0.1, 2.0),
    "log_target": (True, False),
    "log_input": (True, False),
    "full": (True, False),
    "ignore_index": (-100, 1),
    "label_smoothing": (0.0, 0.3, 2.0),
    "p": (0.0, 0.3, 1.0, 2.0),
    "inplace": (False, False, True),
    **dict.fromkeys(("in_channels", "out_channels", "num_features", "num_channels", "num_parameters"), (2, 4, 8)),
    **dict.fromkeys(("in_features", "out_features", "normalized_shape"), (4, 6)),
}
"""For each attribute that some layer has, what it is set to."""
PADS = ((1, 1, 1, 1), (0, 2, 1, 0), (1, 0), (-1, 1, 0, 0), 1, (1,) * 6)
CONV = ("stride", "padding", "dilation", "padding_mode", "kernel_size", "groups", "in_channels", "out_channels")
POOL = ("kernel_size", "stride", "padding", "ceil_mode")


@dataclass(frozen=True)
class Kind:
    """A layer: its arguments, the attributes that may be set, and the dims that may be cut."""

    layer: str
    args: tuple[Any, ...]
    attributes: tuple[str, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...] = (2, 4, 6, 5)
    cuts: tuple[int, ...] = (0, 1, 2, 3)


def kind(layer: str, *args: Any, on: tuple[str, ...] = (), **kwargs: Any) -> Kind:
    return Kind(layer, args, on, kwargs)


KINDS = (
    kind("Conv2d", 4, 4, 3, on=CONV, padding=1),
    kind("Conv2d", 4, 4, 3, on=CONV, padding=1, bias=False),
    kind("Conv2d", 4, 4, 3, on=CONV, padding=2, padding_mode="circular"),
    kind("Conv2d", 4, 4, 3, on=CONV, padding="same", groups=2),
    kind("ConvTranspose2d", 4, 4, 3, on=(*CONV, "output_padding"), stride=2, padding=1),
    kind("MaxPool2d", 2, on=(*POOL, "dilation", "return_indices")),
    kind("AvgPool2d", 2, on=(*POOL, "count_include_pad", "divisor_override"), padding=1),
    kind("AdaptiveAvgPool2d", 3, on=("output_size",)),
    kind("AdaptiveMaxPool2d", (2, 3), on=("output_size", "return_indices")),
    kind("ZeroPad2d", 1, on=("padding", "value")),
    kind("ConstantPad2d", 1, 1.5, on=("padding", "value")),
    kind("ReflectionPad2d", 1, on=("padding",)),
    kind("ReplicationPad2d", 1, on=("padding",)),
    kind("CircularPad2d", 1, on=("padding",)),
    kind("BatchNorm2d", 4, on=("eps", "momentum", "affine", "track_running_stats", "num_features")),
    kind("BatchNorm2d", 4, on=("eps", "momentum", "track_running_stats"), track_running_stats=False),
    kind("InstanceNorm2d", 4, on=("eps", "momentum", "affine", "track_running_stats", "num_features")),
    kind("InstanceNorm2d", 4, on=("eps", "momentum", "track_running_stats"), affine=True, track_running_stats=True),
    kind("GroupNorm", 2, 4, on=("eps", "num_groups", "num_channels", "affine")),
    kind("LayerNorm", (6, 5), on=("eps", "normalized_shape", "elementwise_affine")),
    Kind("Linear", (6, 5), ("in_features", "out_features"), {}, (4, 6), (0, 1)),
    kind("PReLU", 4, on=("num_parameters",)),
    kind("Upsample", on=("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"), scale_factor=2),
    kind("Upsample", on=("size", "mode", "align_corners"), size=(7, 8), mode="bilinear", align_corners=True),
    kind("Dropout", 0.4, on=("p", "inplace")),
    kind("Dropout2d", 0.4, on=("p", "inplace")),
    kind("AlphaDropout", 0.4, on=("p", "inplace")),
    kind("MaxUnpool2d", 2, on=("kernel_size", "stride", "padding")),
    kind("L1Loss", on=("reduction",)),
    kind("MSELoss", on=("reduction",)),
    kind("SmoothL1Loss", on=("reduction", "beta")),
    kind("HuberLoss", on=("reduction", "delta")),
    kind("KLDivLoss", on=("reduction", "log_target")),
    kind("PoissonNLLLoss", on=("reduction", "log_input", "full", "eps")),
    kind("BCEWithLogitsLoss", on=("reduction",)),
    Kind("CrossEntropyLoss", (), ("reduction", "ignore_index", "label_smoothing"), {}, cuts=(0, 2, 3)),
    Kind("NLLLoss", (), ("reduction", "ignore_index"), {}, cuts=(0, 2, 3)),
)
WITH_PARAMETERS = ("Conv", "Norm", "Linear", "PReLU")
Change = Callable[[torch.nn.Module, Any], None]
"""Makes a change to torch's layer, or to ours: the second argument cuts a global value for it, or is the identity."""


@dataclass(frozen=True)
class Trial:
    kind: Kind
    grid: tuple[int, ...]
    words: str
    change: Change
    on: tuple[int, ...]
    """The workers that make the change."""
    called_before: bool
    trains: bool
    dtype: torch.dtype = torch.float64
    """Of the input of the call after the change."""
    attribute: str = ""

    def __str__(self) -> str:
        when = "after a call" if self.called_before else "before the first call"
        args = (*map(str, self.kind.args), *(f"{k}={v!r}" for k, v in self.kind.kwargs.items()))
        mode = "train" if self.trains else "eval"
        layer = f"{self.kind.layer}({', '.join(args)}) on {self.grid}, {mode}"
        return f"{layer}: {self.words} on workers {self.on} {when}, input {self.dtype}"


def random_trial(seed: int, workers: int) -> Trial:
    rng = random.Random(f"{seed} {workers} changes")
    chosen = rng.choice(KINDS)
    grid = [1] * len(chosen.shape)
    grid[rng.choice(chosen.cuts)] = workers
    if workers == 4 and len(chosen.cuts) > 1 and rng.random() < 0.5:
        grid = [1] * len(chosen.shape)
        for d in rng.sample(chosen.cuts, 2):
            grid[d] = 2
    everybody = tuple(range(workers))
    on = everybody if rng.random() < 0.6 else tuple(sorted(rng.sample(everybody, rng.randint(1, workers - 1))))
    dtype, attribute, trains = torch.float64, "", rng.random() < 0.7
    if not any(word in chosen.layer for word in WITH_PARAMETERS) or rng.random() < 0.5:
        attribute = rng.choice(chosen.attributes)
        values = PADS if attribute == "padding" and "Pad" in chosen.layer else VALUES[attribute]
        value = rng.choice(values)
        words, change = f"{attribute} = {value!r}", _set(attribute, value)
    else:
        words, change, dtype = rng.choice(CHANGES)(rng, chosen, on == everybody)
    # what is written into one replica later is compared on request only
    before = rng.random() < 0.7 and (on == everybody or not words.endswith("written"))
    return Trial(chosen, tuple(grid), words, change, on, before, trains, dtype, attribute)


def _set(name: str, value: Any) -> Change:
    def change(module: torch.nn.Module, cut: Any) -> None:
        ours = isinstance(module, gridwise.nn.Module)  # which takes lists as tuples; some of torch's layers do not
        setattr(module, name, tuple(value) if isinstance(value, list) and not ours else value)

    return change


# Kinds of changes: of each, its words, what it does, and the dtype of the input afterwards

Made = tuple[str, Change, torch.dtype]


def _dtype(rng: random.Random, chosen: Kind, everywhere: bool) -> Made:
    dtype = rng.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64))
    return f"to({dtype})", lambda module, cut: module.to(dtype), rng.choice((dtype, torch.float64))


def _freeze(rng: random.Random, chosen: Kind, everywhere: bool) -> Made:
    name, wants = rng.choice((None, "weight", "bias")), rng.random() < 0.2

    def change(module: torch.nn.Module, cut: Any) -> None:
        for own, parameter in module.named_parameters():
            if name in (None, own):
                parameter.requires_grad_(wants)

    return f"requires_grad_({wants}) of {name or 'all'}", change, torch.float64


def _hook(rng: random.Random, chosen: Kind, everywhere: bool) -> Made:
    which = rng.choice(("forward", "pre", "backward")) if everywhere else "look"

    def change(module: torch.nn.Module, cut: Any) -> None:
        if which == "forward":
            module.register_forward_hook(lambda module, args, y: y * 2)
        elif which == "pre":
            module.register_forward_pre_hook(lambda module, args: (args[0] * 2, *args[1:]))
        elif which == "backward":
            module.register_full_backward_hook(lambda module, gradients, of_y: (gradients[0] * 2,))
        else:
            module.register_forward_hook(lambda module, args, y: None)

    return f"a {which} hook", change, torch.float64


class _Doubled(torch.nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value * 2


def _computed(rng: random.Random, chosen: Kind, everywhere: bool) -> Made:
    which = rng.choice(("parametrization", "spectral_norm", "weight_norm", "pruning"))

    def change(module: torch.nn.Module, cut: Any) -> None:
        if which == "parametrization":
            parametrize.register_parametrization(module, "weight", _Doubled())
        elif which == "pruning":
            prune.l1_unstructured(module, "weight", 0.5)
        elif module.weight.dim() > 1:
            torch.manual_seed(5)
            dim = int(
                which == "spectral_norm" and "Transpose" in type(module).__name__
            )  # torch looks for its own class
            getattr(parametrizations, which)(module, dim=dim)

    return which, change, torch.float64


def _replaced(rng: random.Random, chosen: Kind, everywhere: bool) -> Made:
    name = rng.choice(("weight", "bias", "running_mean", "running_var"))
    what = rng.choice(("None", "new", "new", "shape", "written", "loaded"))

    def change(module: torch.nn.Module, cut: Any) -> None:
        value = getattr(module, name, None)
        if name not in (*module._parameters, *module._buffers):
            return
        if what == "None":
            setattr(module, name, None)
        elif value is None:
            shape = module.weight.shape[:1] if name == "bias" and getattr(module, "weight", None) is not None else (4,)
            made = torch.ones(shape, dtype=torch.float64)
            setattr(module, name, made if name.startswith("running") else torch.nn.Parameter(made))
        elif what == "shape":
            setattr(module, name, torch.nn.Parameter(torch.ones(3, dtype=torch.float64)))
        else:
            new = cut(name, torch.rand(cut.shape(name, value), generator=torch.Generator().manual_seed(9)).double())
            if what == "written":
                value.data.copy_(new)
            elif what == "loaded":
                module.load_state_dict({name: new}, strict=False)
            else:
                setattr(module, name, new if name.startswith("running") else torch.nn.Parameter(new))

    return f"{name}: {what}", change, torch.float64


CHANGES = (_dtype, _dtype, _freeze, _hook, _computed, _replaced, _replaced, _replaced)


class Whole:
    """Gives torch's layer its values as they are."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def shape(self, name: str, value: Tensor) -> tuple[int, ...]:
        return tuple(value.shape)


class Block(Whole):
    """Gives a distributed layer this worker's block."""

    def __init__(self, layer: Any) -> None:
        self.shardings, self.rank = getattr(layer, "_shardings", {}), gridwise.world().rank

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self.shardings[name].cut(value, self.rank).clone()

    def shape(self, name: str, value: Tensor) -> tuple[int, ...]:
        return self.shardings[name].shape if name in self.shardings else tuple(value.shape)
