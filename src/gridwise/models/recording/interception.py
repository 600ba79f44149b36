"""What a graph of operators would silently lose of a model's code: kept, or refused by name, while it is recorded.

torch.autograd.Function     a region, with its backward
torch.utils.checkpoint      a region
torch.inference_mode        treated as no_grad
BatchNorm(momentum=None)    the number of batches stays a tensor
hooks of tensors, retain_grad, saved_tensors_hooks, full backward hooks; most forward hooks that return nothing (`hooks`);
random numbers of Python and NumPy, generators, seeds      refused
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...errors import UnsupportedError
from ...nn.engine.module import Module as DistributedLayer
from ...torch_internals.checkpoints import checkpoints_noted
from ...torch_internals.functions import functions_noted
from ...torch_internals.modes import never_overridden
from ...torch_internals.modules import (
    AnyBatchNorm,
    called,
    check_input_dim,
    has_backward_hooks,
)
from ...torch_internals.operators import assert_async
from ...torch_internals.tracer import TracedTensor, as_if_not_traced
from .checks import ANSWERED, QUOTES, Checks
from .gradients import note_gradients, note_requires_grad
from .hooks import packages_of, watch_forward_hooks
from .lines import calls_model, current_line
from .numbers import KnownNumbers
from .regions import Regions


class Calls:
    """The modules that are being called, innermost last."""

    def __init__(self, modules: Mapping[str, torch.nn.Module], checks: Checks) -> None:
        self.checks = checks
        self.names = {id(module): name for name, module in modules.items()}
        self.stack: list[str] = []
        self.numbers: KnownNumbers | None = None
        """Those of the tensors of the call."""

    @property
    def path(self) -> str:
        return self.stack[-1] if self.stack else ""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note all calls of modules in the body. Entered within the tracer, which replaces `Module.__call__` itself."""
        call = patch.object(torch.nn.Module, "__call__", lambda *args, **kwargs: self._call(*args, **kwargs))
        with (
            call,
            as_if_not_traced(),
            _AsEager(self),
        ):
            yield

    @calls_model
    def _call(self, module: torch.nn.Module, *args: object, **kwargs: object) -> Any:
        """Like `Module.__call__`, but never compiled; the name stays on the stack if the call fails."""
        if isinstance(module, DistributedLayer):
            raise UnsupportedError(
                f"{type(module).__name__} in {self.path or 'the model'} is a distributed layer, and a recorded model has whole "
                f"tensors:  {current_line()}\n  fix: use torch's layer there."
            )
        self.stack.append(self.names.get(id(module), self.path))
        y = called(module, *args, **kwargs)
        self.stack.pop()
        return y


class _AsEager(TorchFunctionMode):
    """Lets functions treat fakes like ordinary tensors.

    A dropout that is off returns its very argument, ``x.data`` is ``x.detach()``, and torch's own generator is what is
    drawn from without one. ``x.data = y``, which the tracer does not follow, and other generators are refused.
    """

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    @calls_model
    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(function, "__self__", None) is Tensor.data:
            if function.__name__ == "__get__":
                return args[0].detach()
            raise refusal("an assignment to `.data`", self.calls.path, current_line())
        if getattr(function, "__self__", None) is Tensor.requires_grad and function.__name__ == "__set__":
            note_requires_grad(*args)
            return None  # whatever it returns, torch never frees
        if function is torch.autograd.backward or function is Tensor.backward:
            raise refusal("backward()", self.calls.path, current_line())
        if given.get("is_grads_batched"):
            raise refusal("gradients of several cotangents at once (is_grads_batched)", self.calls.path, current_line())
        name, numbers = getattr(function, "__name__", ""), self.calls.numbers
        if name in READING and numbers is not None:
            numbers.note(args[1] if name in INDEXING else args, name in INDEXING)
            if name in AS_NUMBERS and isinstance(args[0], TracedTensor):
                return numbers.called(function, args[0], *args[1:], **given)
        if function in ANSWERED:
            return self.calls.checks.answer(function, args, given, sys._getframe(1))
        if self.calls.checks.has_failed and function in QUOTES:
            return self.calls.checks.quote(function, *args)
        if self.calls.checks.skips and function is assert_async:
            return None
        if function in NOTED:
            return NOTED[function](*args, **given)
        if function in CHECKING:
            with self:
                return CHECKING[function](*args, **given)
        generator = given.get("generator")
        if isinstance(generator, _DefaultGenerator):
            del given["generator"]
        elif isinstance(generator, torch.Generator):
            raise refusal("the numbers of a generator (generator=)", self.calls.path, current_line())
        if name in DROPOUTS:
            x, p, on = (*args, *(given.get(key) for key in ("input", "p", "training")[len(args) :]))[:3]
            if on is False or given.get("train") is False or p == 0:
                return x
        return function(*args, **given)


