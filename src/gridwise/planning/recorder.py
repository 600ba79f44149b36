"""What a training step does, operator by operator, while it runs: which layer, what it computes, what memory it holds.

    record = StepRecorder()
    with record:                            every operator of torch that is called in the body passes here
        record.phase = "forward"
        y = model(x)
    record.work                             by layer and phase: floating-point operations, bytes read and written, calls
    record.memory                           every allocation and every release, in order

It runs on tensors without numbers in a plan, and on real ones in a test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..models.program import watched_steps
from .current_layer import CurrentLayer
from .halos import fetches_told_to
from .memory import Memory
from .workspaces import columns, unrolled_elements, wasted, workspace_of

LINE = 64
"""Bytes that come from memory together."""
CONVOLUTIONS = {"convolution", "convolution_backward", "_convolution"}


@dataclass
class Work:
    """What the operators of one layer do in one phase."""

    flops: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Floating-point operations by kind of operator, "conv" or "matmul", and dtype."""
    effort: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """The same with what a processor computes in vain: of channels that fill up a vector."""
    per_column: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """The effort of convolutions for each column of their outputs: what rows cost is so much for each column lost."""
    unrolled: int = 0
    """Elements of windows that torch unrolls into the rows of a matrix, where oneDNN does not convolve."""
    product_bytes: int = 0
    """Read and written by convolutions and products."""
    bytes: int = 0
    """Read and written by all other operators."""
    calls: int = 0


class StepRecorder(TorchDispatchMode):
    """Listens to every operator in its body; may be entered again."""

    def __init__(self, known: Iterable[Tensor] = (), device: str = "cpu") -> None:
        super().__init__()
        self.layers, self.memory, self.device = CurrentLayer(), Memory(device), device
        self.work: dict[tuple[str, str], Work] = defaultdict(Work)
        self.phase = ""
        self.paused = False
        """Whether what is called now is no part of the step."""
        self._stack = ExitStack()
        self.memory.ignore(known)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # torch would guard every operator against a compiler that nobody runs here, at a third of the time
        )

    def __enter__(self) -> StepRecorder:
        self._stack.enter_context(watched_steps(self.layers.watch))
        if self.layers.given is not None:
            self._stack.enter_context(fetches_told_to(self.layers.fetched))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func.is_view or self.paused:
            return made
        outputs = tensors_in(made)
        if not outputs:
            return made
        place = self.layers.current(), self.phase
        self.memory.at = place
        self.memory.add(outputs, workspace_of(func, args, outputs, self.device))
        work = self.work[place]
        work.calls += 1
        touched = bytes_of(tensors_in(args), outputs)
        packet = func.overloadpacket
        if packet in flop_registry:
            kind = "conv" if packet.__name__ in CONVOLUTIONS else "matmul"
            dtype = str(outputs[0].dtype).removeprefix("torch.")
            operations = flop_registry[packet](*args, **kwargs, out_val=made)
            work.flops[kind, dtype] += operations
            windows = unrolled_elements(func, args, outputs) if kind == "conv" and self.device == "cpu" else 0
            if kind != "conv" or windows:
                work.effort["matmul", dtype] += operations
                work.unrolled += windows
            else:
                effort = operations * (wasted(func, args) if self.device == "cpu" else 1.0)
                work.effort[kind, dtype] += effort
                work.per_column[kind, dtype] += effort / max(1, columns(func, args, outputs))
            work.product_bytes += touched
        else:
            work.bytes += touched
        return made


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among the arguments or the results of an operator."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, tuple | list):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def bytes_of(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> int:
    """Bytes read and written, those of an expanded tensor once; of what lies apart, whole lines of the cache."""
    return sum({id(x): _touched(x) for x in (*inputs, *outputs)}.values())


def _touched(x: Tensor) -> int:
    if x.is_contiguous():
        return x.nbytes
    run = 1  # elements that lie one after the other
    for length, stride in sorted(zip(x.shape, x.stride(), strict=True), key=lambda dim: dim[1]):
        if stride != run and length > 1:
            break
        run *= length
    lines = x.numel() // max(1, run) * -(-run * x.element_size() // LINE) * LINE
    return min(lines, x.untyped_storage().nbytes())
