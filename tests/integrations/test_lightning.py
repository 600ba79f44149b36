"""Lightning's Trainer with `GridStrategy` gives what it gives on one process."""

from __future__ import annotations

import doctest
import importlib
import math

import pytest
import torch

from gridwise import checkpoint
from gridwise.comm.launching.pool import Pool

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def nets():
    return importlib.import_module("lightning_net")


@pytest.fixture(scope="module")
def four():
    with Pool(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def two():
    with Pool(2) as pool:
        yield pool


def on_grid(name, *args, **options):
    return getattr(nets(), name)(*args, **options)


def test_examples():
    adapter = importlib.import_module("gridwise.integrations.lightning")
    assert doctest.testmod(adapter, extraglobs={"torch": torch}).failed == 0


SETTINGS = {
    "float32": ({"gradient_clip_val": 0.1}, 1e-5),
    "float64": ({"precision": "64-true", "gradient_clip_val": 0.1}, 1e-12),
    "accumulated": ({"precision": "64-true", "accumulate_grad_batches": 2}, 1e-12),
    "bfloat16": ({"precision": "bf16-mixed"}, 1e-2),
}


@pytest.mark.parametrize("grid", [(1, 1, 2, 2), (2, 1, 1, 2)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_fit_validate_test_and_predict_equal_one_process(setting, grid, four):
    options, within = SETTINGS[setting]
    plain = nets().fitted(None, **options)
    for mine in four.run(on_grid, "fitted", grid, **options):
        assert mine["names"] == plain["names"]
        assert mine["seen"] == plain["seen"]  # hooks see whole outputs
        for part in ("losses", "metrics", "tested", "predicted", "state"):
            torch.testing.assert_close(mine[part], plain[part], rtol=within, atol=within, check_dtype=False)


def blocks():
    import lightning

    lightning.seed_everything(0, verbose=False)
    run = nets().trainer((1, 1, 2, 1), outputs="blocks")
    predicted = run.predict(nets().Segmentation(), torch.utils.data.DataLoader(nets().Pictures(), 2))
    return [tuple(each["scores"].shape) for each in predicted], run.strategy.P_of("predict_step")["scores"].shape


def test_outputs_stay_in_blocks_if_asked(two):
    first, second = two.run(blocks)
    assert first == ([(2, 4, 9, 12)] * 3 + [(1, 4, 9, 12)], (1, 1, 2, 1))
    assert second == ([(2, 4, 8, 12)] * 3 + [(1, 4, 8, 12)], (1, 1, 2, 1))


def test_a_run_goes_on_on_another_grid(tmp_path, four, two):
    plain = nets().resumed(None, tmp_path / "plain", 4)
    started = four.run(on_grid, "resumed", (1, 1, 2, 2), tmp_path / "grid", 2)[0]
    gone_on = two.run(on_grid, "resumed", (1, 1, 1, 2), tmp_path / "grid", 4, tmp_path / "grid" / "last.ckpt")
    for mine in gone_on:
        torch.testing.assert_close(started["losses"] + mine["losses"], plain["losses"], rtol=1e-10, atol=0)
        torch.testing.assert_close(mine["validated"], plain["validated"], rtol=1e-10, atol=0)
        assert (mine["best"], mine["names"]) == (plain["best"], plain["names"])
    module = nets().Segmentation().double()  # into a module without a Trainer
    checkpoint.load(tmp_path / "grid" / "last.ckpt", into={"state_dict": module})
    last = torch.load(tmp_path / "plain" / "last.ckpt", weights_only=False)
    torch.testing.assert_close(dict(module.state_dict()), dict(last["state_dict"]), rtol=1e-9, atol=1e-12)


def test_a_run_of_one_process_goes_on_on_a_grid(tmp_path, two):
    whole = nets().resumed(None, tmp_path / "whole", 3)
    nets().resumed(None, tmp_path / "part", 1)
    mine = two.run(on_grid, "resumed", (1, 1, 2, 1), tmp_path / "grid", 3, tmp_path / "part" / "last.ckpt")[0]
    torch.testing.assert_close(mine["losses"], whole["losses"][3:], rtol=1e-10, atol=0)


def stopped(grid):
    from lightning.pytorch.callbacks import EarlyStopping

    module = nets().Segmentation()
    stopping = EarlyStopping("validation", patience=1, min_delta=math.inf, check_finite=False)
    run = nets().trainer(grid, callbacks=[stopping], max_epochs=5)
    loader = torch.utils.data.DataLoader(nets().Pictures(), 3)
    run.fit(module, loader, loader)
    return run.current_epoch


def test_early_stopping_stops_all(two):
    torch.manual_seed(0)
    assert two.run(lambda: (torch.manual_seed(0), stopped((1, 1, 2, 1)))[1]) == [stopped(None)] * 2


def with_a_datamodule(grid):
    """A datamodule with two loaders for validation, and hooks that change whole batches."""
    import lightning

    class Data(lightning.LightningDataModule):
        def train_dataloader(self):
            return torch.utils.data.DataLoader(nets().Pictures(), 3)

        def val_dataloader(self):
            return [torch.utils.data.DataLoader(nets().Pictures(n), 2) for n in (3, 4)]

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return {**batch, "label": batch["label"].flip(1)}

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return {**batch, "image": batch["image"].flip(2) + dataloader_idx}

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = torch.nn.functional.cross_entropy(self(batch["image"]), batch["label"])
        self.log("validation", (1 + dataloader_idx) * loss)

    lightning.seed_everything(0, verbose=False)
    module = type("Changed", (nets().Segmentation,), {"validation_step": validation_step})()
    run = nets().trainer(grid, max_epochs=2, precision="64-true")
    for _ in range(2):  # a Trainer is used again
        run.fit_loop.epoch_progress.reset()
        run.fit(module, datamodule=Data())
    return module.losses, {name: value.item() for name, value in run.callback_metrics.items()}


def test_a_datamodule_whose_hooks_change_batches(two):
    plain = with_a_datamodule(None)
    assert {"validation/dataloader_idx_0", "validation/dataloader_idx_1"} <= plain[1].keys()
    for mine in two.run(with_a_datamodule, (1, 1, 2, 1)):
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=0)
