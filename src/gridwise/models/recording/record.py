"""Recording a call: the model runs once on fake tensors of the global shapes, and its operators are kept as a graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...errors import InternalError, PartitionError, UnsupportedError, describe
from ...fake import is_fake as is_deferred
from ...log import is_debugging
from ...torch_internals.modules import forward_pre_hooks
from ...torch_internals.operators import OpOverload, schema_of
from ...torch_internals.switches import set_grad_enabled
from ...torch_internals.tracer import NEEDS_NUMBERS, failures_not_logged
from .checks import Checks
from .containers import ADDRESS, Tree, described, flatten, unflatten
from .digest import digest_of, same_work
from .interception import Calls, intercepting
from .keeping import abandon, forget, kept_fakes, lines_of, make_real
from .lines import calls_model, current_line, internal_error, line_of
from .memory_views import without_memory_views
from .merged_rows import keep_rows_apart
from .numbers import KnownNumbers
from .recording import Recording, ValueSource, erase, where
from .regions import Regions
from .state import Change, Holding, Snapshot, modules_of, swap, tensors_of
from .tracing import Fakes, InputSpec, is_fake, trace, undisturbed, without_collection


def record(
    call: Callable[..., Any],
    roots: Mapping[str, torch.nn.Module],
    inputs: Sequence[InputSpec],
    tree: Tree,
    says: str,
    checks: Checks | None = None,
) -> Recording:
    """The recording of ``call(*args, **kwargs)``; `tree` is the structure of ``(args, kwargs)``, `inputs` its tensors.

    Attributes that the call sets once keep their new values, and what it keeps of tensors that depend on shapes only is
    kept. A call that changes attributes every time is refused, and so is one that keeps any other tensor.

    Raises
    ------
    UnsupportedError : naming what a recording cannot keep
    PartitionError : where the model itself refuses inputs of these shapes
    """
    checks, before = checks or Checks(), Snapshot(modules_of(roots))
    first = _Attempt(call, roots, inputs, tree, says, checks)
    recording = first.run()
    if not (first.changes or first.has_kept) or checks.has_failed:
        return recording
    try:
        for change in first.changes:
            change.apply()
        second = _Attempt(call, roots, inputs, tree, says, checks)
        again = second.run()
        does_the_same = same_work(recording, again) if first.has_kept else again.digest == recording.digest
        if second.changes or not does_the_same:
            details = second if second.changes else first
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
        """What the call has changed in modules."""
        self.has_kept = False
        """Whether the model's code has kept tensors, which are real by now."""
        self.calls, self.regions = Calls(self.modules, checks), Regions()
        self.returned: Tree | None = None

    def run(self) -> Recording:
        quiet = nullcontext() if is_debugging() else failures_not_logged()
        with without_collection(), undisturbed(), quiet:
            return self._record()

    def _record(self) -> Recording:
        holdings, before, fakes = tensors_of(self.modules), Snapshot(self.modules), Fakes()
        numbers = KnownNumbers(
            {
                **{f"{each.kind} {each.name}": _usable(each) for each in holdings},
                **{f"input {i}": None for i in range(len(self.inputs))},
            }
        )
        self.calls.numbers = numbers
        try:
            given = [fakes.empty(x).requires_grad_(x.requires_grad) for x in self.inputs]
            values = [fakes.like(holding.value, holding.shape) for holding in holdings]
            swap(holdings, values)
            with intercepting(self.modules, self.calls, self.regions):
                self.checks.begin(fakes.mode.unanswered)
                module = trace(partial(self._run, len(values)), fakes, [*values, *given], self._note, numbers)
            if fakes.mode.unanswered:  # the model's code caught it, and took another branch
                raise fakes.mode.unanswered[0]
            self.regions.record_backwards(fakes)
        except Exception as error:
            raised = self._raised(error, numbers)
            abandon(fakes, numbers, error)
            raise raised from (error if isinstance(raised, PartitionError | InternalError) else None)
        finally:
            before.restore()
        real = {id(value): holding.value for value, holding in zip(values, holdings, strict=True)}
        del values, given, before  # with containers that the call has filled and replaced
        for node in module.graph.nodes:
            node.meta.pop("eager_input_vals", None)  # noted by torch for custom operators; would keep the fakes alive
        self._settle(fakes, module, numbers, real)
        self._refuse_written(module, numbers)
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
        sources, constants = _with_sources(module, holdings, len(self.inputs))
        for node in module.graph.nodes:
            region = self.regions.enclosing(node.meta.pop("region", None))
            if region is not None:
                node.meta["region"] = region
        assert self.returned is not None
        digest = digest_of(module, constants, described(self.returned), self.regions.found)
        reads = tuple(numbers.reads.values())
        return Recording(module, sources, constants, self.returned, digest, reads, self.regions.found)

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

    def _settle(
        self, fakes: Fakes, module: torch.fx.GraphModule, numbers: KnownNumbers, real: Mapping[int, Tensor]
    ) -> None:
        """Make real what the code of the model keeps, and leave out what it changes only to what it was.

        Attributes that hooks of torch compute are left out too. `real` has the tensors of modules by their fakes.

        Raises
        ------
        UnsupportedError : naming a tensor that depends on an input
        """
        paths = {path or type(m).__name__: m for path, m in self.modules.items()}
        own = [change for change in self.changes if not _is_made_by_hook(paths.get(change.path), change.name)]
        self.changes = [_with_real(each, real) for each in own if not _refers_to(each.contents, real)]
        del own
        graphs = [module.graph, *(r.backward.module.graph for r in self.regions.found.values() if r.backward)]
        kept = kept_fakes(fakes, graphs)
        lacking = make_real(kept, numbers)
        if lacking:
            self._refuse_kept(kept, lacking, numbers)
        self.changes = [change for change in self.changes if not _is_the_same(change)]
        self.has_kept = bool(kept)

    def _refuse_kept(self, kept: Sequence[Tensor], lacking: Mapping[int, str], numbers: KnownNumbers) -> NoReturn:
        forget(kept)
        self.changes = [c for c in self.changes if any(id(x) in lacking for x in flatten(c.contents)[0])]
        if self.changes:
            x = next(x for x in flatten(self.changes[0].contents)[0] if id(x) in lacking)
            what = f"keeps a tensor that depends on {lacking[id(x)]}"
            raise UnsupportedError(self.describe_changes(what, numbers.line_of(x)))
        raise UnsupportedError(
            f"{self.says}: the code of the model keeps tensors of a call, which has no numbers.",
            lines_of(kept, lacking, numbers),
            "return what is to be kept from `forward`; if it is made at the first call only, call the model once before.",
        )

    def _refuse_written(self, module: torch.fx.GraphModule, numbers: KnownNumbers) -> None:
        """Raise if a branch, or anything else that was recorded, depends on a buffer that the call changes."""
        for name, writer in numbers.changed_after_reading(module.graph):
            raise UnsupportedError(
                f"{self.says}: what `forward` does depends on the numbers of {name}, which it changes in {where(writer)}.\n"
                "  fix: choose around the call; if only the first call does something else, call the model once before."
            )

    def describe_changes(self, what: str, line: str = "") -> str:
        details = [f"{c.path}.{c.name}: was {_short(c.before)}, is {_short(c.contents)}" for c in self.changes]
        details += [f"made in {line}"] if line else []
        fix = (
            "return it from `forward`, make it a buffer that is changed in place, or set it around the call; if only the "
            "first call sets it, call the model once before."
        )
        return describe(f"{self.says}: `forward` assigns an attribute that {what}.", details, fix)

    def _raised(self, error: Exception, numbers: KnownNumbers) -> Exception:
        """The error to raise for one of the model's code, or of the tracer."""
        if isinstance(error, UnsupportedError):
            return UnsupportedError(f"{self.says}: {error}")
        if isinstance(error, NEEDS_NUMBERS):
            return self._needs_numbers(error, numbers.because)
        return internal_error(self.says, error) or self._refused(error)

    def _needs_numbers(self, error: Exception, because: str) -> UnsupportedError:
        operator = str(getattr(error, "func", error)).removeprefix("aten.")
        place = f" in {self.calls.path}" if self.calls.path else ""
        of = f" that depends on {because}" if because else ""
        return UnsupportedError(
            f"{self.says}: {operator}{place} needs the numbers of a tensor{of} while the model is recorded:  {line_of(error)}\n"
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


def _usable(holding: Holding) -> Tensor | None:
    """The tensor that a module holds, if it is one whose numbers a recording may use."""
    value = holding.value
    lacks = value.is_meta or is_deferred(value) or tuple(value.shape) != holding.shape
    return None if lacks or holding.kind == "parameter" or value.requires_grad else value


def _with_real(change: Change, real: Mapping[int, Tensor]) -> Change:
    """A change whose earlier value has the tensors of the module in place of their fakes."""
    leaves, tree = flatten(change.before)
    if not leaves:
        return change
    return replace(change, before=unflatten(tree, [real.get(id(x), x) for x in leaves]))


def _is_the_same(change: Change) -> bool:
    """Whether an attribute has other tensors than before, with the same numbers."""
    (before, was), (after, now) = flatten(change.before), flatten(change.contents)
    if not after or was != now or len(before) != len(after):
        return False
    pairs = zip(before, after, strict=True)
    return all(x.dtype == y.dtype and x.device == y.device and torch.equal(x, y) for x, y in pairs)


def _is_made_by_hook(module: torch.nn.Module | None, name: str) -> bool:
    """Whether a hook of torch sets the attribute before every call, as the older weight_norm and spectral_norm do."""
    hooks = forward_pre_hooks(module).values() if module is not None else ()
    return any(getattr(hook, "name", None) == name for hook in hooks)


def _refers_to(value: object, held: Container[int]) -> bool:
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
        erase(node)
    for node in [node for node in graph.nodes if node.op == "placeholder" and not node.users]:
        del sources[node.name]
        erase(node)
    module.recompile()
    order = [node.name for node in graph.nodes if node.op == "placeholder"]
    return {name: sources[name] for name in order}, constants


def _without_idle_switches(graph: torch.fx.Graph) -> None:
    """Remove switches of autograd that have no effect."""
    mode = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.target is set_grad_enabled:
            if node.args[0] == mode:
                erase(node)
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
        erase(node)


def _returning(op: OpOverload, out: str) -> OpOverload | None:
    """The overload without the argument named `out`."""
    wanted = [(a.name, str(a.type)) for a in schema_of(op).arguments if a.name != out]
    packet = op.overloadpacket
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return next((o for o in overloads if [(a.name, str(a.type)) for a in schema_of(o).arguments] == wanted), None)
