"""Networks of nnU-Net, ultralytics, neuraloperator and transformers, at small sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
Made = tuple[str, Callable[[], torch.nn.Module], Shape, str]
"""A name, what builds it, the shape of its input, and its kind."""
PICTURE: Shape = (2, 3, 64, 64)
CONVOLUTIONAL, TRANSFORMER = "convolutional", "transformer"


def of_nnunet() -> Iterator[Made]:
    from dynamic_network_architectures.architectures import unet

    def settings(dims: int, supervised: bool) -> dict[str, Any]:
        conv = torch.nn.Conv3d if dims == 3 else torch.nn.Conv2d
        norm = torch.nn.InstanceNorm3d if dims == 3 else torch.nn.InstanceNorm2d
        return {
            "input_channels": 1, "n_stages": 3, "features_per_stage": (8, 16, 16), "conv_op": conv, "kernel_sizes": 3,
            "strides": (1, 2, 2), "num_classes": 2, "n_conv_per_stage_decoder": 1, "conv_bias": True, "norm_op": norm,
            "norm_op_kwargs": {"affine": True}, "nonlin": torch.nn.LeakyReLU, "nonlin_kwargs": {"inplace": True},
            "deep_supervision": supervised,
        }  # fmt: skip

    for dims, shape in ((2, (2, 1, 64, 64)), (3, (1, 1, 32, 32, 32))):
        for deep in (False, True):
            name = f"{dims}d{'_deep' if deep else ''}"
            given = settings(dims, deep)
            plain = lambda given=given: unet.PlainConvUNet(n_conv_per_stage=1, **given)  # noqa: E731
            residual = lambda given=given: unet.ResidualEncoderUNet(n_blocks_per_stage=1, **given)  # noqa: E731
            yield f"PlainConvUNet_{name}", plain, shape, CONVOLUTIONAL
            yield f"ResidualEncoderUNet_{name}", residual, shape, CONVOLUTIONAL


def of_ultralytics() -> Iterator[Made]:
    from ultralytics.nn import tasks

    def built(kind: str, name: str) -> Callable[[], torch.nn.Module]:
        return lambda: getattr(tasks, kind)(f"{name}.yaml", verbose=False)

    for kind, name in (
        ("DetectionModel", "yolov5n"),
        ("DetectionModel", "yolov8n"),
        ("DetectionModel", "yolo11n"),
        ("SegmentationModel", "yolov8n-seg"),
        ("PoseModel", "yolov8n-pose"),
        ("ClassificationModel", "yolov8n-cls"),
    ):
        yield name, built(kind, name), PICTURE, CONVOLUTIONAL


def of_neuralop() -> Iterator[Made]:
    from neuralop import models

    def doubled(kind: str, **settings: Any) -> Callable[[], torch.nn.Module]:
        def build() -> torch.nn.Module:
            model = getattr(models, kind)(**settings)
            for p in model.parameters():  # `double` leaves complex weights as they are
                p.data = p.data.to(torch.complex128) if p.is_complex() else p.data
            return model

        return build

    field: Shape = (2, 1, 32, 32)
    small = {"in_channels": 1, "out_channels": 1, "hidden_channels": 8}
    yield "FNO", doubled("FNO", n_modes=(8, 8), n_layers=2, **small), field, CONVOLUTIONAL
    yield "FNO_3d", doubled("FNO", n_modes=(4, 4, 4), n_layers=2, **small), (1, 1, 16, 16, 16), CONVOLUTIONAL
    tucker = {"factorization": "Tucker", "rank": 0.5, "implementation": "reconstructed"}
    yield "TFNO", doubled("FNO", n_modes=(8, 8), n_layers=2, **small, **tucker), field, CONVOLUTIONAL
    uno = {"uno_out_channels": [8, 8, 8], "uno_n_modes": [[8, 8], [4, 4], [8, 8]]}
    uno |= {"uno_scalings": [[1, 1], [0.5, 0.5], [2, 2]]}
    yield "UNO", doubled("UNO", n_layers=3, channel_mlp_skip="linear", **small, **uno), field, CONVOLUTIONAL


class Hidden(torch.nn.Module):
    """A model of transformers whose output is one tensor, or the tensors among its outputs."""

    def __init__(self, model: torch.nn.Module, **given: Any) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, x: Tensor) -> Any:
        found = self.model(x, **self.given)
        return found if isinstance(found, Tensor) else found.to_tuple()


def of_transformers() -> Iterator[Made]:
    import transformers as t

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    four = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    picture = {"image_size": 64, "patch_size": 8}

    def model(kind: str, **settings: Any) -> Callable[[], torch.nn.Module]:
        def build() -> torch.nn.Module:
            config = getattr(t, f"{kind}Config")(**settings)
            return Hidden(getattr(t, f"{kind}Model")(config))

        return build

    segformer = {**four, "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16}
    yield "Segformer", model("Segformer", **segformer), PICTURE, TRANSFORMER
    yield (
        "Swin",
        model("Swin", image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
        PICTURE,
        TRANSFORMER,
    )
    yield "ViT", model("ViT", **sizes, **picture), PICTURE, TRANSFORMER
    yield "Dinov2", model("Dinov2", **sizes, **picture), PICTURE, TRANSFORMER
    yield "Beit", model("Beit", **sizes, **picture), PICTURE, TRANSFORMER
    yield "ConvNextV2", model("ConvNextV2", **four), PICTURE, CONVOLUTIONAL
    yield "ResNet", model("ResNet", embedding_size=8, layer_type="basic", **four), PICTURE, CONVOLUTIONAL
    yield "RegNet", model("RegNet", embedding_size=8, groups_width=8, **four), PICTURE, CONVOLUTIONAL
    yield "PvtV2", model("PvtV2", num_attention_heads=[1, 2, 2, 4], **four), PICTURE, TRANSFORMER
    mobile = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 8, 16, 24, 32, 40], "num_attention_heads": 2}
    yield "MobileViT", model("MobileViT", **mobile, image_size=64), PICTURE, TRANSFORMER
    sound: Shape = (1, 1, 2048)
    codec = {
        "num_filters": 4,
        "hidden_size": 16,
        "upsampling_ratios": [4, 2],
        "codebook_size": 16,
        "num_residual_layers": 1,
    }
    encodec = {**codec, "codebook_dim": 16, "target_bandwidths": [1.5], "sampling_rate": 24000}
    yield "Encodec.encoder", lambda: t.EncodecModel(t.EncodecConfig(**encodec)).encoder, sound, CONVOLUTIONAL
    yield "Encodec.decoder", lambda: t.EncodecModel(t.EncodecConfig(**encodec)).decoder, (1, 16, 128), CONVOLUTIONAL
    dac = {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "decoder_hidden_size": 16,
        "upsampling_ratios": [4, 2],
    }
    yield "Dac.encoder", lambda: t.DacModel(t.DacConfig(**dac)).encoder, sound, CONVOLUTIONAL
    yield "Dac.decoder", lambda: t.DacModel(t.DacConfig(**dac)).decoder, (1, 32, 128), CONVOLUTIONAL
    heard = {"conv_dim": (16, 16), "conv_stride": (4, 2), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
    heard |= {
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "apply_spec_augment": False,
        "layerdrop": 0.0,
    }
    wav2vec = t.Wav2Vec2Config(**sizes, **heard)
    yield "Wav2Vec2", lambda: _Heard(t.Wav2Vec2Model(wav2vec)), sound, TRANSFORMER
    gan = {
        "model_in_dim": 16,
        "upsample_initial_channel": 16,
        "upsample_rates": [4, 4],
        "upsample_kernel_sizes": [8, 8],
    }
    hifigan = t.SpeechT5HifiGanConfig(**gan, normalize_before=False)
    yield "HifiGan", lambda: _Spoken(t.SpeechT5HifiGan(hifigan)), (1, 16, 128), CONVOLUTIONAL


class _Heard(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        model.freeze_feature_encoder()  # else it wants a gradient of what has one

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x[:, 0]).last_hidden_state


class _Spoken(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.mT)
