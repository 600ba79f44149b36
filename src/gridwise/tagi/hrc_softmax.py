"""Classes as the leaves of a binary tree: the hierarchical softmax of TAGI.

Class r is written with L = ceil(log2(classes)) binary digits; each digit is a turn at a node, +1 for 0 and -1 for 1.
The network has one output for each node on the path to some class (11 for 10 classes), and the observation of a class
is L turns at L nodes. The probability of a turn at a node with output N(m, v) is, with alpha = 3,

    P(+1) = Phi(m / sqrt(1 / alpha**2 + v))

and that of a class is the product over its turns. Where the number of classes is not a power of two, some paths end at
no class and the products do not add up to one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from .nn.data_struct import HRCSoftmax

_ALPHA = 3.0


def class_tree(num_classes: int) -> HRCSoftmax:
    """The binary tree of `num_classes` classes: the turns and nodes of each."""
    if num_classes < 2:
        raise ArgumentError(f"class_tree: `num_classes` (={num_classes}) is less than two.")
    depth = (num_classes - 1).bit_length()
    width = [num_classes]  # nodes in use on each level, filled from the leaves up
    for _ in range(depth - 1):
        width.insert(0, -(-width[0] // 2))
    before = np.concatenate(([0], np.cumsum([-(-width[0] // 2), *width])))  # nodes above each level
    label = np.arange(num_classes)[:, None]
    level = np.arange(depth)
    bits = (label >> (depth - 1 - level)) & 1
    prefix = label >> (depth - level)
    tree = HRCSoftmax()
    tree.obs = np.where(bits == 0, 1.0, -1.0).astype(np.float32).reshape(-1)
    tree.idx = (1 + prefix + before[level]).astype(np.int32).reshape(-1)
    tree.num_obs = depth
    tree.len = int(tree.idx.max())
    return tree


def class_probabilities(mu: Tensor, var: Tensor, tree: HRCSoftmax, noise: float = 1.0 / _ALPHA) -> Tensor:
    """The probability of every class, (batch, classes), from the outputs (batch, nodes); `noise` is 1 / alpha."""
    mu, var = mu.reshape(-1, tree.len), var.reshape(-1, tree.len)
    turn = torch.special.ndtr(mu / torch.sqrt(noise * noise + var))
    index = torch.as_tensor(np.reshape(tree.idx, (-1, tree.num_obs)).astype(np.int64) - 1, device=mu.device)
    plus = torch.as_tensor(np.reshape(tree.obs, (-1, tree.num_obs)) > 0, device=mu.device)
    chosen = turn[:, index]  # (batch, classes, turns)
    return torch.where(plus, chosen, 1.0 - chosen).prod(-1)
