"""The models of the zoo: how each is built, smallest variants, and the input that it wants.

Built by the libraries' own constructors, without weights, in training mode. Pictures are (2, 3, 64, 64), volumes
(1, 1, 32, 32, 32) unless a model wants another size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import autoencoders, losses, others
from .classics import CLASSICS
from .compiled_ops import declare

Shape = tuple[int, ...]
PICTURE: Shape = (2, 3, 64, 64)
VOLUME: Shape = (1, 1, 32, 32, 32)
CLIP: Shape = (1, 3, 8, 64, 64)


@dataclass(frozen=True)
class Specimen:
    """A model and the shape of its input; `others` are further arguments of its call."""

    name: str
    build: Callable[[], torch.nn.Module]
    shape: Shape = PICTURE
    others: Callable[[], dict[str, Any]] = dict
    kind: str = "convolutional"

    @property
    def grid(self) -> Shape:
        """Four workers, two along each of the last two dims; along the only dim of a sound."""
        return (1, 1, 4) if len(self.shape) == 3 else (*(1,) * (len(self.shape) - 2), 2, 2)

    def input(self) -> torch.Tensor:
        return torch.randn(self.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


TORCHVISION = (Path(__file__).parent / "torchvision.txt").read_text().split()

TIMM = (Path(__file__).parent / "timm.txt").read_text().split()

TRANSFORMERS = tuple((Path(__file__).parent / "transformers.txt").read_text().split())
"""How names of models begin whose work is mostly attention or products of tokens."""


def specimens(beginnings: Sequence[str] = ()) -> Iterator[Specimen]:
    """All models in order, or those whose names begin like this; only the libraries that are needed are imported."""
    wanted = tuple(beginnings) or ("",)
    for prefix, library in LIBRARIES.items():
        if any(name.startswith(each.split(".")[0]) for name in prefix.split() for each in wanted):
            if prefix != "classics":
                declare()  # the other libraries import torchvision
            yield from (found for found in library() if found.name.startswith(wanted))


def _classics() -> Iterator[Specimen]:
    for name, (build, shape) in CLASSICS.items():
        yield Specimen(f"classics.{name}", build, shape or PICTURE)


def _torchvision() -> Iterator[Specimen]:
    from torchvision import models
    from torchvision.models import detection, segmentation, video
    from torchvision.models.detection.backbone_utils import mobilenet_backbone, resnet_fpn_backbone
    from torchvision.models.feature_extraction import create_feature_extractor
    from torchvision.ops import FrozenBatchNorm2d

    for name in TORCHVISION:
        yield Specimen(f"tv.{name}", getattr(models, name))
    large = (2, 3, 96, 96)
    yield Specimen("tv.vgg11_bn.features", lambda: models.vgg11_bn().features)
    yield Specimen("tv.googlenet", lambda: models.googlenet(aux_logits=False, init_weights=False))
    yield Specimen("tv.googlenet_aux", lambda: models.googlenet(aux_logits=True, init_weights=False), large)
    yield Specimen("tv.inception_v3", lambda: models.inception_v3(aux_logits=False, init_weights=False), large)
    small_vit = {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
    vit = {"kind": "transformer"}
    yield Specimen("tv.vit_small_custom", lambda: models.VisionTransformer(**small_vit), **vit)
    yield Specimen("tv.vit_b_16_img64", lambda: models.vit_b_16(image_size=64), **vit)
    yield Specimen("tv.swin_t", models.swin_t, **vit)
    yield Specimen("tv.swin_v2_t", models.swin_v2_t, **vit)
    maxvit = {
        "stem_channels": 16,
        "partition_size": 2,
        "block_channels": [16, 32],
        "block_layers": [1, 1],
        "head_dim": 8,
    }
    maxvit |= {"input_size": (64, 64), "stochastic_depth_prob": 0.1}
    yield Specimen("tv.maxvit_small", lambda: models.MaxVit(**maxvit), **vit)
    bare = {"weights": None, "weights_backbone": None}
    for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "deeplabv3_resnet50"):
        yield Specimen(f"tvseg.{name}", lambda name=name: getattr(segmentation, name)(**bare))
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        yield Specimen(f"tvvideo.{name}", getattr(video, name), CLIP)
    yield Specimen("tvvideo.s3d", video.s3d, (1, 3, 16, 224, 224))
    yield Specimen("tvvideo.swin3d_t", video.swin3d_t, CLIP, **vit)
    yield Specimen("tvvideo.mvit_small", lambda: _mvit(video), CLIP, **vit)
    yield Specimen("tvdet.resnet18_fpn", lambda: resnet_fpn_backbone(backbone_name="resnet18", weights=None))
    yield Specimen("tvdet.mobilenetv3_fpn", lambda: mobilenet_backbone("mobilenet_v3_large", weights=None, fpn=True))
    chosen = {"layer1": "low", "layer3": "high"}
    yield Specimen("tvdet.feature_extractor_resnet18", lambda: create_feature_extractor(models.resnet18(), chosen))
    yield Specimen("tvdet.resnet18_frozenbn", lambda: models.resnet18(norm_layer=FrozenBatchNorm2d))
    ssd = detection.ssdlite320_mobilenet_v3_large
    yield Specimen("tvdet.ssdlite_backbone", lambda: ssd(**bare).backbone)


def _mvit(video: Any) -> torch.nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 32, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 4, 4]),
        MSBlockConfig(2, 32, 64, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
    ]
    return MViT(
        (64, 64),
        8,
        blocks,
        residual_pool=False,
        residual_with_cls_embed=True,
        rel_pos_embed=False,
        proj_after_attn=False,
    )


def _timm() -> Iterator[Specimen]:
    for name in TIMM:
        size = SIZES.get(name, 64)
        kind = "transformer" if name.startswith(TRANSFORMERS) else "convolutional"
        yield Specimen(f"timm.{name}", partial(_of_size, name, size), (2, 3, size, size), kind=kind)


def _of_size(name: str, size: int) -> torch.nn.Module:
    """A model of timm for pictures of a size, which some have to be told."""
    import timm

    try:
        return timm.create_model(name, pretrained=False, img_size=size)
    except TypeError:
        return timm.create_model(name, pretrained=False)


SIZES = {
    "inception_v4": 96,
    "xception41": 96,
    "haloregnetz_b": 224,
    "sehalonet33ts": 256,
    "eva02_tiny_patch14_224": 56,
    "crossvit_tiny_240": 240,
    "efficientformer_l1": 224,
}
"""Pictures that a model of timm wants, where 64 x 64 will not do."""


def _monai() -> Iterator[Specimen]:
    from monai.networks import nets

    volume = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
    levels = {"channels": (8, 16, 32), "strides": (2, 2)}
    small = (1, 1, 32, 32, 32)

    def specimen(
        name: str, build: Callable[[], torch.nn.Module], shape: Shape = small, kind: str = "convolutional"
    ) -> Specimen:
        return Specimen(f"monai.{name}", build, shape, kind=kind)

    yield specimen("UNet", lambda: nets.UNet(**volume, **levels, num_res_units=1))
    yield specimen("UNet_batch", lambda: nets.UNet(**volume, **levels, num_res_units=2, norm="batch"))
    yield specimen("BasicUNet", lambda: nets.BasicUNet(3, 1, 2, features=(8, 8, 16, 16, 32, 8)))
    yield specimen("BasicUNetPlusPlus", lambda: nets.BasicUNetPlusPlus(3, 1, 2, features=(8, 8, 16, 16, 32, 8)))
    yield specimen("SegResNet", lambda: nets.SegResNet(**volume, init_filters=8))
    yield specimen("SegResNetDS", lambda: nets.SegResNetDS(**volume, init_filters=8, blocks_down=(1, 1, 1), dsdepth=2))
    yield specimen("VNet", lambda: nets.VNet(**volume))
    kernels = {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [8, 16, 32]}
    yield specimen("DynUNet", lambda: nets.DynUNet(**volume, **kernels))
    yield specimen("AttentionUnet", lambda: nets.AttentionUnet(**volume, **levels))
    unetr = {"in_channels": 1, "out_channels": 2, "img_size": (32, 32, 32), "feature_size": 8, "hidden_size": 96}
    yield specimen("UNETR", lambda: nets.UNETR(**unetr, mlp_dim=192, num_heads=4), kind="transformer")
    swin = {"in_channels": 1, "out_channels": 2, "feature_size": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}
    yield specimen("SwinUNETR", lambda: nets.SwinUNETR(**swin), (1, 1, 64, 64, 64), kind="transformer")
    yield specimen("HighResNet", lambda: nets.HighResNet(**volume))
    yield specimen("DenseNet121_3d", lambda: nets.DenseNet121(**volume), (1, 1, 64, 64, 64))
    yield specimen("AutoEncoder", lambda: nets.AutoEncoder(**volume, channels=(8, 16), strides=(2, 2)))
    yield specimen("MedNeXtS", lambda: nets.MedNeXtSmall(spatial_dims=3, in_channels=1, out_channels=2))
    yield specimen("RegUNet", lambda: nets.RegUNet(3, 1, 8, depth=2))
    yield specimen("FlexibleUNet2d", lambda: nets.FlexibleUNet(3, 2, "efficientnet-b0"), PICTURE)
    yield specimen("ResNet10_3d", lambda: nets.resnet10(n_input_channels=1, num_classes=2))
    yield specimen("SENet_2d", lambda: nets.SEResNet50(spatial_dims=2, in_channels=3, num_classes=2), PICTURE)
    vae = {"spatial_dims": 2, "in_shape": (3, 64, 64), "out_channels": 3, "latent_size": 8}
    yield specimen("VarAutoEncoder", lambda: nets.VarAutoEncoder(**vae, channels=(8, 16), strides=(2, 2)), PICTURE)
    yield specimen(
        "VoxelMorphUNet",
        lambda: nets.VoxelMorphUNet(3, 2, 8, channels=(8, 8, 16, 16, 16, 8), final_conv_channels=(8,)),
        (1, 2, 32, 32, 32),
    )


def _diffusers() -> Iterator[Specimen]:
    import diffusers

    narrow = {"norm_num_groups": 4, "block_out_channels": (8, 16)}
    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    kl = {"down_block_types": down, "up_block_types": up, "latent_channels": 4, "layers_per_block": 1, **narrow}

    def unet(attention: bool) -> torch.nn.Module:
        kinds = ("DownBlock2D", "AttnDownBlock2D" if attention else "DownBlock2D")
        ups = ("AttnUpBlock2D" if attention else "UpBlock2D", "UpBlock2D")
        return diffusers.UNet2DModel(
            sample_size=64, in_channels=3, out_channels=3, layers_per_block=1, down_block_types=kinds, up_block_types=ups,
            add_attention=attention, **narrow,
        )  # fmt: skip

    def step() -> dict[str, Any]:
        return {"timestep": torch.tensor(7)}

    latent = (2, 4, 32, 32)
    yield Specimen("diffusers.UNet2D_noattn", lambda: unet(False), others=step)
    yield Specimen("diffusers.UNet2D_attn", lambda: unet(True), others=step, kind="transformer")
    yield Specimen("diffusers.AutoencoderKL", lambda: diffusers.AutoencoderKL(**kl), kind="transformer")
    yield Specimen("diffusers.AutoencoderKL.encoder", lambda: diffusers.AutoencoderKL(**kl).encoder, kind="transformer")
    yield Specimen(
        "diffusers.AutoencoderKL.decoder", lambda: diffusers.AutoencoderKL(**kl).decoder, latent, kind="transformer"
    )
    vq = {"down_block_types": down, "up_block_types": up, "layers_per_block": 1, **narrow}
    yield Specimen("diffusers.VQModel.encoder", lambda: diffusers.VQModel(**vq).encoder, kind="transformer")
    tiny: dict[str, Any] = {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
    tiny |= {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    yield Specimen("diffusers.AutoencoderTiny", lambda: _decoding_in_double(diffusers.AutoencoderTiny(**tiny)))
    asymmetric = {
        "down_block_types": down,
        "up_block_types": up,
        "down_block_out_channels": (8, 16),
        "norm_num_groups": 4,
    }
    asymmetric |= {"up_block_out_channels": (8, 16), "layers_per_down_block": 1, "layers_per_up_block": 1}
    yield Specimen(
        "diffusers.AsymmetricAutoencoderKL.encoder",
        lambda: diffusers.AsymmetricAutoencoderKL(**asymmetric).encoder,
        kind="transformer",
    )
    wan = {
        "base_dim": 8,
        "z_dim": 4,
        "dim_mult": [1, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True],
        "attn_scales": [],
    }
    wan |= {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    yield Specimen(
        "diffusers.AutoencoderKLWan.encoder",
        lambda: diffusers.AutoencoderKLWan(**wan).encoder,
        (1, 3, 1, 32, 32),
        kind="transformer",
    )
    mochi = {"latent_channels": 4, "encoder_block_out_channels": (32, 64), "decoder_block_out_channels": (32, 64)}
    mochi |= {
        "layers_per_block": (1, 1, 1),
        "temporal_expansions": (2,),
        "spatial_expansions": (2,),
        "add_attention_block": (False,) * 3,
    }
    mochi |= {"latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4}
    yield Specimen(
        "diffusers.AutoencoderKLMochi.decoder", lambda: _decoder(diffusers.AutoencoderKLMochi(**mochi)), (1, 4, 2, 8, 8)
    )
    ltx = {"latent_channels": 8, "block_out_channels": (8, 16, 16, 16), "decoder_block_out_channels": (8, 16, 16)}
    ltx |= {"layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1), "patch_size": 2}
    yield Specimen(
        "diffusers.AutoencoderKLLTXVideo.decoder",
        lambda: _decoder(diffusers.AutoencoderKLLTXVideo(**ltx)),
        (1, 8, 2, 8, 8),
    )


def _decoding_in_double(model: Any) -> torch.nn.Module:
    """A tiny autoencoder; it rounds its latents to bytes, and makes numbers of them in torch's default dtype."""

    class Decoder(torch.nn.Module):
        def __init__(self, own: torch.nn.Module) -> None:
            super().__init__()
            self.own = own

        def forward(self, z: torch.Tensor) -> Any:
            return self.own(z.double())

    model.decoder = Decoder(model.decoder)
    return model