NOTED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.autograd.grad: note_gradients,
    Tensor.requires_grad_: note_requires_grad,
}
"""Functions that are nodes of a recording."""
CHECKING = {function: never_overridden(function) for function in (torch.nn.functional.gaussian_nll_loss,)}
"""Functions of torch, written in Python, that raise an error depending on values."""
DROPOUTS = {f"{kind}dropout{end}" for kind in ("", "alpha_", "feature_", "feature_alpha_") for end in ("", "_")}
DROPOUTS |= {"dropout1d", "dropout2d", "dropout3d"}


AS_NUMBERS = ("tolist", "numpy", "__array__")
"""Methods that give the numbers of a tensor, without an operator."""
INDEXING = ("__getitem__", "__setitem__")
READING = {"item", "equal", "allclose", "is_nonzero", "__bool__", "__int__", "__float__", "__complex__", "__index__"}
READING |= {*AS_NUMBERS, *INDEXING}
"""Functions that may read numbers of tensors; the tracer does not tell of those that are real."""
GLOBAL_HOOKS = [f"_global_{when}_hooks" for when in ("forward", "forward_pre", "backward", "backward_pre")]
SEEDS = ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all")
SEEDING = "a seed, or a state, of torch's generator"
TENSOR_HOOKS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook")


@contextmanager
def intercepting(modules: Mapping[str, torch.nn.Module], calls: Calls, regions: Regions) -> Iterator[None]:
    """Let the code of `modules` be recorded with its full meaning while the body runs.

    Raises `UnsupportedError`, naming the construct, where that is impossible.
    """
    if any(getattr(torch.nn.modules.module, name, None) for name in GLOBAL_HOOKS):
        raise refusal("a hook of all modules (register_module_..._hook)", "")
    for path, module in modules.items():
        if has_backward_hooks(module):
            raise refusal("a backward hook", path or type(module).__name__)
    inference, context = torch.autograd.grad_mode.inference_mode, torch.autograd.function.FunctionCtx
    replaced: list[tuple[Any, str, object]] = [
        *((Tensor, name, _refusing(f"{name} of a tensor", calls)) for name in TENSOR_HOOKS),
        (torch.autograd.graph.saved_tensors_hooks, "__enter__", _refusing("saved_tensors_hooks", calls)),
        (inference, "__enter__", _without_grad),
        (inference, "__exit__", _as_before),
        (context, "save_for_backward", regions.saving(context.save_for_backward)),
        (context, "mark_dirty", _refusing("an autograd.Function that changes its input (mark_dirty)", calls)),
        (torch.random, "fork_rng", _refusing("fork_rng", calls)),
        *((torch.cuda, name, _refusing(SEEDING, calls)) for name in SEEDS),
    ]
    generator = _DefaultGenerator.refusing_seeds(calls)
    replaced += [(torch, "default_generator", generator), (torch.random, "default_generator", generator)]
    if hasattr(context, "set_output_grad_dtype"):  # since torch 2.15
        what = "an autograd.Function that sets the dtype of a gradient (set_output_grad_dtype)"
        replaced.append((context, "set_output_grad_dtype", _refusing(what, calls)))
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for target, name, value in replaced:
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(checkpoints_noted(regions.checkpoint, _reentrant(regions)))
        stack.enter_context(functions_noted(regions.forward_noted, regions.context_set_up))
        packages = packages_of(modules.values())
        for path, module in modules.items():
            watch_forward_hooks(path, module, packages, refusal)
            is_torchs = isinstance(module, AnyBatchNorm) and type(module).forward is AnyBatchNorm.forward
            if is_torchs and vars(module)["momentum"] is None:
                module.__dict__["forward"] = lambda x, module=module: _mean_over_batches(module, x)
        stack.enter_context(_generators_unchanged())
        yield


