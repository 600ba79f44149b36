"""Loops with Accelerate on a grid give what they give on one process."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.errors import DataError, PartitionError, UnsupportedError

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def adapter():
    return importlib.import_module("gridwise.integrations.accelerate")


def data():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(7, 3, 17, 12, generator=generator), torch.randint(0, 4, (7, 17, 12), generator=generator)
    )


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))


def trained(grid, folder=None, epochs=2, **options):
    """A loop as users write it; `grid` None: with Accelerate's own Accelerator."""
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True, **options) if grid is None else None
    accelerator = accelerator or adapter().GridAccelerator(grid, cpu=True, **options)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, optimizer, schedule, loader = accelerator.prepare(
        model, optimizer, schedule, DataLoader(data(), 2, shuffle=True)
    )

    def loss_of(x, labels):
        return F.cross_entropy(model(x), labels)

    loss_of = loss_of if grid is None else gridwise.distribute(loss_of, accelerator.P_x)
    losses = []
    if folder is not None and folder.exists():
        accelerator.load_state(folder)
    torch.manual_seed(1)
    for _ in range(epochs):
        for x, labels in loader:
            with accelerator.accumulate(model):
                loss = loss_of(x, labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    if folder is not None:
        accelerator.save_state(folder)
    return losses, [p.detach().clone() for p in model.parameters()], accelerator.is_main_process


@pytest.fixture(scope="module")
def two():
    with Pool(2) as pool:
        yield pool


def test_examples():
    assert doctest.testmod(adapter(), extraglobs={"torch": torch, "gridwise": gridwise}).failed == 0


SETTINGS = {
    "plain": ({}, 1e-5),
    "accumulated": ({"gradient_accumulation_steps": 2}, 1e-5),
    "bfloat16": ({"mixed_precision": "bf16"}, 1e-2),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_loop_equals_one_process(setting, two):
    options, within = SETTINGS[setting]
    adapter().one_process_each()
    losses, parameters, _ = trained(None, **options)
    found = two.run(trained, (1, 1, 2, 1), **options)
    assert [is_main for *_, is_main in found] == [True, False]
    for mine, own, _ in found:
        torch.testing.assert_close(mine, losses, rtol=within, atol=within)
        torch.testing.assert_close(own, parameters, rtol=within, atol=within)


def test_a_state_of_accelerate_goes_on(tmp_path, two):
    adapter().one_process_each()
    whole = trained(None, tmp_path / "whole", 1)[0]
    assert two.run(trained, (1, 1, 1, 2), tmp_path / "grid", 1)[0][0] == pytest.approx(whole, rel=1e-5)
    more = trained(None, tmp_path / "whole", 1)[0]
    assert two.run(trained, (1, 1, 1, 2), tmp_path / "grid", 1)[0][0] == pytest.approx(more, rel=1e-5)


def refusals():
    accelerator = adapter().GridAccelerator((1, 1, 2, 1), cpu=True)
    with pytest.raises(
        UnsupportedError, match=r"gather_for_metrics: the tensors are this worker's blocks(.|\n)*all_gather"
    ):
        accelerator.gather_for_metrics(torch.ones(3))
    with pytest.raises(PartitionError, match=r"GridAccelerator\.gather got other numbers"):
        accelerator.gather(torch.tensor(float(accelerator.process_index)))
    with pytest.raises(UnsupportedError, match="DistributedSampler"):
        accelerator.prepare(DataLoader(data(), 2, sampler=DistributedSampler(data(), 2, 0)))
    alone = accelerator.prepare(net())
    with pytest.raises(UnsupportedError, match=r"called with a block(.|\n)*fix: loss_of = gridwise.distribute"):
        alone(torch.ones(1, 3, 9, 12))
    torch.manual_seed(gridwise.world().rank)
    with pytest.raises(DataError, match="drawn different batches"):
        next(iter(accelerator.prepare(DataLoader(data(), 2, shuffle=True))))
    model = gridwise.distribute(net(), accelerator.P_x)
    assert accelerator.prepare(model) is model
    accelerator.native_amp = True
    with pytest.raises(UnsupportedError, match=r"cannot be put under autocast(.|\n)*fix: prepare the model before"):
        accelerator.prepare(model)


def wrong_way():
    """A distributed model in an Accelerator of several processes."""
    import os

    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    world = gridwise.world()
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.update(RANK=str(world.rank), LOCAL_RANK=str(world.rank), WORLD_SIZE=str(world.size), OMP_NUM_THREADS="1")
    model = gridwise.distribute(net(), (1, 1, 2, 1))
    with pytest.raises(UnsupportedError, match=r"gridwise\.integrations\.accelerate"):
        Accelerator(cpu=True).prepare(model)


def test_what_cannot_be_right_is_refused(two):
    two.run(refusals)


def test_an_accelerator_of_several_processes_names_the_right_way():
    with Pool(2, "gloo") as pool:
        pool.run(wrong_way)
