"""Which layer an operator belongs to, in forward and in backward."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from gridwise.planning.current_layer import CurrentLayer
from gridwise.planning.layer_names import OUTSIDE


def test_steps_that_another_thread_runs_again_do_not_rename_others(monkeypatch):
    """A checkpoint is recomputed by the thread of its device, in which autograd counts its nodes from 0."""
    layers, seen = CurrentLayer(), []
    steps = [SimpleNamespace(name=name, run=torch.sin, placement=None, made=(), inputs=()) for name in ("a", "b", "c")]

    def again(gradient, step):
        with monkeypatch.context() as other_thread:
            other_thread.setattr(torch.autograd, "_get_sequence_nr", lambda: 0)
            layers.watch(step)(torch.ones(1))
        seen.append(layers.current())

    x = torch.ones(1, requires_grad=True)
    for step in steps:
        x = layers.watch(step)(x)
        x.register_hook(lambda gradient, step=step: again(gradient, step))
    x.backward()
    assert seen == ["c", "b", "a"]
    assert layers.current() == OUTSIDE
    assert layers.passes == 1
