"""Slow momentum: workers train their replicas independently, and every `slowmo_freq` steps take one common step.

    after step t of the base optimiser (t = 0, 1, ...), where t is a multiple of slowmo_freq:
        w  = the mean of all workers' weights
    and, unless t is 0:
        m <- slowmo_factor m + (w0 - w) / lr          w0: the weights after the last common step
        w <- w0 <- w0 - slowmo_lr lr m

A parameter that Gridwise's layers hold in blocks, or as equal copies on several workers, is one value already: it takes the
common step locally, and is not averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import PartitionError
from ..nn.parameters.blocks import BlockParameter
from ..nn.parameters.elementwise import KNOWN
from ..partition import Partition, world

KEYS = ("slowmo_freq", "slowmo_factor", "slowmo_lr", "step")
PREVIOUS = "slowmo_previous"


class SlowMomentumOptimizer(torch.optim.Optimizer):
    """A wrapper around the optimiser `base_optim`; all workers of `P` step together.

    Parameters
    ----------
    base_optim : updates this worker's replica
    slowmo_freq : steps between two common ones
    slowmo_factor, slowmo_lr : the momentum and the rate of the common steps
    P : the workers whose weights are averaged; default: the world

    Examples
    --------
    >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = gridwise.optim.SlowMomentumOptimizer(base, slowmo_freq=2)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        base_optim: torch.optim.Optimizer,
        slowmo_freq: int = 48,
        slowmo_factor: float = 0.5,
        slowmo_lr: float = 1.0,
        *,
        P: Partition | None = None,
    ) -> None:
        if base_optim is None:
            raise PartitionError("Base optimizer is a required parameter.")
        if not base_optim.param_groups:
            raise PartitionError("Provided base optimizer does not have parameters specified.")
        _check_rates(base_optim.param_groups)
        if slowmo_freq < 1:
            raise PartitionError("Invalid ``slowmo_freq`` parameter, must be a positive value.")
        if slowmo_factor < 0.0:
            raise PartitionError("Invalid ``slowmo_factor`` parameter, must be non-negative.")
        if slowmo_lr < 0.0:
            raise PartitionError("Invalid ``slowmo_lr`` parameter, must be non-negative.")
        self._base_optim, self._partition = base_optim, P or world()
        self.slowmo_freq, self.slowmo_factor, self.slowmo_lr = slowmo_freq, slowmo_factor, slowmo_lr
        self.steps = 0
        self._previous = [p.detach().clone() for p in self._parameters()]
        self.__setstate__({"defaults": base_optim.defaults})  # hooks and so on; groups and states are the base's

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._base_optim.param_groups for p in group["params"]]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimiser's."""
        return self._base_optim.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimiser's."""
        return self._base_optim.param_groups

    def __repr__(self) -> str:
        return repr(self._base_optim)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the base optimiser, take the common step when it is due, and return the closure's loss."""
        loss = self._base_optim.step() if closure is None else self._base_optim.step(closure)
        if self._averages_now():
            self._average()
        if self.steps and self.steps % self.slowmo_freq == 0:
            self._common_step()
        self.steps += 1
        return loss

    def _averages_now(self) -> bool:
        return self.steps % self.slowmo_freq == 0

    def _average(self) -> None:
        """Set every weight to the mean over the workers, with one sum for all weights of a dtype and device."""
        of = self._partition
        if not of.active or of.size == 1:
            return
        alike: dict[Any, list[Tensor]] = {}
        for p in self._parameters():
            if not isinstance(p, BlockParameter):
                alike.setdefault((str(p.dtype), str(p.device)), []).append(p)
        for _, weights in sorted(alike.items()):
            flat = torch.cat([p.detach().reshape(-1) for p in weights])
            mean = of.transport.all_sum(flat.div_(of.size), of.team, "SlowMomentumOptimizer")
            for p, part in zip(weights, mean.split([p.numel() for p in weights]), strict=True):
                p.copy_(part.view(p.shape))

    def _common_step(self) -> None:
        previous = iter(self._previous)
        for group in self.param_groups:
            lr = float(group["lr"])
            if lr == 0:
                raise PartitionError(
                    f"SlowMomentumOptimizer: the learning rate is 0 at step {self.steps}, and the common step divides by it."
                )
            for p in group["params"]:
                before = next(previous)
                state = self.state[p]
                if "slow_momentum" not in state:
                    state["slow_momentum"] = torch.zeros_like(p)
                momentum = state["slow_momentum"]
                momentum.mul_(self.slowmo_factor).add_(before - p, alpha=1 / lr)
                before.sub_(momentum, alpha=self.slowmo_lr * lr)
                p.copy_(before)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._base_optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, to the base optimiser too."""
        self._base_optim.add_param_group(param_group)
        self._previous += [p.detach().clone() for p in self._base_optim.param_groups[-1]["params"]]

    def state_dict(self) -> dict[str, Any]:
        """The base optimiser's state, with what the common steps need."""
        values = (self.slowmo_freq, self.slowmo_factor, self.slowmo_lr, self.steps)
        own = {**dict(zip(KEYS, values, strict=True)), PREVIOUS: [p.clone() for p in self._previous]}
        return {**self._base_optim.state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from where `state_dict()` was called. The dict is not changed.

        One saved by torchdistX lacks the weights of the last common step: the model's present weights take their place.
        """
        missing = [key for key in KEYS if key not in state_dict]
        if missing:
            raise PartitionError(
                f"SlowMomentumOptimizer: the state has no {', '.join(missing)}: it is not that of such an optimizer."
            )
        _check_rates(state_dict.get("param_groups", ()))
        self._base_optim.load_state_dict({k: v for k, v in state_dict.items() if k not in (*KEYS, PREVIOUS)})
        self.slowmo_freq, self.slowmo_factor, self.slowmo_lr, self.steps = (state_dict[key] for key in KEYS)
        if not self.param_groups:
            raise PartitionError("Base optimizer does not have parameter groups specified.")
        for state in self.state.values():
            if "slow_momentum" in state:  # torch keeps the dict's own tensors, which may be in use elsewhere
                state["slow_momentum"] = state["slow_momentum"].clone()
        saved = state_dict.get(PREVIOUS, self._parameters())
        self._previous = [v.detach().to(p, copy=True) for v, p in zip(saved, self._parameters(), strict=True)]


def _check_rates(groups: Iterable[dict[str, Any]]) -> None:
    if not all("lr" in group for group in groups):  # the common step divides by it
        raise PartitionError("All parameter groups should have learning rate specified.")


KNOWN.add(SlowMomentumOptimizer)  # its base is asked in its own steps
