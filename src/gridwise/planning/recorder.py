"""What a training step does, operator by operator, while it runs: the layer, the work, the memory held.

    record = StepRecorder()
    with record:                            sees every torch operator called in the body
        record.phase = "forward"
        y = model(x)
    record.work                             by layer and phase: floating-point operations, bytes read and written, calls
    record.memory                           every allocation and every release, in order

It runs on meta tensors in a plan, and on real ones in a test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from ..costs.convolutions import Convolution
from ..models.program import watched_steps
from ..models.recording.recording import tensors_in
from ..torch_internals.modes import TorchDispatchMode
from ..torch_internals.operators import OpOverload
from .current_layer import CurrentLayer
from .halos import observed_fetches
from .memory import Memory

LINE = 64
"""Bytes of a cache line."""


@dataclass
class Work:
    """What the operators of one layer do in one phase."""

    flops: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Floating-point operations by kind of operator, "conv" or "matmul", and dtype."""
    effort: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """The same, including the work wasted on channels that pad a vector."""
    per_column: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """The effort of convolutions divided by their columns: what one extra column in each row would cost."""
    unrolled: int = 0
    """Elements of windows that torch unrolls into the rows of a matrix where it does not use oneDNN."""
    product_bytes: int = 0
    """Read and written by convolutions and matrix products."""
    bytes: int = 0
    """Read and written by all other operators."""
    calls: int = 0


class StepRecorder(TorchDispatchMode):
    """Records every operator called in its body; may be entered again."""

    def __init__(self, known: Iterable[Tensor] = (), device: str = "cpu") -> None:
        super().__init__()
        self.layers, self.memory, self.device = CurrentLayer(), Memory(device), device
        self.work: dict[tuple[str, str], Work] = defaultdict(Work)
        self.phase = ""
        self.paused = False
        """Whether operators called now are not part of the step."""
        self._stack = ExitStack()
        self.memory.ignore(known)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch guards every operator against a compiler that is not used here: a third of the time

    def __enter__(self) -> StepRecorder:
        self._stack.enter_context(watched_steps(self.layers.watch))
        if self.layers.input_layout is not None:
            self._stack.enter_context(observed_fetches(self.layers.fetched))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func.is_view or self.paused:
            return made
        outputs = tensors_in(made)
        if not outputs:
            return made
        place = self.layers.current(), self.phase
        self.memory.at = place
        conv = Convolution.of(func, args, outputs)
        self.memory.add(outputs, 0 if conv is None else conv.workspace(self.device))
        work = self.work[place]
        work.calls += 1
        touched = bytes_of(tensors_in(args), outputs)
        packet = func.overloadpacket
        if packet in flop_registry:
            kind, dtype = "matmul" if conv is None else "conv", str(outputs[0].dtype).removeprefix("torch.")
            operations, on_cpu = flop_registry[packet](*args, **kwargs, out_val=made), self.device == "cpu"
            work.flops[kind, dtype] += operations
            if conv is None or (on_cpu and conv.unrolled_elements):
                work.effort["matmul", dtype] += operations
                work.unrolled += 0 if conv is None else conv.unrolled_elements
            else:
                effort = operations * (conv.wasted if on_cpu else 1.0)
                work.effort[kind, dtype] += effort
                work.per_column[kind, dtype] += effort / max(1, conv.columns)
            work.product_bytes += touched
        else:
            work.bytes += touched
        return made


def bytes_of(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> int:
    """Bytes read and written: an expanded tensor counts once, scattered elements count as whole cache lines."""
    return sum({id(x): _touched(x) for x in (*inputs, *outputs)}.values())


def _touched(x: Tensor) -> int:
    if x.is_contiguous():
        return x.nbytes
    run = 1  # elements that are contiguous
    for length, stride in sorted(zip(x.shape, x.stride(), strict=True), key=lambda dim: dim[1]):
        if stride != run and length > 1:
            break
        run *= length
    lines = x.numel() // max(1, run) * -(-run * x.element_size() // LINE) * LINE
    return min(lines, x.untyped_storage().nbytes())
