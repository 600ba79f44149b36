"""Models of transformers, saved by `save_pretrained` in several shards, onto a grid and back, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew

import gridwise
from gridwise import checkpoint
from gridwise.partition import Partition

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'gridwise[zoo]' brings it"
)
pytestmark = pytest.mark.filterwarnings("ignore")


def vit() -> Any:
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5)
    return transformers.ViTForImageClassification(config).eval()


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def _through_a_distributed_model(folder: str, back: str, image: torch.Tensor) -> torch.Tensor:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(99)  # other weights than those that are saved
    model = transformers.ViTForImageClassification(transformers.ViTConfig.from_pretrained(folder)).eval()
    model = gridwise.distribute(model, P_x, pixel_values=P_x)
    checkpoint.load(folder, into={"model": model})
    checkpoint.export(back, model, shard_size=20_000)
    with torch.no_grad():
        return model(pixel_values=image[gridwise.local_slice(P_x, image.shape)]).logits


def test_onto_a_grid_of_two_and_back(tmp_path: Path) -> None:
    model = vit()
    # Version 5 has renamed modules of some models, and writes their former names unless it is told not to.
    model.save_pretrained(tmp_path / "hub", max_shard_size="20KB", save_original_format=False)
    assert len(list((tmp_path / "hub").glob("model-*.safetensors"))) > 2
    image = torch.randn(1, 3, 32, 32)
    outputs = gridwise.launch(
        _through_a_distributed_model,
        str(tmp_path / "hub"),
        str(tmp_path / "back"),
        image,
        workers=2,
        transport="gloo",
        timeout=250,
    )
    with torch.no_grad():
        torch.testing.assert_close(next(y for y in outputs if y.numel()), model(image).logits)
    assert len(list((tmp_path / "back").glob("model-*.safetensors"))) > 2
    assert equal(checkpoint.load(tmp_path / "back"), checkpoint.load(tmp_path / "hub"))
    (tmp_path / "back" / "config.json").write_bytes((tmp_path / "hub" / "config.json").read_bytes())
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert equal(again.state_dict(), model.state_dict())


def test_tied_weights_that_are_stored_once_go_into_blocks_and_back(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=101, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "hub", max_shard_size="40KB")
    stored = checkpoint.load(tmp_path / "hub")
    assert "lm_head.weight" not in stored
    other = transformers.GPT2LMHeadModel(config)
    checkpoint.load(tmp_path / "hub", into=other)
    assert equal(other.state_dict(), model.state_dict())

    def body(P: Partition) -> None:
        state = {
            name: split(torch.zeros_like(x), line(P, tuple(x.shape), x.dim() - 1), P.rank) for name, x in stored.items()
        }
        checkpoint.load(tmp_path / "hub", into=state, P=P)
        checkpoint.export(tmp_path / "back", state, P, shard_size=40_000)

    crew(3, body)
    assert equal(checkpoint.load(tmp_path / "back"), stored)
    (tmp_path / "back" / "config.json").write_bytes((tmp_path / "hub" / "config.json").read_bytes())
    assert equal(transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back").state_dict(), model.state_dict())
