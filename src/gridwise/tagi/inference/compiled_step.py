"""A training step as a pure function of tensors, compiled once for every structure of its input.

    inputs    the batch, the states carried over from the last step, the parameters and buffers (changed in place)
    outputs   the moments of the prediction, the states to carry over to the next step

This gives a flat graph without any Python in it (`tracing.py`), which inductor, torch's compiler, turns into C++ on a
CPU and into Triton kernels on CUDA. On CUDA those kernels, or torch's own where there is no Triton, are then captured
in a CUDA graph (`cuda_graph.py`). Neither is trusted before it agrees with the layers (`checked_step.py`). Whatever
else a step depends on (the layers' settings, shapes, precision) is looked up at each call; when it has changed, another
step is compiled and the first one kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...errors import UnsupportedError
from ...log import logger
from ...torch_internals.compiler import machine_code
from ..nn.base_layer import BaseLayer, setting_names
from ..nn.gaussian import Gaussian
from ..nn.sequential import Sequential
from .checked_step import Checked, StepCandidate
from .cuda_graph import Captured
from .native.step import NativeStep, code_of, native_step
from .native.values import NotNativeError
from .tracing import trace

Tensors = Sequence[Tensor]
Batch = tuple[Tensor | None, ...]

_CPP = {"cpp_wrapper": True, "memory_planning": True}
"""No Python between the loops, and one allocation for all intermediate results."""

_TRITON = {"loop_ordering_after_fusion": False}
"""The compiler of torch 2.11 fails on loops over several tensors (`torch._foreach_*`) when it may reorder loops."""

_IN_PLACE = torch.__version__ >= "2.12"  # a TorchVersion: compared as a version, not as a string
"""Whether the compiler may write parameters in place. That of torch 2.11 does so before backward has read them."""

_TF32 = 2.0**-10


class _Layout(NamedTuple):
    """Which tensors a step returns."""

    moments: tuple[bool, bool]  # whether the prediction has variances, and Jacobians
    carried: list[int]  # number of tensors that each such layer carries to the next step


class _Made(NamedTuple):
    """A compiled step for one structure of its input."""

    run: Checked
    layout: list[_Layout]  # the last, once the layers have run


class CompiledStep:
    """`step` of `net`, compiled; the tensors that it reads and writes besides `batch` are found automatically.

    Parameters
    ----------
    net
        The network.
    step
        Learns from a batch, a tuple of tensors with None for those that are absent, and returns the prediction.
    name
        What else the step depends on, in words.
    """

    def __init__(self, net: Sequential, step: Callable[[Batch], Gaussian], name: str = "") -> None:
        self.net, self.step, self.name = net, step, name
        self._layers = [m for m in net.modules() if isinstance(m, BaseLayer)]
        self._settings = [(vars(layer), _settings_of(layer)) for layer in self._layers]
        self._recurrent = [layer for layer in self._layers if type(layer).carried is not BaseLayer.carried]
        self._slots: list[tuple[dict[str, Any], str]] = [
            (tensors, name)
            for module in net.modules()
            for tensors in (module._parameters, module._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self._made: dict[Any, _Made] = {}

    def __reduce__(self) -> Any:
        return CompiledStep, (self.net, self.step, self.name)  # a copy is compiled afresh

    def __call__(self, batch: Batch) -> Gaussian:
        made, tensors = self._made_for(batch)
        outputs = list(made.run(*tensors))
        return self._unpack_outputs(made.layout[0], outputs)

    def many(self, whole: Batch, order: Tensor, rows: int) -> tuple[Tensor, Tensor] | None:
        """A step for each `rows` of `order`: mean and variance predicted for them, row by row. None if that cannot be one call.

        `whole` has the data of all rows; a tensor of no dims is the same for all. The number of rows in `order` is a
        multiple of `rows`.
        """
        made, tensors = self._made_for(tuple(t if t is None or not t.ndim else t[:rows] for t in whole))
        native = made.run.trusted
        if not isinstance(native, NativeStep) or any(made.layout[0].carried):
            return None
        data = [t.contiguous() for t in whole if t is not None]
        mu, *others = native.many(data, order.contiguous(), rows, tensors[len(data) :])
        mu, var = (t.flatten(0, 1) for t in (mu, others[0] if made.layout[0].moments[0] else torch.zeros_like(mu)))
        return mu, var

    def _made_for(self, batch: Batch) -> tuple[_Made, list[Tensor]]:
        """The compiled step for batches like this, and the tensors that it works on."""
        given = [t.contiguous() for t in batch if t is not None]
        carried = [layer.carried() for layer in self._recurrent]
        tensors = [*given, *(t for states in carried for t in states), *(at[name] for at, name in self._slots)]
        key = (
            tuple(t is None for t in batch),
            tuple(map(len, carried)),
            tuple(get(settings) for settings, get in self._settings),
            tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors),
            torch.get_num_threads(),
            _precision_of_products(tensors[0].is_cuda),
        )
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(batch, carried, tensors)
        return made, tensors

    def _unpack_outputs(self, layout: _Layout, outputs: list[Tensor]) -> Gaussian:
        """The prediction; the carried states are handed to their layers."""
        values = iter(outputs)
        out = Gaussian(next(values), *(next(values) if there else None for there in layout.moments))
        for layer, count in zip(self._recurrent, layout.carried, strict=True):
            layer.carry(tuple(islice(values, count)))
        return out

    # ---- compiling --------------------------------------------------------------------------------------------------
    def _make(self, batch: Batch, carried: Sequence[Tensors], tensors: Tensors) -> _Made:
        self._check()
        counts = [len(states) for states in carried]
        layout: list[_Layout] = []

        def run(*values: Tensor) -> list[Tensor]:
            out, after = self._with(batch, counts, iter(values))
            layout[:] = [_Layout((out.var is not None, out.jcb is not None), [len(states) for states in after])]
            return [t for t in (*out, *chain.from_iterable(after)) if t is not None]

        def reference(*values: Tensor) -> list[Tensor]:
            with _untouched(self._layers):
                return run(*values)

        given = len(tensors) - len(self._slots)
        structure = [tuple(t is None for t in batch), counts]
        candidates = chain(self._native(reference, tensors, structure), self._candidates(run, tensors, given))
        return _Made(Checked(run, reference, candidates, self._eps(tensors)), layout)

    def _native(self, run: Callable[..., list[Tensor]], tensors: Tensors, structure: Any) -> Iterator[StepCandidate]:
        """The step of a small network on a CPU as plain loops."""
        try:
            layouts = [(tuple(t.shape), t.stride(), str(t.dtype)) for t in tensors]
            settings = [
                (type(layer).__qualname__, get(of))
                for layer, (of, get) in zip(self._layers, self._settings, strict=True)
            ]
            code = code_of(type(layer) for layer in self._layers)
            words = torch.__version__, self.name, repr(self.net), settings, layouts, structure, code
            yield StepCandidate("native", native_step(run, tensors, repr(words)))
        except NotNativeError as error:
            logger.debug("TrainStep: no native step: %s", error)

    def _candidates(self, run: Callable[..., list[Tensor]], tensors: Tensors, given: int) -> Iterator[StepCandidate]:
        """Faster versions of the step, the fastest first."""
        cuda = tensors[0].is_cuda
        for name in ("compiled", "compiled out of place") if _IN_PLACE else ("compiled out of place",):
            graph = trace(run if name == "compiled" else partial(_out_of_place, run, given), tensors)
            made = _compiled(graph, tensors)
            if made is None:
                break
            if name != "compiled":
                made = partial(_copy_back, made, given)
            yield StepCandidate(name, Captured(made, given) if cuda else made)
        if cuda:
            yield StepCandidate("captured", Captured(run, given))

    def _eps(self, tensors: Tensors) -> float:
        """The relative rounding error of the coarsest products of a step."""
        types = {t.dtype for t in tensors if t.is_floating_point()}
        return max(_TF32 if t == torch.float32 and _fast_products(tensors) else torch.finfo(t).eps for t in types)

    def _check(self) -> None:
        if self.net.replicas is not None:
            raise UnsupportedError(
                "TrainStep: a step that communicates with other workers cannot be compiled.\n  fix: compile=False."
            )
        if self.net.input_state_update:
            raise UnsupportedError(
                "TrainStep: a step that also updates its input (`input_state_update`) cannot be compiled.\n"
                "  fix: compile=False."
            )
        for layer in self._layers:
            if not layer.compilable or vars(layer).get("on_sums") is not None:
                raise UnsupportedError(
                    f"TrainStep: {layer.get_layer_info()} reports or remembers its steps, and cannot be compiled."
                    "\n  fix: compile=False."
                )

    def _with(self, batch: Batch, counts: Sequence[int], values: Iterator[Tensor]) -> tuple[Gaussian, list[Tensors]]:
        """The prediction and the carried states after a step on `values` in place of the network's own tensors."""
        states = [layer.carried() for layer in self._recurrent]
        kept = [at[name] for at, name in self._slots]
        try:
            given = tuple(None if t is None else next(values) for t in batch)
            for layer, count in zip(self._recurrent, counts, strict=True):
                layer.carry(tuple(islice(values, count)))
            for at, name in self._slots:
                at[name] = next(values)
            return self.step(given), [layer.carried() for layer in self._recurrent]
        finally:
            for layer, state in zip(self._recurrent, states, strict=True):
                layer.carry(state)
            for (at, name), tensor in zip(self._slots, kept, strict=True):
                at[name] = tensor


