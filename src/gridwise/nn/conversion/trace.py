"""A model's graph, as torch.fx sees it, and where in the user's code each node comes from."""

from __future__ import annotations

import operator
import os
import re
import traceback
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph

from ...errors import UnsupportedError
from .inputs import Inputs
from .layers import has_layer
from .plainly import BY_FUNCTION, made_plain
from .unseen import Modes, functions_refused

INSIDE = os.path.dirname(torch.__file__)
ROOM = os.path.dirname(__file__)
CONSTANT = re.compile(r"_tensor_constant\d+")


class _Proxy(torch.fx.Proxy):
    """Torch's turns ``x += y`` into ``x = x + y``, which nobody else who holds x sees."""

    def __iadd__(self, other: Any) -> Any:
        return self._changed(operator.iadd, other)

    def __isub__(self, other: Any) -> Any:
        return self._changed(operator.isub, other)

    def __imul__(self, other: Any) -> Any:
        return self._changed(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._changed(operator.itruediv, other)

    def _changed(self, change: Any, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", change, (self, other), {})


class _Tracer(torch.fx.Tracer):
    proxy_buffer_attributes = True  # or what the code does with buffers alone would be done once, here

    kind: type
    """Of what `forward` has returned."""

    def __init__(self, inputs: Inputs, plain: set[int]) -> None:
        super().__init__()
        self.inputs, self.plain, self.modes = inputs, plain, Modes()

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Placeholders for the tensors; all other arguments are what they are held at."""
        proxies = {name: self.create_proxy("placeholder", name, (), {}) for name in self.inputs.partitions}
        args, kwargs = [], {}
        for name, parameter in self.inputs.signature.parameters.items():
            value = proxies[name] if name in proxies else self.inputs.held[name]
            if parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)

        def run(root: torch.nn.Module) -> Any:
            y = root.forward(*args, **kwargs)
            self.kind = type(y)
            if isinstance(y, dict) and self.kind not in (dict, OrderedDict):
                raise TypeError(f"`forward` returns a {self.kind.__name__}, no plain dict")
            return y

        return run, [self.root]

    def trace(self, root: Any, concrete_args: Any = None) -> Graph:
        graph = super().trace(root, concrete_args)
        next(node for node in graph.nodes if node.op == "output").meta["kind"] = self.kind
        return graph

    def proxy(self, node: Any) -> _Proxy:
        return _Proxy(node, self)

    def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's, and remembers the user's line; torch's own way to do that imports its compiler, for seconds."""
        proxy = super().create_proxy(*args, **kwargs)
        frames = traceback.extract_stack()
        start = max(i for i, frame in enumerate(frames) if (frame.filename, frame.name) == (__file__, "traced"))
        own = [frame for frame in frames[start:] if INSIDE not in frame.filename and ROOM not in frame.filename]
        proxy.node.meta["line"] = own[-1].line if own else ""
        if proxy.node.op not in ("placeholder", "get_attr"):
            self.modes.check(code_of(proxy.node))
        return proxy

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        if id(m) in self.plain:
            return False
        return super().is_leaf_module(m, module_qualified_name) or has_layer(m)


def traced(model: torch.nn.Module, inputs: Inputs) -> Graph:
    """The graph of a model; tensors that its code makes of numbers become attributes of it."""
    training = [(module, module.training) for module in model.modules()]
    plain = made_plain(model) | _sharing(model)
    graphs: list[Graph] = []
    try:
        while not graphs:
            for mode in (True, False):
                model.train(mode)
                with _sizes_in_arange(), functions_refused(), torch.set_grad_enabled(mode):  # once with, once without
                    graphs.append(_Tracer(inputs, plain).trace(model))
            if apart := _used_apart(model, graphs[0]) - plain:  # these are to be parameters of no layer
                plain |= apart
                graphs.clear()
    except UnsupportedError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"distribute: the forward of {type(model).__name__} cannot be traced by torch.fx: {error}\n"
            "  fix: no branches or loops that depend on tensors, and no tensors made from sizes, in `forward`."
        ) from error
    finally:
        for module, mode in training:
            module.training = mode
    _check_same(model, *graphs)
    return graphs[0]


def _sharing(model: torch.nn.Module) -> set[int]:
    """Modules that have a parameter in common: none of them can be the layer that holds it in blocks."""
    owners: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    return {
        id(module) for each in owners.values() if len(each) > 1 for module in each if isinstance(module, BY_FUNCTION)
    }


def _used_apart(model: torch.nn.Module, graph: Graph) -> set[int]:
    """Modules that are called, and of which a parameter is used outside of them too."""
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    used = [str(node.target).rpartition(".") for node in graph.nodes if node.op == "get_attr"]
    apart = {parent for parent, _, name in used if parent in called and name in _parameters_of(model, parent)}
    modules = [model.get_submodule(parent) for parent in apart]
    return {id(module) for module in modules if isinstance(module, BY_FUNCTION)}


def _parameters_of(model: torch.nn.Module, parent: str) -> Collection[str]:
    return model.get_submodule(parent)._parameters


@contextmanager
def _sizes_in_arange() -> Iterator[None]:
    """Let ``torch.arange`` be given sizes, which are proxies here."""
    with torch.device("cpu"):
        torch.empty(0)  # torch notes which functions make tensors at its first such call: their own, not what follows
    own = torch.arange

    def arange(*args: Any, **kwargs: Any) -> Any:
        tracer = next((arg.tracer for arg in args if isinstance(arg, torch.fx.Proxy)), None)
        return own(*args, **kwargs) if tracer is None else tracer.create_proxy("call_function", own, args, kwargs)

    torch.arange = arange
    try:
        yield
    finally:
        torch.arange = own


def _check_same(model: torch.nn.Module, training: Graph, evaluation: Graph) -> None:
    """Raise unless both graphs do the same, with the same numbers; where a flag differs, each node remembers both."""
    name, pairs = type(model).__name__, list(zip(training.nodes, evaluation.nodes, strict=False))
    if len(training.nodes) != len(evaluation.nodes):
        raise UnsupportedError(f"distribute: {name} runs another graph in training than in evaluation.")
    places = {node: place for graph in (training, evaluation) for place, node in enumerate(graph.nodes)}
    for one, other in pairs:
        if _told(one, model, places) != _told(other, model, places):
            raise UnsupportedError(
                f"distribute: {name} does not do the same each time, in training and in evaluation:  {code_of(one)}\n"
                "  fix: no counters, random numbers or modes in `forward`; torch's modules follow the mode by themselves."
            )
        one.meta["training"] = one.kwargs.get("training"), other.kwargs.get("training")
        one.meta["dropout_p"] = dropped(one), dropped(other)


def _told(node: Any, model: torch.nn.Module, places: dict[Any, int]) -> Any:
    """All that a node does; of tensors that the code makes of numbers, the numbers."""
    target = str(node.target)
    if node.op == "get_attr" and CONSTANT.search(target):
        value = getattr(model.get_submodule(target.rpartition(".")[0]), target.rpartition(".")[2])
        target = f"constant {value.tolist()}"
    follows = {"training"} if "dropout" in target else {"dropout_p"} if "scaled_dot_product" in target else {}
    kwargs = {key: value for key, value in node.kwargs.items() if key not in follows}  # which may be given by the mode
    return node.op, target, torch.fx.map_arg((node.args, kwargs), places.get)


def dropped(node: Any) -> Any:
    """The share of its weights that attention drops."""
    return node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)


def code_of(node: Any) -> str:
    """The line of the user's code that made a node; empty if unknown."""
    return node.meta.get("line") or ""
