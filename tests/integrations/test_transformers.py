"""The Trainer of transformers on a grid gives what it gives on one process."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest
import torch

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.errors import DataError, PartitionError, UnsupportedError

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def adapter():
    return importlib.import_module("gridwise.integrations.transformers")


def segmentation(labels=True):
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8, 16], "num_encoder_blocks": 2, "depths": [1, 1], "num_attention_heads": [1, 2]}
    shapes = {"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    dropout = {"hidden_dropout_prob": 0.0, "classifier_dropout_prob": 0.0, "drop_path_rate": 0.0}
    config = SegformerConfig(**sizes, **shapes, **dropout, decoder_hidden_size=8, num_labels=3)
    generator = torch.Generator().manual_seed(1)
    data = []
    for _ in range(6):
        sample = {"pixel_values": torch.randn(3, 32, 32, dtype=torch.float64, generator=generator)}
        if labels:
            sample["labels"] = torch.randint(0, 3, (32, 32), generator=generator)
        data.append(sample)
    return SegformerForSemanticSegmentation(config).double(), data


def language():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=24, **dropout))
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 40, (24,), generator=generator) for _ in range(6)]
    return model, [{"input_ids": each, "labels": torch.where(each < 4, -100, each)} for each in tokens]


MODELS = {"segmentation": (segmentation, (1, 1, 2, 2)), "language": (language, (2, 2))}


def accuracy(predicted):
    logits = predicted.predictions[0] if isinstance(predicted.predictions, tuple) else predicted.predictions
    return {"shape": float(np.prod(logits.shape)), "sum": float(np.abs(logits).sum())}


def trained(name, is_on_grid, folder, resume=None, **options):
    from transformers import Trainer, TrainingArguments

    make, grid = MODELS[name]
    model, data = make()
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "save_strategy": "no"}
    sizes = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "optim": "sgd",
        "learning_rate": 0.1,
        "max_grad_norm": 0.5,
    }
    of_arguments = adapter().GridTrainingArguments if is_on_grid else TrainingArguments
    arguments = of_arguments(str(folder), **(quiet | sizes | {"num_train_epochs": 2} | options))
    kind, own = (adapter().GridTrainer, {"grid": grid}) if is_on_grid else (Trainer, {})
    trainer = kind(model, arguments, train_dataset=data, eval_dataset=data, compute_metrics=accuracy, **own)
    trainer.train(resume_from_checkpoint=resume)
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    evaluated = trainer.evaluate()
    metrics = [evaluated[key] for key in ("eval_loss", "eval_shape", "eval_sum")]
    predicted = trainer.predict([{k: v for k, v in each.items() if k != "labels"} for each in data]).predictions
    predicted = predicted[0] if isinstance(predicted, tuple) else predicted
    return losses, metrics, torch.from_numpy(predicted), [p.detach().clone() for p in trainer.model.parameters()]


@pytest.fixture(scope="module")
def four():
    with Pool(4) as pool:
        yield pool


def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(adapter(), extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["plain", "accumulated"])
@pytest.mark.parametrize("name", MODELS)
def test_training_and_evaluation_equal_one_process(name, options, tmp_path, four):
    plain = trained(name, False, tmp_path / "plain", **options)
    for mine in four.run(trained, name, True, tmp_path / "grid", **options):
        for one, other in zip(mine, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_run_goes_on(tmp_path, four):
    saving = {"save_strategy": "steps", "save_steps": 3}
    four.run(trained, "segmentation", True, tmp_path / "grid", **saving)
    started = tmp_path / "grid" / "checkpoint-3"
    whole = trained("segmentation", False, tmp_path / "plain", started)
    mine = four.run(trained, "segmentation", True, tmp_path / "grid", started)[0]
    for one, other in zip(mine, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def different_batches():
    model, data = segmentation()
    arguments = adapter().GridTrainingArguments(
        "out", max_steps=1, use_cpu=True, report_to="none", seed=gridwise.world().rank
    )
    with pytest.raises(DataError, match="drawn different batches"):
        adapter().GridTrainer(model, arguments, train_dataset=data, grid=(1, 1, 2, 2)).train()


def without_its_arguments():
    import os

    from transformers import TrainingArguments

    world = gridwise.world()
    os.environ.update(RANK=str(world.rank), LOCAL_RANK=str(world.rank), WORLD_SIZE=str(world.size), OMP_NUM_THREADS="1")
    arguments = TrainingArguments("out", use_cpu=True, report_to="none")
    with pytest.raises(UnsupportedError, match=r"MULTI_CPU(.|\n)*fix: \S+\.GridTrainingArguments"):
        adapter().GridTrainer(segmentation()[0], arguments, grid=(1, 1, 2, 2))


def distilled(is_on_grid, folder):
    """A user's loss, with a second model."""
    from transformers import Trainer, TrainingArguments

    kind = adapter().GridTrainer if is_on_grid else Trainer
    of_arguments = adapter().GridTrainingArguments if is_on_grid else TrainingArguments

    class Distilling(kind):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            mine, other = model(**inputs), self.teacher(**inputs)
            loss = mine.loss + (mine.logits - other.logits).square().mean()
            return (loss, mine) if return_outputs else loss

    model, data = segmentation()
    arguments = of_arguments(str(folder), max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True, optim="sgd")
    trainer = Distilling(model, arguments, train_dataset=data, **({"grid": (1, 1, 2, 2)} if is_on_grid else {}))
    trainer.teacher = segmentation()[0].eval().requires_grad_(False)
    trainer.train()
    return [p.detach().clone() for p in trainer.model.parameters()]


def test_a_loss_of_the_user_with_a_second_model(tmp_path, four):
    plain = distilled(False, tmp_path / "plain")
    for mine in four.run(distilled, True, tmp_path / "grid"):
        torch.testing.assert_close(mine, plain, rtol=1e-8, atol=1e-8)


def test_what_cannot_be_right_is_refused(tmp_path, four, monkeypatch):
    monkeypatch.chdir(tmp_path)
    four.run(different_batches)
    four.run(without_its_arguments)
    model, data = segmentation()
    arguments = adapter().GridTrainingArguments("out", use_cpu=True, report_to="none")
    with pytest.raises(PartitionError, match="start 4"):
        adapter().GridTrainer(model, arguments, train_dataset=data, grid=(1, 1, 2, 2))
    with pytest.raises(UnsupportedError, match=r"is distributed already(.|\n)*fix: give the model as it is"):
        adapter().GridTrainer(
            gridwise.distribute(model, (1, 1, 1, 1)), arguments, train_dataset=data, grid=(1, 1, 1, 1)
        )
