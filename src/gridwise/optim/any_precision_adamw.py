"""AdamW whose momentum, variance and rounding errors are kept in dtypes of the user's choice.

    w <- (1 - lr wd) w
    m <- b1 m + (1 - b1) g                      in momentum_dtype
    v <- b2 v + (1 - b2) g g                    in variance_dtype
    u  = -lr / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps)
    w <- w + u

With Kahan summation, the part of u that was lost to rounding is kept in c and added next time, so that bfloat16 weights
can be trained with steps smaller than their last digit:

    c <- c + u;   w' = w + c;   c <- c + (w - w');   w <- w'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from ..errors import PartitionError


class AnyPrecisionAdamW(torch.optim.Optimizer):
    """AdamW with a dtype for each of its states.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay : as in `torch.optim.AdamW`; `weight_decay` is 0 unless given
    use_kahan_summation : keep what is lost to rounding
    momentum_dtype, variance_dtype, compensation_buffer_dtype : of m, v and c

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    >>> optimizer = gridwise.optim.AnyPrecisionAdamW([w], lr=1e-4, use_kahan_summation=True)
    >>> w.grad = torch.ones_like(w)
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        use_kahan_summation: bool = False,
        momentum_dtype: torch.dtype = torch.float32,
        variance_dtype: torch.dtype = torch.bfloat16,
        compensation_buffer_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and weight_decay >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise PartitionError(
                f"AnyPrecisionAdamW needs `lr` (={lr}), `eps` (={eps}) and `weight_decay` (={weight_decay}) of at least 0, "
                f"and `betas` (={betas}) from 0 to below 1."
            )
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "use_kahan_summation": use_kahan_summation,
            "momentum_dtype": momentum_dtype,
            "variance_dtype": variance_dtype,
            "compensation_buffer_dtype": compensation_buffer_dtype,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update, and return the loss of `closure` if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if p.grad.is_sparse:
                        raise RuntimeError("AnyPrecisionAdamW does not support sparse gradients")
                    self._update(p, group)
        return loss

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state, grad, (beta1, beta2), lr = self.state[p], p.grad, group["betas"], group["lr"]
        assert grad is not None
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(p, dtype=group["momentum_dtype"])
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=group["variance_dtype"])
            if group["use_kahan_summation"]:
                state["compensation"] = torch.zeros_like(p, dtype=group["compensation_buffer_dtype"])
        state["step"] += 1
        t = float(state["step"])
        momentum, variance = state["exp_avg"], state["exp_avg_sq"]
        p.mul_(1 - lr * group["weight_decay"])
        momentum.mul_(beta1).add_(grad, alpha=1 - beta1)
        variance.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = (variance.sqrt() / (1 - beta2**t) ** 0.5).add_(group["eps"])
        step_size = lr / (1 - beta1**t)
        if not group["use_kahan_summation"]:
            p.addcdiv_(momentum, scale, value=-step_size)
            return
        compensation, before = state["compensation"], p.clone()
        compensation.addcdiv_(momentum, scale, value=-step_size)
        p.add_(compensation)
        compensation.add_(before.sub_(p))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, but the states keep the dtypes chosen for them, where torch would give them that of the weights."""
        super().load_state_dict(state_dict)
        names = {
            "exp_avg": "momentum_dtype",
            "exp_avg_sq": "variance_dtype",
            "compensation": "compensation_buffer_dtype",
        }
        saved = state_dict["state"]
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        own = [(p, group) for group in self.param_groups for p in group["params"]]
        for index, (p, group) in zip(order, own, strict=True):
            for name, dtype in names.items():
                if name in saved.get(index, {}):
                    self.state[p][name] = saved[index][name].to(device=p.device, dtype=group[dtype], copy=True)
