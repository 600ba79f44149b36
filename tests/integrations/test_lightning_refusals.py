"""What cannot be right with `GridStrategy`, and the wrong ways to run distributed models under Lightning, are errors."""

from __future__ import annotations

import importlib
import os
import re
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.errors import DataError, PartitionError, UnsupportedError

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def nets():
    return importlib.import_module("lightning_net")


def net(**methods):
    """A Segmentation with other methods."""
    torch.manual_seed(0)
    return type("Changed", (nets().Segmentation,), methods)()


def fit(module, grid=(1, 1, 1, 1), loader=None, **options):
    run = nets().trainer(grid, max_epochs=2, **options)
    loader = loader or DataLoader(nets().Pictures(4), 2)
    run.fit(module, loader)
    return run


def test_ddp_around_a_distributed_model_names_the_right_way():
    module = nets().Segmentation()
    module.net = gridwise.distribute(module.net, (1, 1, 1, 1))
    run = nets().lightning.Trainer(
        strategy="ddp", accelerator="cpu", devices=1, logger=False, enable_checkpointing=False
    )
    with patch.dict(os.environ), pytest.raises(UnsupportedError, match=r"GridStrategy\(grid="):
        run.fit(module, DataLoader(nets().Pictures(), 2))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def appends(self, batch, batch_idx):
    y = self(batch["image"])
    self.losses.append(y)
    return y.square().mean()


def uses_a_name(self, batch, batch_idx):
    factor = 2 if batch["name"][0] == "picture 1" else 1
    return factor * self(batch["image"]).square().mean()


def uses_the_logger(self, batch, batch_idx):
    if self.trainer.loggers:
        pass
    return self(batch["image"]).square().mean()


def uses_a_metric(self, batch, batch_idx):
    return self(batch["image"]).square().mean() * self.accuracy(self(batch["image"]), batch["label"])


def computes_a_metric(self, batch, batch_idx):
    self.accuracy.update(self(batch["image"]), batch["label"])
    return self(batch["image"]).square().mean() * self.accuracy.compute()


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (appends, r"losses: was \[\], is a list with tensors(.|\n)*fix: return it"),
        (uses_a_name, r"uses value 0 of the batch, a str(.|\n)*fix: return it from the step"),
        (uses_the_logger, r"uses `self.trainer.loggers`(.|\n)*fix: do it in a hook"),
        (uses_a_metric, r"what `accuracy` returns is used in a step(.|\n)*fix"),
        (computes_a_metric, r"`accuracy.compute` is used in a step(.|\n)*fix"),
    ],
)
def test_what_a_recording_would_lose_is_named(step, text):
    with pytest.raises(UnsupportedError, match=text):
        fit(net(training_step=step))


def test_optimisation_by_hand_is_refused():
    module = nets().Segmentation()
    module.automatic_optimization = False
    with pytest.raises(UnsupportedError, match=r"automatic_optimization=False(.|\n)*fix: in configure_model"):
        fit(module)


def test_metrics_in_a_list_are_refused():
    module = nets().Segmentation()
    module.more = [module.accuracy]
    with pytest.raises(UnsupportedError, match=r"`more` has metrics(.|\n)*ModuleList"):
        fit(module)


def test_a_distributed_sampler_is_refused():
    data = nets().Pictures(4)
    loader = DataLoader(data, 2, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    with pytest.raises(UnsupportedError, match=r"DistributedSampler(.|\n)*fix: leave it out"):
        fit(nets().Segmentation(), loader=loader)


def test_a_grid_that_does_not_fit_the_batch_is_refused():
    with pytest.raises(PartitionError, match=r"no tensor of the batch has 5 dims"):
        fit(nets().Segmentation(), (1, 1, 1, 1, 1))
    with pytest.raises(PartitionError, match=r"start 4: `gridwise run -n 4"):
        fit(nets().Segmentation(), (1, 1, 2, 2))


def by_the_step(self, batch, batch_idx):
    loss = (1 + self.global_step) * (1 + batch_idx % 2) * self(batch["image"]).square().mean()
    self.log("loss", loss, on_step=True, prog_bar=self.trainer.sanity_checking)
    return {"loss": loss, "scores": loss.detach()[None]}


def keep_loss(self, outputs, batch, batch_idx):
    self.losses.append(outputs["loss"].item())


def test_numbers_of_the_trainer_are_followed_not_frozen():
    plain, mine = (net(training_step=by_the_step, on_train_batch_end=keep_loss) for _ in range(2))
    fit(plain, None)
    with pytest.warns(UserWarning, match="reads batch_idx, trainer.global_step, and is recorded anew"):
        fit(mine)
    torch.testing.assert_close(mine.losses, plain.losses)


def different_batches():
    torch.manual_seed(gridwise.world().rank)
    module = nets().Segmentation()
    with pytest.raises(DataError, match=r"drawn different batches(.|\n)*seed_everything"):
        fit(module, (1, 1, 2, 1), DataLoader(nets().Pictures(), 2, shuffle=True))


def own_parts(right):
    """A module that distributes its loss itself, with optimisation by hand."""
    torch.manual_seed(0)

    def configure_model(self):
        if not hasattr(self, "loss_of"):
            loss_of = lambda x, y: torch.nn.functional.cross_entropy(self.net(x), y)  # noqa: E731
            self.loss_of = gridwise.distribute(loss_of, self.trainer.strategy.P_x)

    def training_step(self, batch, batch_idx):
        loss = self.loss_of(batch["image"], batch["label"])
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("loss", loss if right else batch["image"].mean())
        return {"loss": loss, "scores": batch["image"], "names": batch["name"]}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        assert gridwise.local_slice(self.trainer.strategy.P_x, batch["image"].shape)[2].stop in (9, 17)

    module = net(configure_model=configure_model, training_step=training_step, on_train_batch_end=on_train_batch_end)
    module.automatic_optimization = False
    fit(module, (1, 1, 2, 1))
    return module.losses


def wrong_logs():
    with pytest.raises(PartitionError, match=re.escape("self.log('loss') got other numbers on some workers")):
        own_parts(False)


def test_on_several_workers():
    torch.manual_seed(0)
    plain = net(training_step=lambda self, b, i: torch.nn.functional.cross_entropy(self(b["image"]), b["label"]))
    type(plain).on_train_batch_end = lambda self, outputs, batch, i: self.losses.append(outputs["loss"].item())
    run = nets().trainer(None, max_epochs=2)
    run.fit(plain, DataLoader(nets().Pictures(4), 2))
    with Pool(2) as pool:
        pool.run(different_batches)
        pool.run(wrong_logs)
        for losses in pool.run(own_parts, True):
            torch.testing.assert_close(losses, plain.losses)