def refusal(what: str, path: str, line: str = "") -> UnsupportedError:
    place = f" in {path}" if path else ""
    return UnsupportedError(
        f"{what}{place} would be lost in a recording{f':  {line}' if line else '.'}\n"
        "  fix: do it around the call of the whole model, or keep that part of the model sequential."
    )


def _refusing(what: str, calls: Calls) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise refusal(what, calls.path, current_line())

    return refuse


class _DefaultGenerator(torch.Generator):
    """Replaces torch's own generator: it can be read, but not set."""

    @classmethod
    def refusing_seeds(cls, calls: Calls) -> _DefaultGenerator:
        made = cls()
        made.get_state, made.initial_seed = torch.default_generator.get_state, torch.default_generator.initial_seed  # type: ignore[method-assign]
        for name in ("manual_seed", "seed", "set_state"):
            setattr(made, name, _refusing(SEEDING, calls))
        return made


def _without_grad(self: Any) -> None:
    self._gridwise_before = torch.is_grad_enabled()
    torch.set_grad_enabled(not self.mode and self._gridwise_before)


def _as_before(self: Any, *error: object) -> None:
    torch.set_grad_enabled(self._gridwise_before)


def _reentrant(regions: Regions) -> Callable[..., Any]:
    """Calls a function that reentrant checkpoints would recompute: the same gradients, by non-reentrant recomputation."""

    @calls_model
    def call(preserve: bool, function: Callable[..., Any], *args: object) -> Any:
        needed = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        with torch.set_grad_enabled(needed and torch.is_grad_enabled()), regions.checkpoint(preserve):
            return function(*args)

    return call


@calls_model
def _mean_over_batches(module: Any, x: Tensor) -> Tensor:
    """The forward of a batch norm with `momentum=None`, with the number of batches as a tensor, not a Python number."""
    check_input_dim(module, x)
    statistics = [module.running_mean, module.running_var]
    batch_norm: Any = torch.nn.functional.batch_norm
    if not (module.training and module.track_running_stats):
        training = module.training or statistics[0] is None
        return batch_norm(x, *statistics, module.weight, module.bias, training, 0.0, module.eps)
    module.num_batches_tracked.add_(1)
    own = [buffer.clone() for buffer in statistics]
    y = batch_norm(x, *own, module.weight, module.bias, True, 1.0, module.eps)
    share = 1.0 / module.num_batches_tracked.to(torch.float64)
    for buffer, value in zip(statistics, own, strict=True):
        buffer.copy_((1.0 - share) * buffer + share * value)
    return y


@contextmanager
def _generators_unchanged() -> Iterator[None]:
    """Raise if the body draws random numbers other than by operators: they would be the same in every call."""
    before, own, of_numpy = random.getstate(), torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    yield
    now = np.random.get_state()  # noqa: NPY002
    moved = any(not np.array_equal(a, b) for a, b in zip(now, of_numpy, strict=True))
    for changed, whose in (
        (random.getstate() != before, "Python"),
        (moved, "NumPy"),
        (not torch.equal(torch.get_rng_state(), own), "torch, set anew by the model,"),
    ):
        if changed:
            raise UnsupportedError(
                f"random numbers of {whose} in `forward` would be the same in every call.\n"
                "  fix: draw them with torch (torch.rand, F.dropout), or around the call and hand them in."
            )
