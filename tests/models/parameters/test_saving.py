"""Cut parameters through states, files, deferred models and copies."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import gridwise
from gridwise import checkpoint, deferred_init
from gridwise.errors import PartitionError
from gridwise.models.parameters import cutting
from gridwise.nn.parameters.blocks import is_cut
from gridwise.testing import workers

from .test_cut import MODELS, Tokens, loss_of, made, same, small_messages, train


@workers(3, transports=("gloo",))
def test_states_load_where_they_fit_and_are_refused_elsewhere() -> None:
    model, alone, x, whole = made("image")
    twin, *_ = made("image")
    with torch.no_grad():
        for p in alone.parameters():
            p.add_(1)
    model.load_state_dict(alone.state_dict())  # of the sequential model
    twin.load_state_dict(model.state_dict())  # of the same blocks
    twin.load_state_dict(gridwise.nn.full_state_dict(model))
    for each in (model, twin):
        same(each, alone)
        torch.testing.assert_close(loss_of(each.eval()(x)).detach(), _of_block(alone, whole, model))
    P_x = gridwise.world().create_partition_inclusive([0, 1]).create_cartesian_topology_partition([2, 1, 1, 1])
    other = gridwise.distribute(copy.deepcopy(alone), P_x, parameters="cut")
    with pytest.raises(PartitionError, match=r"holds (the block|no part)"):
        other.load_state_dict(model.state_dict())


def _of_block(alone: nn.Module, whole: Tensor, model: Any) -> Tensor:
    y = alone.eval()(whole)
    return loss_of(y[gridwise.local_slice(model.P_y, y.shape)]).detach()


@workers(3, transports=("gloo",))
def test_workers_outside_of_the_grid_hold_nothing() -> None:
    world = gridwise.world()
    P_x = world.create_partition_inclusive([0, 2]).create_cartesian_topology_partition([2, 1, 1, 1])
    torch.manual_seed(0)
    alone = MODELS["image"][0]().double()
    model = gridwise.distribute(copy.deepcopy(alone), P_x, parameters="cut")
    x = torch.randn(4, 2, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    block = x[gridwise.local_slice(P_x, x.shape)] if P_x.active else x[:0]
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01, eps=1e-3) for each in (model, alone)]
    for _ in range(2):
        for optimizer, each, given in zip(optimizers, (model, alone), (block, x), strict=True):
            optimizer.zero_grad()
            loss_of(each(given)).backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            optimizer.step()
    assert P_x.active or not any(p.numel() for p in model.parameters())
    full = gridwise.nn.full_state_dict(model)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(full[name], value)


@workers(4, transports=("gloo",))
def test_deferred_models_are_made_in_blocks_and_read_into_them(tmp_path: Path) -> None:
    root = Path(gridwise.world().transport.gather_bytes(str(tmp_path).encode(), gridwise.world().team)[0].decode())
    torch.manual_seed(0)
    alone, P_x = Tokens(), gridwise.world().create_cartesian_topology_partition([4, 1])
    torch.manual_seed(0)
    wholes: list[tuple[int, ...]] = []
    empty = cutting.materialize_shard

    def noted(value: Tensor, slices: Any) -> Tensor:
        made = empty(value, slices)
        wholes.append(tuple(made.shape))
        return made

    cutting.materialize_shard = noted  # type: ignore[assignment]
    try:
        model = gridwise.distribute(deferred_init.deferred_init(Tokens), P_x, parameters="cut")
    finally:
        cutting.materialize_shard = empty
    assert len(wholes) == sum(map(is_cut, model.parameters()))
    full = gridwise.nn.full_state_dict(model)
    assert all(torch.equal(full[name], value) for name, value in alone.state_dict().items())
    assert model.head.weight is model.embed.weight
    with torch.no_grad():
        for p in alone.parameters():
            p.mul_(2)
    if gridwise.world().rank == 0:
        root.mkdir(exist_ok=True)
        save_file({k: v for k, v in alone.state_dict().items() if k != "head.weight"}, root / "model.safetensors")
    gridwise.world().transport.barrier()
    checkpoint.load(root, into=model)
    full = gridwise.nn.full_state_dict(model)
    assert all(torch.equal(full[name], value) for name, value in alone.state_dict().items())


@workers(2, transports=("gloo",))
def test_copies_averages_clipping_scaling_and_wires() -> None:
    with small_messages():
        model, alone, x, whole = made("odd")
        twin = copy.deepcopy(model)
        averages = [torch.optim.swa_utils.AveragedModel(each, use_buffers=True) for each in (model, alone)]
        train(model, alone, x, whole, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3), steps=1)
        for average, each in zip(averages, (model, alone), strict=True):
            average.update_parameters(each)
            average.update_parameters(each)
        same(averages[0].module, averages[1].module)
        mine, theirs = averages[0](x)[0], averages[1](whole)[0]
        torch.testing.assert_close(mine, theirs[gridwise.local_slice(model.P_y[0], theirs.shape)])
        _, fresh, *_ = made("odd")
        same(twin, fresh)
        train(twin, fresh, x, whole, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3), steps=1)
        # clipping and scaling
        scalers = [gridwise.optim.GradScaler("cpu", init_scale=8.0) for _ in range(2)]
        optimizers = [torch.optim.Adam(each.parameters(), lr=0.01, eps=1e-3) for each in (model, alone)]
        norms = []
        for each, given, optimizer, scaler in zip((model, alone), (x, whole), optimizers, scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss_of(each(given))).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(each.parameters(), 0.5))
            scaler.step(optimizer)
            scaler.update()
        torch.testing.assert_close(*norms)
        same(model, alone)
        gridwise.check_replicas(model)
        # half precision on the wire
        model, alone, x, whole = made("image")
        with gridwise.gradient_wire(torch.bfloat16):
            loss_of(model(x)).backward()
        loss_of(alone(whole)).backward()
        weight, expected = model.deep.weight, alone.deep.weight.grad
        torch.testing.assert_close(
            weight.grad,
            weight.sharding.cut(expected, gridwise.world().rank),
            rtol=0.02,
            atol=0.02 * float(expected.max()),
        )


@workers(2, transports=("gloo",))
def test_functions_that_call_a_cut_model() -> None:
    model, alone, x, whole = made("image")
    P_x = model.P_x

    def step(x: Tensor) -> Tensor:
        return model(x).square().mean()

    gridwise.distribute(step, P_x)(x).backward()
    alone(whole).square().mean().backward()
    same(model, alone)
