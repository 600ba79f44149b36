"""Recording a call: the model runs once on fake tensors of the global shapes, and its operators are kept as a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import xxhash
from torch import Tensor

from ...errors import PartitionError, UnsupportedError, describe
from ...log import is_debugging
from ...torch_internals.modules import forward_pre_hooks
from ...torch_internals.operators import OpOverload, schema_of
from ...torch_internals.switches import set_grad_enabled
from ...torch_internals.tracer import NEEDS_NUMBERS, failures_not_logged
from .checks import Checks
from .containers import ADDRESS, Tree, described, flatten, unflatten
from .contents import refilled
from .interception import Calls, intercepting
from .lines import calls_model, current_line, internal_error, line_of
from .memory_views import without_memory_views
from .merged_rows import keep_rows_apart
from .recording import Recording, ValueSource, tensors_in
from .regions import Regions
from .state import ABSENT, Change, Holding, Snapshot, modules_of, swap, tensors_of
from .tracing import (
    Fakes,
    InputSpec,
    is_fake,
    kept_fakes,
    numbers_needed,
    owner_of,
    trace,
    undisturbed,
    without_collection,
)


def record(
    call: Callable[..., Any],
    roots: Mapping[str, torch.nn.Module],
    inputs: Sequence[InputSpec],
    tree: Tree,
    says: str,
    checks: Checks | None = None,
) -> Recording:
    """The recording of ``call(*args, **kwargs)``; `tree` is the structure of ``(args, kwargs)``, `inputs` its tensors.

    Plain attributes of modules that the call sets once keep their new values. A call that changes them every time is
    refused, and so is one that keeps tensors.

    Raises
    ------
    UnsupportedError : naming what a recording cannot keep
    PartitionError : where the model itself refuses inputs of these shapes
    """
    checks, before = checks or Checks(), Snapshot(modules_of(roots))
    first = _Attempt(call, roots, inputs, tree, says, checks)
    recording, changes = first.run()
    if not changes or checks.has_failed:
        return recording
    for held, change in changes:
        if change.after is ABSENT:
            held.pop(change.name, None)
        else:
            held[change.name] = refilled(change.after, change.contents)
    try:
        second = _Attempt(call, roots, inputs, tree, says, checks)
        again, changes = second.run()
        if changes or again.digest != recording.digest:
            details = second if changes else first
            raise UnsupportedError(
                details.describe_changes("changes in every call, which a recording does not do again")
            )
    except Exception:
        before.restore()
        raise
    return again


class _Attempt:
    def __init__(
        self,
        call: Callable[..., Any],
        roots: Mapping[str, torch.nn.Module],
        inputs: Sequence[InputSpec],
        tree: Tree,
        says: str,
        checks: Checks,
    ) -> None:
        self.checks = checks
        self.call, self.inputs, self.tree, self.says = call, inputs, tree, says
        self.modules = modules_of(roots)
        self.changes: list[Change] = []
        self.calls, self.regions = Calls(self.modules, checks), Regions()
        self.returned: Tree | None = None

    def run(self) -> tuple[Recording, list[tuple[dict[str, Any], Change]]]:
        """The recording, and the attributes of modules that it would change, each with the dict that holds it."""
        quiet = nullcontext() if is_debugging() else failures_not_logged()
        with without_collection(), undisturbed(), quiet:
            return self._record()

    def _record(self) -> tuple[Recording, list[tuple[dict[str, Any], Change]]]:
        holdings, before, fakes = tensors_of(self.modules), Snapshot(self.modules), Fakes()
        try:
            given = [fakes.empty(x).requires_grad_(x.requires_grad) for x in self.inputs]
            values = [fakes.like(holding.value, holding.shape) for holding in holdings]
            swap(holdings, values)
            with intercepting(self.modules, self.calls, self.regions):
                with numbers_needed() as needed:
                    self.checks.begin(needed)
                    module = trace(partial(self._run, len(values)), fakes, [*values, *given], self._note)
                if needed:  # the model's code caught it, and took another branch
                    raise needed[0]
            self.regions.record_backwards(fakes)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.says}: {error}") from None
        except NEEDS_NUMBERS as error:
            raise self._needs_numbers(error) from None
        except Exception as error:
            raise internal_error(self.says, error) or self._refused(error) from error
        finally:
            before.restore()
        changes = self._plain_changes(values)
        _without_idle_switches(module.graph)
        _without_out(module.graph)
        try:
            for each in (module, *(r.backward.module for r in self.regions.found.values() if r.backward)):
                without_memory_views(each, fakes)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.says}: {error}") from None
        if not any(region.backward for region in self.regions.found.values()):  # a backward refers to nodes by name
            with fakes.mode:
                keep_rows_apart(module.graph)
        sources, constants = _with_sources(module, holdings, len(given))
        for node in module.graph.nodes:
            node.meta.pop("eager_input_vals", None)  # noted by torch for custom operators; would keep the fakes alive
            region = self.regions.enclosing(node.meta.pop("region", None))
            if region is not None:
                node.meta["region"] = region
        assert self.returned is not None
        digest = _digest(module, constants, described(self.returned), self.regions)
        del values, given, holdings
        self._refuse_kept(module, fakes)
        return Recording(module, sources, constants, self.returned, digest, self.regions.found), changes

    @calls_model
    def _run(self, held: int, *tensors: Tensor) -> list[Tensor]:
        before = Snapshot(self.modules)
        args, kwargs = unflatten(self.tree, tensors[held:])
        with self.calls.noted():
            leaves, self.returned = flatten(self.call(*args, **kwargs))
        self.changes = list(before.changes())
        return [y if is_fake(y) else torch.ops.aten.alias.default(y) for y in leaves]

    def _note(self, meta: dict[str, Any]) -> None:
        meta["module"], meta["line"] = self.calls.path, current_line()
        if self.regions.current is not None:
            meta["region"] = self.regions.current

    def _plain_changes(self, values: Sequence[Tensor]) -> list[tuple[dict[str, Any], Change]]:
        """What the call has changed, each with the dict that holds it; raises if it contains tensors of the call.

        Attributes that hooks of torch compute are left out.
        """
        paths, found = {path or type(m).__name__: m for path, m in self.modules.items()}, []
        own = [change for change in self.changes if not _is_made_by_hook(paths.get(change.path), change.name)]
        held = {id(value) for value in values}
        self.changes = own = [change for change in own if not _refers_to(change.contents, held)]
        if any(flatten(change.contents, is_fake)[0] for change in own):
            raise UnsupportedError(self.describe_changes("keeps a tensor of the call, which a recording does not"))
        for change in own:
            module = paths.get(change.path)
            if module is None:
                what = "changes what an object of it holds, which a recording does not do again"
                raise UnsupportedError(self.describe_changes(what))
            inner = next((d for d in (module._parameters, module._buffers, module._modules) if change.name in d), None)
            found.append((inner if inner is not None else module.__dict__, change))
        return found

    def describe_changes(self, what: str) -> str:
        details = [f"{c.path}.{c.name}: was {_short(c.before)}, is {_short(c.contents)}" for c in self.changes]
        fix = "return it from `forward`, make it a buffer that is changed in place, or set it around the call."
        return describe(f"{self.says}: `forward` assigns an attribute that {what}.", details, fix)

    def _needs_numbers(self, error: Exception) -> UnsupportedError:
        operator = str(getattr(error, "func", error)).removeprefix("aten.")
        place = f" in {self.calls.path}" if self.calls.path else ""
        return UnsupportedError(
            f"{self.says}: {operator}{place} needs the numbers of a tensor while the model is recorded:  {line_of(error)}\n"
            "  fix: no branches, sizes or Python numbers that depend on the values of tensors in `forward`; torch.where "
            "chooses by value."
        )

    def _refused(self, error: Exception) -> PartitionError:
        shapes = "; ".join(map(str, self.inputs))
        place, line = f"\n  in {self.calls.path}" if self.calls.path else "", line_of(error)
        what = str(error).strip() or type(error).__name__
        return PartitionError(
            f"{self.says} cannot take a global input of shape {shapes}: {what}{place}{f'  {line}' if line else ''}"
        )

    def _refuse_kept(self, module: torch.fx.GraphModule, fakes: Fakes) -> None:
        graphs = [module.graph, *(r.backward.module.graph for r in self.regions.found.values() if r.backward)]
        if kept := kept_fakes(fakes, graphs):
            details = [f"of shape {tuple(x.shape)}, in {owner_of(x, kept)}" for x in kept[:3]]
            fix = "return what is to be kept from `forward`."
            raise UnsupportedError(
                f"{self.says}: the code of the model keeps tensors of a call, which has no numbers.", details, fix
            )


def _is_made_by_hook(module: torch.nn.Module | None, name: str) -> bool:
    """Whether a hook of torch sets the attribute before every call, as the older weight_norm and spectral_norm do."""
    hooks = forward_pre_hooks(module).values() if module is not None else ()
    return any(getattr(hook, "name", None) == name for hook in hooks)


def _refers_to(value: object, held: set[int]) -> bool:
    """Whether an attribute contains tensors, all of them parameters or buffers, like an LSTM's list of weights."""
    found = flatten(value)[0]
    return bool(found) and all(id(x) in held for x in found)


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__} with tensors" if flatten(value)[0] else ADDRESS.sub("", repr(value)[:60])


