"""A model's graph, as torch.fx sees it, and where in the user's code each node comes from."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any

import torch
from torch.fx import Graph

from ...errors import UnsupportedError
from .layers import has_layer

INSIDE = os.path.dirname(torch.__file__)
CONSTANT = re.compile(r"_tensor_constant\d+")


class _Tracer(torch.fx.Tracer):
    def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's, and remembers the user's line; torch's own way to do that imports its compiler, for seconds."""
        proxy = super().create_proxy(*args, **kwargs)
        frames = [frame for frame in traceback.extract_stack()[:-1] if INSIDE not in frame.filename]
        proxy.node.meta["line"] = frames[-1].line if frames else ""
        return proxy

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or has_layer(m)


def traced(model: torch.nn.Module) -> Graph:
    """The graph of a model; tensors that its code makes of numbers become attributes of it."""
    training = [(module, module.training) for module in model.modules()]
    graphs = []
    try:
        for mode in (True, False):
            model.train(mode)
            graphs.append(_Tracer().trace(model))
    except Exception as error:
        raise UnsupportedError(
            f"distribute: the forward of {type(model).__name__} cannot be traced by torch.fx: {error}\n"
            "  fix: no branches or loops that depend on tensors, and no tensors made from sizes, in `forward`."
        ) from error
    finally:
        for module, mode in training:
            module.training = mode
    kinds = [[(node.op, CONSTANT.sub("constant", str(node.target))) for node in graph.nodes] for graph in graphs]
    if kinds[0] != kinds[1]:
        raise UnsupportedError(f"distribute: {type(model).__name__} runs another graph in training than in evaluation.")
    return graphs[0]


def code_of(node: Any) -> str:
    """The line of the user's code that made a node; empty if unknown."""
    return node.meta.get("line") or ""
