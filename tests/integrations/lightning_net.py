"""A LightningModule with what users do in one, and runs of it: plain on one process, or on a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Pictures(Dataset):
    """Pictures with labels and names."""

    def __init__(self, count: int = 7) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(count, 3, 17, 12, generator=generator)
        self.y = torch.randint(0, 4, (count, 17, 12), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.x[i], "label": self.y[i], "name": f"picture {i}"}


class Segmentation(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8, "sizes": (3, 4)})
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)
        )
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(4, average="micro")
        self.others = torchmetrics.MetricCollection(
            {"sum": torchmetrics.SumMetric(), "mean": torchmetrics.MeanMetric()}
        )
        self.losses: list[float] = []
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        y = self(batch["image"])
        loss = F.cross_entropy(y, batch["label"]) * (1 + 0.5 * self.current_epoch)
        self.log("train", loss, on_step=True, on_epoch=True, sync_dist=True)
        return {"loss": loss, "scores": y.detach(), "names": batch["name"]}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"].item())
        self.seen.append(tuple(outputs["scores"].shape))
        assert outputs["names"] == batch["name"]
        assert len(batch["image"]) == len(outputs["scores"])

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        y = self(batch["image"])
        self.log("validation", F.cross_entropy(y, batch["label"]))
        self.log("of_batch", self.accuracy(y, batch["label"]), on_step=False, on_epoch=True)
        self.log("accuracy", self.accuracy)
        self.log_dict(self.others(y.abs().sum()))
        return y

    def test_step(self, batch: dict[str, Any]) -> None:
        self.log_dict({"test": self(batch["image"]).square().mean(), "constant": 2.0})

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        return {"name": batch["name"], "scores": self(batch["image"]).softmax(1)}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


def strategy(grid: tuple[int, ...] | None, **options: Any) -> Any:
    if grid is None:
        return "auto"
    from gridwise.integrations.lightning import GridStrategy

    return GridStrategy(grid, **options)


def trainer(grid: tuple[int, ...] | None, outputs: str = "whole", **options: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    own = {} if grid is None else {"outputs": outputs}
    quiet["enable_checkpointing"] = any(isinstance(each, ModelCheckpoint) for each in options.get("callbacks", ()))
    return lightning.Trainer(strategy=strategy(grid, **own), accelerator="cpu", devices=1, **(quiet | options))


def fitted(grid: tuple[int, ...] | None, **options: Any) -> dict[str, Any]:
    """What a run gives: losses of all steps, metrics, predictions, the final state."""
    lightning.seed_everything(0, verbose=False, workers=True)
    module, run = Segmentation(), trainer(grid, max_epochs=3, num_sanity_val_steps=1, **options)
    training, others = DataLoader(Pictures(), 3, shuffle=True), DataLoader(Pictures(), 2)
    run.fit(module, training, others)
    metrics = {name: value.item() for name, value in run.callback_metrics.items()}
    tested = run.test(module, others, verbose=False)
    predicted = run.predict(module, others)
    return {
        "losses": module.losses,
        "seen": module.seen,
        "metrics": metrics,
        "tested": tested,
        "names": [name for each in predicted for name in each["name"]],
        "predicted": torch.cat([each["scores"] for each in predicted]),
        "state": {name: value.clone() for name, value in module.state_dict().items()},
    }


def resumed(grid: tuple[int, ...] | None, folder: Path, epochs: int, path: Path | None = None) -> dict[str, Any]:
    """A run with checkpoints, from its beginning or from one of them."""
    lightning.seed_everything(0, verbose=False)
    module = Segmentation().double()
    saving = ModelCheckpoint(folder, monitor="validation", save_top_k=2, save_last=True)
    callbacks = [saving, EarlyStopping("validation", patience=3), Timer()]
    run = trainer(grid, callbacks=callbacks, max_epochs=epochs, gradient_clip_val=0.1, precision="64-true")
    others = DataLoader(Pictures(), 2)
    run.fit(module, DataLoader(Pictures(), 3), others, ckpt_path=path)
    validated = run.validate(module, others, ckpt_path="best", verbose=False)
    names = sorted(each.name for each in Path(folder).iterdir())
    return {"losses": module.losses, "validated": validated, "best": Path(saving.best_model_path).name, "names": names}