def _with_sources(
    module: torch.fx.GraphModule, holdings: Sequence[Holding], inputs: int
) -> tuple[dict[str, ValueSource], dict[str, Tensor]]:
    """The sources of the placeholders, and the constants, which become placeholders; unused ones are removed."""
    graph, constants, known = module.graph, dict[str, Tensor](), {id(holding.value): holding for holding in holdings}
    all_sources = [ValueSource(holding.kind, holding.name) for holding in holdings]
    all_sources += [ValueSource("input", str(place)) for place in range(inputs)]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    sources = dict(zip([node.name for node in placeholders], all_sources, strict=True))
    made: dict[int, torch.fx.Node] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        value = getattr(module, node.target)
        if is_fake(value):
            raise UnsupportedError(f"a tensor of the call is not followed by torch's tracer:  {node.meta.get('line')}")
        if id(value) not in made:
            holding = known.get(id(value))
            with graph.inserting_before(placeholders[0] if placeholders else None):
                made[id(value)] = new = graph.placeholder(node.name)
            new.meta = dict(node.meta)
            kind = "parameter" if value.requires_grad else "constant"
            sources[new.name] = ValueSource(holding.kind, holding.name) if holding else ValueSource(kind, node.target)  # type: ignore[arg-type]
            if holding is None:
                constants[node.target] = value
        node.replace_all_uses_with(made[id(value)])
        _erase(node)
    for node in [node for node in graph.nodes if node.op == "placeholder" and not node.users]:
        del sources[node.name]
        _erase(node)
    module.recompile()
    order = [node.name for node in graph.nodes if node.op == "placeholder"]
    return {name: sources[name] for name in order}, constants


