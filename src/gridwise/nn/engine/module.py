"""The base of every distributed layer: set up at the first call, and again when the structure of the input changes.

    call ──► a plan at hand? ──► agreed with all workers: the same everywhere? ──► if not: teardown, setup ──► forward

A layer learns shapes only when it is called, so it plans then: once, however many equal calls follow. The method names
are those that subclasses of DistDL's layers override. What is new is the agreement in the middle: a change elsewhere
that leaves this worker's block as it was is noticed too, and all workers plan anew together (`agreement`). Layers of
this package also keep their plans for inputs that recur (`plans`).

A layer on a single worker has nobody to agree with. Most can then plan to call torch's own function (`_by_torch`): once
planned, an input of that look is checked by nobody but torch, and what it refuses is refused in this package's words.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...partition import Partition
from ...torch_internals.modules import forward_pre_hooks, has_hooks
from ..parameters.replicas import Replica, agree_replicas, is_due
from .agreement import Structure, agree_common, agree_plan, is_on
from .arguments import need_first_partition, problem_with_inference, refuse_transforms
from .identity import Identity
from .mode import NO_STATE, StateStructure, agree_mode, without_shapes
from .operator import CallId, Operator, apply
from .plans import BY_TORCH, UNPLANNED, LayerPlan, LayerPlans

_CONTRACT = frozenset(
    {"_distdl_module_setup", "_distdl_module_teardown", "_distdl_input_changed", "_distdl_module_requires_reset"}
)


class Module(torch.nn.Module):
    """A layer on several workers.

    A subclass overrides `_distdl_module_setup` (and, if it holds anything, `_distdl_module_teardown`), and names the
    partitions whose workers take part, with `_takes_part`; without any, each worker notices only its own changes.

    Parameters
    ----------
    *args, **kwargs : those of the subclass

    Examples
    --------
    >>> class Doubled(gridwise.nn.Module):
    ...     def _distdl_module_setup(self, input):
    ...         self.factor = torch.full_like(input[0], 2.0)
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> Doubled()(torch.ones(3))
    tensor([2., 2., 2.])
    """

    _keeps_plans: ClassVar[bool] = False
    """Whether set-up only assigns attributes, so that they can be restored when an input of that structure recurs.

    A class outside this package that overrides the contract below must set this itself.
    """
    _settings: ClassVar[tuple[str, ...]] = ()
    """Attributes that a call reads and that may be set at any time, as in torch, on all workers alike."""
    _fixed: ClassVar[tuple[str, ...]] = ()
    """Attributes that decide what this worker holds: changing them raises."""
    _read_settings: ClassVar[Any] = None
    """A function that reads `_settings` from a layer, if there are any."""
    _by_torch: ClassVar[Callable[..., Any] | None] = None
    """The method that calls torch's function, for layers that do no more than that on a single worker."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if args or kwargs:  # `__deepcopy__` passes none
            need_first_partition(cls, args, kwargs)
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls.__init__)  # `help` would show that of `__new__`, which takes anything
        cls.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])  # type: ignore[attr-defined]
        cls._read_settings = operator.attrgetter(*cls._settings) if cls._settings else None
        if "forward" in cls.__dict__:
            cls.forward = _planned_for(cls.forward)
        foreign = cls.__module__.partition(".")[0] not in ("gridwise", "gridwise_compat")
        if foreign and "_keeps_plans" not in cls.__dict__ and not _CONTRACT.isdisjoint(cls.__dict__):
            cls._keeps_plans = False
        if foreign:
            cls._by_torch = None

    def __init__(self) -> None:
        super().__init__()
        self._distdl_is_setup = False
        self._identity = Identity.of_class(type(self).__name__)
        self._plans = LayerPlans()
        self._replicas_are_new = True
        """Whether replicas have not been compared since they were made, loaded or assigned."""
        self._in_progress: LayerPlan | None = None
        """The plan of the call in progress, from the time when it was planned for."""
        self._own_hook = self.register_forward_pre_hook(type(self)._distdl_forward_pre_hook).id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # not within `try`, at which the compiler would break the graph
            if self._plans.settled and not kwargs and not self._has_hooks:
                return self._by_torch(*args)  # type: ignore[misc]
            return outside_of_graphs(torch.nn.Module.__call__, self, *args, **kwargs)
        if kwargs:
            args, kwargs = self._by_position(args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.__dict__["_in_progress"] = None

    def _by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, given by their names, where `forward` takes them, as plans are made for positions."""
        bound = _signature(type(self).forward).bind(self, *args, **kwargs)
        bound.apply_defaults()
        return bound.args[1:], bound.kwargs

    @property
    def _has_hooks(self) -> bool:
        """Whether anybody but this layer has registered a hook that a call would run."""
        return has_hooks(self, before=1)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """As in torch; the layer's own hook stays last, so that it plans for the input as the others leave it."""
        handle = super().register_forward_pre_hook(*args, **kwargs)
        if "_own_hook" in self.__dict__:
            before = forward_pre_hooks(self)
            before[self._own_hook] = before.pop(self._own_hook)
        return handle

    def _takes_part(self, *partitions: Partition, signature: str = "") -> None:
        """Name the partitions of this layer; `signature` (its arguments) tells it from others of its class."""
        self._identity = Identity.in_partitions(type(self).__name__, partitions, signature)

    @property
    def _transport(self) -> Transport | None:
        return self._identity.transport

    @property
    def _team(self) -> Team:
        return self._identity.team

    @property
    def _title(self) -> str:
        return self._identity.title

    @property
    def _says(self) -> str:
        """`_title` under its name of earlier versions, for layers outside this package."""
        return self._identity.title

    @property
    def _call_id(self) -> CallId:
        return self._identity.call_id

    @property
    def _is_outside(self) -> bool:
        return self._identity.is_outside

    def __deepcopy__(self, memo: dict) -> Module:
        """A layer of its own, which no worker can take for the original; all workers of the layer must copy it."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self._identity)] = self._identity.copied()
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        twin.__dict__["_replicas_are_new"] = True
        return twin

    # The contract that subclasses override

    @staticmethod
    def _distdl_forward_pre_hook(self: Module, input: tuple) -> None:
        """Set the layer up if necessary; registered as a forward pre-hook."""
        refuse_transforms(self, self._identity.title, input)
        settled = self._plans.settled
        if settled and _look_of(input) in settled:
            self.__dict__["_in_progress"] = BY_TORCH
        else:
            self.__dict__["_in_progress"] = UNPLANNED if self._identity.is_outside else self._agree_on_plan(input)

    def _agree_on_plan(self, input: tuple) -> LayerPlan:
        """Agree with all workers of the layer on a plan for this input, made now if necessary, and apply it."""
        identity, guarded = self._identity, is_on()
        problem = self._found_problem(input)
        plan = self._plan_at_hand(input, guarded) if problem is None else None
        if plan is None and problem is None:
            problem = self._problem_with_state(input)
        number = plan.number if plan is not None else 0
        if identity.transport is not None:
            call_id = identity.call_id.called_again()
            number = agree_plan(identity.transport, identity.team, identity.title, call_id.number, number, problem)
            identity.call_id = call_id  # a call counts once all have joined it
        elif problem is not None:
            raise ValueError(f"{identity.title}: {problem}")
        if plan is None or not number:
            common = self._common_plan(input) if guarded and self._keeps_plans else None
            plan = common or self._set_up(input, guarded)
        if identity.transport is not None and is_due(identity.call_id.call):
            agree_replicas(identity.transport, identity.team, identity.title, self._replicas())
        if plan is not self._plans.current:
            self._apply_plan(plan)
        if plan.by_torch:
            self._plans.settled.add(_look_of(input))
        return plan

    @property
    def _is_torchs_own(self) -> bool:
        """Whether `_by_torch` covers the current settings of the layer."""
        return True

    def _can_call_torch(self, input: tuple) -> bool:
        """Whether torch's own function does all that this layer has to do for such an input."""
        if self._by_torch is None or not self._identity.is_alone or not self._is_torchs_own:
            return False
        return all(isinstance(x, Tensor) and x.numel() and not x.is_meta for x in input)

    def _found_problem(self, input: tuple) -> str | None:
        try:
            return self._problem_with(input) or problem_with_inference(self._parameters.values(), input)
        except (RuntimeError, TypeError, ValueError) as error:  # torch's, for a dtype that cannot be checked, say
            return str(error)

    def _plan_at_hand(self, input: tuple, guarded: bool) -> LayerPlan | None:
        """The plan that this worker would use for the input, if it has one; `guarded` if workers agree before calls."""
        if guarded and self._replicas_are_new:
            return None  # they are compared at set-up
        if self._keeps_plans and guarded and not self._was_reset:
            return self._plans.find(self._structure_of(input))
        return None if self._distdl_module_requires_reset(input) else self._plans.current

    @property
    def _was_reset(self) -> bool:
        """Whether somebody has cleared `_distdl_is_setup`, to have the layer set up again."""
        return self._plans.current is not None and not self._distdl_is_setup

    def _common_plan(self, input: tuple) -> LayerPlan | None:
        """A kept plan that fits on all workers, even if it is not the newest that fits on each."""
        identity = self._identity
        if identity.transport is None or self._plans.count <= 1:
            return None
        anew = self._was_reset or self._replicas_are_new
        candidates = self._plans.candidates(() if anew else self._structure_of(input))
        number = agree_common(identity.transport, identity.team, identity.title, candidates)
        return self._plans.take(number) if number else None

    def _set_up(self, input: tuple, guarded: bool) -> LayerPlan:
        if self._distdl_is_setup:
            self._distdl_is_setup = False
            self._distdl_module_teardown(input)
        self._plans.begin()
        self._agree_on_state()
        if guarded:
            self.__dict__["_replicas_are_new"] = False
        with self._plans.noting_assignments() as names:
            self._distdl_module_setup(input)
        assigned = {name: self.__dict__[name] for name in names if name in self.__dict__}
        keep = self._keeps_plans and len(assigned) == len(names)
        return self._plans.add(self._structure_of(input), assigned, keep, self._can_call_torch(input))

    def _agree_on_state(self) -> None:
        """Raise on all workers unless they are in the same mode and hold the same parameters."""
        identity, mode = self._identity, self._mode()
        if identity.transport is None or mode is None:
            return
        who = identity.transport, identity.team, identity.title
        new = agree_mode(*who, (mode, without_shapes(self._state_structure())), self, self._replicas_are_new)
        self._refuse_state()
        if new:
            agree_replicas(*who, self._replicas())

    def _apply_plan(self, plan: LayerPlan) -> None:
        """Restore the attributes that the set-up of `plan` assigned."""
        self.__dict__.update(plan.assigned)
        self._plans.current = plan
        self.__dict__["_distdl_is_setup"] = True

    def _run_by_torch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of torch's own function; what it refuses is refused in this package's words."""
        try:
            return self._by_torch(*args, **kwargs)  # type: ignore[misc]
        except Exception:
            self._distdl_is_setup = False
            self._agree_on_plan(args)  # from the beginning, with all checks
            raise  # it is not about the input

    def __setattr__(self, name: str, value: Any) -> None:
        plans: LayerPlans | None = self.__dict__.get("_plans")
        if plans is not None:
            plans.settled.clear()
        if plans is not None and plans.assigned is not None:
            plans.assigned.add(name)
        elif name in self._settings and isinstance(value, list):
            value = tuple(value)  # a change inside a list would go unnoticed
        elif name in self._fixed and self.__dict__.get(name, value) != value:
            raise PartitionError(
                f"{self._title}: `{name}` (={self.__dict__[name]!r}) cannot be set to {value!r}: what each worker holds "
                "depends on it.\n  fix: construct another layer."
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._settings or name in self._fixed:
            raise PartitionError(f"{self._title}: `{name}` cannot be deleted.")
        super().__delattr__(name)

    def _distdl_module_requires_reset(self, input: tuple) -> bool:
        """Whether the layer has to be set up (again) for this input, as far as this worker can see."""
        return not self._distdl_is_setup or bool(self._distdl_input_changed(input))

    def _distdl_input_changed(self, input: tuple) -> bool:
        """Whether shape, dtype, device or requires_grad differ from those at the last set-up, on this worker."""
        current = self._plans.current
        return current is None or current.structure != self._structure_of(input)

    def _structure_of(self, input: tuple) -> Hashable:
        """All that a plan depends on, as far as this worker can see."""
        return tuple([Structure.of(x) for x in input if isinstance(x, Tensor)]), self._mode(), self._state_structure()

    def _mode(self) -> Hashable:
        """What must be the same on all workers besides the structure of the input; None if nothing must."""
        return None if self._read_settings is None else self._read_settings(self)

    def _state_structure(self) -> StateStructure:
        """The structure of parameters and buffers (`structure_of_state`), where a plan depends on it."""
        return NO_STATE

    def _replicas(self) -> list[Replica]:
        """The parameters and buffers, of which several workers may hold replicas."""
        return []

    def _distdl_module_setup(self, input: tuple) -> None:
        """Plan for an input of this structure. All workers of the layer enter together."""

    def _distdl_module_teardown(self, input: tuple) -> None:
        """Drop the plan."""

    def _problem_with(self, input: tuple) -> str | None:
        """What is wrong with the input on this worker; raised on all workers before anything is sent."""
        return None

    def _problem_with_state(self, input: tuple) -> str | None:
        """What is wrong with parameters and buffers on this worker; checked before set-up and raised on all workers."""
        return None

    def _refuse_state(self) -> None:
        """Raise, on all workers, for parameters and buffers that they agree on but that the layer cannot use."""

    # For layers that apply operators

    def _move(self, x: Tensor, operator: Operator, records: bool, step: int = 0) -> Tensor:
        """``operator(x)``; `step` tells the operators of one call apart, so that none can be taken for another."""
        call_id = CallId(self._call_id.key + step, self._call_id.call) if step else self._call_id
        return apply(x, operator, call_id, records)


def _planned_for(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward`, planned for even when it is called directly, without `__call__` and its hooks."""

    @functools.wraps(forward)
    def planned(self: Module, *args: Any, **kwargs: Any) -> Any:
        plan = self._in_progress
        if plan is not None:
            return self._run_by_torch(args, kwargs) if plan.by_torch else forward(self, *args, **kwargs)
        if kwargs:
            args, kwargs = self._by_position(args, kwargs)
        try:
            self._distdl_forward_pre_hook(self, args)
            self.__dict__["_in_progress"] = self._in_progress or UNPLANNED
            return planned(self, *args, **kwargs)
        finally:
            self.__dict__["_in_progress"] = None

    return planned


_signature = functools.cache(inspect.signature)


def _look_of(input: tuple) -> Hashable:
    """What of an input decides whether torch's function takes it as it took another, as long as the layer is as it was."""
    looks = [(x.shape, x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else None for x in input]
    return tuple(looks), torch.is_grad_enabled()


def outside_of_graphs(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A clean graph break under torch.compile: communication cannot be compiled."""
    return torch.compiler.disable(call)(*args, **kwargs)


# What the decorator `torch.compiler.disable` sets; calling it here would import the compiler, seconds on every worker.
outside_of_graphs._torchdynamo_disable = True  # type: ignore[attr-defined]
