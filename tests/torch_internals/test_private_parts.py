"""Torch's private parts are used in `torch_internals` only, and each of them is tested."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gridwise
import gridwise.torch_internals as room

SOURCES = Path(str(gridwise.__file__)).parents[1]
ROOM = Path(str(room.__file__)).parent
TESTS = Path(__file__).parent
OF_SUBCLASSES = {"_parameters", "_buffers", "_modules", "_apply", "_save_to_state_dict", "_load_from_state_dict"}
"""What everybody's subclasses of `torch.nn.Module` override and read, torch's own included; tested in test_modules.py."""
DOCUMENTED = re.compile(r"torch\._foreach_\w+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def attributes_of_torch() -> set[str]:
    """Private attributes that torch's objects have."""
    x = torch.ones(1, requires_grad=True)
    objects = [
        x, x.sum().grad_fn, x.untyped_storage(), torch.Generator(), torch.nn.Module(), torch.nn.Conv2d(1, 1, 1),
        torch.nn.LSTM(1, 1), torch.nn.BatchNorm1d(1), torch.nn.MultiheadAttention(1, 1), torch.optim.SGD([x]),
        torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.fx.Graph(), torch.nn.utils.clip_grad, torch.nn.modules.module,
        torch.nn.functional, torch.utils.checkpoint, torch.autograd.Function,
    ]  # fmt: skip
    return {name for thing in objects for name in dir(thing) if is_private(name)} - OF_SUBCLASSES


def trees() -> dict[Path, ast.Module]:
    paths = [path for path in SOURCES.glob("gridwise*/**/*.py") if ROOM not in path.parents]
    return {path: ast.parse(path.read_text()) for path in paths}


def own_names(files: dict[Path, ast.Module]) -> set[str]:
    """Names that the package itself gives to functions, classes and attributes."""
    found = set()
    for node in (node for tree in files.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def private_parts(tree: ast.Module, attributes: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", None) or ""
            for name in (f"{module}.{alias.name}".strip(".") for alias in node.names):
                if name.startswith("torch.") and any(map(is_private, name.split("."))):
                    yield name
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            chain = ast.unparse(node)
            of_torch = chain.startswith("torch.") and node.attr not in OF_SUBCLASSES and not DOCUMENTED.fullmatch(chain)
            if of_torch or node.attr in attributes:
                yield chain
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in attributes:
                yield ast.unparse(node)


def test_private_parts_are_in_their_room() -> None:
    files = trees()
    attributes = attributes_of_torch() - own_names(files)
    assert {"_version", "_cdata", "_schema", "_forward_hooks", "_call_impl", "_sequence_nr"} <= attributes
    found = {str(path.relative_to(SOURCES)): sorted(private_parts(tree, attributes)) for path, tree in files.items()}
    assert {path: parts for path, parts in found.items() if parts} == {}


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_each_file_of_the_room_says_what_for_and_has_a_test_of_all_that_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    if path.stem == "__init__":
        return
    offered = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    offered |= {ast.unparse(n.target) for n in tree.body if isinstance(n, ast.AnnAssign)}
    tested = (TESTS / f"test_{path.stem}.py").read_text()
    assert sorted(name for name in offered if not is_private(name) and name not in tested) == []