def _erase(node: torch.fx.Node) -> None:
    node.graph.erase_node(node)
    node.meta.clear()  # otherwise its fake would seem to be kept by the model's code


def _without_idle_switches(graph: torch.fx.Graph) -> None:
    """Remove switches of autograd that have no effect."""
    mode = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.target is set_grad_enabled:
            if node.args[0] == mode:
                _erase(node)
            mode = node.args[0]


def _without_out(graph: torch.fx.Graph) -> None:
    """Replace operators that write their result to an `out` tensor by those that return it, followed by a copy."""
    for node in [node for node in graph.nodes if isinstance(node.target, OpOverload)]:
        names = [argument.name for argument in schema_of(node.target).arguments if argument.is_out]
        if len(names) != 1 or names[0] not in node.kwargs:
            continue
        plain = _returning(node.target, names[0])
        target = node.kwargs[names[0]]
        if plain is None or target.meta["val"].shape != node.meta["val"].shape:
            continue
        with graph.inserting_before(node):
            rest = {key: value for key, value in node.kwargs.items() if key != names[0]}
            made = graph.call_function(plain, node.args, rest)
            copied = graph.call_function(torch.ops.aten.copy_.default, (target, made))
        made.meta, copied.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(copied)
        _erase(node)


def _returning(op: OpOverload, out: str) -> OpOverload | None:
    """The overload without the argument named `out`."""
    wanted = [(a.name, str(a.type)) for a in schema_of(op).arguments if a.name != out]
    packet = op.overloadpacket
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return next((o for o in overloads if [(a.name, str(a.type)) for a in schema_of(o).arguments] == wanted), None)


def _digest(module: torch.fx.GraphModule, constants: Mapping[str, Tensor], returned: str, regions: Regions) -> int:
    """A checksum that differs between different recordings."""
    made = [(node, tensors_in(node.meta.get("val"))) for node in module.graph.nodes]
    lines = [f"{node.format_node()} {[(tuple(x.shape), x.dtype) for x in tensors]}" for node, tensors in made]
    lines += [returned, *(f"{n} {r.kind} {r.within}" for n, r in regions.found.items())]
    lines += [str(region.backward.module.graph) for region in regions.found.values() if region.backward]
    hashed = xxhash.xxh3_64("\n".join(lines).encode())
    for name, value in constants.items():
        hashed.update(name.encode())
        if not value.is_meta:
            data = value.detach().as_subclass(Tensor).cpu().contiguous().view(-1)
            hashed.update(data.view(torch.uint8).numpy().data)
    return hashed.intdigest() >> 2