def _decoder(model: Any) -> torch.nn.Module:
    return model.decoder


def _autoencoders() -> Iterator[Specimen]:
    for name, (_, _, encoded, latents) in autoencoders.AUTOENCODERS.items():
        yield Specimen(f"vae.{name}.encode", partial(autoencoders.encoder, name), encoded, kind="transformer")
        yield Specimen(f"vae.{name}.decode", partial(autoencoders.decoder, name), latents, kind="transformer")


def _losses() -> Iterator[Specimen]:
    for library, found in (("kornia", losses.of_kornia), ("monai", losses.of_monai), ("piqa", losses.of_piqa)):
        yield from (Specimen(f"loss.{library}.{name}", build) for name, build in found())


def _others(prefix: str, found: Callable[[], Iterator[others.Made]]) -> Iterator[Specimen]:
    for name, build, shape, kind in found():
        yield Specimen(f"{prefix}.{name}", build, shape, kind=kind)


LIBRARIES = {
    "classics": _classics,
    "tv tvseg tvvideo tvdet": _torchvision,
    "timm": _timm,
    "monai": _monai,
    "diffusers": _diffusers,
    "vae": _autoencoders,
    "loss": _losses,
    "nnunet": partial(_others, "nnunet", others.of_nnunet),
    "yolo": partial(_others, "yolo", others.of_ultralytics),
    "neuralop": partial(_others, "neuralop", others.of_neuralop),
    "hf": partial(_others, "hf", others.of_transformers),
}
