"""Losses over classes on blocks: whichever of logits, targets and weights are cut, they equal torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .equality import Expected, compare_on_threads
from .of_functions import Of, parameter

LOSSES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "logits": lambda m, x: F.cross_entropy(x, m.classes),
    "logits without a mean": lambda m, x: F.cross_entropy(x, m.classes, reduction="none"),
    "a sum of weighted terms": lambda m, x: F.cross_entropy(x, m.classes, m.weight.detach().exp(), reduction="sum"),
    "ignored terms": lambda m, x: F.cross_entropy(x, m.classes, ignore_index=1),
    "smoothed": lambda m, x: F.cross_entropy(x, m.classes, label_smoothing=0.2),
    "smoothed and weighted": lambda m, x: F.cross_entropy(x, m.classes, m.weight.detach().exp(), label_smoothing=0.2),
    "likelihoods": lambda m, x: F.nll_loss(x.log_softmax(1), m.classes, m.weight.detach().exp()),
    "probabilities": lambda m, x: F.cross_entropy(m.logits, x.softmax(1)),
    "probabilities without a mean": lambda m, x: F.cross_entropy(m.logits, x.softmax(1), reduction="none"),
    "classes that are computed": lambda m, x: F.cross_entropy(m.logits, x.argmax(1)),
    "weights that are computed": lambda m, x: F.cross_entropy(m.logits, m.classes, x.detach().square().mean(0)),
    "one sample": lambda m, x: F.cross_entropy(x[0], m.classes[0]),
}


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_over_classes(name: str, grid: tuple[int, ...]) -> None:
    model = Of(LOSSES[name], logits=parameter(5, 4), weight=parameter(4))
    model.register_buffer("classes", torch.tensor([0, 3, 1, 2, 1]))
    errors, _ = compare_on_threads(model, [parameter(5, 4).requires_grad_()], grid)
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("name", ["logits", "likelihoods", "squares"])
def test_means_of_many_terms_in_half_precision(name: str) -> None:
    """Neither the sum of the terms nor their number fits into float16; torch's own kernels overflow on the CPU."""
    count = 70_000
    losses = LOSSES | {"squares": lambda m, x: F.mse_loss(x, 2 * torch.ones_like(x))}
    model = Of(losses[name], weight=torch.ones(2))
    model.register_buffer("classes", torch.arange(count) % 2)
    x = parameter(count, 2).float()
    right = model(x).half()
    expected = Expected(model.half(), [x.half()], backward=False)
    expected.outputs = [right.detach()]
    errors, _ = compare_on_threads(model, [x.half()], (2, 1), expected=expected)
    assert max(errors.values()) < 1e-2, errors
