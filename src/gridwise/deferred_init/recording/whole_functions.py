"""Functions of torch that compute more than they return if an argument is fake, and so round otherwise.

`svdvals` and `eigvalsh` ask whether anything might want a gradient. They take every fake for a yes, decompose with
vectors, and LAPACK's values then differ in their last bits. So these functions, and those that call them, are recorded
as one operator, unless there is a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from gridwise.fake.nested import tensors_in
from gridwise.fake.tensor import FakeTensor

if TYPE_CHECKING:
    from gridwise.deferred_init.recording.recorder import Recorder

_FUNCTIONS = {
    torch.linalg: ("svdvals", "eigvalsh", "cond", "matrix_norm", "norm", "matrix_rank"),
    torch: ("norm", "nuclear_norm"),
}


@contextmanager
def recorded_whole(recorder: Recorder) -> Iterator[None]:
    """In the body, these functions of deferred tensors are one operator on the tape."""
    with ExitStack() as stack:
        for module, names in _FUNCTIONS.items():
            for name in names:
                stack.enter_context(patch.object(module, name, _whole(getattr(module, name), recorder)))
        yield


def _whole(function: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        fakes = [x for x in tensors_in(args, kwargs) if isinstance(x, FakeTensor) and x.dispatcher is recorder]
        if not fakes or (torch.is_grad_enabled() and any(x.requires_grad for x in fakes)):
            return function(*args, **kwargs)
        return recorder.run_whole(function, args, kwargs)

    return call