def _settings_of(layer: BaseLayer) -> itemgetter:
    """A getter of the settings and hooks of a layer."""
    hooks = [name for name in ("on_sums", "replicas") if name in vars(layer)]
    return itemgetter(*setting_names(layer), *hooks)


@contextmanager
def _untouched(layers: Sequence[BaseLayer]) -> Iterator[None]:
    """Restore all attributes of the layers on exit."""
    kept = [vars(layer) | {"_memory": layer._memory.copy()} for layer in layers]
    try:
        yield
    finally:
        for layer, attributes in zip(layers, kept, strict=True):
            vars(layer).clear()
            vars(layer).update(attributes)


def _precision_of_products(cuda: bool) -> tuple[str, str]:
    """torch's precision of float32 products and convolutions; with "tf32" and "bf16" their inputs are rounded."""
    backends: Any = torch.backends  # torch's stubs lack some of these attributes
    if cuda:
        return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision
    return backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision


def _fast_products(tensors: Tensors) -> bool:
    """Whether torch may round float32 products to a coarser type, which a compiled step may do elsewhere or never."""
    products, convolutions = _precision_of_products(tensors[0].is_cuda)
    coarse = ("tf32", "bf16")
    return products in coarse or (convolutions in coarse and any(t.ndim == 4 for t in tensors))


