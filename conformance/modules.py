"""Torch's module database through `distribute`: modules in training and in eval mode, with their parameters and buffers.

python -m conformance.modules [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.testing._internal import common_modules as database

from .on_threads import check
from .samples import Sample, sample_of, seed_all, ways
from .suite import VERSION, Entry, Suite


def modules() -> list[Any]:
    """The entries of the database."""
    return list(database.module_db)


def module_samples(info: Any, dtype: torch.dtype = torch.float64) -> Iterator[Sample]:
    """The samples of an entry, the same in every run; each module is made anew."""
    for training in (True, False):
        mode = "training" if training else "eval"
        seed_all(f"{info.name} {mode}")
        given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for number, each in enumerate(given):
            if each.forward_input is None:
                continue
            make = partial(_made, info, each, training, dtype)
            torch.manual_seed(number)
            inputs = (None, tuple(each.forward_input.args), dict(each.forward_input.kwargs))
            sample = sample_of(info.name, number, _called, inputs, mode, make())
            if sample is not None:
                yield replace(sample, make=make, is_plain=False)


def _made(info: Any, given: Any, training: bool, dtype: torch.dtype) -> torch.nn.Module:
    module: torch.nn.Module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).to(dtype)
    if info.is_lazy:  # it is a module of known sizes after a call
        with torch.no_grad():
            module(*given.forward_input.args, **given.forward_input.kwargs)
    return module.train(training)


def _called(module: torch.nn.Module, nothing: None, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def entries() -> list[Entry]:
    """The modules."""
    return [Entry(info.name, partial(module_samples, info)) for info in modules()]


SUITE = Suite(
    "modules",
    "Torch's module database",
    f"Torch {VERSION} describes {len(modules())} of its modules for its own tests. Each sample runs through the "
    "placing and the programs of `gridwise.distribute`, in training and in eval mode, cut in the ways of the "
    "operators: outputs, gradients of inputs and parameters, and buffers after the call are compared with torch's "
    "own in float64. Workers are threads of one process.",
    entries,
    ways,
    check,
    unit="modules",
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
