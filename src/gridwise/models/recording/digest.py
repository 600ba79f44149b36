"""Checksums of recordings: whether workers have recorded the same, and whether two calls of a model do the same work."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import xxhash
from torch import Tensor
from torch.fx import Node, map_arg

from .numbers import needed_by
from .recording import GraphRegion, Recording, draws, memories_of, tensors_in, written_by


def digest_of(
    module: torch.fx.GraphModule, constants: Mapping[str, Tensor], returned: str, regions: Mapping[int, GraphRegion]
) -> int:
    """A checksum that differs between different recordings."""
    made = [(node, tensors_in(node.meta.get("val"))) for node in module.graph.nodes]
    lines = [f"{node.format_node()} {[(tuple(x.shape), x.dtype) for x in tensors]}" for node, tensors in made]
    lines += [returned, *(f"{n} {r.kind} {r.within}" for n, r in regions.items())]
    lines += [str(region.backward.module.graph) for region in regions.values() if region.backward]
    hashed = xxhash.xxh3_64("\n".join(lines).encode())
    for name, value in constants.items():
        hashed.update(name.encode())
        if not value.is_meta:
            hashed.update(bytes_of(value))
    return hashed.intdigest() >> 2


def bytes_of(x: Tensor) -> memoryview:
    """The numbers of a tensor, in order."""
    data = x.detach().as_subclass(Tensor).cpu().contiguous().view(-1)
    return data.view(torch.uint8).numpy().data


def checksum_of(x: Tensor) -> int:
    """A checksum of the numbers of a tensor."""
    return xxhash.xxh3_64_intdigest(bytes_of(x))


def same_work(one: Recording, other: Recording) -> bool:
    """Whether two recordings do the same with their inputs and parameters, wherever their constants come from."""
    return _work(one) == _work(other)


def _work(recording: Recording) -> list[str]:
    """The operators on what depends on inputs, parameters, random numbers and what is changed, each in a line."""
    graph, sources = recording.module.graph, recording.sources
    changed = _changed(recording)
    names, lines = dict[Node, str](), list[str]()

    def name_of(node: Node) -> str:
        if node in names:
            return names[node]
        return str([(tuple(x.shape), x.dtype) for x in tensors_in(node.meta.get("val"))])

    for node in graph.nodes:
        if node.op == "placeholder":
            source = sources[node.name]
            if source.kind in ("input", "parameter"):
                names[node] = f"{source.kind} {source.name}"
            continue
        followed = any(each in names for each in needed_by(node)) or changed.intersection(memories_of(node))
        if node.op == "output" or followed or draws(node):
            names[node] = f"%{len(names)}"
            lines.append(f"{node.target} {map_arg((node.args, node.kwargs), name_of)}")
    return lines


def _changed(recording: Recording) -> set[int]:
    """The memories whose numbers change from call to call because something is written to them.

    Those of placeholders, and those to which something is written that depends on inputs, parameters or random numbers. A
    table that is filled piece by piece with numbers that depend on shapes only is none of them.
    """
    graph, sources = recording.module.graph, recording.sources
    writes = [(node, [m for each in written_by(node) for m in memories_of(each)]) for node in graph.nodes]
    held = {memory for node in graph.nodes if node.op == "placeholder" for memory in memories_of(node)}
    changed = {memory for _, written in writes for memory in written} & held
    while True:
        followed = set[Node]()
        for node in graph.nodes:
            if node.op == "placeholder":
                follows = sources[node.name].kind in ("input", "parameter")
            else:
                needs = any(each in followed for each in needed_by(node))
                follows = needs or draws(node) or bool(changed.intersection(memories_of(node)))
            if follows:
                followed.add(node)
        more = {memory for node, written in writes if node in followed for memory in written}
        if more <= changed:
            return changed
        changed |= more
