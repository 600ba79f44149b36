"""The autoencoders of diffusers, each class at its smallest: what encodes, and what decodes.

    name: (class, arguments, what is encoded, its latents)

Latents are the modes of the distributions; what a class draws in `encode` or `decode` is not asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
PICTURE: Shape = (1, 3, 32, 32)
CLIP: Shape = (1, 3, 5, 32, 32)
SOUND: Shape = (1, 1, 1024)

_NARROW = {"norm_num_groups": 4, "block_out_channels": (8, 16), "layers_per_block": 1, "latent_channels": 4}
_TWO_D = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, **_NARROW}
_KL_DOWN = {"down_block_types": ("DownEncoderBlock2D",) * 2}
_WAN = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True],
    "attn_scales": [],
}
_MEAN = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
_HUNYUAN = {
    "latent_channels": 4, "block_out_channels": (32, 64), "layers_per_block": 1, "spatial_compression_ratio": 2,
}  # fmt: skip


def _blocks(family: str, down: str = "DownBlock3D", up: str = "UpBlock3D", n: int = 2) -> dict[str, Any]:
    return {"down_block_types": (f"{family}{down}",) * n, "up_block_types": (f"{family}{up}",) * n}


AUTOENCODERS: dict[str, tuple[str, dict[str, Any], Shape, Shape]] = {
    "KL": ("AutoencoderKL", _TWO_D, PICTURE, (1, 4, 16, 16)),
    "AsymmetricKL": (
        "AsymmetricAutoencoderKL",
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
            "down_block_out_channels": (8, 16), "up_block_out_channels": (8, 16), "norm_num_groups": 4,
        },
        PICTURE,
        (1, 4, 16, 16),
    ),
    "KLTemporalDecoder": (
        "AutoencoderKLTemporalDecoder",
        {**_KL_DOWN, "block_out_channels": (32, 64), "latent_channels": 4},
        (2, 3, 32, 32),
        (2, 4, 16, 16),
    ),
    "KLFlux2": ("AutoencoderKLFlux2", {**_TWO_D, "sample_size": 32}, PICTURE, (1, 4, 16, 16)),
    "VQ": ("VQModel", {**_TWO_D, "num_vq_embeddings": 16}, PICTURE, (1, 4, 16, 16)),
    "DC": (
        "AutoencoderDC",
        {
            "latent_channels": 4, "attention_head_dim": 2,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
            "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,)),
            "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
            "downsample_block_type": "conv", "upsample_block_type": "interpolate", "decoder_norm_types": "rms_norm",
        },
        PICTURE,
        (1, 4, 16, 16),
    ),
    "KLHunyuanImage": (
        "AutoencoderKLHunyuanImage",
        {**_HUNYUAN, "in_channels": 3, "out_channels": 3, "sample_size": 32, "latent_channels": 8},
        PICTURE,
        (1, 8, 16, 16),
    ),
    "KLKVAE": (
        "AutoencoderKLKVAE",
        {"channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1, "z_channels": 4, "ch_mult": (1, 2)},
        PICTURE,
        (1, 4, 16, 16),
    ),
    "KLCogVideoX": (
        "AutoencoderKLCogVideoX", {**_blocks("CogVideoX"), **_NARROW, "temporal_compression_ratio": 2}, CLIP, (1, 4, 3, 16, 16)
    ),
    "KLAllegro": (
        "AutoencoderKLAllegro",
        {
            **_blocks("Allegro"), **_NARROW, "temporal_downsample_blocks": (True, False),
            "temporal_upsample_blocks": (False, True), "temporal_compression_ratio": 2,
        },
        (1, 3, 4, 32, 32),
        (1, 4, 2, 16, 16),
    ),
    "KLCosmos": (
        "AutoencoderKLCosmos",
        {
            "latent_channels": 4, "encoder_block_out_channels": (8, 8, 8, 8), "decode_block_out_channels": (8, 8, 8, 8),
            "attention_resolutions": (8,), "resolution": 64, "num_layers": 1, "patch_size": 4,
            "spatial_compression_ratio": 4, "temporal_compression_ratio": 4,
        },
        (1, 3, 9, 32, 32),
        (1, 4, 3, 8, 8),
    ),
    "KLHunyuanVideo": (
        "AutoencoderKLHunyuanVideo",
        {
            **_blocks("HunyuanVideo", n=4), **_NARROW, "block_out_channels": (8,) * 4, "mid_block_add_attention": True,
        },
        CLIP,
        (1, 4, 2, 4, 4),
    ),
    "KLHunyuanVideo15": (
        "AutoencoderKLHunyuanVideo15",
        {
            "latent_channels": 8, "block_out_channels": (32, 64), "layers_per_block": 1, "spatial_compression_ratio": 2,
            "temporal_compression_ratio": 2,
        },
        CLIP,
        (1, 8, 3, 16, 16),
    ),
    "KLHunyuanImageRefiner": (
        "AutoencoderKLHunyuanImageRefiner",
        {
            "latent_channels": 8, "block_out_channels": (32, 64), "layers_per_block": 1, "spatial_compression_ratio": 2,
            "temporal_compression_ratio": 2,
        },
        CLIP,
        (1, 8, 3, 16, 16),
    ),
    "KLKVAEVideo": (
        "AutoencoderKLKVAEVideo",
        {"ch": 32, "ch_mult": (1, 2), "num_res_blocks": 1, "z_channels": 4, "temporal_compress_times": 2},
        CLIP,
        (1, 4, 3, 16, 16),
    ),
    "KLLTXVideo": (
        "AutoencoderKLLTXVideo",
        {
            "latent_channels": 8, "block_out_channels": (8, 16), "decoder_block_out_channels": (8, 16), "patch_size": 2,
            "down_block_types": ("LTXVideoDownBlock3D",) * 2, "layers_per_block": (1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1), "spatio_temporal_scaling": (True, False),
            "decoder_spatio_temporal_scaling": (True, False), "decoder_inject_noise": (False,) * 3,
            "downsample_type": ("conv",) * 2, "upsample_residual": (False,) * 2, "upsample_factor": (1, 1),
        },
        CLIP,
        (1, 8, 3, 8, 8),
    ),
    "KLLTX2Video": (
        "AutoencoderKLLTX2Video",
        {
            "latent_channels": 8, "block_out_channels": (8,) * 4, "decoder_block_out_channels": (8, 16, 32),
            "down_block_types": ("LTX2VideoDownBlock3D",) * 4, "layers_per_block": (1,) * 5,
            "decoder_layers_per_block": (1,) * 4, "patch_size": 1,
        },
        (1, 3, 9, 32, 32),
        (1, 8, 2, 4, 4),
    ),
    "KLMagvit": (
        "AutoencoderKLMagvit",
        {
            **_NARROW, "down_block_types": ["SpatialDownBlock3D", "SpatialTemporalDownBlock3D"],
            "up_block_types": ["SpatialUpBlock3D", "SpatialTemporalUpBlock3D"],
        },
        CLIP,
        (1, 4, 3, 8, 8),
    ),
    "KLMochi": (
        "AutoencoderKLMochi",
        {
            "latent_channels": 4, "encoder_block_out_channels": (32, 64), "decoder_block_out_channels": (32, 64),
            "layers_per_block": (1, 1, 1), "temporal_expansions": (2,), "spatial_expansions": (2,),
            "add_attention_block": (False,) * 3, "latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4,
        },
        (1, 3, 4, 16, 16),
        (1, 4, 2, 8, 8),
    ),
    "KLWan": ("AutoencoderKLWan", {**_WAN, **_MEAN}, CLIP, (1, 4, 3, 8, 8)),
    "KLQwenImage": ("AutoencoderKLQwenImage", {**_WAN, **_MEAN}, (1, 3, 1, 32, 32), (1, 4, 1, 8, 8)),
    "VidTok": (
        "AutoencoderVidTok",
        {"ch": 32, "ch_mult": [1, 2], "z_channels": 4, "num_res_blocks": 1, "spatial_ds": [0], "spatial_us": [1],
         "tempo_ds": [0], "tempo_us": [1]},
        CLIP,
        (1, 4, 3, 16, 16),
    ),
    "Tiny": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        PICTURE,
        (1, 4, 16, 16),
    ),
    "Oobleck": (
        "AutoencoderOobleck",
        {
            "encoder_hidden_size": 8, "decoder_channels": 8, "decoder_input_channels": 4, "audio_channels": 1,
            "downsampling_ratios": [2, 4], "channel_multiples": [1, 2],
        },
        SOUND,
        (1, 4, 128),
    ),
}  # fmt: skip


class Encoder(torch.nn.Module):
    """From what is encoded to the mode of its latents."""

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.autoencoder.encode(x)
        for name in ("latents", "latent"):
            if hasattr(encoded, name):
                return getattr(encoded, name)
        return encoded.latent_dist.mode()


class Decoder(torch.nn.Module):
    """From latents to what they stand for."""

    def __init__(self, autoencoder: Any, **settings: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        self.settings = settings

    def forward(self, z: Tensor) -> Tensor:
        decoded = self.autoencoder.decode(z, **self.settings)
        return decoded if isinstance(decoded, Tensor) else decoded.sample


SETTINGS: dict[str, dict[str, Any]] = {"KLTemporalDecoder": {"num_frames": 2}}
"""What `decode` must be told besides."""


PARTS_ONLY = ("KLAllegro",)
"""Those that encode and decode by overlapping tiles only: their `encoder` and `decoder`."""


def encoder(name: str) -> torch.nn.Module:
    return _made(name).encoder if name in PARTS_ONLY else Encoder(_made(name))


def decoder(name: str) -> torch.nn.Module:
    return _made(name).decoder if name in PARTS_ONLY else Decoder(_made(name), **SETTINGS.get(name, {}))


def _made(name: str) -> Any:
    import diffusers

    kind, settings, *_ = AUTOENCODERS[name]
    made = getattr(diffusers, kind)(**settings)
    for module in made.modules():
        if hasattr(module, "weight_g"):  # torch's old weight norm: what it computed when it was made cannot be copied
            module.weight = module.weight.detach()
    return made