# ---- inductor --------------------------------------------------------------------------------------------------------
def _out_of_place(run: Callable[..., Tensors], given: int, *tensors: Tensor) -> list[Tensor]:
    """The step out of place: instead of changing the tensors after the first `given`, returns their new values last."""
    after = [t.clone() for t in tensors[given:]]
    return [*run(*tensors[:given], *after), *after]


def _copy_back(made: Callable[..., Tensors], given: int, *tensors: Tensor) -> list[Tensor]:
    """The step in place, from one out of place: copies the new values that it returns into the tensors."""
    out, own = list(made(*tensors)), tensors[given:]
    torch._foreach_copy_(list(own), out[len(out) - len(own) :])
    return out[: len(out) - len(own)]


def _compiled(graph: GraphModule, tensors: Tensors) -> Callable[..., Tensors] | None:
    """The graph as machine code; None, with a warning in the log, if it cannot be compiled here."""
    cuda = tensors[0].is_cuda
    why = "Triton is not installed" if cuda and find_spec("triton") is None else None
    if why is None:
        try:
            return machine_code(graph, tensors, _TRITON if cuda else _CPP)
        except Exception as error:  # a tool chain may raise anything; the step itself was traced without error
            why = str(error)
    logger.warning(
        "TrainStep: the step runs as torch's own kernels%s, not compiled: %s", ", captured" if cuda else "", why
    )
    return None
